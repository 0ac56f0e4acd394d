//! A put of one call in two halves: the store copies both at once.

use std::time::Duration;

use pagelith_io::sync::{MutexGuard, PoisonError};
use rustc_hash::FxHashSet;

use super::halving::Halving;
use super::{Attached, STEP, Session};
use crate::batch::{Options, PutGroup};
use crate::outcome::{Done, PutDone, Ticket};

/// Least bytes of what is put in two: of less a second thread of the store's takes as long to begin as it would spare.
const BYTES_MIN: u64 = 1 << 20;
/// How long the first such put of a thread waits for its second link, and how long none does behind one that waited in vain.
const LINK_WAIT: Duration = Duration::from_millis(5);
const LINK_PAUSE: Duration = Duration::from_secs(1);

impl Attached {
    /// Put groups in two halves, if they are large enough, and the store copies them by itself out of memory that it is shown; else they come back.
    pub(super) fn put_in_two(
        &self,
        mut groups: Vec<PutGroup>,
        options: Options,
    ) -> Result<Vec<PutDone>, Vec<PutGroup>> {
        let Some((half, bytes)) = half(&groups) else { return Err(groups) };
        let mut session = self.session();
        if !session.is_shown(&groups) || self.clock.now() < self.desks().narrow_until {
            return Err(groups);
        }
        let way = self.halving().way(bytes);
        if !way.in_two {
            let begun = self.clock.now();
            let ticket = session.submit_put(groups, options);
            let done = ended(&mut session, ticket);
            self.halving().took(way, bytes, self.clock.now().since(begun));
            return Ok(done);
        }
        if !session.await_second(LINK_WAIT) {
            self.desks().narrow_until = self.clock.now().after(LINK_PAUSE);
            return Err(groups);
        }
        let begun = self.clock.now();
        // Both are of one request, and of one call.
        let request = Some(self.request(&options));
        let deadline = self.clock.now().after(options.timeout.unwrap_or(self.timeout));
        let behind = groups.split_off(half);
        let depth = options.depth.saturating_add(u32::try_from(half).unwrap_or(u32::MAX));
        let options = Options { request, ..options };
        let mut submit = |groups, options: Options| {
            let timeout = Some(deadline.since(self.clock.now()));
            session.submit_put(groups, Options { timeout, ..options })
        };
        let tickets = [submit(groups, options), submit(behind, Options { depth, ..options })];
        let done = tickets.into_iter().flat_map(|ticket| ended(&mut session, ticket)).collect();
        self.halving().took(way, bytes, self.clock.now().since(begun));
        Ok(done)
    }

    fn halving(&self) -> MutexGuard<'_, Halving> {
        self.halving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Every batch ends, at its deadline if not before.
fn ended(session: &mut Session<'_>, ticket: Ticket) -> Vec<PutDone> {
    loop {
        if let Some(Done::Put(done)) = session.wait(ticket, STEP) {
            return done;
        }
    }
}

/// How many groups are half of all bytes, and all of these, where they may be put in two: none is to find another of them there.
fn half(groups: &[PutGroup]) -> Option<(usize, u64)> {
    let bytes = |group: &PutGroup| group.objects.iter().map(|put| put.source.len()).sum::<u64>();
    let all: u64 = groups.iter().map(bytes).sum();
    if all < BYTES_MIN || groups.iter().any(|group| group.base.is_some()) {
        return None;
    }
    let mut pages = FxHashSet::default();
    let page = |group: &PutGroup| group.objects.first().map(|put| (put.key.namespace(), put.key.hash()));
    if !groups.iter().filter_map(page).all(|page| pages.insert(page)) {
        return None;
    }
    let mut before = 0;
    let is_first = |group: &&PutGroup| {
        let is_first = before < all / 2;
        before += bytes(group);
        is_first
    };
    let half = groups.iter().take_while(is_first).count();
    (half < groups.len()).then_some((half, all))
}
