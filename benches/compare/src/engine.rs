//! A round of a store in this process.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};

use crate::cost::{Cost, Phase};
use crate::peer::{Peer, Round, Setup, Side, SideProperties};
use crate::rng::shuffled;

/// Opens a store in an empty directory.
pub(crate) type Open = fn(&Setup) -> anyhow::Result<Box<dyn Peer>>;

/// A store in the comparison.
pub(crate) struct Engine {
    pub(crate) name: &'static str,
    pub(crate) open: Open,
    pub(crate) manner: SideProperties,
    /// Whether the engine verifies values, so that samples suffice while the time is measured.
    pub(crate) verifies: bool,
    pub(crate) setup: Setup,
}

impl Side for Engine {
    fn name(&self) -> &'static str {
        self.name
    }

    fn manner(&self) -> SideProperties {
        self.manner.clone()
    }

    fn round(&mut self, number: u32) -> anyhow::Result<Round> {
        empty(&self.setup.dir)?;
        let mut peer = (self.open)(&self.setup).context("cannot open")?;
        let put = self.put(peer.as_mut()).context("cannot put")?;
        let begun = Instant::now();
        peer.reopen().context("cannot open again")?;
        let reopen_s = begun.elapsed().as_secs_f64();
        drop_page_cache()?;
        self.setup.check.every_byte(!self.verifies);
        let get = self.get(peer.as_mut(), number).context("cannot get")?;
        if self.verifies && number == 0 {
            // Once outside of the measurement, because the engine's own verification is not trusted
            // alone.
            self.setup.check.every_byte(true);
            self.get(peer.as_mut(), number).context("cannot get")?;
        }
        drop(peer);
        empty(&self.setup.dir)?;
        let (wrong, absent) = self.setup.check.take();
        Ok(Round { put, get, reopen_s, values: self.setup.work.objects, wrong, absent })
    }
}

impl Engine {
    fn put(&self, peer: &mut dyn Peer) -> anyhow::Result<Phase> {
        let work = &self.setup.work;
        let mut cost = Cost::begin();
        for first in (0..work.objects).step_by(work.batch) {
            let begun = Instant::now();
            peer.put_batch(first..first + work.batch as u64)?;
            cost.batch(begun.elapsed());
        }
        peer.sync()?;
        Ok(cost.end(work.bytes()))
    }

    fn get(&self, peer: &mut dyn Peer, round: u32) -> anyhow::Result<Phase> {
        let work = &self.setup.work;
        let order = shuffled(work.objects, work.seed ^ u64::from(round + 1));
        let mut waiting = order.chunks(work.batch);
        let (mut under_way, most) = (0, peer.batches_in_flight());
        let mut cost = Cost::begin();
        loop {
            while under_way < most
                && let Some(batch) = waiting.next()
            {
                peer.begin_get(batch.to_vec())?;
                under_way += 1;
            }
            if under_way == 0 {
                break;
            }
            cost.batch(peer.end_get()?);
            under_way -= 1;
        }
        Ok(cost.end(work.bytes()))
    }
}

/// Threads that remove files. One thread took 3.4 ms per file of 16 KiB, where four took 0.07.
const REMOVERS: usize = 8;

/// Empties the directory.
pub(crate) fn empty(dir: &Path) -> anyhow::Result<()> {
    let files: Vec<PathBuf> = match fs::read_dir(dir) {
        Ok(entries) => entries.map(|e| Ok(e?.path())).collect::<std::io::Result<_>>()?,
        Err(_) => Vec::new(),
    };
    std::thread::scope(|threads| {
        for some in files.chunks(files.len().div_ceil(REMOVERS).max(1)) {
            // The next step removes everything else, or returns the error.
            threads.spawn(move || some.iter().for_each(|file| drop(fs::remove_file(file))));
        }
    });
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    fs::create_dir_all(dir)?;
    // Removed blocks are reused by the next side, so sync first.
    rustix::fs::syncfs(fs::File::open(dir)?)?;
    Ok(())
}

/// Drops the page cache, so that the next reads go to the device.
pub(crate) fn drop_page_cache() -> anyhow::Result<()> {
    const CONTROL: &str = "/proc/sys/vm/drop_caches";
    rustix::fs::sync();
    if fs::write(CONTROL, "1").is_err() {
        bail!("reads would not be cold: {CONTROL} cannot be written, which root may");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::ops::Range;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::check::Check;
    use crate::contents::Contents;
    use crate::work::Work;

    /// Returns the right values, except for one with a wrong byte and one that is lost.
    struct Faulty {
        setup: Setup,
        under_way: VecDeque<Vec<u64>>,
    }

    const WRONG: u64 = 5;
    const LOST: u64 = 9;

    impl Peer for Faulty {
        fn put_batch(&mut self, _: Range<u64>) -> anyhow::Result<()> {
            Ok(())
        }

        fn sync(&mut self) -> anyhow::Result<()> {
            Ok(())
        }

        fn reopen(&mut self) -> anyhow::Result<()> {
            Ok(())
        }

        fn batches_in_flight(&self) -> usize {
            2
        }

        fn begin_get(&mut self, numbers: Vec<u64>) -> anyhow::Result<()> {
            self.under_way.push_back(numbers);
            assert!(self.under_way.len() <= 2);
            Ok(())
        }

        fn end_get(&mut self) -> anyhow::Result<Duration> {
            let check = &self.setup.check;
            for number in self.under_way.pop_front().context("nothing is under way")? {
                let mut value = check.contents().of(number).to_vec();
                match number {
                    LOST => check.absent(),
                    // A byte outside of the samples.
                    WRONG => {
                        value[100] ^= 1;
                        check.value(number, &value);
                    }
                    _ => check.value(number, &value),
                }
            }
            Ok(Duration::ZERO)
        }
    }

    fn engine(open: Open) -> Engine {
        let work =
            Work { object_bytes: 4096, objects: 12, batch: 4, depth: 2, threads: 1, seed: 3 };
        let check = Arc::new(Check::new(Arc::new(Contents::new(&work).unwrap())));
        let (in_flight, verified_by) = (String::new(), String::new());
        let manner = SideProperties { in_flight, verified_by, page_cache: false };
        let setup = Setup { dir: PathBuf::new(), work, check };
        Engine { name: "faulty", open, manner, verifies: false, setup }
    }

    #[test]
    fn wrong_and_absent_values_are_counted_once() {
        let engine = engine(|setup| {
            Ok(Box::new(Faulty { setup: setup.clone(), under_way: VecDeque::new() }))
        });
        let mut peer = (engine.open)(&engine.setup).unwrap();
        engine.get(peer.as_mut(), 0).unwrap();
        assert_eq!(engine.setup.check.take(), (1, 1));
        engine.setup.check.every_byte(false);
        engine.get(peer.as_mut(), 1).unwrap();
        assert_eq!(engine.setup.check.take(), (0, 1), "a glance does not see it");
    }
}
