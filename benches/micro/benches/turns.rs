//! A client over shared memory compared with the embedded store, in turns. Both sides of a ratio
//! are measured within a tenth of a second, since a virtual machine's speed changes within seconds.
//! The store has DRAM only; its client and its server have a thread each. Batches of 32 objects,
//! one at a time and four in flight.
//!
//! `cargo bench -p pagelith-micro --bench turns [-- ROUNDS [unsealed|by-calls|tcp|looks]]`:
//! `unsealed` puts from mapped memory that is not sealed, served by a process that survives its
//! truncation, and `by-calls` by one that does not; `tcp` gets over TCP and compares with a bare
//! loop that sends, receives and checksums as many bytes; `looks` measures lookups of one key, the
//! median of 5,000 in each round. Prints the medians of all rounds (21), in us a batch, and the
//! median of their ratios with the quartiles. A round counts only if two threads had a core each
//! right before and right after it ([`cores`]); the number of failed checks is printed.
#![allow(clippy::disallowed_methods, reason = "measures threads by the real clock")]
#![allow(clippy::print_stdout, reason = "prints a table")]

mod common;
mod cores;
mod tcp_baseline;
mod transports;

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memmap2::{MmapOptions, MmapRaw};
use pagelith::AlignedBuf;
use pagelith::io::shm::{SharedRegion, handle_truncation_sigbus};
use pagelith::layouts::key::ObjectKey;
use pagelith::transport::address::Address;

use common::{keys, mix};
use tcp_baseline::TcpBaseline;
use transports::{
    BATCH, DATA, DEPTH, InFlightBatches, SharedMemoryUse, StoreUnderTest, attach, store,
};

/// How long one side runs before the other.
const TURN: Duration = Duration::from_millis(100);
const ROUNDS: usize = 21;
/// Longer than the threads of a link poll before they sleep: they have one core each meanwhile.
const LOOKED: Duration = Duration::from_millis(3);
/// Most failed checks for each round that counts: a machine that rarely has its cores is not
/// measured.
const TRIES: usize = 200;

/// The operation on the store.
#[derive(Clone, Copy)]
enum BenchOp {
    Get,
    Put,
}

/// Keys of the batches of a run; no put uses a key twice.
struct Batches {
    objects: u64,
    turn: u64,
}

impl Batches {
    fn next(&mut self, what: BenchOp) -> Vec<ObjectKey> {
        self.turn += 1;
        let first = self.turn * BATCH as u64;
        match what {
            BenchOp::Get => keys((first..first + BATCH as u64).map(|i| mix(i) % self.objects)),
            BenchOp::Put => keys((1 << 40) + first..(1 << 40) + first + BATCH as u64),
        }
    }
}

/// Microseconds per batch, over one turn.
fn time(mut one: impl FnMut()) -> f64 {
    // Warm the caches, which hold the other side's data.
    one();
    let (begun, mut batches) = (Instant::now(), 0u32);
    while begun.elapsed() < TURN {
        one();
        batches += 1;
    }
    begun.elapsed().as_secs_f64() * 1e6 / f64::from(batches.max(1))
}

fn one_at_a_time(
    side: &StoreUnderTest<'_>,
    what: BenchOp,
    batches: &mut Batches,
    buffers: &mut [AlignedBuf],
) -> f64 {
    time(|| match what {
        BenchOp::Get => side.get(&batches.next(what), buffers),
        BenchOp::Put => side.put(&batches.next(what), buffers),
    })
}

fn in_flight(
    side: &StoreUnderTest<'_>,
    what: BenchOp,
    batches: &mut Batches,
    buffers: &mut Vec<AlignedBuf>,
) -> f64 {
    let mut flights = InFlightBatches::new(side, buffers);
    let taken = time(|| match what {
        BenchOp::Get => flights.get(&batches.next(what)),
        BenchOp::Put => flights.put(&batches.next(what)),
    });
    *buffers = flights.land();
    taken
}

