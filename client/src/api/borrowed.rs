//! Helpers of blocking calls with borrowed memory: conversion to requests, retries while the arena
//! is full, and one outcome for each group.

use std::time::Duration;

use pagelith_io::buffer::BorrowScope;
use pagelith_layouts::key::ObjectKey;

use super::error::{Error, ErrorKind, Result};
use super::outcome::{CompletedPut, PutOutcome};
use super::request::{Destination, Get, GetSlice, Options, Put, PutGroup, PutSlice, Source};

/// The error of a batch that ended without outcomes.
pub fn no_outcomes() -> Error {
    Error::new(ErrorKind::Internal, "batch ended without outcomes")
}

/// A group in borrowed memory: an object of its base if it is attached, and its objects.
pub type BorrowedGroup<'a> = (Option<ObjectKey>, &'a [PutSlice<'a>]);

/// Put groups with `attempt`, and retry those that are `Busy`, each time after a call of `pause`.
/// Ends when no time is `left`, or after `options.wait`.
pub fn retry_while_busy<'a>(
    groups: &[BorrowedGroup<'a>],
    options: Options,
    left: impl Fn() -> Duration,
    mut attempt: impl FnMut(&[BorrowedGroup<'a>], Options) -> Vec<Result<PutOutcome>>,
    mut pause: impl FnMut(Duration),
) -> Vec<Result<PutOutcome>> {
    let mut outcomes: Vec<Result<PutOutcome>> = groups.iter().map(|_| Err(no_outcomes())).collect();
    let mut remaining: Vec<usize> = (0..groups.len()).collect();
    let limit = left();
    loop {
        let retried: Vec<_> = remaining.iter().map(|&i| groups[i]).collect();
        let skipped = remaining.first().map_or(0, |&i| i as u32);
        // An attempt has the time that is left, not the whole timeout again.
        let options = Options {
            depth: options.depth.saturating_add(skipped),
            timeout: Some(left()),
            ..options
        };
        let is_busy =
            |outcome: &Result<_>| outcome.as_ref().is_err_and(|e| e.kind == ErrorKind::Busy);
        for (i, outcome) in remaining.iter().zip(attempt(&retried, options)) {
            // Keep the first `Busy`: the last attempt may only have run out of time.
            if !(is_busy(&outcome) && is_busy(&outcomes[*i])) {
                outcomes[*i] = outcome;
            }
        }
        remaining.retain(|&i| is_busy(&outcomes[i]));
        let time = left();
        let wait = options
            .wait
            .map_or(time, |wait| wait.saturating_sub(limit.saturating_sub(time)).min(time));
        if remaining.is_empty() || wait.is_zero() {
            return outcomes;
        }
        pause(wait);
    }
}

/// Requests for gets into borrowed memory.
pub fn borrow_gets<'mem>(
    lender: &BorrowScope<'mem>,
    gets: &'mem mut [GetSlice<'_, '_>],
) -> Vec<Get> {
    let get = |get: &'mem mut GetSlice<'_, '_>| {
        let pieces = get.pieces.iter_mut().map(|piece| lender.exclusive(piece));
        Get { key: get.key, range: get.range.clone(), destination: Destination(pieces.collect()) }
    };
    gets.iter_mut().map(get).collect()
}

/// Requests for groups in borrowed memory.
pub fn borrow_groups<'mem>(
    lender: &BorrowScope<'mem>,
    groups: &[BorrowedGroup<'mem>],
) -> Vec<PutGroup> {
    let put = |object: &PutSlice<'mem>| {
        let pieces = object.pieces.iter().map(|piece| lender.shared(piece));
        Put { key: object.key, source: Source::of(pieces.collect()) }
    };
    let group_of = |(base, group): &BorrowedGroup<'mem>| PutGroup {
        objects: group.iter().map(put).collect(),
        base: *base,
    };
    groups.iter().map(group_of).collect()
}

/// One outcome for each group, from the outcomes of all objects.
pub fn outcomes_of_groups(
    groups: &[BorrowedGroup<'_>],
    done: Vec<CompletedPut>,
) -> Vec<Result<PutOutcome>> {
    let mut done = done.into_iter().map(|done| done.outcome);
    let empty = || Err(Error::invalid("a group has no object"));
    let one = |(_, group): &BorrowedGroup<'_>| {
        outcome_of_group(done.by_ref().take(group.len())).unwrap_or_else(empty)
    };
    groups.iter().map(one).collect()
}

/// The outcome of a group, from those of its objects: `Stored` if any object was stored, else the
/// last. `None` without objects.
pub fn outcome_of_group(
    outcomes: impl Iterator<Item = Result<PutOutcome>>,
) -> Option<Result<PutOutcome>> {
    outcomes.reduce(|one, other| if one == Ok(PutOutcome::Stored) { one } else { other })
}
