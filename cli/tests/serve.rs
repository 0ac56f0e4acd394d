//! A store process, and replays with that process as a peer.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real files")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use common::store_process::{StoreProcess, command, hits, json, keys};

/// A replay with little local memory.
fn replay(remote: &str, requests: &str) -> Command {
    let own = ["replay", "--json", "--dram", "2MiB", "--ssd", "0", "--object-bytes", "8KiB"];
    command(&[&own[..], &["--remote", remote, "--requests", requests]].concat())
}

#[test]
fn replay_beyond_local_memory_hits_at_a_peer() {
    let server = StoreProcess::at("tcp:127.0.0.1:0");
    let report = json(&replay(&server.address, "150").output().expect("run"));
    assert!(hits(&report, "remote") > 0 && hits(&report, "dram") > 0, "{report}");
    assert_eq!(
        (&report["wrong_bytes"], &report["partial_groups"]),
        (&0.into(), &0.into()),
        "{report}"
    );
    // The next replay finds the objects of the first.
    let again = json(&replay(&server.address, "150").output().expect("run"));
    assert!(hits(&again, "remote") > hits(&report, "remote"), "{report} {again}");
    assert_eq!(again["wrong_bytes"], 0, "{again}");
}

/// End it by SIGTERM: it closes its store, and offers the remaining objects to its peers.
fn end(server: &mut StoreProcess) {
    let killed = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status();
    assert!(killed.expect("run").success());
    server.says("closed durable_objects=0");
    assert!(server.child.wait().expect("reaped").success());
}

/// Number of objects put into its store.
fn stored(server: &StoreProcess) -> u64 {
    let (_, text) = server.get("/metrics");
    let line = text.lines().find_map(|line| line.strip_prefix("pagelith_puts_stored_total "));
    line.and_then(|value| value.parse().ok()).expect("a number")
}

