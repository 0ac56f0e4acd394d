//! Submit and wait, with memory that the caller lends for the call.

use std::cell::Cell;
use std::time::Duration;

use pagelith_io::buffer::Lender;

use pagelith_layouts::key::ObjectKey;

use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::{Done, GetOutcome, PutDone, PutOutcome};
use crate::api::request::{Destination, Get, GetSlice, Options, Put, PutGroup, PutSlice, Source};
use crate::state::shared::BUSY_STEP;
use crate::store::store::Store;

fn internal() -> Error {
    Error::new(ErrorKind::Internal, "a batch ended without outcomes")
}

/// Get, and return when all lent memory is back.
pub(crate) fn get(store: &Store, gets: &mut [GetSlice<'_, '_>], options: Options) -> Vec<Result<GetOutcome>> {
    let count = gets.len();
    let outcomes = store.with_session(options.timeout, |session| {
        Lender::scope(|lender| {
            let ticket = session.begin_get(lend_gets(lender, gets), options);
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
    let found = store.with_session(options.timeout, |session| {
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
    let seen = Cell::new(shared.progress.value());
    let once = |some: &[LentGroup<'_>], options: Options| {
        seen.set(shared.progress.value());
        whole(store.with_session(options.timeout, |session| put_once(session, some, options)), some.len())
    };
    let rest = |left: Duration| {
        shared.env.runtime.pause(&shared.progress, seen.get(), left.min(BUSY_STEP));
    };
    while_busy(groups, options, || deadline.since(shared.now()), once, rest)
}

/// Put groups with `once`, and those that it is too busy for again, after a `rest`, until no time is `left`, or all that
/// they may wait for room is over.
pub(crate) fn while_busy<'a>(
    groups: &[LentGroup<'a>],
    options: Options,
    left: impl Fn() -> Duration,
    mut once: impl FnMut(&[LentGroup<'a>], Options) -> Vec<Result<PutOutcome>>,
    mut rest: impl FnMut(Duration),
) -> Vec<Result<PutOutcome>> {
    let mut outcomes: Vec<Result<PutOutcome>> = groups.iter().map(|_| Err(internal())).collect();
    let mut open: Vec<usize> = (0..groups.len()).collect();
    let all = left();
    loop {
        let some: Vec<_> = open.iter().map(|&i| groups[i]).collect();
        let behind = open.first().map_or(0, |&i| i as u32);
        // Each try has the time that is left, not all of it again.
        let options =
            Options { depth: options.depth.saturating_add(behind), timeout: Some(left()), ..options };
        let is_busy = |outcome: &Result<_>| outcome.as_ref().is_err_and(|e| e.kind == ErrorKind::Busy);
        for (i, outcome) in open.iter().zip(once(&some, options)) {
            // The first reason is the best: the last try may just have had no time.
            if !(is_busy(&outcome) && is_busy(&outcomes[*i])) {
                outcomes[*i] = outcome;
            }
        }
        open.retain(|&i| is_busy(&outcomes[i]));
        let time = left();
        let wait = options.wait.map_or(time, |wait| wait.saturating_sub(all.saturating_sub(time)).min(time));
        if open.is_empty() || wait.is_zero() {
            return outcomes;
        }
        rest(wait);
    }
}

fn put_once(
    session: &mut crate::store::session::Session,
    groups: &[LentGroup<'_>],
    options: Options,
) -> Vec<Result<PutOutcome>> {
    Lender::scope(|lender| {
        let ticket = session.submit_put(lend_groups(lender, groups), options);
        let done = loop {
            if let Some(done) = session.wait(ticket, Duration::from_secs(1)) {
                break done;
            }
        };
        let Done::Put(done) = done else { return Vec::new() };
        outcomes_of_groups(groups, done)
    })
}

/// Gets into lent memory.
pub(crate) fn lend_gets<'mem>(lender: &Lender<'mem>, gets: &'mem mut [GetSlice<'_, '_>]) -> Vec<Get> {
    let get = |get: &'mem mut GetSlice<'_, '_>| {
        let pieces = get.pieces.iter_mut().map(|piece| lender.exclusive(piece));
        Get { key: get.key, range: get.range.clone(), destination: Destination(pieces.collect()) }
    };
    gets.iter_mut().map(get).collect()
}

/// Groups in lent memory.
pub(crate) fn lend_groups<'mem>(lender: &Lender<'mem>, groups: &[LentGroup<'mem>]) -> Vec<PutGroup> {
    let put = |object: &PutSlice<'mem>| {
        let pieces = object.pieces.iter().map(|piece| lender.shared(piece));
        Put { key: object.key, source: Source::of(pieces.collect()) }
    };
    let lent =
        |(base, group): &LentGroup<'mem>| PutGroup { objects: group.iter().map(put).collect(), base: *base };
    groups.iter().map(lent).collect()
}

/// One outcome a group, of those of all objects.
pub(crate) fn outcomes_of_groups(groups: &[LentGroup<'_>], done: Vec<PutDone>) -> Vec<Result<PutOutcome>> {
    let mut done = done.into_iter().map(|done| done.outcome);
    let empty = || Err(Error::invalid("a group has no object"));
    let one =
        |(_, group): &LentGroup<'_>| outcome_of_group(done.by_ref().take(group.len())).unwrap_or_else(empty);
    groups.iter().map(one).collect()
}

/// One outcome for a group, of those of its objects: `Stored` if any was, else the same for all. `None` if
/// there is no object.
pub(crate) fn outcome_of_group(
    outcomes: impl Iterator<Item = Result<PutOutcome>>,
) -> Option<Result<PutOutcome>> {
    outcomes.reduce(|one, other| if one == Ok(PutOutcome::Stored) { one } else { other })
}
