//! Which groups of a put go together.

use pagelith_layouts::checksum::BLOCK_BYTES;

use super::{PutOp, State};

/// Bytes that take about as long to be copied as the client to wake up, some 40 us: from so many on, and up to a run.
const NUDGE_BYTES: u64 = 128 << 10;
/// Groups of a run, and bytes of one unless its first group has more. They are looked up in one section, memory is set aside for them
/// in one, and they are stored together.
pub(super) const RUN_GROUPS: usize = 8;
const RUN_BYTES: u64 = 512 << 10;
/// The same of one that is copied out of a client's memory with its word for it: nothing is set aside or asked for before, and the word is
/// asked less often.
const STEADY_GROUPS: usize = 32;
const STEADY_BYTES: u64 = 2 << 20;

impl PutOp {
    /// Whether from group `at` on nothing is left but to copy, for about as long as a wake-up takes.
    pub(super) fn is_soon_over(&self, at: usize) -> bool {
        let first = self.groups[at].objects.start;
        (NUDGE_BYTES..=RUN_BYTES).contains(&self.left(first))
            && self.offered[first..].iter().all(|o| o.shown.is_some())
    }

    /// Bytes of the objects from this one on.
    fn left(&self, first: usize) -> u64 {
        self.offered[first..].iter().map(|o| o.length).sum()
    }

    /// Groups from `at` on that begin together; the end by itself of what a client waits for that `dozes`, so that it is woken before.
    pub(super) fn run(&self, at: usize, dozes: bool) -> Vec<usize> {
        let bytes_of = |at: usize| -> u64 {
            self.offered[self.groups[at].objects.clone()].iter().map(|o| o.length).sum()
        };
        let first = self.groups[at].objects.start;
        let (most, most_bytes) = match &self.offered[first].claim {
            Some(_) if dozes => {
                (STEADY_GROUPS, self.left(first).saturating_sub(RUN_BYTES).clamp(RUN_BYTES, STEADY_BYTES))
            }
            Some(_) => (STEADY_GROUPS, STEADY_BYTES),
            None => (RUN_GROUPS, RUN_BYTES),
        };
        let mut bytes = bytes_of(at);
        let fits = |at: &usize| {
            bytes = bytes.saturating_add(bytes_of(*at));
            matches!(self.groups[*at].state, State::New) && bytes <= most_bytes
        };
        let behind = (at + 1..self.groups.len()).take(most - 1).take_while(fits);
        let mut run = Vec::with_capacity(most.min(self.groups.len() - at));
        run.push(at);
        run.extend(behind);
        run
    }

    /// Whether a group is put out of the client's memory: into the open ones it goes by way of memory that is set aside.
    pub(super) fn is_shown(&self, at: usize) -> bool {
        let is_whole = self.into.is_none() && self.required.is_none();
        // Without checksums there are no blocks of the client's.
        is_whole
            && matches!(self.block_bytes, 0 | BLOCK_BYTES)
            && self.offered[self.groups[at].objects.clone()].iter().all(|o| o.shown.is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pagelith_io::clock::Mono;
    use pagelith_io::shm::SteadyWords;
    use pagelith_layouts::checksum::Checksums;
    use pagelith_layouts::ids::{NamespaceId, PrefixHash};
    use pagelith_layouts::key::{ObjectKey, Role};
    use pagelith_layouts::shard::Shard;
    use pagelith_layouts::wire::request::Verb;

    use super::super::offered::{Memory, Offered};
    use super::super::{Group, Manner};
    use super::*;
    use crate::batch::Options;
    use crate::put::Came;

    /// A put of so many objects of 64 KiB, by the client's word or by checksums.
    fn put(objects: usize, by_word: bool) -> PutOp {
        let key =
            ObjectKey::new(NamespaceId([1; 16]), PrefixHash([2; 32]), Role::Target, "kv", "k", Shard::Whole);
        let (key, claim) = (key.expect("a key"), Arc::new(SteadyWords::within().claim(1)));
        let offered = |_| Offered {
            key,
            length: 64 << 10,
            sums: Checksums::new(),
            shown: None,
            claim: by_word.then(|| claim.clone()),
            memory: Memory::None,
            verdict: None,
        };
        let group = |at: usize| Group { base: None, objects: at..at + 1, state: State::New };
        PutOp {
            manner: Manner { options: Options::default(), deadline: Mono::default(), came: Came::Put },
            verb: Verb::Put,
            block_bytes: BLOCK_BYTES,
            offered: (0..objects).map(offered).collect(),
            groups: (0..objects).map(group).collect(),
            required: None,
            into: None,
        }
    }

    /// How many groups go together, from the first to the last.
    fn runs(put: &PutOp, dozes: bool) -> Vec<usize> {
        let (mut at, mut runs) = (0, Vec::new());
        while at < put.groups.len() {
            runs.push(put.run(at, dozes).len());
            at += runs[runs.len() - 1];
        }
        runs
    }

    #[test]
    fn the_end_goes_by_itself_for_a_client_that_sleeps() {
        assert_eq!(runs(&put(32, true), false), [32]);
        assert_eq!(runs(&put(32, true), true), [24, 8]);
        assert_eq!(runs(&put(70, true), false), [32, 32, 6]);
        // Checksummed ones are as short as the end is.
        assert!([false, true].iter().all(|dozes| runs(&put(20, false), *dozes) == [8, 8, 4]));
    }
}
