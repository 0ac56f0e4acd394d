//! Ends of store processes, and missing resources that they survive.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real files")]

mod common;

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::hostile_socket;
use common::store_process::{StoreProcess, command, json};
use pagelith::config::Config;
use rustix::net::sockopt::set_socket_linger;

/// A stack size beyond the address space: no thread can be started with it.
const NO_STACK: (&str, &str) = ("RUST_MIN_STACK", "1125899906842624");

fn attach(address: &str) -> Output {
    let client =
        ["replay", "--json", "--object-bytes", "8KiB", "--requests", "100", "--attach", address];
    command(&client).output().expect("run")
}

fn signal(server: &mut StoreProcess, name: &str) {
    let sent = Command::new("kill").args([name, &server.child.id().to_string()]).status();
    assert!(sent.expect("run").success());
}

#[test]
fn serve_ended_by_a_signal_keeps_all_objects() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let program = env!("CARGO_BIN_EXE_pagelith");
    // A test under nohup would inherit an ignored SIGHUP.
    let serve = [
        "--default-signal=HUP",
        program,
        "serve",
        "--dram",
        "64MiB",
        "--listen",
        "tcp:127.0.0.1:0",
    ];
    let files = ["--ssd", "256MiB", "--dir", store.to_str().expect("text")];
    for name in ["-HUP", "-INT", "-TERM"] {
        let mut env = common::without_settings(Command::new("env"));
        let mut server = StoreProcess::of(env.args(serve).args(files).stderr(Stdio::piped()));
        let first = json(&attach(&server.address));
        assert_eq!(first["prefix_hit_ratio"] == 1.0, name != "-HUP", "{name} {first}");
        signal(&mut server, name);
        server.says("unsaved_objects=0 unsaved_bytes=0");
        assert_eq!(server.child.wait().expect("reaped").code(), Some(0), "{name}");
    }
}

#[test]
fn serve_under_nohup_ignores_sighup() {
    let program = env!("CARGO_BIN_EXE_pagelith");
    let mut nohup = common::without_settings(Command::new("nohup"));
    nohup
        .args([program, "serve", "--dram", "8MiB", "--listen", "tcp:127.0.0.1:0"])
        .stderr(Stdio::piped());
    let mut server = StoreProcess::of(&mut nohup);
    signal(&mut server, "-HUP");
    json(&attach(&server.address));
    signal(&mut server, "-TERM");
    assert_eq!(server.child.wait().expect("reaped").code(), Some(0));
}

#[test]
fn socket_file_is_removed_at_the_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("socket");
    let mut server = StoreProcess::at(&format!("unix:{}", socket.display()));
    assert!(socket.exists());
    signal(&mut server, "-TERM");
    assert_eq!(server.child.wait().expect("reaped").code(), Some(0));
    assert!(!socket.exists());
}

#[test]
fn soft_limit_of_descriptors_is_raised_to_the_hard_one() {
    let program = env!("CARGO_BIN_EXE_pagelith");
    let mut shell = common::without_settings(Command::new("sh"));
    let serve = "ulimit -Sn 256 && ulimit -Hn 512 && exec \"$0\" serve --dram 8MiB --listen tcp:127.0.0.1:0";
    let mut server = StoreProcess::of(shell.args(["-c", serve, program]).stderr(Stdio::piped()));
    server.says("raised the descriptor limit from=256 to=512");
    server.says("descriptors=512");
    json(&attach(&server.address));
}

#[test]
fn client_without_a_thread_is_refused_and_accepting_continues() {
    let mut serve = command(&["serve", "--dram", "8MiB", "--listen", "tcp:127.0.0.1:0"]);
    let mut server = StoreProcess::of(serve.env(NO_STACK.0, NO_STACK.1).stderr(Stdio::piped()));
    for _ in 0..2 {
        let report = json(&attach(&server.address));
        assert_eq!(report["wrong_bytes"], 0, "{report}");
        server.says("no thread can be started");
    }
    signal(&mut server, "-TERM");
    assert_eq!(server.child.wait().expect("reaped").code(), Some(0));
}

