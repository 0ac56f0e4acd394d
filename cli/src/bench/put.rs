//! Puts that wait while the store is busy, and a thread that puts at a fixed rate.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagelith::{AlignedBuf, CompletedBatch, ErrorKind, Options, Put, PutGroup, Session, Source};

use super::objects::Objects;

/// Maximum wait for a result: longer than each deadline of the store.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(120);
/// Pause before another try if the store is busy.
const BUSY_PAUSE: Duration = Duration::from_micros(200);

/// Put the objects of these numbers, with the content of `buffers`.
pub(super) fn put(
    session: &mut Session,
    objects: &Objects,
    numbers: Range<u64>,
    buffers: &mut Vec<AlignedBuf>,
) -> anyhow::Result<()> {
    let mut wanted: Vec<Put> = Vec::new();
    for number in numbers {
        let buffer = buffers.pop().context("more puts than buffers")?;
        wanted.push(Put { key: objects.key(number), source: Source::owned(buffer) });
    }
    while !wanted.is_empty() {
        let keys: Vec<_> = wanted.iter().map(|put| put.key).collect();
        let groups = wanted.drain(..).map(|put| PutGroup::new(vec![put])).collect();
        let ticket = session.submit_put(groups, Options::default());
        let CompletedBatch::Put(done) = session.wait(ticket, WAIT_MAX).context("no result")? else {
            bail!("a put returned another result")
        };
        for (key, done) in keys.into_iter().zip(done) {
            match done.outcome {
                Ok(_) => buffers.extend(done.source.into_buffer()),
                Err(error) if error.kind == ErrorKind::Busy => {
                    wanted.push(Put { key, source: done.source })
                }
                Err(error) => return Err(error).context("put failed"),
            }
        }
        if !wanted.is_empty() {
            std::thread::sleep(BUSY_PAUSE);
        }
    }
    Ok(())
}

/// A thread that puts new objects at a fixed rate.
pub(super) struct PacedWriter {
    pub(super) session: Session,
    pub(super) objects: Objects,
    pub(super) buffers: Vec<AlignedBuf>,
    pub(super) batch: u64,
    /// Objects per second.
    pub(super) rate: u64,
}

impl PacedWriter {
    /// Put objects from `next` on, until `over` is set.
    pub(super) fn run(&mut self, next: &AtomicU64, over: &AtomicBool) -> anyhow::Result<()> {
        let (begun, first) = (Instant::now(), next.load(Ordering::Acquire));
        while !over.load(Ordering::Acquire) {
            let at = next.load(Ordering::Acquire);
            let due = (begun.elapsed().as_secs_f64() * self.rate as f64) as u64;
            if at - first + self.batch > due {
                std::thread::sleep(BUSY_PAUSE);
                continue;
            }
            put(&mut self.session, &self.objects, at..at + self.batch, &mut self.buffers)?;
            next.store(at + self.batch, Ordering::Release);
        }
        Ok(())
    }
}