/// Runs `count` rounds in which both threads had a core at the begin and at the end, as far as that
/// can be detected. Also returns how often they had not, before or after a round, which then does
/// not count.
fn rounds(count: usize, mut round: impl FnMut() -> (f64, f64)) -> (Vec<(f64, f64)>, usize) {
    let (mut times, mut others) = (Vec::with_capacity(count), 0);
    let mut has_cores = cores::has_two_cores();
    while times.len() < count {
        let taken = has_cores.then(&mut round);
        std::thread::sleep(LOOKED);
        has_cores = cores::has_two_cores();
        match taken.filter(|_| has_cores) {
            Some(taken) => times.push(taken),
            None => others += 1,
        }
        assert!(
            others < TRIES * count,
            "two threads have a core each too seldom here to be measured"
        );
    }
    (times, others)
}

/// The first, second and third quartile.
fn quartiles(mut all: Vec<f64>) -> [f64; 3] {
    all.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| all[(all.len() - 1) * quarter / 4])
}

fn print_head(one: &str, other: &str) {
    println!(
        "| what | object | in flight | {one}, us | {other}, us | {one} to {other} | middle half | not two cores |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | --- | ---: |");
}

fn print_row(
    (name, object_bytes, depth): (&str, usize, usize),
    times: &[(f64, f64)],
    others: usize,
) {
    let of = |of: fn(&(f64, f64)) -> f64| quartiles(times.iter().map(of).collect());
    let ([low, ratio, high], [_, one, _], [_, other, _]) =
        (of(|(one, other)| one / other), of(|(one, _)| *one), of(|(_, other)| *other));
    let kib = object_bytes >> 10;
    println!(
        "| {name} | {kib} KiB | {depth} | {one:.0} | {other:.0} | **{ratio:.2}** | {low:.2} to {high:.2} | {others} |"
    );
}

/// Gets over TCP compared with the limit of TCP.
fn tcp(count: usize) {
    print_head("bare loop", "tcp");
    for object_bytes in [64 << 10, 256 << 10, 1 << 20] {
        let (store, stop) = (store(), AtomicBool::new(false));
        let (mut buffers, memory) = AlignedBuf::shown(BATCH, object_bytes).expect("memory");
        buffers.iter_mut().for_each(|buffer| buffer.fill(1));
        std::thread::scope(|scope| {
            let at = ("tcp:127.0.0.1:0".parse().expect("an address"), SharedMemoryUse::Nothing);
            let attached = StoreUnderTest::Attached(attach(scope, &store, at, &memory, &stop));
            let mut bare = TcpBaseline::new(scope, object_bytes);
            let mut batches = Batches { objects: (DATA / object_bytes) as u64, turn: 0 };
            for batch in keys(0..batches.objects).chunks(BATCH) {
                StoreUnderTest::Embedded(&store).put(batch, &buffers[..batch.len()]);
            }
            let (times, others) = rounds(count, || {
                let limit = time(|| bare.get(&mut buffers));
                (limit, one_at_a_time(&attached, BenchOp::Get, &mut batches, &mut buffers))
            });
            print_row(("get", object_bytes, 1), &times, others);
            stop.store(true, Ordering::Relaxed);
        });
    }
}

/// Median time of a lookup of one key, us.
fn look(side: &StoreUnderTest<'_>, key: ObjectKey) -> f64 {
    const LOOKS: usize = 5000;
    let one = |_| {
        let begun = Instant::now();
        side.exists(&[key]);
        begun.elapsed().as_secs_f64() * 1e6
    };
    for at in 0..LOOKS / 5 {
        one(at);
    }
    quartiles((0..LOOKS).map(one).collect())[1]
}

