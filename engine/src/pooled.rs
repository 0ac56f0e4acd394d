//! Submit and wait, with memory that the caller lends for the call.

use std::time::Duration;

use pagelith_io::buffer::Lender;

use pagelith_layouts::key::ObjectKey;

use crate::batch::{Destination, Get, GetSlice, Options, Put, PutGroup, PutSlice, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::outcome::{Done, GetOutcome, PutOutcome};
use crate::shared::BUSY_STEP;
use crate::store::Store;

fn internal() -> Error {
    Error::new(ErrorKind::Internal, "a batch ended without outcomes")
}

/// Get, and return when all lent memory is back.
pub(crate) fn get(store: &Store, gets: &mut [GetSlice<'_, '_>], options: Options) -> Vec<Result<GetOutcome>> {
    let count = gets.len();
    let outcomes = store.with_session(|session| {
        Lender::scope(|lender| {
            let gets: Vec<Get> = gets
                .iter_mut()
                .map(|g| Get {
                    key: g.key,
                    range: g.range.clone(),
                    destination: Destination(g.pieces.iter_mut().map(|p| lender.exclusive(p)).collect()),
                })
                .collect();
            let ticket = session.begin_get(gets, options);
            // However long it takes: the memory is the kernel's until then.
            let done = loop {
                if let Some(done) = session.wait(ticket, Duration::from_secs(1)) {
                    break done;
                }
            };
            match done {
                Done::Get(done) => done.into_iter().map(|d| d.outcome).collect(),
                Done::Put(_) | Done::Exists(_) | Done::ExistsGroups(_) => Vec::new(),
            }
        })
    });
    whole(outcomes, count)
}

/// Which of `keys` are here or at a peer.
pub(crate) fn exists(store: &Store, keys: &[ObjectKey], options: Options) -> Vec<bool> {
    let found = store.with_session(|session| {
        let ticket = session.submit_exists(keys, options);
        loop {
            if let Some(done) = session.wait(ticket, Duration::from_secs(1)) {
                break done;
            }
        }
    });
    match found {
        Ok(Done::Exists(found)) => found,
        Ok(Done::Get(_) | Done::Put(_) | Done::ExistsGroups(_)) | Err(_) => vec![false; keys.len()],
    }
}

/// One outcome an object, whatever happened.
fn whole<T>(outcomes: Result<Vec<Result<T>>>, count: usize) -> Vec<Result<T>> {
    let failed = |error: Error| (0..count).map(|_| Err(error.clone())).collect();
    match outcomes {
        Ok(outcomes) if outcomes.len() == count => outcomes,
        Ok(_) => failed(internal()),
        Err(error) => failed(error),
    }
}

/// A group in lent memory: what it is attached to, if it is, and its objects.
pub(crate) type LentGroup<'a> = (Option<ObjectKey>, &'a [PutSlice<'a>]);

/// Put groups; those that meet a full arena are tried again until the time is up.
pub(crate) fn put(store: &Store, groups: &[LentGroup<'_>], options: Options) -> Vec<Result<PutOutcome>> {
    let shared = &store.shared;
    let deadline = shared.deadline(options.timeout);
    let mut outcomes: Vec<Result<PutOutcome>> = groups.iter().map(|_| Err(internal())).collect();
    let mut left: Vec<usize> = (0..groups.len()).collect();
    loop {
        let seen = shared.progress.value();
        let some: Vec<_> = left.iter().map(|&i| groups[i]).collect();
        let depth = left.first().map_or(0, |&i| i as u32);
        // Each try has the time that is left, not all of it again.
        let timeout = Some(deadline.since(shared.now()));
        let options = Options { depth: options.depth.saturating_add(depth), timeout, ..options };
        let done = whole(store.with_session(|session| put_once(session, &some, options)), left.len());
        for (i, outcome) in left.iter().zip(done) {
            outcomes[*i] = outcome;
        }
        left.retain(|&i| outcomes[i].as_ref().is_err_and(|e| e.kind == ErrorKind::Busy));
        let time = deadline.since(shared.now());
        if left.is_empty() || time.is_zero() {
            return outcomes;
        }
        shared.env.runtime.pause(&shared.progress, seen, time.min(BUSY_STEP));
    }
}

fn put_once(
    session: &mut crate::session::Session,
    groups: &[LentGroup<'_>],
    options: Options,
) -> Vec<Result<PutOutcome>> {
    Lender::scope(|lender| {
        let lent: Vec<PutGroup> = groups
            .iter()
            .map(|(base, group)| {
                let objects = group.iter().map(|o| Put {
                    key: o.key,
                    source: Source(o.pieces.iter().map(|p| lender.shared(p)).collect()),
                });
                PutGroup { objects: objects.collect(), base: *base }
            })
            .collect();
        let ticket = session.submit_put(lent, options);
        let done = loop {
            if let Some(done) = session.wait(ticket, Duration::from_secs(1)) {
                break done;
            }
        };
        let Done::Put(done) = done else { return Vec::new() };
        let mut done = done.into_iter().map(|d| d.outcome);
        let empty = || Err(Error::invalid("a group has no object"));
        let one =
            |(_, g): &LentGroup<'_>| outcome_of_group(done.by_ref().take(g.len())).unwrap_or_else(empty);
        groups.iter().map(one).collect()
    })
}

/// One outcome for a group, of those of its objects: `Stored` if any was, else the same for all. `None` if
/// there is no object.
pub(crate) fn outcome_of_group(
    outcomes: impl Iterator<Item = Result<PutOutcome>>,
) -> Option<Result<PutOutcome>> {
    outcomes.reduce(|one, other| if one == Ok(PutOutcome::Stored) { one } else { other })
}
