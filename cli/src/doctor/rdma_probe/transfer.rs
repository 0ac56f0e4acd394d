//! WRITE and READ of all memory of an end: bytes compared, and the rate.

use std::time::{Duration, Instant};

use anyhow::ensure;
use pagelith::io::verbs::CompletionKind;

use super::loopback::{BYTES, Loopback, Piece, differing, pattern};

/// Transfers are repeated for this time, to measure the rate.
const MEASURED: Duration = Duration::from_millis(300);

/// Write all memory and compare it after a notice, then measure. Returns bytes a second.
pub(super) fn write(ends: &mut Loopback) -> anyhow::Result<f64> {
    let pieces = ends.pieces()?;
    ends.receiver.pair()?.post_receive(1, &[])?;
    ends.post(&pieces, 2, Piece::write)?;
    ends.post_notice(3, 7)?;
    ends.sender.expect(2, CompletionKind::Write)?;
    ends.sender.expect(3, CompletionKind::Write)?;
    ends.receiver.expect(1, CompletionKind::Notice(7))?;
    compare(&ends.receiver.bytes(), &ends.sender.bytes())?;
    rate(|| {
        ends.post(&pieces, 4, Piece::write)?;
        ends.sender.expect(4, CompletionKind::Write)
    })
}

/// Read all memory and compare it, then measure. Returns bytes a second.
pub(super) fn read(ends: &mut Loopback) -> anyhow::Result<f64> {
    let (pieces, expected) = (ends.pieces()?, pattern(2));
    ends.receiver.fill(&expected);
    ends.post(&pieces, 5, Piece::read)?;
    ends.sender.expect(5, CompletionKind::Read)?;
    compare(&ends.sender.bytes(), &expected)?;
    rate(|| {
        ends.post(&pieces, 6, Piece::read)?;
        ends.sender.expect(6, CompletionKind::Read)
    })
}

fn compare(found: &[u8], expected: &[u8]) -> anyhow::Result<()> {
    let wrong = differing(found, expected);
    ensure!(wrong == 0, "wrong bytes arrived wrong={wrong} bytes={BYTES}");
    Ok(())
}

fn rate(mut transfer: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let (begin, mut count) = (Instant::now(), 0u32);
    while begin.elapsed() < MEASURED {
        transfer()?;
        count += 1;
    }
    Ok(f64::from(count) * BYTES as f64 / begin.elapsed().as_secs_f64())
}
