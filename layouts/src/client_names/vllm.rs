//! Key strings of vLLM's Mooncake connector (vLLM 0.33.0, `kv_connector/v1/mooncake/store/data.py`,
//! `PoolKey`):
//! `[{cache_prefix}@]{model}{store_namespace}@tp_rank:{t}@pcp{p}@dcp{d}@pp_rank:{q}@group:{g}@{block hash}`.
//!
//! A KV-cache group maps to the pool `group_{g}`, and each of its blocks is one object. A block
//! hash of 32 bytes is the key's prefix hash. A hash of another length (xxhash has 16 bytes) is
//! hashed to 32 bytes and gets the component [`MAPPED`]; this mapping cannot be reversed.

use sha2::{Digest, Sha256};

use crate::client_names::{ContextError, DATA, NoClientName, take_number};
use crate::ids::{NamespaceId, PrefixHash};
use crate::key::{ObjectKey, Role};
use crate::shard::{Shard, Slice};

/// The component of objects whose block hash is not 32 bytes long: their prefix hash is a hash of
/// the block hash.
pub const MAPPED: &str = "data-mapped";

/// The form of the stored values: vLLM's `store_namespace`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StoreFormat {
    /// The values of one rank; `store_tp_size` is not configured.
    #[default]
    RankLocal,
    /// Shared by servers of different tensor-parallel sizes: `tp_shared_lbhnc`, heads before
    /// tokens.
    SharedLbhnc {
        /// Tensor-parallel size of the stored objects.
        store_tp_size: u16,
    },
    /// As `SharedLbhnc`, with tokens before heads: `tp_shared_lbnhc`.
    SharedLbnhc {
        /// Tensor-parallel size of the stored objects.
        store_tp_size: u16,
    },
    /// One KV head, the same on every tensor rank: `tp_shared_mqa`.
    SharedMqa,
    /// Sharing is configured but not possible: `rank_local_tp{T}_layout_{name}`.
    Fallback {
        /// Name of the KV-cache layout (`LBHNC`).
        layout: String,
    },
}

/// The facts that a server's keys depend on but do not contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VllmConfig {
    /// `cache_prefix` of the connector's extra config; empty for none.
    pub cache_prefix: String,
    /// Model name as served; its last path component is in the keys.
    pub model: String,
    /// Form of the stored values.
    pub store_format: StoreFormat,
    /// Tensor-parallel size.
    pub tp_size: u16,
    /// Pipeline stages.
    pub pp_size: u16,
    /// Prefill context-parallel size.
    pub pcp_size: u16,
    /// Decode context-parallel size.
    pub dcp_size: u16,
    /// For each KV-cache group, in order, the number of tensor ranks that hold the same bytes;
    /// divides `tp_size`. It is `tp_size` for MLA, `tp_size / kv_heads` for GQA with fewer heads
    /// than ranks, else 1.
    pub group_replication: Vec<u16>,
}

impl Default for VllmConfig {
    /// One rank, one group, no prefix.
    fn default() -> VllmConfig {
        VllmConfig {
            cache_prefix: String::new(),
            model: String::new(),
            store_format: StoreFormat::RankLocal,
            tp_size: 1,
            pp_size: 1,
            pcp_size: 1,
            dcp_size: 1,
            group_replication: vec![1],
        }
    }
}

impl VllmConfig {
    fn check(&self) -> Result<(), ContextError> {
        let (tp, pp, pcp, dcp) = (self.tp_size, self.pp_size, self.pcp_size, self.dcp_size);
        let sizes = [("tp_size", tp), ("pp_size", pp), ("pcp_size", pcp), ("dcp_size", dcp)];
        ContextError::ensure_sizes(&sizes)?;
        let unless = ContextError::unless;
        let groups = &self.group_replication;
        let divides = |factor: &u16| *factor > 0 && tp.is_multiple_of(*factor);
        let groups_ok =
            (1..=usize::from(u16::MAX)).contains(&groups.len()) && groups.iter().all(divides);
        unless(
            groups_ok,
            "group_replication",
            groups,
            "one divisor of tp_size a group, 1 to 65535 of them",
        )?;
        let shared = match self.store_format {
            StoreFormat::RankLocal | StoreFormat::Fallback { .. } => return Ok(()),
            StoreFormat::SharedMqa => {
                unless(*groups == [tp], "group_replication", groups, "tp_size for one KV head")?;
                tp
            }
            StoreFormat::SharedLbhnc { store_tp_size }
            | StoreFormat::SharedLbnhc { store_tp_size } => store_tp_size,
        };
        unless(
            shared > 0 && shared.is_multiple_of(tp),
            "store_tp_size",
            &shared,
            "a multiple of tp_size",
        )?;
        let alone = pcp == 1 && dcp == 1 && groups.len() == 1;
        unless(
            alone,
            "store_format",
            &self.store_format,
            "rank-local with context parallelism or several groups",
        )
    }

    /// vLLM's `store_namespace`.
    fn store_namespace(&self) -> String {
        let pp = self.pp_size;
        match &self.store_format {
            StoreFormat::RankLocal => String::new(),
            StoreFormat::SharedLbhnc { store_tp_size } => {
                format!("@store_tp:{store_tp_size}@store_pp:{pp}@store_format:tp_shared_lbhnc")
            }
            StoreFormat::SharedLbnhc { store_tp_size } => {
                format!("@store_tp:{store_tp_size}@store_pp:{pp}@store_format:tp_shared_lbnhc")
            }
            StoreFormat::SharedMqa => format!("@store_pp:{pp}@store_format:tp_shared_mqa"),
            StoreFormat::Fallback { layout } => {
                format!("@store_pp:{pp}@store_format:rank_local_tp{}_layout_{layout}", self.tp_size)
            }
        }
    }

