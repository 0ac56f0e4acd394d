//! One file per object, like the file backend of SGLang's HiCache: a flat directory, the key as the
//! name, whole files written and read. That one uses the page cache and does not sync; this one
//! uses O_DIRECT and syncs.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::fs::OFlags;

use crate::peer::{Peer, Setup};
use crate::pool::prefaulted;
use crate::readers::Readers;

/// Files written at a time.
const WRITERS: usize = 8;

struct FilePerObject {
    setup: Setup,
    writers: Readers,
    writes: usize,
    readers: Option<Readers>,
}

pub(super) fn open(setup: &Setup) -> anyhow::Result<Box<dyn Peer>> {
    let writers = Readers::start(WRITERS, || {
        let (contents, dir) = (setup.check.contents().clone(), setup.dir.clone());
        move |number| {
            // Objects are concatenated in aligned memory and consist of whole blocks.
            let mut file = options().write(true).create_new(true).open(path(&dir, number))?;
            file.write_all(contents.of(number))?;
            Ok(())
        }
    });
    Ok(Box::new(FilePerObject { setup: setup.clone(), writers, writes: 0, readers: None }))
}

fn options() -> OpenOptions {
    let mut options = File::options();
    options.custom_flags(OFlags::DIRECT.bits() as i32);
    options
}

fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:016x}.bin"))
}

impl FilePerObject {
    /// Waits until at most `most` batches are being written.
    fn wait_for_writes(&mut self, most: usize) -> anyhow::Result<()> {
        while self.writes > most {
            self.writers.end()?;
            self.writes -= 1;
        }
        Ok(())
    }
}

impl Peer for FilePerObject {
    fn put_batch(&mut self, numbers: Range<u64>) -> anyhow::Result<()> {
        let numbers: Vec<u64> = numbers.collect();
        self.writers.begin(&numbers, numbers.len().div_ceil(WRITERS))?;
        self.writes += 1;
        self.wait_for_writes(1)
    }

    fn sync(&mut self) -> anyhow::Result<()> {
        self.wait_for_writes(0)?;
        rustix::fs::syncfs(File::open(&self.setup.dir)?)?;
        Ok(())
    }

    fn reopen(&mut self) -> anyhow::Result<()> {
        let setup = &self.setup;
        self.readers = Some(Readers::start(setup.work.threads, || {
            let (mut memory, len) =
                (prefaulted(1, setup.work.object_bytes), setup.work.object_bytes);
            let (check, dir) = (setup.check.clone(), setup.dir.clone());
            move |number| {
                let Ok(memory) = &mut memory else { bail!("no memory for a value") };
                let buffer = &mut memory[..len];
                options().read(true).open(path(&dir, number))?.read_exact(buffer)?;
                check.value(number, buffer);
                Ok(())
            }
        }));
        Ok(())
    }

    fn batches_in_flight(&self) -> usize {
        self.setup.work.depth
    }

    fn begin_get(&mut self, numbers: Vec<u64>) -> anyhow::Result<()> {
        self.readers.as_ref().context("not reading")?.begin(&numbers, self.setup.work.part())
    }

    fn end_get(&mut self) -> anyhow::Result<Duration> {
        self.readers.as_ref().context("not reading")?.end()
    }
}
