//! Threads that read with blocking calls, a batch each: as many single reads in flight as there are threads, without a
//! hand-over for each object.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

type Job = (Vec<u64>, Instant);

/// The threads.
pub(crate) struct Readers {
    jobs: Option<Sender<Job>>,
    done: Receiver<anyhow::Result<Duration>>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    /// So many threads, each with what `make` gives it to read an object.
    pub(crate) fn start<R>(count: usize, make: impl Fn() -> R) -> Readers
    where
        R: FnMut(u64) -> anyhow::Result<()> + Send + 'static,
    {
        let (jobs, waiting) = channel::<Job>();
        let waiting = Arc::new(Mutex::new(waiting));
        let (report, done) = channel();
        let start = |_| {
            let (waiting, report, mut read) = (waiting.clone(), report.clone(), make());
            thread::spawn(move || {
                loop {
                    let job = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((numbers, begun)) = job else { break };
                    let outcome = numbers.into_iter().try_for_each(&mut read);
                    if report.send(outcome.map(|()| begun.elapsed())).is_err() {
                        break;
                    }
                }
            })
        };
        Readers { jobs: Some(jobs), done, threads: (0..count).map(start).collect() }
    }

    /// Read a batch.
    pub(crate) fn begin(&self, numbers: Vec<u64>) -> anyhow::Result<()> {
        let jobs = self.jobs.as_ref().context("the readers have ended")?;
        jobs.send((numbers, Instant::now())).map_err(|_| anyhow!("the readers have ended"))
    }

    /// Wait for a batch; how long it took.
    pub(crate) fn end(&self) -> anyhow::Result<Duration> {
        self.done.recv().context("the readers have ended")?
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;

    #[test]
    fn every_batch_ends_once_and_an_error_is_seen() {
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
        for batch in [vec![1, 2], vec![3], vec![4, 5, 6], vec![7]] {
            readers.begin(batch).unwrap();
        }
        assert!((0..4).all(|_| readers.end().is_ok()));
        assert_eq!(sum.load(Relaxed), 28);
        readers.begin(vec![99]).unwrap();
        assert!(readers.end().is_err());
    }
}
