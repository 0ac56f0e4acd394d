//! Putting objects, waiting where the store is busy, and a thread that does so at a rate.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagelith::{AlignedBuf, Done, ErrorKind, Options, Put, PutGroup, Session, Source};

use super::objects::Objects;

/// Longer than any of the store's own deadlines.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// How long to wait when the store is busy before asking again.
const BUSY_PAUSE: Duration = Duration::from_micros(200);

/// Put the objects of these numbers, with what `buffers` hold.
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
        let Done::Put(done) = session.wait(ticket, PATIENCE).context("no answer")? else {
            bail!("a put was answered with something else")
        };
        for (key, done) in keys.into_iter().zip(done) {
            match done.outcome {
                Ok(_) => buffers.extend(done.source.into_buffer()),
                Err(error) if error.kind == ErrorKind::Busy => wanted.push(Put { key, source: done.source }),
                Err(error) => return Err(error).context("put failed"),
            }
        }
        if !wanted.is_empty() {
            std::thread::sleep(BUSY_PAUSE);
        }
    }
    Ok(())
}

/// A thread that puts new objects at a rate.
pub(super) struct PacedWriter {
    pub(super) session: Session,
    pub(super) objects: Objects,
    pub(super) buffers: Vec<AlignedBuf>,
    pub(super) batch: u64,
    /// Objects a second.
    pub(super) rate: u64,
}

impl PacedWriter {
    /// Go on from the object `next` until it is `over`.
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
