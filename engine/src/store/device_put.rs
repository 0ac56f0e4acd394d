//! Puts out of memory of a device: copied to staging memory, and put from there, where the bytes
//! get their checksums. The copies of one half of the staging memory run while the other half is
//! put.

use std::ops::Range;

use pagelith_io::buffer::Part;
use pagelith_io::device::{CallerStream, Copies, DeviceHandle, DeviceRange};
use pagelith_io::sync::Arc;
use pagelith_layouts::key::ObjectKey;

use crate::api::error::{Error, Result};
use crate::api::outcome::PutOutcome;
use crate::api::request::{Options, PutSlice};
use crate::state::session_io;
use crate::store::blocking_calls;
use crate::store::devices::{DeviceCall, StagedBytes, device_error, split, total};
use crate::store::session_pool::SessionPool;

/// An object to be put out of memory of a device.
#[derive(Clone, Debug)]
pub struct DevicePut<'a> {
    /// Its key.
    pub key: ObjectKey,
    /// Its bytes, in pieces. Nothing writes them until the device is done.
    pub pieces: &'a [DeviceRange],
}

/// See [`crate::Store::put_from_device`].
pub(crate) fn put(
    pool: &SessionPool,
    device: &DeviceHandle,
    after: Option<&CallerStream>,
    groups: &[&[DevicePut<'_>]],
    options: Options,
) -> Vec<Result<PutOutcome>> {
    let shared = &pool.shared;
    let deadline = shared.deadline(options.timeout);
    let request = options.request.unwrap_or_else(|| session_io::begin_request(shared));
    let options = Options { request: Some(request), ..options };
    let call = DeviceCall { shared, device, after, deadline };
    let mut batch = PutRounds { pool, call, groups, options, outcomes: Vec::new() };
    let (mut next, mut earlier) = (0, None);
    loop {
        // Copies that are late keep their memory, so no others follow them.
        let round = if batch.call.is_late() { None } else { batch.begin(next) };
        match (round, earlier.take()) {
            (None, None) if next < groups.len() => {
                if !batch.call.wait_for_staging() {
                    batch.fail(next..groups.len(), &Error::busy("no staging memory in time"));
                    break;
                }
            }
            (None, None) => break,
            (round, ended) => {
                next = round.as_ref().map_or(next, |round| round.groups.end);
                ended.into_iter().for_each(|round| batch.end(round));
                earlier = round;
            }
        }
    }
    batch.outcomes
}

struct PutRounds<'a> {
    pool: &'a SessionPool,
    call: DeviceCall<'a>,
    groups: &'a [&'a [DevicePut<'a>]],
    options: Options,
    /// Of the groups of rounds that ended.
    outcomes: Vec<Result<PutOutcome>>,
}

/// Groups whose bytes are copied to staging memory together.
struct Round {
    groups: Range<usize>,
    /// Or why nothing of the round is put.
    copies: Result<Copies>,
    /// The copies have it too, until the device is done.
    _counted: Arc<Vec<StagedBytes>>,
}

impl PutRounds<'_> {
    /// Begin to copy groups from `from` on, as many as fit into half of the staging memory. `None`
    /// if none is left, or no memory is free.
    fn begin(&self, from: usize) -> Option<Round> {
        let (mut parts, mut counted, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut next = from;
        let mut refused = None;
        while let Some(group) = self.groups.get(next) {
            let pieces = || group.iter().flat_map(|object| object.pieces);
            let length: u64 = group.iter().map(|object| total(object.pieces)).sum();
            let check = self
                .call
                .check_staging(length)
                .and_then(|()| group.iter().try_for_each(|object| self.call.check(object.pieces)));
            if let Err(error) = check {
                refused = Some(error);
                break;
            }
            if bytes > 0 && bytes + length > self.call.staging_max() / 2 {
                break;
            }
            if length > 0 {
                let Some((part, of_part)) = self.call.stage(length as usize) else { break };
                let pieces: Vec<DeviceRange> = pieces().cloned().collect();
                parts.push((part, pieces));
                counted.push(of_part);
            }
            bytes += length;
            next += 1;
        }
        match (next > from, refused) {
            (false, None) => None,
            // A group that is refused is a round of its own.
            (false, Some(error)) => {
                Some(Round { groups: from..from + 1, copies: Err(error), _counted: Arc::default() })
            }
            (true, _) => {
                let counted = Arc::new(counted);
                let copies = self.copy(parts, &counted);
                Some(Round { groups: from..next, copies, _counted: counted })
            }
        }
    }

    fn copy(
        &self,
        parts: Vec<(Part, Vec<DeviceRange>)>,
        counted: &Arc<Vec<StagedBytes>>,
    ) -> Result<Copies> {
        let mut copies = self.call.begin()?;
        copies.hold(Box::new(counted.clone()));
        for (part, pieces) in parts {
            for (piece, from) in split(part, &pieces) {
                copies.to_host(from, piece).map_err(|why| device_error(&why))?;
            }
        }
        copies.submit().map_err(|why| device_error(&why))?;
        Ok(copies)
    }

    /// Wait for the copies of a round, and put its groups.
    fn end(&mut self, round: Round) {
        let Round { groups, copies, _counted } = round;
        let copied = copies.and_then(|mut copies| {
            self.call.wait(&mut copies)?;
            Ok(copies.into_parts())
        });
        match copied {
            Ok(parts) => self.put(groups, &parts),
            Err(error) => self.fail(groups, &error),
        }
    }

    /// Put groups out of host memory, in which each piece of the device has a part.
    fn put(&mut self, groups: Range<usize>, parts: &[Part]) {
        let depth = self.options.depth.saturating_add(groups.start as u32);
        let groups = &self.groups[groups];
        let mut parts = parts.iter();
        let objects = groups.iter().flat_map(|group| group.iter());
        let pieces: Vec<Vec<&[u8]>> = objects
            .map(|object| parts.by_ref().take(object.pieces.len()).map(Part::bytes).collect())
            .collect();
        let mut pieces = pieces.iter();
        let slices: Vec<Vec<PutSlice<'_>>> = groups
            .iter()
            .map(|group| {
                let of =
                    |(object, pieces): (&DevicePut<'_>, _)| PutSlice { key: object.key, pieces };
                group.iter().zip(pieces.by_ref().map(Vec::as_slice)).map(of).collect()
            })
            .collect();
        let slices: Vec<_> = slices.iter().map(|group| (None, group.as_slice())).collect();
        let left = self.call.deadline.since(self.call.shared.now());
        let options = Options { depth, timeout: Some(left), ..self.options };
        self.outcomes.extend(blocking_calls::put(self.pool, &slices, options));
    }

    fn fail(&mut self, groups: Range<usize>, error: &Error) {
        self.outcomes.extend(groups.map(|_| Err(error.clone())));
    }
}
