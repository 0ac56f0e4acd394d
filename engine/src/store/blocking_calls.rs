//! Blocking calls of a store: submit to a pooled session and wait, with memory borrowed for the
//! call.

use std::cell::Cell;
use std::time::Duration;

use pagelith_io::buffer::BorrowScope;

use pagelith_layouts::key::ObjectKey;

use crate::api::borrowed;
use crate::api::error::{Error, Result};
use crate::api::outcome::{CompletedBatch, GetOutcome, PutOutcome};
use crate::api::request::{GetSlice, Options};
use crate::state::session_io::begin_request;
use crate::state::shared::BUSY_STEP;
use crate::store::session_pool::SessionPool;

/// Get, and return when no read uses the borrowed memory any more.
pub(crate) fn get(
    pool: &SessionPool,
    gets: &mut [GetSlice<'_, '_>],
    options: Options,
) -> Vec<Result<GetOutcome>> {
    let count = gets.len();
    let outcomes = pool.with_session(options.timeout, |session| {
        BorrowScope::scope(|lender| {
            let ticket = session.begin_get(borrowed::borrow_gets(lender, gets), options);
            // Without a deadline: until the batch is done, the kernel may write to the memory.
            let done = loop {
                if let Some(done) = session.wait(ticket, Duration::from_secs(1)) {
                    break done;
                }
            };
            match done {
                CompletedBatch::Get(done) => done.into_iter().map(|d| d.outcome).collect(),
                _ => Vec::new(),
            }
        })
    });
    complete(outcomes, count)
}

/// Which of `keys` are present in this store or at a peer.
pub(crate) fn exists(pool: &SessionPool, keys: &[ObjectKey], options: Options) -> Vec<bool> {
    let found = pool.with_session(options.timeout, |session| {
        let ticket = session.submit_exists(keys, options);
        loop {
            if let Some(done) = session.wait(ticket, Duration::from_secs(1)) {
                break done;
            }
        }
    });
    match found {
        Ok(CompletedBatch::Exists(found)) => found,
        Ok(_) | Err(_) => vec![false; keys.len()],
    }
}

/// Exactly `count` outcomes: those of the batch, or the error of the whole batch.
fn complete<T>(outcomes: Result<Vec<Result<T>>>, count: usize) -> Vec<Result<T>> {
    let failed = |error: Error| (0..count).map(|_| Err(error.clone())).collect();
    match outcomes {
        Ok(outcomes) if outcomes.len() == count => outcomes,
        Ok(_) => failed(borrowed::no_outcomes()),
        Err(error) => failed(error),
    }
}

/// Put groups; retry those that are `Busy` until the deadline.
pub(crate) fn put(
    pool: &SessionPool,
    groups: &[borrowed::BorrowedGroup<'_>],
    options: Options,
) -> Vec<Result<PutOutcome>> {
    let shared = &pool.shared;
    let deadline = shared.deadline(options.timeout);
    // One request for all attempts: within it deeper pages leave first.
    let request = options.request.unwrap_or_else(|| begin_request(shared));
    let options = options.request(request);
    let seen = Cell::new(shared.signals.progress.value());
    let attempt = |groups: &[borrowed::BorrowedGroup<'_>], options: Options| {
        seen.set(shared.signals.progress.value());
        let outcomes =
            pool.with_session(options.timeout, |session| put_once(session, groups, options));
        complete(outcomes, groups.len())
    };
    let pause = |left: Duration| {
        // Their frames may be the room that the put waits for.
        shared.devices.release_late();
        shared.env.runtime.pause(&shared.signals.progress, seen.get(), left.min(BUSY_STEP));
    };
    borrowed::retry_while_busy(groups, options, || deadline.since(shared.now()), attempt, pause)
}

fn put_once(
    session: &mut crate::store::session::Session,
    groups: &[borrowed::BorrowedGroup<'_>],
    options: Options,
) -> Vec<Result<PutOutcome>> {
    BorrowScope::scope(|lender| {
        let ticket = session.submit_put(borrowed::borrow_groups(lender, groups), options);
        let done = loop {
            if let Some(done) = session.wait(ticket, Duration::from_secs(1)) {
                break done;
            }
        };
        let CompletedBatch::Put(done) = done else { return Vec::new() };
        borrowed::outcomes_of_groups(groups, done)
    })
}
