//! fjall 3, an LSM tree with values in separate files. It reads through the page cache, which is
//! dropped before.

use std::ops::Range;
use std::time::Duration;

use anyhow::Context;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode};

use crate::peer::{Peer, Setup};
use crate::readers::Readers;

/// Cache for index blocks and for values.
const CACHE_BYTES: u64 = 8 << 20;

struct Fjall {
    setup: Setup,
    // Dropped in this order: the readers hold the tree.
    readers: Option<Readers>,
    open: Option<(Keyspace, Database)>,
}

pub(super) fn open(setup: &Setup) -> anyhow::Result<Box<dyn Peer>> {
    let mut peer = Fjall { setup: setup.clone(), readers: None, open: None };
    peer.open()?;
    Ok(Box::new(peer))
}

impl Fjall {
    fn open(&mut self) -> anyhow::Result<()> {
        let database = Database::builder(&self.setup.dir).cache_size(CACHE_BYTES).open()?;
        let options = || {
            let separation = KvSeparationOptions::default();
            KeyspaceCreateOptions::default().with_kv_separation(Some(separation))
        };
        self.open = Some((database.keyspace("objects", options)?, database));
        Ok(())
    }

    fn parts(&self) -> anyhow::Result<&(Keyspace, Database)> {
        self.open.as_ref().context("the database is closed")
    }
}

impl Peer for Fjall {
    fn put_batch(&mut self, numbers: Range<u64>) -> anyhow::Result<()> {
        let (keyspace, _) = self.parts()?;
        for number in numbers {
            keyspace.insert(number.to_be_bytes(), self.setup.check.contents().of(number))?;
        }
        Ok(())
    }

    fn sync(&mut self) -> anyhow::Result<()> {
        self.parts()?.1.persist(PersistMode::SyncAll)?;
        Ok(())
    }

    fn reopen(&mut self) -> anyhow::Result<()> {
        // Data that is only in the journal would be loaded into memory at the next open.
        self.parts()?.0.rotate_memtable_and_wait()?;
        self.readers = None;
        self.open = None;
        self.open()?;
        let (keyspace, check) = (self.parts()?.0.clone(), self.setup.check.clone());
        self.readers = Some(Readers::start(self.setup.work.threads, || {
            let (keyspace, check) = (keyspace.clone(), check.clone());
            move |number: u64| {
                match keyspace.get(number.to_be_bytes())? {
                    Some(value) => check.value(number, &value),
                    None => check.absent(),
                }
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
