//! How deep in its prompt each object of a batch lies.

use pagelith_layouts::ids::{NamespaceId, PrefixHash};
use pagelith_layouts::key::ObjectKey;

/// Counts how many pages each key's page lies behind the first: neighbours of one page count once.
#[derive(Default)]
pub(crate) struct PageSteps {
    previous: Option<(NamespaceId, PrefixHash)>,
    depth: u32,
}

impl PageSteps {
    /// The next key's.
    pub fn step(&mut self, key: &ObjectKey) -> u32 {
        let page = Some((key.namespace(), key.hash()));
        self.depth = self.depth.saturating_add(u32::from(self.previous.is_some() && self.previous != page));
        self.previous = page;
        self.depth
    }
}
