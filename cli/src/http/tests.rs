use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pagelith::io::clock::{Clock, Mono};

use super::response::Response;
use super::server::{CONNECTIONS_MAX, Server};

/// Polls after which all expected events have occurred.
const POLLS: usize = 2000;
const WAIT: Duration = Duration::from_millis(2);
/// Longer than the lifetime of a connection.
const LONG: Duration = Duration::from_secs(60);
const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// A clock that only the test advances.
#[derive(Default)]
struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> Mono {
        Mono(self.0.load(Ordering::Relaxed))
    }
}

struct Harness {
    server: Server,
    clock: TestClock,
    body: String,
    requests: usize,
}

impl Harness {
    /// A server that responds to every request with `body`.
    fn with_body(body: String) -> Harness {
        let server =
            Server::new(TcpListener::bind("127.0.0.1:0").expect("a port")).expect("a server");
        Harness { server, clock: TestClock::default(), body, requests: 0 }
    }

    fn new() -> Harness {
        Harness::with_body("body\n".to_owned())
    }

    /// A client that has sent `bytes`.
    fn client(&mut self, bytes: &[u8]) -> TcpStream {
        let mut stream =
            TcpStream::connect(self.server.address().expect("an address")).expect("connected");
        stream.set_nonblocking(true).expect("set");
        stream.write_all(bytes).expect("sent");
        stream
    }

    fn poll(&mut self) {
        let (body, requests) = (&self.body, &mut self.requests);
        self.server.poll(&self.clock, WAIT, &mut |_| {
            *requests += 1;
            Response::text("200 OK", body.clone())
        });
    }

    /// Advance the clock, and poll.
    fn advance(&mut self, time: Duration) {
        self.clock.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        self.poll();
    }

    /// All bytes that the server sends to a client before it closes the connection; `None` if it
    /// stays open.
    fn read_all(&mut self, client: &mut TcpStream) -> Option<String> {
        let mut bytes = Vec::new();
        for _ in 0..POLLS {
            self.poll();
            match client.read_to_end(&mut bytes) {
                Ok(_) => return Some(String::from_utf8(bytes).expect("text")),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error} after {} bytes", bytes.len()),
            }
        }
        None
    }

    /// The response to a new client's request.
    #[track_caller]
    fn get(&mut self) -> String {
        let mut client = self.client(GET);
        self.read_all(&mut client).expect("a response")
    }

    /// Poll until the server has this number of connections.
    #[track_caller]
    fn poll_until(&mut self, connections: usize) {
        for _ in 0..POLLS {
            if self.server.connections() == connections {
                return;
            }
            self.poll();
        }
        panic!("connections={} expected={connections}", self.server.connections());
    }
}

fn is_ok(response: &str) -> bool {
    response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with("\r\n\r\nbody\n")
}

#[test]
fn idle_connections_block_no_request() {
    let mut harness = Harness::new();
    let idle: Vec<TcpStream> =
        (0..100).map(|n| harness.client(if n % 2 == 0 { b"" } else { b"GET /met" })).collect();
    assert!(is_ok(&harness.get()));
    harness.poll_until(CONNECTIONS_MAX);
    assert!(is_ok(&harness.get()), "with the maximum of connections");
    assert_eq!(harness.requests, 2);
    drop(idle);
    harness.poll_until(0);
}

#[test]
fn connection_beyond_the_maximum_replaces_the_oldest() {
    let mut harness = Harness::new();
    let mut first = harness.client(b"GET /met");
    harness.poll_until(1);
    let mut second = harness.client(b"GET /met");
    harness.poll_until(2);
    let rest: Vec<TcpStream> = (2..=CONNECTIONS_MAX).map(|_| harness.client(b"")).collect();
    assert_eq!(harness.read_all(&mut first).as_deref(), Some(""), "the oldest is closed");
    harness.poll_until(CONNECTIONS_MAX);
    second.write_all(b"rics HTTP/1.1\r\n\r\n").expect("sent");
    assert!(is_ok(&harness.read_all(&mut second).expect("a response")), "the next is open");
    drop(rest);
}

#[test]
fn connection_times_out() {
    let mut harness = Harness::new();
    let (mut silent, mut slow) = (harness.client(b""), harness.client(b"GET /met"));
    harness.poll_until(2);
    harness.poll();
    harness.advance(LONG);
    assert_eq!(harness.server.connections(), 0);
    assert_eq!(harness.read_all(&mut silent).as_deref(), Some(""));
    assert!(
        harness
            .read_all(&mut slow)
            .expect("the end")
            .starts_with("HTTP/1.1 408 Request Timeout\r\n")
    );
}

#[test]
fn request_with_a_missing_body_gets_a_response() {
    let mut harness = Harness::new();
    let mut post = harness.client(b"POST /metrics HTTP/1.1\r\nContent-Length: 1000000\r\n\r\nabc");
    assert!(
        is_ok(&harness.read_all(&mut post).expect("a response")),
        "this server accepts every method"
    );
    assert!(is_ok(&harness.get()));
    // The client keeps the connection open.
    harness.poll_until(1);
    harness.advance(LONG);
    assert_eq!(harness.server.connections(), 0);
}

#[test]
fn pipelined_requests_get_one_whole_response() {
    let mut harness = Harness::new();
    let mut pipelined = harness.client(&GET.repeat(1000));
    assert!(is_ok(&harness.read_all(&mut pipelined).expect("a response")));
    assert_eq!(harness.requests, 1);
    drop(pipelined);
    harness.poll_until(0);
    // More bytes than the server discards.
    let endless = harness.client(&GET.repeat(4000));
    for _ in 0..POLLS {
        harness.poll();
    }
    assert_eq!(
        (harness.requests, harness.server.connections()),
        (2, 0),
        "the server closes it first"
    );
    drop(endless);
}

#[test]
fn endless_request_line_is_refused() {
    let mut harness = Harness::new();
    let mut endless = harness.client(&[&b"GET /"[..], &[b'a'; 20_000]].concat());
    let response = harness.read_all(&mut endless).expect("a response");
    assert!(response.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"), "{response}");
    assert_eq!(harness.requests, 0);
}

#[test]
fn unread_response_blocks_no_request_and_times_out() {
    // More bytes than socket buffers hold.
    let mut harness = Harness::with_body("x".repeat(64 << 20));
    let unread = harness.client(GET);
    harness.poll_until(1);
    harness.body = "body\n".to_owned();
    assert!(is_ok(&harness.get()));
    harness.poll_until(1);
    harness.advance(LONG);
    assert_eq!(harness.server.connections(), 0);
    drop(unread);
}

#[test]
fn head_response_has_no_body_and_405_lists_the_allowed_methods() {
    let mut harness = Harness::new();
    let mut head = harness.client(b"HEAD /metrics HTTP/1.1\r\n\r\n");
    let response = harness.read_all(&mut head).expect("a response");
    assert!(
        response.contains("\r\nContent-Length: 5\r\n") && response.ends_with("\r\n\r\n"),
        "{response}"
    );
    let refused = Response::text("405 Method Not Allowed", "no\n").bytes(true);
    assert!(String::from_utf8_lossy(&refused).contains("\r\nAllow: GET, HEAD\r\n"));
}
