//! RocksDB with values in blob files (BlobDB), O_DIRECT, without a write-ahead log: a flush makes
//! data durable.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, Options, ReadOptions, WriteBatch, WriteOptions,
};

use crate::peer::{Peer, Setup};
use crate::readers::Readers;

/// Cache for index blocks.
const CACHE_BYTES: usize = 8 << 20;
/// Size of a memtable, as in fjall; at most two.
const MEMTABLE_BYTES: usize = 64 << 20;

struct RocksDb {
    setup: Setup,
    // Dropped in this order: the readers hold the database.
    readers: Option<Readers>,
    open: Option<Arc<DB>>,
}

pub(super) fn open(setup: &Setup) -> anyhow::Result<Box<dyn Peer>> {
    let mut peer = RocksDb { setup: setup.clone(), readers: None, open: None };
    peer.open()?;
    Ok(Box::new(peer))
}

impl RocksDb {
    fn open(&mut self) -> anyhow::Result<()> {
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&Cache::new_lru_cache(CACHE_BYTES)?);
        table.set_bloom_filter(10.0, false);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&table);
        options.set_compression_type(DBCompressionType::None);
        options.set_enable_blob_files(true);
        options.set_min_blob_size(1024);
        options.set_blob_compression_type(DBCompressionType::None);
        options.set_write_buffer_size(MEMTABLE_BYTES);
        options.set_max_write_buffer_number(2);
        options.set_use_direct_reads(true);
        options.set_use_direct_io_for_flush_and_compaction(true);
        self.open = Some(Arc::new(DB::open(&options, &self.setup.dir)?));
        Ok(())
    }

    fn database(&self) -> anyhow::Result<&Arc<DB>> {
        self.open.as_ref().context("the database is closed")
    }
}

impl Peer for RocksDb {
    fn put_batch(&mut self, numbers: Range<u64>) -> anyhow::Result<()> {
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        let mut batch = WriteBatch::default();
        for number in numbers {
            batch.put(number.to_be_bytes(), self.setup.check.contents().of(number));
        }
        self.database()?.write_opt(batch, &options)?;
        Ok(())
    }

    fn sync(&mut self) -> anyhow::Result<()> {
        self.database()?.flush()?;
        Ok(())
    }

    fn reopen(&mut self) -> anyhow::Result<()> {
        self.readers = None;
        self.open = None;
        self.open()?;
        let (database, check) = (self.database()?.clone(), self.setup.check.clone());
        self.readers = Some(Readers::start(self.setup.work.threads, || {
            let (database, check) = (database.clone(), check.clone());
            let mut options = ReadOptions::default();
            options.set_verify_checksums(true);
            move |number: u64| {
                match database.get_pinned_opt(number.to_be_bytes(), &options)? {
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
