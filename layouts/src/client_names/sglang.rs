//! Component names of SGLang's Mooncake backend (SGLang 0.5.23,
//! `mem_cache/storage/mooncake_store/`): `[{config_prefix}_]{page_hash}_{ranks}_{part}`.
//!
//! A text alone is ambiguous: `_1_k` is tensor rank 1 of a sharded model or pipeline stage 1 of a
//! rank-replicated one, and a rank comes without its size. [`SglangConfig`] has the missing facts.

mod heads;
mod model;
mod ranks;
mod table;

use std::fmt::Write;

use crate::client_names::{ContextError, NoClientName, OPAQUE_POOL};
use crate::ids::{NamespaceId, PrefixHash};
use crate::key::{ObjectKey, Role};
use crate::shard::Shard;

pub use heads::HeadLayers;

/// The component of the direct linker's objects: all buffers of a pool's page, packed.
pub const PACKED: &str = "packed";

/// The part of SGLang that prints the names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SglangBackend {
    /// The hierarchical cache: host pools, one object per component.
    #[default]
    HostPools,
    /// The direct linker: one object per pool, with any pool name.
    DirectLinker,
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
    pub road: SglangBackend,
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
            road: SglangBackend::HostPools,
        }
    }
}

impl SglangConfig {
    fn check(&self) -> Result<(), ContextError> {
        ContextError::unless_sizes(&[
            ("tp_size", self.tp_size),
            ("pp_size", self.pp_size),
            ("cp_size", self.cp_size),
            ("dcp_size", self.dcp_size),
        ])?;
        let unless = ContextError::unless;
        let (dcp, linker) = (self.dcp_size, self.road == SglangBackend::DirectLinker);
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
    fn prefix(&self) -> Option<String> {
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

/// The fields in a text after its page hash.
#[derive(Clone, Copy)]
struct Part<'a> {
    role: Role,
    pool: &'a str,
    component: &'a str,
    shard: Shard,
}

/// Reads and prints the names of one server's configuration.
#[derive(Clone, Debug)]
pub struct SglangNames {
    config: SglangConfig,
    /// The text before the page hash, its underscore included; may be empty.
    head: String,
}

impl SglangNames {
    /// The names under `config`.
    ///
    /// # Errors
    /// [`ContextError`] names the first field that contradicts the others.
    pub fn new(config: SglangConfig) -> Result<SglangNames, ContextError> {
        config.check()?;
        let head = config.prefix().map_or_else(String::new, |prefix| prefix + "_");
        Ok(SglangNames { config, head })
    }

    /// Parse a component name; `None` if this server would not print it.
    pub fn parse(&self, namespace: NamespaceId, text: &str) -> Option<ObjectKey> {
        let key = self.read(namespace, text)?;
        (self.spell(&key)? == text).then_some(key)
    }

    /// The name of a key's object.
    ///
    /// # Errors
    /// [`NoClientName`] if this server has no such pool, component or shard.
    pub fn print(&self, key: &ObjectKey) -> Result<String, NoClientName> {
        let text = self.spell(key).filter(|text| self.read(key.namespace(), text) == Some(*key));
        text.ok_or_else(|| {
            NoClientName::of(key, "this server has no such pool, component or shard")
        })
    }

    /// The group id that the backend uses for all components of a page (`enable_group_semantics`).
    pub fn group_id(&self, page: PrefixHash) -> String {
        format!("sglang-hicache:{}{page}", self.head)
    }

    /// See [`ClientNames::namespace_facts`](crate::client_names::ClientNames::namespace_facts).
    pub fn namespace_facts(&self) -> Vec<(String, String)> {
        let config = &self.config;
        let kind = |replicated| if replicated { "replicated" } else { "sharded" }.to_owned();
        let mut facts = vec![
            ("client".to_owned(), "sglang-mooncake".to_owned()),
            ("client.kv".to_owned(), kind(config.rank_replicated)),
            ("client.draft".to_owned(), kind(config.draft_rank_replicated)),
        ];
        if let Some(prefix) = config.prefix() {
            facts.push(("client.prefix".to_owned(), prefix));
        }
        facts
    }

    fn read(&self, namespace: NamespaceId, text: &str) -> Option<ObjectKey> {
        let rest = text.strip_prefix(&*self.head)?;
        let hash = PrefixHash::from_hex(rest.get(..64)?)?;
        let rest = rest.get(64..)?.strip_prefix('_')?;
        let part = match self.config.road {
            SglangBackend::HostPools => self.config.read_part(rest),
            SglangBackend::DirectLinker => self.config.read_linker_part(rest),
        }?;
        ObjectKey::new(namespace, hash, part.role, part.pool, part.component, part.shard).ok()
    }

    /// The text of a key, `None` if it has none. The caller must check that the text parses to the
    /// same key.
    fn spell(&self, key: &ObjectKey) -> Option<String> {
        let mut text = String::with_capacity(self.head.len() + 96);
        // Writing to a String cannot fail.
        let _ = write!(text, "{}{}_", self.head, key.hash());
        let (pool, component) = (key.pool(), key.component());
        let part = Part { role: key.role(), pool, component, shard: key.shard() };
        match self.config.road {
            SglangBackend::HostPools => self.config.spell_part(&mut text, part)?,
            SglangBackend::DirectLinker => self.config.spell_linker_part(&mut text, part)?,
        }
        Some(text)
    }
}

impl SglangConfig {
    fn read_part<'a>(&self, text: &'a str) -> Option<Part<'a>> {
        let replicated = self.read_replicated(text).and_then(|(shard, tail)| {
            let row = table::by_tail(self, tail, false)?;
            Some(row.part(tail, shard))
        });
        replicated.or_else(|| {
            let (rank, pp, tail) = self.read_sharded(text)?;
            let row = table::by_tail(self, tail, true)?;
            let shard = match self.tp_lcm_size.filter(|_| row.heads) {
                Some(lcm) => self.heads(row.role, row.pool, rank, pp, lcm),
                None => self.sharded(rank, pp),
            };
            Some(row.part(tail, shard?))
        })
    }

