//! A batch of put groups: most are done at once; those that meet what may be the same object on SSD look
//! there first.

use pagelith_io::clock::Mono;
use pagelith_io::disk::Completion;
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::Recency;

use crate::batch::PutGroup;
use crate::error::Result;
use crate::frames::FrameRef;
use crate::get::GetBatch;
use crate::outcome::{PutDone, PutOutcome, Ticket};
use crate::put::{self, Admission, Incoming};
use crate::session::SessionIo;

/// Bytes after which what was stored so far is handed to the flusher, so that a batch larger than the arena
/// makes progress.
const ENQUEUE_BYTES: u64 = 4 << 20;

struct Group {
    objects: PutGroup,
    outcome: Option<Result<PutOutcome>>,
    /// Members that may be on SSD, and the first of their probes.
    doubtful: Vec<usize>,
    first_probe: usize,
}

/// A batch of put groups.
pub(crate) struct PutBatch {
    groups: Vec<Group>,
    probes: Option<GetBatch>,
    at: Recency,
    frames: Vec<FrameRef>,
    unqueued_bytes: u64,
}

impl PutBatch {
    /// Store what can be stored without looking at the SSD, and begin to look for the rest.
    pub fn begin(io: &mut SessionIo, groups: Vec<PutGroup>, at: Recency, deadline: Mono) -> PutBatch {
        let _span = tracing::debug_span!("put", groups = groups.len()).entered();
        let group = |objects| Group { objects, outcome: None, doubtful: Vec::new(), first_probe: 0 };
        let mut batch = PutBatch {
            groups: groups.into_iter().map(group).collect(),
            probes: None,
            at,
            frames: Vec::new(),
            unqueued_bytes: 0,
        };
        let mut keys: Vec<ObjectKey> = Vec::new();
        for i in 0..batch.groups.len() {
            batch.try_group(io, i, None);
            let group = &mut batch.groups[i];
            group.first_probe = keys.len();
            keys.extend(group.doubtful.iter().map(|&m| group.objects.objects[m].key));
        }
        put::enqueue(&io.shared, &mut batch.frames);
        if !keys.is_empty() {
            batch.probes = Some(GetBatch::probe(io, &keys, at, deadline));
        }
        batch
    }

    fn try_group(&mut self, io: &SessionIo, i: usize, present: Option<&[Option<u64>]>) {
        let shared = &io.shared;
        let group = &mut self.groups[i];
        let objects = &group.objects.objects;
        let sizes: Vec<_> = objects.iter().map(|o| (o.key, o.source.len())).collect();
        let at = Recency { depth: self.at.depth.saturating_add(i as u32), ..self.at };
        let checked = shared.check_open().and_then(|()| put::check(shared, &sizes));
        let admission = match checked {
            Ok(()) => put::admit(shared, &sizes, present),
            Err(error) => Admission::Settled(Err(error)),
        };
        match admission {
            Admission::Settled(outcome) => group.outcome = Some(outcome),
            Admission::Doubtful(members) => group.doubtful = members,
            Admission::Admitted(admitted) => {
                let incoming: Vec<_> = objects.iter().map(|o| Incoming::of(o.key, &o.source.0)).collect();
                let stored = put::store(shared, &incoming, admitted, at);
                self.unqueued_bytes += sizes.iter().map(|s| s.1).sum::<u64>();
                group.outcome = Some(stored.map(|(outcome, frame)| {
                    self.frames.extend(frame);
                    outcome
                }));
            }
        }
        if self.unqueued_bytes >= ENQUEUE_BYTES {
            self.unqueued_bytes = 0;
            put::enqueue(shared, &mut self.frames);
        }
    }

    /// Go on without waiting; true once every group has its outcome.
    pub fn advance(&mut self, io: &mut SessionIo, ticket: Ticket) -> bool {
        let Some(probes) = self.probes.as_mut() else { return true };
        if !probes.advance(io, ticket) {
            return false;
        }
        let found = self.probes.take().map(GetBatch::into_probed).unwrap_or_default();
        for i in 0..self.groups.len() {
            if self.groups[i].outcome.is_some() {
                continue;
            }
            let group = &self.groups[i];
            let mut present = vec![None; group.objects.objects.len()];
            for (probe, &member) in group.doubtful.iter().enumerate() {
                present[member] = found[group.first_probe + probe].as_ref().map(|p| p.length);
            }
            self.try_group(io, i, Some(&present));
        }
        put::enqueue(&io.shared, &mut self.frames);
        true
    }

    /// A read of a probe came back.
    pub fn completed(&mut self, io: &mut SessionIo, completion: Completion) {
        if let Some(probes) = self.probes.as_mut() {
            probes.completed(io, completion);
        }
    }

    /// Let go of what is held for a batch that nobody will finish.
    pub fn abandon(&mut self, io: &SessionIo) {
        if let Some(probes) = self.probes.as_mut() {
            probes.abandon(io);
        }
    }

    /// The outcomes, group by group, object by object.
    pub fn finish(self, _io: &mut SessionIo) -> Vec<PutDone> {
        let group = |g: Group| {
            let internal = || crate::error::Error::new(crate::ErrorKind::Internal, "put without an outcome");
            let outcome = g.outcome.unwrap_or_else(|| Err(internal()));
            g.objects.objects.into_iter().map(move |o| PutDone { outcome: outcome.clone(), source: o.source })
        };
        self.groups.into_iter().flat_map(group).collect()
    }
}
