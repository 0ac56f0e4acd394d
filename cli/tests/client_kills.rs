//! Clients of a store process that are killed at any moment, while another one runs: their
//! resources are released, and the other one reads no wrong byte.
//!
//! `TEST_PAGELITH_CLIENT_KILLS=1000 cargo test --release -p pagelith-cli --test client_kills -- --nocapture`
//! runs a campaign.
#![allow(clippy::disallowed_methods, reason = "a test sets up and polls at real processes")]

mod common;

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::store_process::{StoreProcess, command, hits, json};

const KILLS: u64 = 12;
/// Concurrent clients that are killed.
const DOOMED: usize = 2;
/// Maximum time until the resources of dead clients are released: seconds on a busy machine.
const RELEASE_MAX: Duration = Duration::from_secs(60);

fn replay(address: &str, seed: u64, requests: &str) -> Command {
    let seed = seed.to_string();
    let mut replay = command(&[
        "replay",
        "--json",
        "--attach",
        address,
        "--seed",
        &seed,
        "--requests",
        requests,
    ]);
    replay.stdout(Stdio::piped()).stderr(Stdio::null());
    replay
}

fn metric(server: &StoreProcess, name: &str) -> u64 {
    let (status, text) = server.get("/metrics");
    assert_eq!(status, 200);
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("pagelith_{name} ")));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} is not in\n{text}"))
}

/// Number of objects that the store has stored or returned. A client is killed after a given
/// increase.
fn moved(server: &StoreProcess) -> u64 {
    ["puts_stored_total", "hits_memory_total", "hits_ssd_total"]
        .iter()
        .map(|name| metric(server, name))
        .sum()
}

/// Kill clients at one address, each after the store has moved some more objects.
fn campaign(listen: &str, kills: u64) {
    let dir = tempfile::tempdir().expect("a directory");
    // Less memory than the clients put, so that some gets read from the disk.
    let flags = ["--listen", listen, "--metrics", "127.0.0.1:0", "--ssd", "256MiB", "--dir"];
    let server = StoreProcess::with(
        &[&flags[..], &[dir.path().join("store").to_str().expect("text")]].concat(),
    );
    let mut survivor = replay(&server.address, 1, "400").spawn().expect("spawned");
    let mut ended = 0;
    let spawn = |seed| replay(&server.address, 1 + seed % 5, "400").spawn().expect("spawned");
    let mut doomed: Vec<Child> = (0..DOOMED as u64).map(spawn).collect();
    for kill in 0..kills {
        // After few or some hundred objects: in the handshake, in a lookup, or in a transfer.
        let until = moved(&server) + [0, 3, 50, 400][(kill % 4) as usize];
        let at = kill as usize % DOOMED;
        while moved(&server) < until && doomed[at].try_wait().expect("a state").is_none() {}
        // It may have ended by itself.
        let _ = doomed[at].kill();
        doomed[at].wait().expect("reaped");
        doomed[at] = spawn(kill + DOOMED as u64);
        if survivor.try_wait().expect("a state").is_some() {
            ended += 1;
            check(std::mem::replace(&mut survivor, spawn(kill)));
        }
    }
    for mut client in doomed {
        let _ = client.kill();
        client.wait().expect("reaped");
    }
    check(survivor);
    let left = || ["links", "transfer_bytes", "readers"].map(|name| metric(&server, name));
    let began = Instant::now();
    while left() != [0; 3] {
        assert!(began.elapsed() < RELEASE_MAX, "links, transfer_bytes, readers: {:?}", left());
    }
    let last = json(&replay(&server.address, 1, "400").output().expect("run"));
    assert!(hits(&last, "dram") + hits(&last, "ssd") > 0 && last["wrong_bytes"] == 0, "{last}");
    let over = listen.split(':').next().unwrap_or_default();
    let survivors = ended + 1;
    let mut stderr = std::io::stderr();
    let left = "links=0 transfer_bytes=0 readers=0";
    writeln!(
        stderr,
        "{over}: clients killed={kills} survivors={survivors} wrong_bytes=0 left: {left}"
    )
    .expect("written");
}

/// Check that a client that was not killed succeeded, without wrong bytes and partial groups.
fn check(client: Child) {
    let report = json(&client.wait_with_output().expect("ended"));
    assert_eq!(
        (&report["wrong_bytes"], &report["partial_groups"]),
        (&0.into(), &0.into()),
        "{report}"
    );
}

fn kills() -> u64 {
    std::env::var("TEST_PAGELITH_CLIENT_KILLS")
        .map_or(KILLS, |text| text.parse().expect("a number"))
}

#[test]
fn resources_of_killed_clients_are_released_over_shared_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    campaign(&format!("unix:{}", dir.path().join("socket").display()), kills());
}

#[test]
fn resources_of_killed_clients_are_released_over_tcp() {
    campaign("tcp:127.0.0.1:0", kills());
}
