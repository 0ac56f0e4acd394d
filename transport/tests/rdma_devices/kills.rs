//! Servers and clients that are killed amid bytes.

use std::time::{Duration, Instant};

use crate::client::Client;
use crate::memory::{BACK, Memory, pattern, scattered};
use crate::server::{Request, RequestKind, Server, cut};
use crate::setting::{
    PEER, Process, ROLE, client_host, has_devices, kernel_objects, length, report, server_host,
};

const BYTES: usize = 4 << 20;
const MEMORIES: usize = 4;
const STEP: Duration = Duration::from_millis(20);
/// No wait of a test takes that long.
const LONG: Duration = Duration::from_secs(60);

/// Kills of each kind.
fn kills() -> usize {
    length("TEST_PAGELITH_RDMA_KILLS", 4)
}

/// The other process of a test, which is killed. Without the variable of its role it does nothing.
#[test]
fn process_of_a_test() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let peer = std::env::var(PEER).expect("the peer's address");
    match role.as_str() {
        "server" => {
            let host = server_host();
            let memory = Memory::new(BYTES, &host);
            memory.fill(&pattern(3, BYTES));
            let mut server = Server::new(&host, memory);
            println!("address={}", server.address());
            loop {
                server.step(STEP);
            }
        }
        role => {
            let host = client_host();
            let memory = Memory::new(BYTES, &host);
            memory.fill(&pattern(4, BYTES));
            let mut client = Client::connect(&peer, &host);
            let ranges = scattered(BYTES, 3);
            loop {
                match role {
                    "get" => client.get(&memory, &ranges, 3),
                    _ => client.put(&memory, &ranges, 3),
                }
            }
        }
    }
}

#[test]
fn memory_is_not_written_after_a_killed_server_gave_it_back() {
    if !has_devices() {
        return;
    }
    let before = kernel_objects();
    let (rounds, mut amid) = (kills(), 0);
    {
        let host = client_host();
        let memories: Vec<Memory> = (0..MEMORIES).map(|_| Memory::new(BYTES, &host)).collect();
        for round in 0..rounds {
            let memory = &memories[round % MEMORIES];
            assert_eq!(memory.late(), 0, "bytes landed after memory came back, before {round}");
            let mut server = Process::start("server", "");
            let mut client = Client::connect(&server.value("address"), &host);
            let ranges = scattered(BYTES, 1 + round % 3);
            let request =
                Request { kind: RequestKind::Get, bytes: BYTES as u32 - 1_000, pieces: 1 };
            let ranges = cut(ranges, BYTES - 1_000);
            client.begin_get(memory, &ranges, request);
            let offset = ranges[0].start + ranges[0].len() * (round % 5) / 8;
            // A link that ended before has given the memory back too.
            client.until_byte(memory, offset);
            server.kill();
            client.until_ended();
            amid += usize::from(memory.byte(ranges[ranges.len() - 1].end - 1) == BACK);
            memory.take_back();
            memory.watch(Duration::from_millis(50));
            report("killed servers", round + 1, amid);
        }
        for memory in &memories {
            memory.watch(Duration::from_millis(200));
        }
        assert_eq!(host.counters().counts().leaked, 0);
    }
    println!("servers killed={rounds} amid_bytes={amid}");
    assert!(amid > rounds / 4, "most gets had ended before the server was killed: {amid}");
    assert_eq!(kernel_objects(), before, "objects are left");
}

#[test]
fn memory_of_the_server_comes_back_from_killed_clients() {
    if !has_devices() {
        return;
    }
    let before = kernel_objects();
    let (rounds, mut amid) = (kills(), 0);
    {
        let host = server_host();
        let mut server = Server::new(&host, Memory::new(BYTES, &host));
        for round in 0..rounds {
            let role = if round % 2 == 0 { "put" } else { "get" };
            let seen = server.seen;
            let mut client = Process::start(role, &server.address());
            // A different number of steps amid a transfer in each round.
            let (end, mut steps) = (Instant::now() + LONG, 0);
            while steps <= round % 7 {
                server.step(Duration::from_millis(2));
                let has_begun = match role {
                    "put" => server.memory().byte(round * 1_000 % (BYTES / 2)) != BACK,
                    _ => server.seen.requests > seen.requests,
                };
                steps += usize::from(has_begun);
                assert!(Instant::now() < end, "the client did not begin");
            }
            amid += usize::from(server.seen.returned < server.seen.requests);
            client.kill();
            let end = Instant::now() + LONG;
            while !server.is_idle() {
                server.step(STEP);
                assert!(Instant::now() < end, "the link of a killed client did not end");
            }
            assert_eq!(server.seen.returned, server.seen.requests, "memory did not come back");
            server.memory().take_back();
            server.memory().watch(Duration::from_millis(50));
            report("killed clients", round + 1, amid);
        }
        assert_eq!(host.counters().counts().leaked, 0);
    }
    println!("clients killed={rounds} amid_an_operation={amid}");
    assert!(amid > rounds / 4, "most clients were killed between operations: {amid}");
    assert_eq!(kernel_objects(), before, "objects are left");
}
