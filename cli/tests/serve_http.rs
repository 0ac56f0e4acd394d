//! What clients of `--metrics` cannot do to a store process, and its other clients to them.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real processes")]

mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::serving::Serving;
use pagelith::attach::Attached;

/// Descriptors that the process may have: few enough to be used up.
const DESCRIPTORS: &str = "330";
/// Ten thousand times what an answer takes.
const HELD_UP: Duration = Duration::from_secs(10);

/// A store process that answers over HTTP, and may have so many descriptors.
fn serving() -> Serving {
    let program = env!("CARGO_BIN_EXE_pagelith");
    let mut shell = common::without_settings(Command::new("sh"));
    let serve = format!(
        "ulimit -n {DESCRIPTORS} && exec {program} serve --dram 8MiB --listen tcp:127.0.0.1:0 --metrics 127.0.0.1:0"
    );
    Serving::of(shell.args(["-c", &serve]).stderr(Stdio::piped()))
}

/// It ends as it should when it is told to; what its log says.
fn end(mut server: Serving) -> String {
    let killed = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status();
    assert!(killed.expect("run").success());
    let mut said = String::new();
    server.log().read_to_string(&mut said).expect("its log");
    assert_eq!(server.child.wait().expect("reaped").code(), Some(0), "{said}");
    said
}

/// Both paths are answered; a client that is held up gives up after ten seconds.
#[track_caller]
fn is_answered(server: &Serving) {
    for (path, expected) in [("/healthz", "\r\n\r\nok ssd_state=off\n"), ("/metrics", "\npagelith_links ")] {
        let mut client = TcpStream::connect(server.metrics.as_ref().expect("an address")).expect("connected");
        client.set_read_timeout(Some(HELD_UP)).expect("set");
        write!(client, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("asked");
        let mut answer = String::new();
        let read = client.read_to_string(&mut answer);
        assert!(read.is_ok() && answer.contains(expected), "{path} {read:?} {answer}");
    }
}

fn ask(server: &Serving, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(server.metrics.as_ref().expect("an address")).expect("connected");
    // Whether all of it is taken, is the server's affair.
    stream.set_write_timeout(Some(Duration::from_millis(200))).expect("set");
    let _ = stream.write_all(bytes);
    stream
}

#[test]
fn metrics_and_the_end_wait_for_no_client_of_http() {
    let server = serving();
    let get = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let post = b"POST /metrics HTTP/1.1\r\nContent-Length: 1000000\r\n\r\nabc";
    let endless = [&b"GET /"[..], &vec![b'a'; 1 << 20]].concat();
    let mut held = Vec::new();
    for bytes in [b"".as_slice(), b"GET /met", post, &get.repeat(20_000), &endless] {
        held.extend((0..80).map(|_| ask(&server, bytes)));
        is_answered(&server);
    }
    // More than the process has descriptors, all of them open still.
    assert_eq!(held.len(), 400);
    end(server);
}

#[test]
fn metrics_are_answered_while_clients_take_every_place() {
    let server = serving();
    let address = server.address.parse().expect("an address");
    let mut links = Vec::new();
    while let Ok(link) = Attached::to(&address, None, Duration::from_secs(1)) {
        links.push(link);
        assert!(links.len() < 1000, "clients are not bounded");
    }
    assert!(links.len() > 10, "links={}", links.len());
    // What becomes free is theirs.
    let address = server.address.strip_prefix("tcp:").expect("an address of TCP");
    let waiting: Vec<TcpStream> =
        (0..50).map(|_| TcpStream::connect(address).expect("in the backlog")).collect();
    let idle: Vec<TcpStream> = (0..10).map(|_| ask(&server, b"")).collect();
    is_answered(&server);
    drop((waiting, idle));
    let said = end(server);
    assert!(!said.contains("no descriptor is free for HTTP"), "{said}");
}
