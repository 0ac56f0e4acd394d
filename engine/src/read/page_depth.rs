//! Depth of each object of a batch within its prompt.

use pagelith_layouts::ids::{NamespaceId, PrefixHash};
use pagelith_layouts::key::ObjectKey;

/// Counts the pages between the first key's page and each further key's page. Adjacent keys of one
/// page count once.
#[derive(Default)]
pub(crate) struct PageDepths {
    previous: Option<(NamespaceId, PrefixHash)>,
    depth: u32,
}

impl PageDepths {
    /// The depth of the next key.
    pub fn depth_of(&mut self, key: &ObjectKey) -> u32 {
        let page = Some((key.namespace(), key.hash()));
        self.depth =
            self.depth.saturating_add(u32::from(self.previous.is_some() && self.previous != page));
        self.previous = page;
        self.depth
    }
}