/// Lookups of one key: of a present object and of an absent one.
fn looks(count: usize) {
    println!("| one key | embedded, us | shown, us | through rings alone, us | not two cores |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    let (store, stop) = (store(), AtomicBool::new(false));
    let (buffers, memory) = AlignedBuf::shown(1, 64 << 10).expect("memory");
    let dir = std::env::temp_dir().join(format!("pagelith-looks-{}", std::process::id()));
    std::fs::create_dir(&dir).expect("a directory");
    std::thread::scope(|scope| {
        let side = |name, shares| {
            let at = (Address::Unix(dir.join(name)), shares);
            StoreUnderTest::Attached(attach(scope, &store, at, &memory, &stop))
        };
        let sides = [
            StoreUnderTest::Embedded(&store),
            side("shown", SharedMemoryUse::Arena),
            side("rings", SharedMemoryUse::Rings),
        ];
        let two = keys(0..2);
        sides[0].put(&two[..1], &buffers);
        for (what, key) in [("that is here", two[0]), ("that is not", two[1])] {
            let mut all: [Vec<f64>; 3] = Default::default();
            let (_, others) = rounds(count, || {
                let took: [f64; 3] = std::array::from_fn(|side| look(&sides[side], key));
                took.iter().zip(&mut all).for_each(|(took, all)| all.push(*took));
                (took[0], took[1])
            });
            let [embedded, shown, rings] = all.map(|all| quartiles(all)[1]);
            println!("| {what} | {embedded:.2} | {shown:.2} | {rings:.2} | {others} |");
        }
        stop.store(true, Ordering::Relaxed);
    });
    std::fs::remove_dir_all(&dir).expect("removed");
}

/// Memory as an engine maps it, and its region for other processes: it is not sealed, so it may
/// shrink.
struct Unsealed(MmapRaw, Arc<SharedRegion>);

impl Unsealed {
    fn new(bytes: usize) -> Unsealed {
        // A file of a memory file system that has no name any more.
        let path = format!("/dev/shm/pagelith-turns-{}", std::process::id());
        let file =
            File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
        std::fs::remove_file(&path).expect("removed");
        file.set_len(bytes as u64).expect("memory");
        let map = MmapOptions::new().len(bytes).map_raw(&file).expect("mapped");
        let region =
            SharedRegion::mapped(file.into(), map.as_mut_ptr().addr(), bytes).expect("a region");
        Unsealed(map, Arc::new(region))
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: this many bytes are mapped while `self` lives, and the file, which has no name,
        // is neither written nor shortened.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len()) }
    }
}

fn main() {
    let count = std::env::args().find_map(|arg| arg.parse().ok()).unwrap_or(ROUNDS);
    let is = |name: &str| std::env::args().any(|arg| arg == name);
    let unsealed = is("unsealed") || is("by-calls");
    if is("unsealed") {
        handle_truncation_sigbus().expect("signals");
    }
    match (is("tcp"), is("looks")) {
        (true, _) => return tcp(count),
        (_, true) => return looks(count),
        _ => {}
    }
    let dir = std::env::temp_dir().join(format!("pagelith-turns-{}", std::process::id()));
    std::fs::create_dir(&dir).expect("a directory");
    print_head("embedded", "shown");
    for object_bytes in [64 << 10, 256 << 10, 1 << 20] {
        let (store, stop) = (store(), AtomicBool::new(false));
        let (mut buffers, memory) =
            AlignedBuf::shown((1 + DEPTH) * BATCH, object_bytes).expect("memory");
        buffers.iter_mut().for_each(|buffer| buffer.fill(1));
        let mut more = buffers.split_off(BATCH);
        let own = unsealed.then(|| Unsealed::new(BATCH * object_bytes));
        let memory = own.as_ref().map_or(memory, |own| own.1.clone());
        std::thread::scope(|scope| {
            let at = (Address::Unix(dir.join(object_bytes.to_string())), SharedMemoryUse::Arena);
            let embedded = StoreUnderTest::Embedded(&store);
            let shown = StoreUnderTest::Attached(attach(scope, &store, at, &memory, &stop));
            let mut batches = Batches { objects: (DATA / object_bytes) as u64, turn: 0 };
            for batch in keys(0..batches.objects).chunks(BATCH) {
                embedded.put(batch, &buffers[..batch.len()]);
            }
            let engines: Vec<&[u8]> =
                own.iter().flat_map(|own| own.bytes().chunks(object_bytes)).collect();
            for (what, name) in
                [(BenchOp::Get, "get"), (BenchOp::Put, "put")].into_iter().skip(unsealed.into())
            {
                for depth in [1, DEPTH].into_iter().take(if unsealed { 1 } else { 2 }) {
                    let mut turn = |side: &StoreUnderTest<'_>| match depth {
                        1 if unsealed => time(|| side.put(&batches.next(what), &engines)),
                        1 => one_at_a_time(side, what, &mut batches, &mut buffers),
                        _ => in_flight(side, what, &mut batches, &mut more),
                    };
                    let (times, others) = rounds(count, || (turn(&embedded), turn(&shown)));
                    print_row((name, object_bytes, depth), &times, others);
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
    std::fs::remove_dir_all(&dir).expect("removed");
}
