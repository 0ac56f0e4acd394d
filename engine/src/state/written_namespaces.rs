//! Tracks the namespaces of which the log may hold records. Clearing any other namespace needs no
//! row in the manifest.

use std::collections::BTreeSet;

use pagelith_layouts::ids::NamespaceId;

/// Most namespaces remembered; beyond that, any namespace may have been written.
const NAMESPACES_MAX: usize = 65_536;

/// Namespaces of which records were written.
#[derive(Debug, Default)]
pub(crate) struct WrittenNamespaces {
    known: BTreeSet<NamespaceId>,
    /// Whether other namespaces may have been written too.
    others: bool,
}

impl WrittenNamespaces {
    /// For a new log, or a recovered one: a checkpoint lists objects without their namespaces.
    pub fn of_log(is_new: bool) -> WrittenNamespaces {
        WrittenNamespaces { known: BTreeSet::new(), others: !is_new }
    }

    /// A record of this namespace is about to be written.
    pub fn add(&mut self, namespace: NamespaceId) {
        if self.known.len() < NAMESPACES_MAX {
            self.known.insert(namespace);
        } else {
            self.others |= !self.known.contains(&namespace);
        }
    }

    /// Whether records of the namespace were certainly written, and whether any may have been.
    pub fn has(&self, namespace: NamespaceId) -> (bool, bool) {
        let known = self.known.contains(&namespace);
        (known, known || self.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_may_be_written_if_known_or_log_recovered_or_limit_exceeded() {
        let id = |n: u32| NamespaceId(u128::from(n).to_le_bytes());
        let mut written = WrittenNamespaces::of_log(true);
        assert_eq!(written.has(id(1)), (false, false));
        (0..NAMESPACES_MAX as u32).for_each(|n| written.add(id(n)));
        written.add(id(7));
        assert_eq!((written.has(id(1)), written.has(id(70_000))), ((true, true), (false, false)));
        written.add(id(70_000));
        assert_eq!(
            (written.has(id(70_000)), written.has(id(80_000))),
            ((false, true), (false, true))
        );
        assert_eq!(WrittenNamespaces::of_log(false).has(id(1)), (false, true));
    }
}
