//! Pagelith, embedded, as in an application: one session, batches in flight, values read directly
//! into the application's own memory, no DRAM tier.

use std::collections::VecDeque;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagelith::config::Promote;
use pagelith::layouts::ids::PrefixHash;
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::namespace::Namespace;
use pagelith::layouts::shard::Shard;
use pagelith::{
    AlignedBuf, CompletedBatch, Config, Destination, Get, GetOutcome, MachineLimits, Options,
    PutSlice, Session, Size, Store, Ticket,
};

use crate::peer::{Peer, Setup};
use crate::pool::prefaulted;
use crate::rng::mix;

/// The write buffer is two segments: as little memory for data not yet on disk as the other stores
/// have.
const SEGMENT_BYTES: u64 = 32 << 20;
/// Longer than any of the store's own deadlines.
const TIME_LIMIT: Duration = Duration::from_secs(120);

struct Pagelith {
    setup: Setup,
    first: ObjectKey,
    open: Option<(Store, Session)>,
    /// Memory for values, its start, and its free slots. Nothing else uses this memory: values are
    /// read through their destinations.
    memory: Arc<AlignedBuf>,
    start: NonNull<u8>,
    slots: Vec<usize>,
    under_way: VecDeque<Batch>,
}

/// A batch of gets: its start time, and the slot of each object.
struct Batch {
    ticket: Ticket,
    begun: Instant,
    taken: Vec<(u64, usize)>,
}

pub(super) fn open(setup: &Setup) -> anyhow::Result<Box<dyn Peer>> {
    let namespace = Namespace { model: "compare".to_owned(), ..Namespace::default() }.id();
    let first =
        ObjectKey::new(namespace, PrefixHash([0; 32]), Role::Target, "kv", "kv", Shard::Whole);
    let first = first.context("a key")?;
    let slots = setup.work.batch * setup.work.depth;
    let mut memory = prefaulted(slots, setup.work.object_bytes)?;
    let start = NonNull::from(&mut memory[..]).cast();
    let mut peer = Pagelith {
        setup: setup.clone(),
        first,
        open: None,
        start,
        memory: Arc::new(memory),
        slots: (0..slots).collect(),
        under_way: VecDeque::new(),
    };
    peer.open()?;
    Ok(Box::new(peer))
}

impl Pagelith {
    fn open(&mut self) -> anyhow::Result<()> {
        let work = &self.setup.work;
        let mut config = Config::default();
        (config.dram.bytes, config.dram.promote) = (Size::ZERO, Promote::Never);
        // Each object has a header, the last large object may not fit into a segment, and some
        // segments stay free.
        let room = work.objects * (work.object_bytes as u64 + 4096) / 8 * 12 + 8 * SEGMENT_BYTES;
        config.ssd.bytes = Size::from_bytes(room.next_multiple_of(1 << 20));
        config.ssd.segment_bytes = Some(Size::from_bytes(SEGMENT_BYTES));
        config.ssd.dirs = vec![self.setup.dir.clone()];
        config.index.max_objects = Some((2 * work.objects).max(65_536));
        let store = Store::open(config.validate(&MachineLimits::of_this_machine()?)?)?;
        let session = store.session()?;
        self.open = Some((store, session));
        Ok(())
    }

    fn key(&self, number: u64) -> ObjectKey {
        let mut hash = [0; 32];
        for (word, salt) in hash.as_chunks_mut::<8>().0.iter_mut().zip(0u64..) {
            *word = mix(number ^ salt << 56).to_le_bytes();
        }
        self.first.on_page(PrefixHash(hash))
    }

    fn destination(&self, slot: usize) -> Destination {
        let len = self.setup.work.object_bytes;
        // A slot beyond the memory would be a bug of this file; it is caught here, not by the
        // kernel.
        assert!((slot + 1) * len <= self.memory.len());
        // SAFETY: inside the memory, initialised, and no alignment is required. The slot was taken
        // from the free ones and returns when the get is done, so nothing else reads or writes it;
        // the Arc keeps it mapped.
        unsafe {
            Destination::borrowed(&[(self.start.add(slot * len), len)], Some(self.memory.clone()))
        }
    }

    fn parts(&mut self) -> anyhow::Result<&mut (Store, Session)> {
        self.open.as_mut().context("the store is closed")
    }
}

impl Peer for Pagelith {
    fn put_batch(&mut self, numbers: Range<u64>) -> anyhow::Result<()> {
        let contents = self.setup.check.contents().clone();
        let pieces: Vec<[&[u8]; 1]> = numbers.clone().map(|n| [contents.of(n)]).collect();
        let slice = |(n, pieces)| PutSlice { key: self.key(n), pieces };
        let objects: Vec<PutSlice<'_>> =
            numbers.zip(pieces.iter().map(|p| &p[..])).map(slice).collect();
        // Waits while the write buffer is full.
        for outcome in self.parts()?.0.put_batch(&objects, Options::default()) {
            outcome?;
        }
        Ok(())
    }

    fn sync(&mut self) -> anyhow::Result<()> {
        self.parts()?.0.flush(Options::default())?;
        Ok(())
    }

    fn reopen(&mut self) -> anyhow::Result<()> {
        let (store, session) = self.open.take().context("the store is closed")?;
        drop(session);
        store.close()?;
        self.open()
    }

    fn batches_in_flight(&self) -> usize {
        self.setup.work.depth
    }

    fn begin_get(&mut self, numbers: Vec<u64>) -> anyhow::Result<()> {
        let mut gets = Vec::with_capacity(numbers.len());
        let mut taken = Vec::with_capacity(numbers.len());
        for number in numbers {
            let slot = self.slots.pop().context("more gets than slots")?;
            let destination = self.destination(slot);
            gets.push(Get { key: self.key(number), range: None, destination });
            taken.push((number, slot));
        }
        let begun = Instant::now();
        let ticket = self.parts()?.1.submit_get(gets, Options::default());
        self.under_way.push_back(Batch { ticket, begun, taken });
        Ok(())
    }

    fn end_get(&mut self) -> anyhow::Result<Duration> {
        let Batch { ticket, begun, taken } =
            self.under_way.pop_front().context("no batch is under way")?;
        let done = self.parts()?.1.wait(ticket, TIME_LIMIT).context("no answer")?;
        let CompletedBatch::Get(done) = done else {
            bail!("a get was answered with something else")
        };
        for ((number, slot), get) in taken.into_iter().zip(done) {
            match get.outcome? {
                GetOutcome::Hit { .. } => {
                    let value =
                        get.destination.pieces().next().context("a destination of one piece")?;
                    self.setup.check.value(number, value);
                }
                GetOutcome::Miss(_) => self.setup.check.absent(),
            }
            self.slots.push(slot);
        }
        Ok(begun.elapsed())
    }
}