    fn spell_part(&self, text: &mut String, part: Part<'_>) -> Option<()> {
        let row = table::by_part(self, part)?;
        if row.heads && self.tp_lcm_size.is_some() {
            self.spell_heads(text, part.role, part.pool, part.shard)
        } else if row.sharded {
            self.spell_sharded(text, part.shard)
        } else {
            self.spell_replicated(text, part.shard)
        }?;
        text.push('_');
        text.push_str(if row.tail.is_empty() { part.component } else { row.tail });
        Some(())
    }

    fn read_linker_part<'a>(&self, text: &'a str) -> Option<Part<'a>> {
        let (shard, name) = self.read_linker_ranks(text)?;
        let (role, pool) = match name {
            "k" => (Role::Target, "kv"),
            "draft" => (Role::Draft, "kv"),
            "draft_indexer" => (Role::Draft, "indexer"),
            "draft_swa" => (Role::Draft, "swa"),
            // Any pool name is valid except that of opaque keys.
            OPAQUE_POOL => return None,
            pool => (Role::Target, pool),
        };
        Some(Part { role, pool, component: PACKED, shard })
    }

    fn spell_linker_part(&self, text: &mut String, part: Part<'_>) -> Option<()> {
        self.spell_linker_ranks(text, part.shard)?;
        text.push('_');
        text.push_str(match (part.role, part.pool) {
            (Role::Target, "kv") => "k",
            (Role::Target, pool) => pool,
            (Role::Draft, "kv") => "draft",
            (Role::Draft, "indexer") => "draft_indexer",
            (Role::Draft, "swa") => "draft_swa",
            (Role::Draft, _) => return None,
        });
        Some(())
    }
}
