//! Which namespaces the log may hold anything of: to clear one that it holds nothing of needs no row in the manifest.

use std::collections::BTreeSet;

use pagelith_layouts::ids::NamespaceId;

use crate::core::Core;

/// Most namespaces that are remembered; with more any may have been written.
const NAMESPACES_MAX: usize = 65_536;

/// Namespaces that something was written of.
#[derive(Debug, Default)]
pub(crate) struct WrittenNamespaces {
    known: BTreeSet<NamespaceId>,
    /// It may be others too.
    others: bool,
}

impl WrittenNamespaces {
    /// Of a log that was found: a checkpoint says what lies in it without saying of which namespace.
    pub fn of_log(is_new: bool) -> WrittenNamespaces {
        WrittenNamespaces { known: BTreeSet::new(), others: !is_new }
    }

    /// Something of this one is about to be written.
    pub fn add(&mut self, namespace: NamespaceId) {
        if self.known.len() < NAMESPACES_MAX {
            self.known.insert(namespace);
        } else {
            self.others |= !self.known.contains(&namespace);
        }
    }

    /// Whether it is known that something of it was written, and whether something may have been.
    pub fn has(&self, namespace: NamespaceId) -> (bool, bool) {
        let known = self.known.contains(&namespace);
        (known, known || self.others)
    }
}

impl Core {
    /// Whether a namespace holds anything here, and whether it may: of what lies on SSD that is not always known.
    pub fn holds_of(&self, namespace: NamespaceId) -> (bool, bool) {
        let (written, may) = self.ssd.as_ref().map_or((false, false), |ssd| ssd.written.has(namespace));
        let in_memory = || self.frames.iter().any(|(_, f)| !f.dead && f.data.namespace == namespace);
        // What is being made visible now is told by the raised generation alone that it was cleared.
        let holds = written || self.waiting.commits_in(namespace) || in_memory();
        (holds, holds || may)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_was_written_if_it_is_known_or_the_log_was_found_or_there_are_too_many() {
        let id = |n: u32| NamespaceId(u128::from(n).to_le_bytes());
        let mut written = WrittenNamespaces::of_log(true);
        assert_eq!(written.has(id(1)), (false, false));
        (0..NAMESPACES_MAX as u32).for_each(|n| written.add(id(n)));
        written.add(id(7));
        assert_eq!((written.has(id(1)), written.has(id(70_000))), ((true, true), (false, false)));
        written.add(id(70_000));
        assert_eq!((written.has(id(70_000)), written.has(id(80_000))), ((false, true), (false, true)));
        assert_eq!(WrittenNamespaces::of_log(false).has(id(1)), (false, true));
    }
}
