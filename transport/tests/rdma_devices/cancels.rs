//! Gets that are cancelled amid their bytes.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::client::{Client, Returned};
use crate::memory::{BACK, Memory, pattern, scattered, total};
use crate::server::{Request, RequestKind, ServerThread, cut};
use crate::setting::{client_host, has_devices, kernel_objects, length, report, server_host};

const BYTES: usize = 2 << 20;
/// Memory rests for so many operations before it is used again, and is looked at then.
const MEMORIES: usize = 4;

/// How an operation is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Cancel,
    /// The server sends no outcome, so the link gives the memory back by force.
    CancelWithoutOutcome,
    Close,
}

fn way(round: usize) -> Way {
    match round % 10 {
        8 => Way::CancelWithoutOutcome,
        9 => Way::Close,
        _ => Way::Cancel,
    }
}

/// Pieces at the client and at the server.
const PIECES: [(usize, u32); 5] = [(1, 1), (3, 7), (64, 16), (16, 1), (1, 64)];

/// Begin a get of nearly all memory, and wait until a byte of it has arrived. Returns its
/// operation and the offset of its last byte; `None` if the link ended before.
fn begin(
    client: &mut Client,
    memory: &Memory,
    round: usize,
    kind: RequestKind,
) -> Option<(u64, usize)> {
    let (pieces, at_server) = PIECES[round % PIECES.len()];
    let ranges = scattered(BYTES, pieces);
    let bytes = total(&ranges).min(BYTES - 64 * 64);
    let ranges = cut(ranges, bytes);
    let request = Request { kind, bytes: bytes as u32, pieces: at_server };
    let op = client.begin_get(memory, &ranges, request);
    let last = ranges.last().expect("ranges").end - 1;
    // A byte anywhere in the first three quarters.
    let part = ranges.len() * (round * 7 % 4) / 4;
    let offset = match ranges.len() {
        1 => ranges[0].len() * (round * 7 % 4) / 4,
        _ => ranges[part].start,
    };
    client.until_byte(memory, offset).then_some((op, last))
}

#[test]
fn memory_of_cancelled_gets_is_not_written_after_it_came_back() {
    if !has_devices() {
        return;
    }
    let before = kernel_objects();
    let rounds = length("TEST_PAGELITH_RDMA_CANCELS", 40);
    let mut counts: BTreeMap<(Way, Returned, bool), usize> = BTreeMap::new();
    let mut amid = 0;
    {
        let server = ServerThread::start(server_host(), &pattern(1, BYTES));
        let host = client_host();
        let memories: Vec<Memory> = (0..MEMORIES).map(|_| Memory::new(BYTES, &host)).collect();
        let mut client = Client::connect(&server.address, &host);
        // More rounds if too few were cancelled while bytes arrived.
        for round in 0..8 * rounds {
            if round >= rounds && amid > rounds / 4 {
                break;
            }
            let (memory, way) = (&memories[round % MEMORIES], way(round));
            assert_eq!(memory.late(), 0, "bytes landed after memory came back, before {round}");
            let kind = match way {
                Way::CancelWithoutOutcome => RequestKind::GetWithoutOutcome,
                _ => RequestKind::Get,
            };
            let Some((op, last)) = begin(&mut client, memory, round, kind) else {
                // A device may end a connection, above all that of a busy emulated machine.
                println!("the link ended before the cancel: {}", client.until_ended());
                memory.take_back();
                client = Client::connect(&server.address, &host);
                continue;
            };
            match way {
                Way::Close => client.link.close(),
                _ => client.cancel(op),
            }
            let returned = client.until_returned(op);
            amid += usize::from(memory.byte(last) == BACK);
            memory.take_back();
            let ended = match (way, returned) {
                (Way::Cancel, _) => client.until_outcome_or_end(op).is_some(),
                // All bytes had arrived: the link has nothing to wait for, and does not end.
                (Way::CancelWithoutOutcome, Returned::Whole) => {
                    client.link.close();
                    true
                }
                _ => {
                    client.until_ended();
                    true
                }
            };
            *counts.entry((way, returned, ended)).or_default() += 1;
            report("cancels", round + 1, amid);
            if ended {
                client = Client::connect(&server.address, &host);
            }
        }
        for memory in &memories {
            memory.watch(Duration::from_millis(200));
        }
        let counts = host.counters().counts();
        println!("queue pairs taken down={} leaked={}", counts.taken_down, counts.leaked);
        assert_eq!(counts.leaked, 0);
    }
    let cancelled: usize = counts.values().sum();
    println!("cancelled={cancelled} amid_bytes={amid} by way, return, end of link: {counts:?}");
    assert!(amid > rounds / 4, "most gets had ended before they were cancelled: {amid}");
    assert_eq!(kernel_objects(), before, "objects are left");
}

/// The check above can fail: memory that is used before it came back is written.
#[test]
fn memory_used_before_it_came_back_is_written() {
    if !has_devices() {
        return;
    }
    let server = ServerThread::start(server_host(), &pattern(2, BYTES));
    let host = client_host();
    let memory = Memory::new(BYTES, &host);
    let mut late = 0;
    for round in 0..20 {
        let mut client = Client::connect(&server.address, &host);
        memory.take_back();
        let Some((op, _)) = begin(&mut client, &memory, round, RequestKind::Get) else { continue };
        client.cancel(op);
        memory.take_back();
        client.until_returned(op);
        late += memory.late();
    }
    println!("bytes that landed in memory used too early={late}");
    assert!(late > 0);
}
