//! Lost packets, a wire that is down, and memory that is taken away. Two devices with a wire
//! between them, as `sim/rdma/vm.sh --netdev pair` makes them.

use std::process::Command;
use std::time::Duration;

use pagelith_transport::link_error::LinkError;

use crate::client::Client;
use crate::memory::{BACK, Memory, gathered, pattern, scattered};
use crate::server::{Request, RequestKind, ServerThread, cut};
use crate::setting::{client_host, has_devices, kernel_objects, server_host};

const BYTES: usize = 2 << 20;

/// Whether the machine has the wire; if not, a line says so.
fn has_wire() -> bool {
    let has_wire = std::path::Path::new("/sys/class/infiniband/rxe1").exists();
    if has_devices() && !has_wire {
        println!("skipped: needs two devices with a wire between them");
    }
    has_wire && has_devices()
}

fn run(command: &str) {
    let status = Command::new("sh").args(["-c", command]).status().expect("a shell");
    assert!(status.success(), "{command}");
}

/// Call `action` with a new link, and again with others while links end: a busy host may keep an
/// emulated machine from acknowledging or from sending a heartbeat in time.
fn with_links(
    connect: impl Fn() -> Client,
    mut action: impl FnMut(&mut Client) -> Result<(), LinkError>,
) {
    let mut tries = 0;
    while let Err(why) = action(&mut connect()) {
        println!("another link: {why}");
        tries += 1;
        assert!(tries < 10, "no link lasts");
    }
}

/// Undoes a change of the network.
struct Undo(&'static str);

impl Drop for Undo {
    fn drop(&mut self) {
        run(self.0);
    }
}

#[test]
fn bytes_are_right_although_one_packet_in_a_hundred_is_lost() {
    if !has_wire() {
        return;
    }
    let before = kernel_objects();
    {
        let content = pattern(5, BYTES);
        let server = ServerThread::start(server_host(), &content);
        let host = client_host();
        let memory = Memory::new(BYTES, &host);
        let connect = || Client::connect(&server.address, &host);
        run(
            "modprobe sch_netem; for end in wire0 wire1; do tc qdisc add dev $end root netem loss 1%; done",
        );
        let _undo = Undo("for end in wire0 wire1; do tc qdisc delete dev $end root; done");
        for pieces in [1, 5, 64] {
            memory.take_back();
            let ranges = cut(scattered(BYTES, pieces), BYTES - 64 * 64);
            with_links(connect, |client| client.try_get(&memory, &ranges, 7));
            let from = cut(scattered(BYTES, 7), BYTES - 64 * 64);
            let expected = gathered(&content, &from);
            assert!(gathered(&memory.bytes(), &ranges) == expected, "bytes differ");
        }
        // A put, and its bytes back.
        let ranges = cut(scattered(BYTES, 5), BYTES - 64 * 64);
        memory.fill(&pattern(8, BYTES));
        let expected = gathered(&memory.bytes(), &ranges);
        with_links(connect, |client| client.try_put(&memory, &ranges, 7));
        memory.take_back();
        with_links(connect, |client| client.try_get(&memory, &ranges, 7));
        assert!(gathered(&memory.bytes(), &ranges) == expected, "bytes differ");
        let counts = host.counters().counts();
        assert!(counts.bytes_placed > 3 * (BYTES as u64 - 64 * 64) - 1, "{counts:?}");
    }
    assert_eq!(kernel_objects(), before, "objects are left");
}

#[test]
fn wire_that_is_down_ends_the_link_and_a_new_one_works_after_it_is_up() {
    if !has_wire() {
        return;
    }
    let content = pattern(6, BYTES);
    let server = ServerThread::start(server_host(), &content);
    let host = client_host();
    let (memory, other) = (Memory::new(BYTES, &host), Memory::new(BYTES, &host));
    let mut client = Client::connect(&server.address, &host);
    let ranges = cut(scattered(BYTES, 3), BYTES - 64 * 64);
    let bytes = BYTES as u32 - 64 * 64;
    let request = Request { kind: RequestKind::Get, bytes, pieces: 1 };
    client.begin_get(&memory, &ranges, request);
    assert!(client.until_byte(&memory, ranges[0].start), "the link ended");
    run("ip link set wire0 down");
    {
        let _undo = Undo(
            "ip link set wire0 up && ip route replace 192.0.2.2 dev wire0 src 192.0.2.1 table 12 \
             && ip route replace 192.0.2.1 dev wire1 src 192.0.2.2 table 21",
        );
        // The first get may have ended before the wire was down; this one cannot.
        client.begin_get(&other, &ranges, request);
        let why = client.until_ended();
        println!("the link ended: {why}");
        assert_eq!(other.late(), 0, "bytes crossed a wire that is down");
        memory.take_back();
    }
    for memory in [&memory, &other] {
        memory.watch(Duration::from_millis(200));
    }
    // The port is active a moment after its interface is up.
    let mut tries = 0;
    let mut client = loop {
        match Client::try_connect(&server.address, &host) {
            Ok(client) => break client,
            Err(why) => println!("not yet: {why}"),
        }
        tries += 1;
        assert!(tries < 100, "no link");
        std::thread::sleep(Duration::from_millis(200));
    };
    client.get(&memory, &ranges, 1);
    assert!(gathered(&memory.bytes(), &ranges) == content[..bytes as usize], "bytes differ");
}

#[test]
fn memory_taken_away_amid_writes_is_not_written_and_ends_the_link_only() {
    if !has_devices() {
        return;
    }
    let server = ServerThread::start(server_host(), &pattern(7, BYTES));
    let host = client_host();
    let ranges = cut(scattered(BYTES, 3), BYTES - 64 * 64);
    let bytes = BYTES as u32 - 64 * 64;
    let mut amid = 0;
    for _ in 0..5 {
        let memory = Memory::new(BYTES, &host);
        let mut client = Client::connect(&server.address, &host);
        let request = Request { kind: RequestKind::Get, bytes, pieces: 1 };
        client.begin_get(&memory, &ranges, request);
        assert!(client.until_byte(&memory, ranges[0].start), "the link ended");
        host.unregister(&memory.region).expect("unregistered");
        amid += usize::from(memory.byte(ranges[2].end - 1) == BACK);
        memory.take_back();
        memory.watch(Duration::from_millis(100));
        client.link.close();
        client.until_ended();
    }
    assert!(amid > 0, "every get was complete before");
    let memory = Memory::new(BYTES, &host);
    let mut client = Client::connect(&server.address, &host);
    client.get(&memory, &ranges, 1);
}
