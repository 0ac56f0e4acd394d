//! The pools of a page: components, their sizes and shards, and the keys of their objects.

use super::buffer::{Buffer, Part};
use super::error::GeometryError;
use super::model::HitPolicy;
use crate::ids::{NamespaceId, PrefixHash};
use crate::key::{ObjectKey, Role};
use crate::shard::Shard;

/// One separately stored part of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// Its name in a key.
    pub name: String,
    /// Slice of the component on this rank.
    pub shard: Shard,
    /// Bytes per page, at least 1.
    pub bytes: u64,
    pub(super) parts: Vec<Part>,
}

/// One kind of state of a page on one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Target or draft model.
    pub role: Role,
    /// Its name in a key. A draft's `kv`, `indexer` and `swa` differ from the target's only in
    /// `role`.
    pub name: String,
    /// Pages of a prefix that must be present.
    pub hit: HitPolicy,
    /// Whether this rank stores the pool. Of ranks with equal bytes, one does.
    pub writes: bool,
    /// Slots per page in the client's indices: its tokens, or 1 for a pool of checkpoints.
    pub slots_per_page: u64,
    /// Components, in the order of the client's pointer lists; empty for a logical anchor.
    pub components: Vec<Component>,
    /// The caller's buffers.
    pub buffers: Vec<Buffer>,
}

impl Pool {
    /// The client's name of the pool: `draft` for the draft's `kv`, prefix `draft_` for other pools
    /// of the draft.
    pub fn client_name(&self) -> String {
        match (self.role, self.name.as_str()) {
            (Role::Target, name) => name.into(),
            (Role::Draft, "kv") => "draft".into(),
            (Role::Draft, name) => format!("draft_{name}"),
        }
    }

    /// Bytes of all components of a page.
    pub fn page_bytes(&self) -> u64 {
        self.components.iter().map(|c| c.bytes).sum()
    }

    /// Append the keys of a page's objects to `out`, in the order of `components`.
    pub fn keys(
        &self,
        namespace: NamespaceId,
        hash: PrefixHash,
        out: &mut Vec<ObjectKey>,
    ) -> Result<(), GeometryError> {
        for component in &self.components {
            out.push(ObjectKey::new(
                namespace,
                hash,
                self.role,
                &self.name,
                &component.name,
                component.shard,
            )?);
        }
        Ok(())
    }

    /// Check that the lengths of a caller's pointer list add up to the bytes of a component.
    pub fn check_lengths(
        &self,
        component: usize,
        lengths: impl IntoIterator<Item = u64>,
    ) -> Result<(), GeometryError> {
        let component = self.component(component)?;
        let given = lengths.into_iter().fold(0, u64::saturating_add);
        if given == component.bytes {
            return Ok(());
        }
        Err(GeometryError::WrongLength {
            pool: self.client_name(),
            component: component.name.clone(),
            expected: component.bytes,
            given,
        })
    }

    pub(super) fn component(&self, component: usize) -> Result<&Component, GeometryError> {
        self.components.get(component).ok_or_else(|| GeometryError::ComponentOutOfRange {
            pool: self.client_name(),
            component,
            components: self.components.len(),
        })
    }
}