    /// The text before the field of the tensor rank.
    fn head(&self) -> String {
        let prefix = if self.cache_prefix.is_empty() { "" } else { "@" };
        format!("{}{prefix}{}{}", self.cache_prefix, self.model_basename(), self.store_namespace())
    }

    fn model_basename(&self) -> &str {
        self.model.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
    }

    /// Number of different tensor slices of a group.
    fn tp_slices(&self, group: u16) -> Option<u16> {
        let factor = *self.group_replication.get(usize::from(group))?;
        match self.store_format {
            StoreFormat::SharedLbhnc { store_tp_size }
            | StoreFormat::SharedLbnhc { store_tp_size } => Some(store_tp_size),
            StoreFormat::RankLocal | StoreFormat::SharedMqa | StoreFormat::Fallback { .. } => {
                self.tp_size.checked_div(factor)
            }
        }
    }
}

/// Reads and prints the keys of one server's configuration.
#[derive(Clone, Debug)]
pub struct VllmNames {
    config: VllmConfig,
    head: String,
}

impl VllmNames {
    /// The names under `config`.
    ///
    /// # Errors
    /// [`ContextError`] names the first field that contradicts the others.
    pub fn new(config: VllmConfig) -> Result<VllmNames, ContextError> {
        config.check()?;
        let head = config.head();
        Ok(VllmNames { config, head })
    }

    /// Parse a key string; `None` if this server would not print it.
    pub fn parse(&self, namespace: NamespaceId, text: &str) -> Option<ObjectKey> {
        let (tp, rest) = take_number(text.strip_prefix(&*self.head)?.strip_prefix("@tp_rank:")?)?;
        let (pcp, rest) = take_number(rest.strip_prefix("@pcp")?)?;
        let (dcp, rest) = take_number(rest.strip_prefix("@dcp")?)?;
        let (pp, rest) = take_number(rest.strip_prefix("@pp_rank:")?)?;
        let (group, rest) = take_number(rest.strip_prefix("@group:")?)?;
        let block = rest.strip_prefix('@')?;
        let shard = Shard::Rank {
            tp: Slice::new(tp, self.config.tp_slices(group)?)?,
            pp: Slice::new(pp, self.config.pp_size)?,
            cp: Slice::new(pcp, self.config.pcp_size)?,
            dcp: Slice::new(dcp, self.config.dcp_size)?,
        };
        let (hash, component) = match PrefixHash::from_hex(block) {
            Some(hash) => (hash, DATA),
            None => (mapped_hash(block)?, MAPPED),
        };
        ObjectKey::new(namespace, hash, Role::Target, &format!("group_{group}"), component, shard)
            .ok()
    }

    /// The key string of a key's object.
    ///
    /// # Errors
    /// [`NoClientName`] if this server has no such group or shard, or if the block hash was mapped.
    pub fn print(&self, key: &ObjectKey) -> Result<String, NoClientName> {
        if key.component() == MAPPED {
            return Err(NoClientName::of(
                key,
                "the block hash is not 32 bytes long and cannot be restored from its hash",
            ));
        }
        let text =
            self.format_name(key).filter(|text| self.parse(key.namespace(), text) == Some(*key));
        text.ok_or_else(|| NoClientName::of(key, "this server has no such group or shard"))
    }

    /// See [`ClientNames::namespace_facts`](crate::client_names::ClientNames::namespace_facts).
    pub fn namespace_facts(&self) -> Vec<(String, String)> {
        let fact = |name: &str, value: String| (name.to_owned(), value);
        vec![
            fact("client", "vllm-mooncake".to_owned()),
            fact("client.cache_prefix", self.config.cache_prefix.clone()),
            fact("client.model", self.config.model_basename().to_owned()),
            fact("client.store_format", self.config.store_namespace()),
        ]
    }

    fn format_name(&self, key: &ObjectKey) -> Option<String> {
        let group = key.pool().strip_prefix("group_")?;
        let Shard::Rank { tp, pp, cp, dcp } = key.shard() else { return None };
        let (tp, pp, pcp, dcp, hash) = (tp.rank, pp.rank, cp.rank, dcp.rank, key.hash());
        Some(format!(
            "{}@tp_rank:{tp}@pcp{pcp}@dcp{dcp}@pp_rank:{pp}@group:{group}@{hash}",
            self.head
        ))
    }
}

/// The prefix hash of a block hash that is not 32 bytes long: SHA-256 over a domain tag, the length
/// of `hex` and `hex`. `None` if `hex` is not a whole number of bytes in lower-case hexadecimal.
fn mapped_hash(hex: &str) -> Option<PrefixHash> {
    let spelled = hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if hex.is_empty() || !hex.len().is_multiple_of(2) || !spelled {
        return None;
    }
    let mut h = Sha256::new_with_prefix(b"pagelith-vllm-block-hash-v1");
    h.update((hex.len() as u64).to_le_bytes());
    h.update(hex);
    Some(PrefixHash(h.finalize().into()))
}
