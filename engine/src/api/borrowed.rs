//! Calls with memory that the caller lends for the call: requests made of it, tries while the arena is
//! full, and one outcome for each group.

use std::time::Duration;

use pagelith_io::buffer::Lender;
use pagelith_layouts::key::ObjectKey;

use super::error::{Error, ErrorKind, Result};
use super::outcome::{PutDone, PutOutcome};
use super::request::{Destination, Get, GetSlice, Options, Put, PutGroup, PutSlice, Source};

/// The error of a batch that ended without outcomes.
pub(crate) fn no_outcomes() -> Error {
    Error::new(ErrorKind::Internal, "a batch ended without outcomes")
}

/// A group in lent memory: what it is attached to, if it is, and its objects.
pub(crate) type BorrowedGroup<'a> = (Option<ObjectKey>, &'a [PutSlice<'a>]);

/// Put groups with `once`, and those that it is too busy for again, after a `rest`, until no time is `left`, or all that
/// they may wait for room is over.
pub(crate) fn while_busy<'a>(
    groups: &[BorrowedGroup<'a>],
    options: Options,
    left: impl Fn() -> Duration,
    mut once: impl FnMut(&[BorrowedGroup<'a>], Options) -> Vec<Result<PutOutcome>>,
    mut rest: impl FnMut(Duration),
) -> Vec<Result<PutOutcome>> {
    let mut outcomes: Vec<Result<PutOutcome>> = groups.iter().map(|_| Err(no_outcomes())).collect();
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

/// Gets into lent memory.
pub(crate) fn lend_gets<'mem>(lender: &Lender<'mem>, gets: &'mem mut [GetSlice<'_, '_>]) -> Vec<Get> {
    let get = |get: &'mem mut GetSlice<'_, '_>| {
        let pieces = get.pieces.iter_mut().map(|piece| lender.exclusive(piece));
        Get { key: get.key, range: get.range.clone(), destination: Destination(pieces.collect()) }
    };
    gets.iter_mut().map(get).collect()
}

/// Groups in lent memory.
pub(crate) fn lend_groups<'mem>(lender: &Lender<'mem>, groups: &[BorrowedGroup<'mem>]) -> Vec<PutGroup> {
    let put = |object: &PutSlice<'mem>| {
        let pieces = object.pieces.iter().map(|piece| lender.shared(piece));
        Put { key: object.key, source: Source::of(pieces.collect()) }
    };
    let lent =
        |(base, group): &BorrowedGroup<'mem>| PutGroup { objects: group.iter().map(put).collect(), base: *base };
    groups.iter().map(lent).collect()
}

/// One outcome a group, of those of all objects.
pub(crate) fn outcomes_of_groups(groups: &[BorrowedGroup<'_>], done: Vec<PutDone>) -> Vec<Result<PutOutcome>> {
    let mut done = done.into_iter().map(|done| done.outcome);
    let empty = || Err(Error::invalid("a group has no object"));
    let one =
        |(_, group): &BorrowedGroup<'_>| outcome_of_group(done.by_ref().take(group.len())).unwrap_or_else(empty);
    groups.iter().map(one).collect()
}

/// One outcome for a group, of those of its objects: `Stored` if any was, else the same for all. `None` if
/// there is no object.
pub(crate) fn outcome_of_group(
    outcomes: impl Iterator<Item = Result<PutOutcome>>,
) -> Option<Result<PutOutcome>> {
    outcomes.reduce(|one, other| if one == Ok(PutOutcome::Stored) { one } else { other })
}
