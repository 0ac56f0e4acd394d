//! Threads that read with blocking calls. A batch is handed to them in parts, so that they share it
//! without a hand-over per object.

use std::sync::atomic::{AtomicUsize, Ordering::AcqRel};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

/// Objects of a batch for one thread.
struct Part {
    numbers: Vec<u64>,
    batch: Arc<Batch>,
}

/// A batch in progress: its start time, and the number of unfinished parts.
struct Batch {
    begun: Instant,
    left: AtomicUsize,
}

/// The pool of threads.
pub(crate) struct Readers {
    parts: Option<Sender<Part>>,
    done: Receiver<anyhow::Result<Duration>>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    /// Starts `count` threads, each with its own read function from `make`.
    pub(crate) fn start<R>(count: usize, make: impl Fn() -> R) -> Readers
    where
        R: FnMut(u64) -> anyhow::Result<()> + Send + 'static,
    {
        let (parts, waiting) = channel::<Part>();
        let waiting = Arc::new(Mutex::new(waiting));
        let (report, done) = channel();
        let start = |_| {
            let (waiting, report, mut read) = (waiting.clone(), report.clone(), make());
            thread::spawn(move || {
                loop {
                    let part = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(Part { numbers, batch }) = part else { break };
                    let outcome = numbers.into_iter().try_for_each(&mut read);
                    let is_last = batch.left.fetch_sub(1, AcqRel) == 1;
                    let result = match outcome {
                        Ok(()) if !is_last => continue,
                        outcome => report.send(outcome.map(|()| batch.begun.elapsed())),
                    };
                    if result.is_err() {
                        break;
                    }
                }
            })
        };
        Readers { parts: Some(parts), done, threads: (0..count).map(start).collect() }
    }

    /// Reads a batch in parts of `part` objects.
    pub(crate) fn begin(&self, numbers: &[u64], part: usize) -> anyhow::Result<()> {
        let parts = self.parts.as_ref().context("the readers have ended")?;
        let left = AtomicUsize::new(numbers.len().div_ceil(part));
        let batch = Arc::new(Batch { begun: Instant::now(), left });
        for numbers in numbers.chunks(part) {
            let part = Part { numbers: numbers.to_vec(), batch: batch.clone() };
            parts.send(part).map_err(|_| anyhow!("the readers have ended"))?;
        }
        Ok(())
    }

    /// Waits for a batch; returns its duration.
    pub(crate) fn end(&self) -> anyhow::Result<Duration> {
        self.done.recv().context("the readers have ended")?
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.parts = None;
        for thread in self.threads.drain(..) {
            // A panic was already reported.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;

    #[test]
    fn readers_end_each_batch_once_and_report_errors() {
        let sum = Arc::new(AtomicU64::new(0));
        let readers = Readers::start(3, || {
            let sum = sum.clone();
            move |number| match number {
                99 => Err(anyhow!("no such object")),
                n => {
                    sum.fetch_add(n, Relaxed);
                    Ok(())
                }
            }
        });
        for batch in [&[1, 2][..], &[3], &[4, 5, 6], &[7]] {
            readers.begin(batch, 2).unwrap();
        }
        assert!((0..4).all(|_| readers.end().is_ok()));
        assert_eq!(sum.load(Relaxed), 28);
        readers.begin(&[99], 2).unwrap();
        assert!(readers.end().is_err());
    }
}
