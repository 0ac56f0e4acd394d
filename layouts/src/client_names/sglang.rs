//! Component names of SGLang's Mooncake backend (SGLang 0.5.23,
//! `mem_cache/storage/mooncake_store/`): `[{config_prefix}_]{page_hash}_{ranks}_{part}`.
//!
//! A text alone is ambiguous: `_1_k` is tensor rank 1 of a sharded model or pipeline stage 1 of a
//! rank-replicated one, and a rank comes without its size. [`SglangConfig`] has the missing facts.

mod config;
mod heads;
mod model;
mod ranks;
mod table;

use std::fmt::Write;

use crate::client_names::{ContextError, NoClientName, OPAQUE_POOL};
use crate::ids::{NamespaceId, PrefixHash};
use crate::key::{ObjectKey, Role};

use table::Part;

pub use config::{HeadLayers, SglangBackend, SglangConfig};

/// The component of the direct linker's objects: all buffers of a pool's page, packed.
pub const PACKED: &str = "packed";

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
        (self.format_name(&key)? == text).then_some(key)
    }

    /// The name of a key's object.
    ///
    /// # Errors
    /// [`NoClientName`] if this server has no such pool, component or shard.
    pub fn print(&self, key: &ObjectKey) -> Result<String, NoClientName> {
        let text =
            self.format_name(key).filter(|text| self.read(key.namespace(), text) == Some(*key));
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
        let part = match self.config.backend {
            SglangBackend::HostPools => self.config.parse_part(rest),
            SglangBackend::DirectLinker => self.config.parse_linker_part(rest),
        }?;
        ObjectKey::new(namespace, hash, part.role, part.pool, part.component, part.shard).ok()
    }

    /// The text of a key, `None` if it has none. The caller must check that the text parses to the
    /// same key.
    fn format_name(&self, key: &ObjectKey) -> Option<String> {
        let mut text = String::with_capacity(self.head.len() + 96);
        // Writing to a String cannot fail.
        let _ = write!(text, "{}{}_", self.head, key.hash());
        let (pool, component) = (key.pool(), key.component());
        let part = Part { role: key.role(), pool, component, shard: key.shard() };
        match self.config.backend {
            SglangBackend::HostPools => self.config.format_part(&mut text, part)?,
            SglangBackend::DirectLinker => self.config.format_linker_part(&mut text, part)?,
        }
        Some(text)
    }
}

impl SglangConfig {
    fn parse_part<'a>(&self, text: &'a str) -> Option<Part<'a>> {
        let replicated = self.parse_replicated(text).and_then(|(shard, tail)| {
            let row = table::by_tail(self, tail, false)?;
            Some(row.part(tail, shard))
        });
        replicated.or_else(|| {
            let (rank, pp, tail) = self.parse_sharded(text)?;
            let row = table::by_tail(self, tail, true)?;
            let shard = match self.tp_lcm_size.filter(|_| row.heads) {
                Some(lcm) => self.heads(row.role, row.pool, rank, pp, lcm),
                None => self.sharded(rank, pp),
            };
            Some(row.part(tail, shard?))
        })
    }

    fn format_part(&self, text: &mut String, part: Part<'_>) -> Option<()> {
        let row = table::by_part(self, part)?;
        if row.heads && self.tp_lcm_size.is_some() {
            self.format_heads(text, part.role, part.pool, part.shard)
        } else if row.sharded {
            self.format_sharded(text, part.shard)
        } else {
            self.format_replicated(text, part.shard)
        }?;
        text.push('_');
        text.push_str(if row.tail.is_empty() { part.component } else { row.tail });
        Some(())
    }

    fn parse_linker_part<'a>(&self, text: &'a str) -> Option<Part<'a>> {
        let (shard, name) = self.parse_linker_ranks(text)?;
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

    fn format_linker_part(&self, text: &mut String, part: Part<'_>) -> Option<()> {
        self.format_linker_ranks(text, part.shard)?;
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
