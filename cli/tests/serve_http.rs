//! Isolation between clients of `--metrics`, the store process and its other clients.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real processes")]

mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::store_process::StoreProcess;
use pagelith::client::Client;

/// Descriptor limit of the process: few enough to exhaust.
const DESCRIPTORS: &str = "330";
/// Ten thousand times the duration of a response.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A store process with an HTTP server and a descriptor limit.
fn serving() -> StoreProcess {
    let program = env!("CARGO_BIN_EXE_pagelith");
    let mut shell = common::without_settings(Command::new("sh"));
    let serve = format!(
        "ulimit -n {DESCRIPTORS} && exec {program} serve --dram 8MiB --listen tcp:127.0.0.1:0 --metrics 127.0.0.1:0"
    );
    StoreProcess::of(shell.args(["-c", &serve]).stderr(Stdio::piped()))
}

/// End it by SIGTERM with status 0; returns its log.
fn end(mut server: StoreProcess) -> String {
    let killed = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status();
    assert!(killed.expect("run").success());
    let mut log = String::new();
    server.log().read_to_string(&mut log).expect("its log");
    assert_eq!(server.child.wait().expect("reaped").code(), Some(0), "{log}");
    log
}

/// Check that both paths respond within [`TIMEOUT`].
#[track_caller]
fn assert_responds(server: &StoreProcess) {
    for (path, expected) in
        [("/healthz", "\r\n\r\nok ssd_state=off\n"), ("/metrics", "\npagelith_links ")]
    {
        let mut client =
            TcpStream::connect(server.metrics.as_ref().expect("an address")).expect("connected");
        client.set_read_timeout(Some(TIMEOUT)).expect("set");
        write!(client, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
        let mut response = String::new();
        let read = client.read_to_string(&mut response);
        assert!(read.is_ok() && response.contains(expected), "{path} {read:?} {response}");
    }
}

fn send(server: &StoreProcess, bytes: &[u8]) -> TcpStream {
    let mut stream =
        TcpStream::connect(server.metrics.as_ref().expect("an address")).expect("connected");
    // The server may read only a part of it.
    stream.set_write_timeout(Some(Duration::from_millis(200))).expect("set");
    let _ = stream.write_all(bytes);
    stream
}

#[test]
fn http_clients_block_neither_metrics_nor_the_end() {
    let server = serving();
    let get = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let post = b"POST /metrics HTTP/1.1\r\nContent-Length: 1000000\r\n\r\nabc";
    let endless = [&b"GET /"[..], &vec![b'a'; 1 << 20]].concat();
    let mut held = Vec::new();
    for bytes in [b"".as_slice(), b"GET /met", post, &get.repeat(20_000), &endless] {
        held.extend((0..80).map(|_| send(&server, bytes)));
        assert_responds(&server);
    }
    // More than the descriptor limit; all of them are still open.
    assert_eq!(held.len(), 400);
    end(server);
}

#[test]
fn metrics_respond_while_clients_use_all_links() {
    let server = serving();
    let address = server.address.parse().expect("an address");
    let mut links = Vec::new();
    while let Ok(link) = Client::to(&address, None, Duration::from_secs(1)) {
        links.push(link);
        assert!(links.len() < 1000, "clients are not bounded");
    }
    assert!(links.len() > 10, "links={}", links.len());
    // They take each link that becomes free.
    let address = server.address.strip_prefix("tcp:").expect("an address of TCP");
    let waiting: Vec<TcpStream> =
        (0..50).map(|_| TcpStream::connect(address).expect("in the backlog")).collect();
    let idle: Vec<TcpStream> = (0..10).map(|_| send(&server, b"")).collect();
    assert_responds(&server);
    drop((waiting, idle));
    let log = end(server);
    assert!(!log.contains("no descriptor is free for HTTP"), "{log}");
}
