//! Rails: how both ends agree on them, several of them, and the loss of one.

use pagelith_transport::link::Link;

use crate::common::*;
use crate::ends::*;
use crate::gets::fill;

#[test]
fn end_without_rdma_gets_a_plain_link() {
    let mut ends = Ends::new(["", ""]);
    for hosts in [[true, false], [false, true], [false, false]] {
        let hosts = [0, 1].map(|end: usize| hosts[end].then_some(&ends.hosts[end]));
        let (client, server) = linked(&ends.clock, hosts);
        (ends.client, ends.server) = (client, server);
        let (from, to) = (ends.server_memory(MIB), ends.client_memory(MIB));
        let content = fill((&from, &[(0, 5000)]));
        ends.request(1, vec![to.parts(&[(0, 5000)])]);
        ends.push(1, 0, from.parts(&[(0, 5000)]));
        let (at_client, _) = ends.until_client_has(1);
        assert!(returned(&at_client, (1, 0)) == Some(content), "bytes differ");
        assert_eq!(ends.client.counts().bytes_by_rdma, 0);
    }
    let [client, server] = ends.counts();
    assert_eq!((client.no_rdma_peer, server.no_rdma_peer), (1, 1));
    assert_eq!((client.links, server.links), (1, 1), "the first link");
}

#[test]
fn end_without_a_usable_port_says_so_and_the_link_is_plain() {
    for device in [1, 2] {
        let mut ends = Ends::new(["", ""]);
        ends.control.change(device, "port=down");
        ends.reconnect();
        let (from, to) = (ends.server_memory(MIB), ends.client_memory(MIB));
        ends.request(1, vec![to.parts(&[(0, 5000)])]);
        ends.push(1, 0, from.parts(&[(0, 5000)]));
        ends.until_client_has(1);
        assert_eq!(ends.client.counts().bytes_by_rdma, 0);
        let [client, server] = ends.counts();
        assert_eq!((client.no_rdma_rails, server.no_rdma_rails), (1, 1), "device={device}");
    }
}

#[test]
fn operation_is_striped_over_all_rails() {
    for rails in 2..=4 {
        let mut ends = Ends::with_rails(&vec!["delay=3 late-bytes=4"; rails]);
        let (from, to) = (ends.server_memory(16 * MIB), ends.client_memory(16 * MIB));
        let content = fill((&from, &[(0, 12 * MIB)]));
        ends.request(1, vec![to.parts(&[(0, 12 * MIB)])]);
        ends.push(1, 0, from.parts(&[(0, 12 * MIB)]));
        ends.server.send(outcome(1, b"done")).expect("room");
        let (at_client, _) = ends.until_client_has(2);
        assert_eq!(event_lines(&at_client), ["landed 1 0", "Outcome 1 4"]);
        assert!(returned(&at_client, (1, 0)) == Some(content), "bytes differ rails={rails}");
        assert_eq!(ends.stream_bytes(), [0, 0]);
        for device in 1..=rails as u32 {
            let written = ends.control.count(device, "bytes-written");
            assert!(written >= (2 * MIB) as u64, "device={device} written={written}");
        }
    }
}

/// Get 4 MiB over both rails, while those of the second one fail; the link ends.
fn fail_on_second_rail(ends: &mut Ends) {
    let (from, to) = (ends.server_memory(4 * MIB), ends.client_memory(4 * MIB));
    ends.request(1, vec![to.parts(&[(0, 4 * MIB)])]);
    ends.control.change(2, "fail-requests=1");
    ends.push(1, 0, from.parts(&[(0, 4 * MIB)]));
    let mut at_server = Vec::new();
    ends.until_ended(&mut at_server);
    let lines = event_lines(&at_server);
    assert!(lines.last().is_some_and(|line| line.contains("rail=fake2/1")), "{lines:?}");
    ends.control.change(2, "fail-requests=0");
}

/// Get 4 MiB by RDMA alone. Returns the bytes that the second rail has carried.
fn carried_by_second_rail(ends: &mut Ends) -> u64 {
    let (from, to) = (ends.server_memory(4 * MIB), ends.client_memory(4 * MIB));
    let before = ends.control.count(2, "bytes-written");
    ends.request(1, vec![to.parts(&[(0, 4 * MIB)])]);
    ends.push(1, 0, from.parts(&[(0, 4 * MIB)]));
    ends.until_client_has(1);
    assert_eq!(ends.stream_bytes(), [0, 0]);
    ends.control.count(2, "bytes-written") - before
}

#[test]
fn loss_of_a_rail_ends_the_link_and_the_next_one_does_without_it() {
    let mut ends = Ends::with_rails(&["", ""]);
    for _ in 0..3 {
        fail_on_second_rail(&mut ends);
        ends.reconnect();
    }
    // The third failure within 10 s: the rail is suspended.
    assert_eq!(carried_by_second_rail(&mut ends), 0);
}

#[test]
fn rail_that_fails_with_one_peer_carries_bytes_for_others() {
    let mut ends = Ends::with_rails(&["", ""]);
    for _ in 0..3 {
        fail_on_second_rail(&mut ends);
        ends.reconnect();
    }
    ends.reconnect_over("[::1]");
    assert_ne!(carried_by_second_rail(&mut ends), 0);
    ends.reconnect();
    assert_eq!(carried_by_second_rail(&mut ends), 0, "it is suspended for the peer that failed");
    assert_eq!(ends.hosts[1].rails_up().count(), 2);
}
