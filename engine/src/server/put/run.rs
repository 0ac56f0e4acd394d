//! Divides the groups of a put into runs, which are processed together.

use pagelith_layouts::checksum::BLOCK_BYTES;

use super::incoming::IncomingObject;
use super::{GroupState, PutOp};

/// Maximum number of groups of a run, and of bytes unless the first group alone exceeds it. A run
/// is looked up under one lock acquisition, reserved in one call and stored as one batch.
pub(crate) const RUN_GROUPS: usize = 8;
const RUN_BYTES: u64 = 512 << 10;

impl PutOp {
    /// The groups of the run that begins with group `at`.
    pub(crate) fn run(&self, at: usize) -> Vec<usize> {
        let bytes_of = |at: usize| -> u64 {
            self.objects[self.groups[at].objects.clone()].iter().map(|o| o.length).sum()
        };
        let mut bytes = bytes_of(at);
        let fits = |at: &usize| {
            bytes = bytes.saturating_add(bytes_of(*at));
            matches!(self.groups[*at].state, GroupState::New) && bytes <= RUN_BYTES
        };
        let following = (at + 1..self.groups.len()).take(RUN_GROUPS - 1).take_while(fits);
        let mut run = Vec::with_capacity(RUN_GROUPS.min(self.groups.len() - at));
        run.push(at);
        run.extend(following);
        run
    }

    /// Whether a group can be stored directly from client memory. Objects of open groups are copied
    /// to reserved memory first.
    pub(crate) fn is_in_client_memory(&self, at: usize) -> bool {
        let is_whole = self.open_group.is_none() && self.required.is_none();
        is_whole
            && self.block_bytes == BLOCK_BYTES
            && self.objects[self.groups[at].objects.clone()]
                .iter()
                .all(IncomingObject::is_in_client_memory)
    }
}

#[cfg(test)]
mod tests {
    use pagelith_io::clock::Mono;
    use pagelith_layouts::checksum::Checksums;
    use pagelith_layouts::ids::{NamespaceId, PrefixHash};
    use pagelith_layouts::key::{ObjectKey, Role};
    use pagelith_layouts::shard::Shard;
    use pagelith_layouts::wire::request::Verb;

    use super::super::incoming::IncomingBytes;
    use super::super::{CallContext, IncomingGroup};
    use super::*;
    use crate::api::request::Options;
    use crate::state::put_spec::PutOrigin;

    /// A put of `objects` objects of `length` bytes each.
    fn put(objects: usize, length: u64) -> PutOp {
        let key = ObjectKey::new(
            NamespaceId([1; 16]),
            PrefixHash([2; 32]),
            Role::Target,
            "kv",
            "k",
            Shard::Whole,
        );
        let key = key.expect("a key");
        let object = |_| IncomingObject {
            key,
            length,
            sums: Checksums::new(),
            bytes: IncomingBytes::AtClient,
            verdict: None,
        };
        let group =
            |at: usize| IncomingGroup { base: None, objects: at..at + 1, state: GroupState::New };
        PutOp {
            call: CallContext {
                options: Options::default(),
                deadline: Mono::default(),
                origin: PutOrigin::Put,
            },
            verb: Verb::Put,
            block_bytes: BLOCK_BYTES,
            objects: (0..objects).map(object).collect(),
            groups: (0..objects).map(group).collect(),
            required: None,
            open_group: None,
        }
    }

    /// Lengths of the runs of a put.
    fn runs(put: &PutOp) -> Vec<usize> {
        let (mut at, mut runs) = (0, Vec::new());
        while at < put.groups.len() {
            runs.push(put.run(at).len());
            at += runs[runs.len() - 1];
        }
        runs
    }

    #[test]
    fn run_is_bounded_in_groups_and_bytes_and_has_at_least_one_group() {
        assert_eq!(runs(&put(20, 4 << 10)), [8, 8, 4]);
        assert_eq!(runs(&put(20, 64 << 10)), [8, 8, 4]);
        assert_eq!(runs(&put(5, 256 << 10)), [2, 2, 1]);
        assert_eq!(runs(&put(2, 1 << 20)), [1, 1]);
    }
}