#[test]
fn replay_puts_everything_at_the_preferred_peer() {
    let serving =
        || StoreProcess::with(&["--listen", "tcp:127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
    let (near, far) = (serving(), serving());
    let both = |prefer: &str| {
        let mut replay = replay(&near.address, "150");
        replay.args(["--remote", &far.address, "--prefer", prefer]).output().expect("run")
    };
    let report = json(&both(&far.address));
    assert!(hits(&report, "remote") > 0 && report["wrong_bytes"] == 0, "{report}");
    assert!(stored(&far) > 0 && stored(&near) == 0, "{} {}", stored(&far), stored(&near));
    let refused = both("tcp:127.0.0.1:1");
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && message.contains("is not one of --remote or remote.peers"),
        "{message}"
    );
}

#[test]
fn peers_of_a_file_have_weights_and_flags_override_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let serving =
        || StoreProcess::with(&["--listen", "tcp:127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
    let (one, two) = (serving(), serving());
    let file = dir.path().join("pagelith.toml");
    let peer = |server: &StoreProcess, name: &str, rest: &str| {
        format!("[[remote.peers]]\naddress = \"{}\"\nname = \"{name}\"\n{rest}\n", server.address)
    };
    // With such a low weight it owns none of some hundred pages.
    let text = peer(&one, "a", "weight = 1e-9") + &peer(&two, "b", "");
    std::fs::write(&file, text).expect("written");
    let file = file.to_str().expect("text");
    let own =
        ["replay", "--json", "--dram", "2MiB", "--ssd", "0", "--requests", "150", "--config", file];
    let run = |flags: &[&str]| json(&command(&[&own[..], flags].concat()).output().expect("run"));
    let report = run(&[]);
    assert!(hits(&report, "remote") > 0 && report["wrong_bytes"] == 0, "{report}");
    assert!(stored(&two) > 0 && stored(&one) == 0, "{} {}", stored(&one), stored(&two));
    run(&["--prefer", &one.address]);
    assert!(stored(&one) > 0, "the preferred peer gets all pages");
    // A store process uses the peers of its file too, and offers the pages of its clients to them.
    let (three, before) = (serving(), stored(&two));
    let front = StoreProcess::with(&[
        "--listen",
        "tcp:127.0.0.1:0",
        "--config",
        file,
        "--remote",
        &three.address,
    ]);
    client_of(front, "1");
    assert!(stored(&three) > 0 && stored(&two) == before, "flags override the file");
}

/// Remote hits in pages of a client of `front` with this seed. Then `front` offers its remaining
/// pages to its peers, and ends.
fn client_of(mut front: StoreProcess, seed: &str) -> u64 {
    let flags = [
        "replay",
        "--json",
        "--object-bytes",
        "8KiB",
        "--requests",
        "150",
        "--seed",
        seed,
        "--attach",
    ];
    let report = json(&command(&[&flags[..], &[&front.address]].concat()).output().expect("run"));
    assert_eq!(
        (&report["wrong_bytes"], &report["partial_groups"]),
        (&0.into(), &0.into()),
        "{report}"
    );
    end(&mut front);
    hits(&report, "remote")
}

#[test]
fn store_process_uses_the_peers_and_the_key_of_its_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let (known, stranger) = (keys(dir.path(), &["rank-0"]), keys(dir.path(), &["rank-1"]));
    let serving = ["--listen", "tcp:127.0.0.1:0", "--metrics", "127.0.0.1:0", "--keys", &known];
    let (owner, light) = (StoreProcess::with(&serving), StoreProcess::with(&serving));
    let file = dir.path().join("pagelith.toml");
    let written = |preferred: bool| {
        let peers = format!(
            "[[remote.peers]]\naddress = \"{}\"\nname = \"owner\"\n[[remote.peers]]\naddress = \"{}\"\n\
             name = \"light\"\nweight = 1e-9\npreferred = {preferred}\n",
            owner.address, light.address
        );
        std::fs::write(&file, format!("[remote]\nkey = \"{known}\"\n{peers}")).expect("written");
    };
    let front = |flags: &[&str]| {
        let file = file.to_str().expect("text");
        StoreProcess::with(&[&["--listen", "tcp:127.0.0.1:0", "--config", file], flags].concat())
    };
    // Pages are offered to the peer that owns nearly all; another store process finds them there.
    written(false);
    client_of(front(&[]), "1");
    assert!(stored(&owner) > 0 && stored(&light) == 0, "{} {}", stored(&owner), stored(&light));
    assert!(client_of(front(&[]), "1") > 0);
    // With another key it is refused there.
    assert_eq!(client_of(front(&["--key", &stranger]), "1"), 0);
    let before = stored(&owner);
    written(true);
    client_of(front(&[]), "2");
    let now = (stored(&owner), stored(&light));
    assert!(now.0 == before && now.1 > 0, "the preferred peer gets all pages: {before} {now:?}");
    // A flag overrides the preference of the file.
    client_of(front(&["--prefer", &owner.address]), "3");
    let then = (stored(&owner), stored(&light));
    assert!(then.0 > now.0 && then.1 == now.1, "the flag prefers another peer: {now:?} {then:?}");
}

#[test]
fn restart_of_a_killed_peer_costs_only_misses() {
    let mut server = StoreProcess::at("tcp:127.0.0.1:0");
    let running = replay(&server.address, "1000")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("spawned");
    server.says("serving peer=");
    server.kill();
    let mut server = StoreProcess::at(&server.address.clone());
    let report = json(&running.wait_with_output().expect("ended"));
    assert_eq!(
        (&report["wrong_bytes"], &report["partial_groups"]),
        (&0.into(), &0.into()),
        "{report}"
    );
    let warm = json(&replay(&server.address, "150").output().expect("run"));
    assert!(hits(&warm, "remote") > 0 && warm["wrong_bytes"] == 0, "{warm}");
    server.kill();
    let alone = json(&replay(&server.address, "150").output().expect("run"));
    assert_eq!((hits(&alone, "remote"), &alone["wrong_bytes"]), (0, &0.into()), "{alone}");
}

#[test]
fn sigterm_closes_the_store_with_exit_status_0() {
    end(&mut StoreProcess::at("tcp:127.0.0.1:0"));
}

#[test]
fn non_loopback_address_without_the_option_is_refused() {
    let output =
        command(&["serve", "--dram", "1MiB", "--listen", "tcp:0.0.0.0:0"]).output().expect("run");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && message.contains("the address is not loopback"),
        "{message}"
    );
}

#[test]
fn client_without_a_valid_key_is_not_served() {
    let dir = tempfile::tempdir().expect("a directory");
    let (known, stranger) = (keys(dir.path(), &["rank-0"]), keys(dir.path(), &["rank-1"]));
    let server = StoreProcess::with(&["--listen", "tcp:127.0.0.1:0", "--keys", &known]);
    let with =
        |key: &[&str]| json(&replay(&server.address, "150").args(key).output().expect("run"));
    assert!(hits(&with(&["--key", &known]), "remote") > 0);
    assert!(hits(&with(&["--key", &known]), "remote") > 0);
    for key in [&["--key", &stranger][..], &[]] {
        let report = with(key);
        assert_eq!((hits(&report, "remote"), &report["wrong_bytes"]), (0, &0.into()), "{report}");
    }
}

