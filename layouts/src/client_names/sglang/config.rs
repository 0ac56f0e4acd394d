//! The configuration of an SGLang server, as far as its names depend on it.

use crate::client_names::ContextError;
use crate::key::Role;

/// The part of SGLang that prints the names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SglangBackend {
    /// The hierarchical cache: host pools, one object per component.
    #[default]
    HostPools,
    /// The direct linker: one object per pool, with any pool name.
    DirectLinker,
}

/// The layers of a pool with heads on one pipeline stage. A name contains the stage but not the
/// layers; the key of a head group contains the layers but not the stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadLayers {
    /// Target or draft model.
    pub role: Role,
    /// The pool's name in a key: `kv` or `swa`.
    pub pool: String,
    /// The stage.
    pub pp_rank: u16,
    /// First layer.
    pub from: u16,
    /// One past the last layer; above `from`.
    pub to: u16,
}

impl HeadLayers {
    pub(super) fn is_of(&self, role: Role, pool: &str) -> bool {
        self.role == role && self.pool == pool
    }
}

/// The facts that a server's names depend on but do not contain: the fields of its
/// `HiCacheStorageConfig`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SglangConfig {
    /// `extra_backend_tag`, if given; an empty one differs from none, since its underscore stays in
    /// the name.
    pub backend_tag: Option<String>,
    /// Served model with its storage format tag; empty for none.
    pub model_name: String,
    /// Attention tensor-parallel size.
    pub tp_size: u16,
    /// Pipeline stages.
    pub pp_size: u16,
    /// Attention context-parallel size.
    pub cp_size: u16,
    /// This reader's attention context-parallel rank. Names contain this rank only with decode
    /// context parallelism or the direct linker; all other names are taken to belong to this rank.
    pub cp_rank: u16,
    /// Decode context-parallel size; divides `tp_size`; above 1 only if rank-replicated.
    pub dcp_size: u16,
    /// Tokens of a logical page: set exactly if `dcp_size` is above 1, and a multiple of it.
    pub logical_page_tokens: Option<u32>,
    /// `tp_lcm_size` of a server with layout `page_head`: the number of head groups in its names, a
    /// multiple of `tp_size`. A server with `tp_size == tp_lcm_size` splits no heads and prints the
    /// same names with and without this setting, but shares objects with servers of other sizes
    /// only with it.
    pub tp_lcm_size: Option<u16>,
    /// With `tp_lcm_size`: the layers of `kv` on every stage, and those of each other pool that has
    /// heads.
    pub head_layers: Vec<HeadLayers>,
    /// `is_mla_model`: every tensor rank holds the same KV (MLA, DeepSeek V4).
    pub rank_replicated: bool,
    /// Whether every tensor rank holds the same KV of the draft model; the draft's own attention
    /// decides.
    pub draft_rank_replicated: bool,
    /// The part of SGLang that prints the names.
    pub backend: SglangBackend,
}

impl Default for SglangConfig {
    /// One rank of a sharded model without a prefix.
    fn default() -> SglangConfig {
        SglangConfig {
            backend_tag: None,
            model_name: String::new(),
            tp_size: 1,
            pp_size: 1,
            cp_size: 1,
            cp_rank: 0,
            dcp_size: 1,
            logical_page_tokens: None,
            tp_lcm_size: None,
            head_layers: Vec::new(),
            rank_replicated: false,
            draft_rank_replicated: false,
            backend: SglangBackend::HostPools,
        }
    }
}

impl SglangConfig {
    pub(super) fn check(&self) -> Result<(), ContextError> {
        ContextError::ensure_sizes(&[
            ("tp_size", self.tp_size),
            ("pp_size", self.pp_size),
            ("cp_size", self.cp_size),
            ("dcp_size", self.dcp_size),
        ])?;
        let unless = ContextError::unless;
        let (dcp, linker) = (self.dcp_size, self.backend == SglangBackend::DirectLinker);
        self.check_heads()?;
        unless(self.cp_rank < self.cp_size, "cp_rank", &self.cp_rank, "below cp_size")?;
        unless(self.tp_size.is_multiple_of(dcp), "dcp_size", &dcp, "a divisor of tp_size")?;
        unless(dcp == 1 || self.rank_replicated, "dcp_size", &dcp, "1 unless rank_replicated")?;
        unless(dcp == 1 || !linker, "dcp_size", &dcp, "1 with the direct linker")?;
        let page = self.logical_page_tokens;
        let page_ok = match page {
            None => dcp == 1,
            Some(tokens) => dcp > 1 && tokens > 0 && tokens.is_multiple_of(u32::from(dcp)),
        };
        unless(
            page_ok,
            "logical_page_tokens",
            &page,
            "a multiple of dcp_size if that is above 1, else none",
        )
    }

    /// The text before every page hash without its trailing underscore, `None` if it is empty.
    pub(super) fn prefix(&self) -> Option<String> {
        let mut parts: Vec<String> = self.backend_tag.iter().cloned().collect();
        if !self.model_name.is_empty() {
            parts.push(self.model_name.replace('/', "-"));
        }
        if let Some(page) = self.logical_page_tokens {
            let SglangConfig { tp_size: tp, pp_size: pp, cp_size: cp, dcp_size: dcp, .. } = self;
            parts.push(format!("tp{tp}_dcp{dcp}_page{page}_pp{pp}_cp{cp}"));
        }
        (!parts.is_empty()).then(|| parts.join("_"))
    }
}
