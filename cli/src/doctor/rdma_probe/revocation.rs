//! What gives memory back: a notice after the data, and three ways to end the receiver's part amid
//! WRITEs. After each of them no byte may land.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use pagelith::io::verbs::{CompletionKind, DrainMarkers, SendRequest};

use super::loopback::{End, Loopback, Piece, differing};

/// How long nothing may land.
const QUIET: Duration = Duration::from_millis(100);
/// Interval at which the queues are polled meanwhile.
const PAUSE: Duration = Duration::from_micros(100);

const MARKERS: DrainMarkers = DrainMarkers { receive: u64::MAX, send: u64::MAX - 1 };

/// A way to give memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// The receiver polled a notice that was posted after the data.
    Notice,
    /// The receiver's queue pair is in the error state, and the markers of both queues are flushed.
    Drain,
    /// The receiver's queue pair is destroyed.
    Destroy,
    /// The receiver's region is deregistered.
    Deregister,
}

impl Case {
    pub(super) const ALL: [Case; 4] = [Case::Notice, Case::Drain, Case::Destroy, Case::Deregister];

    /// The name of its check.
    pub(super) fn name(self) -> &'static str {
        match self {
            Case::Notice => "rdma-notice",
            Case::Drain => "rdma-drain",
            Case::Destroy => "rdma-destroy",
            Case::Deregister => "rdma-deregister",
        }
    }

    /// Finding where the rule held.
    pub(super) fn rule(self) -> &'static str {
        match self {
            Case::Notice => "all bytes landed before their notice",
            Case::Drain => "no byte landed after both queues were drained in the error state",
            Case::Destroy => "no byte landed after the queue pair was destroyed",
            Case::Deregister => "no byte landed after the region was deregistered",
        }
    }

    /// Try it on a new connection. Returns whether bytes were under way, so that the result counts.
    pub(super) fn run(self, mut ends: Loopback) -> anyhow::Result<bool> {
        match self {
            Case::Notice => notice(&mut ends).map(|()| true),
            Case::Drain => amid_writes(ends, drain),
            Case::Destroy => amid_writes(ends, End::destroy),
            Case::Deregister => amid_writes(ends, End::deregister),
        }
    }
}

/// All bytes are there when the notice is polled.
fn notice(ends: &mut Loopback) -> anyhow::Result<()> {
    let pieces = ends.pieces()?;
    ends.receiver.pair()?.post_receive(1, &[])?;
    ends.post(&pieces, 2, Piece::write)?;
    ends.post_notice(3, 1)?;
    ends.receiver.expect(1, CompletionKind::Notice(1))?;
    let missing = differing(&ends.receiver.bytes(), &ends.sender.bytes());
    ensure!(missing == 0, "bytes were missing when their notice was polled missing={missing}");
    Ok(())
}

/// End the receiver's part amid WRITEs of all its memory. No byte lands after that. Returns whether
/// some of them had not landed.
fn amid_writes(
    ends: Loopback,
    take_down: impl FnOnce(&mut End) -> anyhow::Result<()>,
) -> anyhow::Result<bool> {
    let pieces = ends.pieces()?;
    let Loopback { mut sender, mut receiver } = ends;
    let pair = sender.pair()?;
    let taken_down = std::thread::scope(|scope| {
        // Some devices carry out requests before they return to the thread that posts them.
        let poster = scope.spawn(|| {
            pieces.iter().try_for_each(|piece| {
                let operation = piece.write();
                pair.post_send(&[SendRequest { id: 1, signaled: false, operation }])
            })
        });
        let taken_down = receiver.wait_for_bytes().and_then(|()| take_down(&mut receiver));
        let before = receiver.bytes();
        let posted = poster.join().map_err(|_| anyhow!("the posting thread failed"))?;
        taken_down.and(Ok(posted?)).map(|()| before)
    });
    let before = taken_down?;
    let end = Instant::now() + QUIET;
    while Instant::now() < end {
        sender.discard()?;
        receiver.discard()?;
        std::thread::sleep(PAUSE);
    }
    let late = differing(&receiver.bytes(), &before);
    ensure!(late == 0, "bytes landed late bytes={late}");
    Ok(before.last() == Some(&0))
}

/// Take the queue pair down, and wait until both of its queues are drained.
fn drain(receiver: &mut End) -> anyhow::Result<()> {
    let mut drain = receiver.pair()?.begin_drain(MARKERS)?;
    while !drain.is_done() {
        let completion = receiver.next()?.context("the queues were not drained in time")?;
        drain.observe(&completion);
    }
    Ok(())
}