#[test]
fn read_only_key_puts_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let key = keys(dir.path(), &["reader"]);
    let rights = std::fs::read_to_string(&key).expect("read") + "rights = [\"read\"]\n";
    let ring = dir.path().join("ring");
    std::fs::write(&ring, rights).expect("written");
    std::fs::set_permissions(&ring, PermissionsExt::from_mode(0o600)).expect("made private");
    let flags = [
        "--listen",
        "tcp:127.0.0.1:0",
        "--keys",
        ring.to_str().expect("text"),
        "--metrics",
        "127.0.0.1:0",
    ];
    let server = StoreProcess::with(&flags);
    let report = json(&replay(&server.address, "150").args(["--key", &key]).output().expect("run"));
    assert_eq!((hits(&report, "remote"), &report["wrong_bytes"]), (0, &0.into()), "{report}");
    assert!(server.get("/metrics").1.contains("\npagelith_puts_stored_total 0\n"));
}

#[test]
fn metrics_count_served_objects() {
    let server = StoreProcess::with(&["--listen", "tcp:127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
    let report = json(&replay(&server.address, "150").output().expect("run"));
    let (status, metrics) = server.get("/metrics");
    assert_eq!(status, 200);
    let served = hits(&report, "remote");
    let line = metrics.lines().find_map(|line| line.strip_prefix("pagelith_hits_memory_total "));
    let counted: u64 = line.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{metrics}"));
    // A page is two objects.
    assert!(served > 0 && counted >= 2 * served, "served={served} counted={counted}");
    assert_eq!(server.get("/healthz"), (200, "ok ssd_state=off\n".to_owned()));
    assert_eq!(server.get("/").0, 404);
    let refused =
        command(&["serve", "--dram", "1MiB", "--metrics", "0.0.0.0:0"]).output().expect("run");
    assert!(
        String::from_utf8_lossy(&refused.stderr)
            .contains("the address is not loopback, other hosts could read the metrics")
    );
}

#[test]
fn unix_socket_serves_and_a_stale_file_is_replaced() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("socket");
    let mut server = StoreProcess::at(&format!("unix:{}", path.display()));
    let report = json(&replay(&server.address, "150").output().expect("run"));
    assert!(hits(&report, "remote") > 0 && report["wrong_bytes"] == 0, "{report}");
    // The stale file of a killed process does not block the next one.
    server.kill();
    assert!(path.exists());
    let server = StoreProcess::at(&server.address.clone());
    let report = json(&replay(&server.address, "150").output().expect("run"));
    assert!(hits(&report, "remote") > 0 && report["wrong_bytes"] == 0, "{report}");
}

#[test]
fn server_serves_hits_of_its_peer_to_clients() {
    let owner = StoreProcess::at("tcp:127.0.0.1:0");
    let on = |address: &str| {
        let flags = [
            "replay",
            "--json",
            "--object-bytes",
            "8KiB",
            "--attach",
            address,
            "--requests",
            "150",
        ];
        json(&command(&flags).output().expect("run"))
    };
    let first = on(&owner.address);
    assert_eq!((hits(&first, "remote"), &first["wrong_bytes"]), (0, &0.into()), "{first}");
    // Its own store is still empty.
    let middle = StoreProcess::with(&["--listen", "tcp:127.0.0.1:0", "--remote", &owner.address]);
    let second = on(&middle.address);
    assert!(hits(&second, "remote") > 0, "{second}");
    assert_eq!(
        (&second["wrong_bytes"], &second["partial_groups"]),
        (&0.into(), &0.into()),
        "{second}"
    );
    assert!(
        second["prefix_hit_ratio"].as_f64() > first["prefix_hit_ratio"].as_f64(),
        "{first} {second}"
    );
}

#[test]
fn serve_with_rdma_needs_devices_and_a_tcp_address() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let refused = |listen: &str| {
        let dir = store.to_str().expect("a path");
        let own = ["serve", "--rdma", "--listen", listen, "--dram", "8MiB", "--ssd", "64MiB"];
        let output = command(&[&own[..], &["--dir", dir]].concat()).output().expect("run");
        assert!(!output.status.success());
        String::from_utf8(output.stderr).expect("text")
    };
    let message = refused("unix:/tmp/pagelith-no-such-socket");
    assert!(message.contains("--rdma needs an address tcp:HOST:PORT"), "{message}");
    // Where there are devices, `sim/rdma/run.sh` serves with them.
    if !std::path::Path::new("/dev/infiniband").exists() {
        let message = refused("tcp:127.0.0.1:0");
        assert!(message.contains("cannot open the store: rdma: "), "{message}");
    }
    assert!(!store.exists(), "no store was created");
}