/// A descriptor whose close waits in the kernel: a socket that lingers until its peer has read
/// everything.
fn lingering_socket() -> (TcpStream, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let mut lingers = TcpStream::connect(listener.local_addr().expect("known")).expect("connected");
    let (reader, _) = listener.accept().expect("accepted");
    set_socket_linger(&lingers, Some(Duration::from_secs(3600))).expect("set");
    lingers.set_nonblocking(true).expect("set");
    while lingers.write(&[0; 65536]).is_ok() {}
    (reader, lingers.into())
}

/// Stop a process; returns when none of its threads runs.
fn stop(server: &mut StoreProcess) {
    signal(server, "-STOP");
    let tasks = format!("/proc/{}/task", server.child.id());
    let is_stopped = |task: std::io::Result<fs::DirEntry>| {
        let stat = fs::read_to_string(task.expect("a thread").path().join("stat"));
        stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T")))
    };
    while !fs::read_dir(&tasks).expect("threads").all(is_stopped) {
        std::thread::yield_now();
    }
}

/// Wait until the last close of the socket with this port has begun: the signal that ends the
/// process could overtake the descriptor.
fn wait_for_close(port: u16) {
    const FIN_WAIT1: &str = "04";
    let is_closing = |line: &str| {
        let mut columns = line.split_whitespace().skip(1);
        let own = columns.next().is_some_and(|address| address.ends_with(&format!(":{port:04X}")));
        own && columns.nth(1) == Some(FIN_WAIT1)
    };
    while !fs::read_to_string("/proc/net/tcp").expect("readable").lines().any(is_closing) {
        std::thread::yield_now();
    }
}

#[test]
fn store_is_flushed_at_the_end_though_a_clients_descriptor_does_not_close() {
    let dir = tempfile::tempdir().expect("a directory");
    let (socket, store) = (dir.path().join("socket"), dir.path().join("store"));
    let settings = dir.path().join("settings.toml");
    fs::write(&settings, "deadline_ms = 10000\n").expect("written");
    let address = format!("unix:{}", socket.display());
    let flags = ["--listen", &address, "--ssd", "256MiB", "--dir", store.to_str().expect("text")];
    let config = ["--config", settings.to_str().expect("text")];
    let mut server = StoreProcess::with(&[&flags[..], &config].concat());
    json(&attach(&server.address));
    let client = UnixStream::connect(&socket).expect("connected");
    let own = client.try_clone().expect("a descriptor");
    let link =
        hostile_socket::link_over(client, None, Vec::new(), &Arc::default()).expect("let in");
    let (reader, lingers) = lingering_socket();
    // The last close waits: it must be the server's.
    stop(&mut server);
    hostile_socket::hand_over(&own, &[lingers]);
    signal(&mut server, "-CONT");
    wait_for_close(reader.peer_addr().expect("known").port());
    signal(&mut server, "-TERM");
    server.says("descriptors are still being closed links=1");
    server.says("lost_objects=0");
    assert_eq!(server.child.wait().expect("reaped").code(), Some(0));
    drop((reader, link));
    let again = StoreProcess::with(&flags);
    assert_eq!(json(&attach(&again.address))["prefix_hit_ratio"], 1.0);
}

#[test]
fn store_without_threads_does_not_open() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let flags = ["--dram", "8MiB", "--ssd", "64MiB", "--dir", store.to_str().expect("text")];
    let serve = ["serve", "--listen", "tcp:127.0.0.1:0"];
    for args in [&serve[..], &["replay", "--requests", "5"]] {
        let mut command = command(&[args, &flags].concat());
        let refused = command.env(NO_STACK.0, NO_STACK.1).output().expect("run");
        let message = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{message}");
        assert!(
            message.contains("no thread can be started") && !message.contains("panicked"),
            "{message}"
        );
    }
    // The failed open left nothing that blocks the next one.
    json(
        &command(&[&["replay", "--json", "--requests", "5"][..], &flags].concat())
            .output()
            .expect("run"),
    );
}

#[test]
fn unit_file_allows_the_maximum_close_time() {
    let unit = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/pagelith.service"))
        .expect("read");
    let allowed =
        unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).expect("a line");
    let allowed = Duration::from_secs(allowed.parse().expect("seconds"));
    let config = Config::default();
    // Calls in flight end first.
    let needed = Duration::from_millis(config.deadline_ms + config.close_timeout_ms);
    assert!(allowed > needed, "allowed={allowed:?} needed={needed:?}");
}
