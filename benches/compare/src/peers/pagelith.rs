//! Pagelith, embedded, as an application would: one session, four batches in flight, no DRAM tier.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagelith::config::Promote;
use pagelith::layouts::ids::PrefixHash;
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::namespace::Namespace;
use pagelith::layouts::shard::Shard;
use pagelith::{
    AlignedBuf, Config, Destination, Done, Facts, Get, GetOutcome, Options, PutSlice, Session, Size, Store,
    Ticket,
};

use crate::peer::{Peer, Setup};
use crate::rng::mix;

/// The least that the store gets: its segments are a share of it, and hold the largest object then.
const SSD_BYTES_MIN: u64 = 1 << 30;
/// Longer than any of the store's own deadlines.
const PATIENCE: Duration = Duration::from_secs(120);

struct Pagelith {
    setup: Setup,
    first: ObjectKey,
    open: Option<(Store, Session)>,
    buffers: Vec<AlignedBuf>,
    under_way: VecDeque<(Ticket, Instant, Vec<u64>)>,
}

pub(super) fn open(setup: &Setup) -> anyhow::Result<Box<dyn Peer>> {
    let namespace = Namespace { model: "compare".to_owned(), ..Namespace::default() }.id();
    let first = ObjectKey::new(namespace, PrefixHash([0; 32]), Role::Target, "kv", "kv", Shard::Whole);
    let buffer = |_| AlignedBuf::new(setup.work.object_bytes).context("no memory for a batch");
    let buffers = (0..setup.work.batch * setup.work.depth).map(buffer).collect::<Result<_, _>>()?;
    let first = first.context("a key")?;
    let mut peer = Pagelith { setup: setup.clone(), first, open: None, buffers, under_way: VecDeque::new() };
    peer.open()?;
    Ok(Box::new(peer))
}

impl Pagelith {
    fn open(&mut self) -> anyhow::Result<()> {
        let work = &self.setup.work;
        let mut config = Config::default();
        config.dram.promote = Promote::Never;
        // Each object has a header, of large ones the last does not fit into a segment, and some segments stay free.
        let room = work.objects * (work.object_bytes as u64 + 4096) / 8 * 12 + (64 << 20);
        let room = room.max(SSD_BYTES_MIN).next_multiple_of(1 << 20);
        config.ssd.bytes = Size::from_bytes(room);
        config.ssd.dirs = vec![self.setup.dir.clone()];
        config.index.max_objects = Some((2 * work.objects).max(65_536));
        let store = Store::open(config.validate(&Facts::of_this_machine()?)?)?;
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

    fn parts(&mut self) -> anyhow::Result<&mut (Store, Session)> {
        self.open.as_mut().context("the store is closed")
    }
}

impl Peer for Pagelith {
    fn put_batch(&mut self, numbers: Range<u64>) -> anyhow::Result<()> {
        let contents = self.setup.check.contents().clone();
        let pieces: Vec<[&[u8]; 1]> = numbers.clone().map(|n| [contents.of(n)]).collect();
        let slice = |(n, pieces)| PutSlice { key: self.key(n), pieces };
        let objects: Vec<PutSlice<'_>> = numbers.zip(pieces.iter().map(|p| &p[..])).map(slice).collect();
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
        for number in &numbers {
            let buffer = self.buffers.pop().context("more gets than buffers")?;
            gets.push(Get { key: self.key(*number), range: None, destination: Destination::owned(buffer) });
        }
        let begun = Instant::now();
        let ticket = self.parts()?.1.submit_get(gets, Options::default());
        self.under_way.push_back((ticket, begun, numbers));
        Ok(())
    }

    fn end_get(&mut self) -> anyhow::Result<Duration> {
        let (ticket, begun, numbers) = self.under_way.pop_front().context("no batch is under way")?;
        let done = self.parts()?.1.wait(ticket, PATIENCE).context("no answer")?;
        let Done::Get(done) = done else { bail!("a get was answered with something else") };
        for (number, get) in numbers.into_iter().zip(done) {
            let hit = matches!(get.outcome?, GetOutcome::Hit { .. });
            let buffer = get.destination.into_buffer().context("a buffer did not come back")?;
            match hit {
                true => self.setup.check.value(number, &buffer),
                false => self.setup.check.absent(),
            }
            self.buffers.push(buffer);
        }
        Ok(begun.elapsed())
    }
}
