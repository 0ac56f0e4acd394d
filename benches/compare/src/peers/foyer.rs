//! foyer's hybrid cache over a directory, O_DIRECT, with little memory, so that every get reads the
//! disk.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use foyer::{
    BlockEngineConfig, Code, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder,
    HybridCachePolicy, IoEngineConfig, PsyncIoEngineConfig, UringIoEngineConfig,
};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::contents::Contents;
use crate::peer::{Peer, Setup};

/// Limit of its memory cache. Objects that were read evict one another.
const MEMORY_BYTES: usize = 1 << 20;
/// Limit of its flusher's queue. It silently drops objects beyond the limit, so the harness must
/// wait for it.
const FLUSHER_BYTES: usize = 64 << 20;
/// Four of 16 MiB would hold three objects of 4 MiB each.
const BLOCK_BYTES: usize = 64 << 20;

/// A value: borrowed for a put, so that only foyer copies; owned after a get.
enum Value {
    Lent(Arc<Contents>, u64),
    Owned(Vec<u8>),
}

impl Value {
    fn bytes(&self) -> &[u8] {
        match self {
            Value::Lent(contents, number) => contents.of(*number),
            Value::Owned(bytes) => bytes,
        }
    }
}

impl Code for Value {
    fn encode(&self, writer: &mut impl std::io::Write) -> foyer::Result<()> {
        let bytes = self.bytes();
        bytes.len().encode(writer)?;
        writer.write_all(bytes).map_err(foyer::Error::io_error)
    }

    fn decode(reader: &mut impl std::io::Read) -> foyer::Result<Self> {
        Vec::decode(reader).map(Value::Owned)
    }

    fn estimated_size(&self) -> usize {
        size_of::<usize>() + self.bytes().len()
    }
}

struct Foyer {
    setup: Setup,
    uring: bool,
    runtime: Runtime,
    cache: Option<HybridCache<u64, Value>>,
    /// Bytes put since the last wait for the flusher, and the pending wait.
    unwaited: usize,
    flushed: Option<JoinHandle<()>>,
    under_way: VecDeque<JoinHandle<anyhow::Result<Duration>>>,
}

pub(super) fn open_uring(setup: &Setup) -> anyhow::Result<Box<dyn Peer>> {
    open(setup, true)
}

pub(super) fn open_psync(setup: &Setup) -> anyhow::Result<Box<dyn Peer>> {
    open(setup, false)
}

fn open(setup: &Setup, uring: bool) -> anyhow::Result<Box<dyn Peer>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut peer = Foyer {
        setup: setup.clone(),
        uring,
        runtime,
        cache: None,
        unwaited: 0,
        flushed: None,
        under_way: VecDeque::new(),
    };
    peer.open()?;
    Ok(Box::new(peer))
}

impl Foyer {
    fn open(&mut self) -> anyhow::Result<()> {
        let work = &self.setup.work;
        // Room for a header per object, unused space at the ends of blocks, and free blocks.
        let room = work.objects as usize * (work.object_bytes + 8192) / 8 * 10 + 4 * BLOCK_BYTES;
        let device =
            FsDeviceBuilder::new(&self.setup.dir).with_capacity(room).with_direct(true).build()?;
        let engine = BlockEngineConfig::new(device)
            .with_block_size(BLOCK_BYTES)
            .with_buffer_pool_size(FLUSHER_BYTES)
            .with_submit_queue_size_threshold(FLUSHER_BYTES);
        let io: Box<dyn IoEngineConfig> = match self.uring {
            true => Box::new(UringIoEngineConfig::new().with_io_depth(work.batch * work.depth)),
            false => Box::new(PsyncIoEngineConfig::new()),
        };
        let build = HybridCacheBuilder::new()
            .with_policy(HybridCachePolicy::WriteOnInsertion)
            .with_flush_on_close(false)
            .memory(MEMORY_BYTES)
            .with_shards(1)
            .with_weighter(|_, value: &Value| value.bytes().len())
            .storage()
            .with_io_engine_config(io)
            .with_engine_config(engine)
            .build();
        self.cache = Some(self.runtime.block_on(build)?);
        Ok(())
    }

    fn cache(&self) -> anyhow::Result<&HybridCache<u64, Value>> {
        self.cache.as_ref().context("the cache is closed")
    }

    /// Waits until the flusher has written everything up to the last call, and starts the next
    /// wait.
    fn wait_for_half(&mut self) -> anyhow::Result<()> {
        let cache = self.cache()?.clone();
        let next = self.runtime.spawn(async move { cache.storage().wait().await });
        if let Some(last) = self.flushed.replace(next) {
            self.runtime.block_on(last)?;
        }
        self.unwaited = 0;
        Ok(())
    }
}

impl Peer for Foyer {
    fn put_batch(&mut self, numbers: Range<u64>) -> anyhow::Result<()> {
        for number in numbers {
            if self.unwaited + self.setup.work.object_bytes > FLUSHER_BYTES / 3 {
                self.wait_for_half()?;
            }
            let value = Value::Lent(self.setup.check.contents().clone(), number);
            self.cache()?.storage_writer(number).force().insert(value);
            self.unwaited += self.setup.work.object_bytes + 8192;
        }
        Ok(())
    }

    fn sync(&mut self) -> anyhow::Result<()> {
        // Twice: for objects before the last wait, and for those since.
        self.wait_for_half()?;
        self.wait_for_half()?;
        // It does not sync itself.
        rustix::fs::syncfs(std::fs::File::open(&self.setup.dir)?)?;
        Ok(())
    }

    fn reopen(&mut self) -> anyhow::Result<()> {
        if let Some(last) = self.flushed.take() {
            self.runtime.block_on(last)?;
        }
        let cache = self.cache.take().context("the cache is closed")?;
        self.runtime.block_on(cache.close())?;
        drop(cache);
        self.open()
    }

    fn batches_in_flight(&self) -> usize {
        self.setup.work.depth
    }

    fn begin_get(&mut self, numbers: Vec<u64>) -> anyhow::Result<()> {
        let (cache, check) = (self.cache()?.clone(), self.setup.check.clone());
        let batch = async move {
            let begun = Instant::now();
            // Each get starts its read when it is made.
            let gets: Vec<_> = numbers.iter().map(|number| cache.get(number)).collect();
            for (number, get) in numbers.into_iter().zip(gets) {
                match get.await? {
                    Some(entry) => check.value(number, entry.value().bytes()),
                    None => check.absent(),
                }
            }
            Ok(begun.elapsed())
        };
        self.under_way.push_back(self.runtime.spawn(batch));
        Ok(())
    }

    fn end_get(&mut self) -> anyhow::Result<Duration> {
        let oldest = self.under_way.pop_front().context("no batch is under way")?;
        self.runtime.block_on(oldest)?
    }
}
