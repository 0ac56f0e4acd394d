//! How deep in its prompt each object of a batch lies.

use pagelith_layouts::key::ObjectKey;

/// Counts how many pages each key's page lies behind the first: neighbours of one page count once.
#[derive(Default)]
pub(crate) struct PageSteps {
    previous: Option<ObjectKey>,
    depth: u32,
}

impl PageSteps {
    /// The next key's.
    pub fn step(&mut self, key: &ObjectKey) -> u32 {
        self.depth = self.depth.saturating_add(u32::from(self.previous.is_some_and(|p| !p.same_page(key))));
        self.previous = Some(*key);
        self.depth
    }
}
