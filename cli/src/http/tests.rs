use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pagelith::io::clock::{Clock, Mono};

use super::answer::Answer;
use super::server::{CONNECTIONS_MAX, Server};

/// Turns within which whatever is to happen has happened.
const TURNS: usize = 2000;
const WAIT: Duration = Duration::from_millis(2);
/// Longer than a connection lasts.
const LONG: Duration = Duration::from_secs(60);
const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Stands still unless a test moves it.
#[derive(Default)]
struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> Mono {
        Mono(self.0.load(Ordering::Relaxed))
    }
}

struct World {
    server: Server,
    clock: TestClock,
    body: String,
    asked: usize,
}

impl World {
    /// A server that answers everything with this.
    fn answering(body: String) -> World {
        let server = Server::new(TcpListener::bind("127.0.0.1:0").expect("a port")).expect("a server");
        World { server, clock: TestClock::default(), body, asked: 0 }
    }

    fn new() -> World {
        World::answering("told\n".to_owned())
    }

    /// A client that has sent this.
    fn client(&mut self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.server.address().expect("an address")).expect("connected");
        stream.set_nonblocking(true).expect("set");
        stream.write_all(bytes).expect("sent");
        stream
    }

    fn turn(&mut self) {
        let (body, asked) = (&self.body, &mut self.asked);
        self.server.turn(&self.clock, WAIT, &mut |_| {
            *asked += 1;
            Answer::text("200 OK", body.clone())
        });
    }

    /// Let a connection's time pass.
    fn pass(&mut self, time: Duration) {
        self.clock.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        self.turn();
    }

    /// Everything that the server sends a client until it ends the connection; `None` if it does not.
    fn all(&mut self, client: &mut TcpStream) -> Option<String> {
        let mut bytes = Vec::new();
        for _ in 0..TURNS {
            self.turn();
            match client.read_to_end(&mut bytes) {
                Ok(_) => return Some(String::from_utf8(bytes).expect("text")),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error} after {} bytes", bytes.len()),
            }
        }
        None
    }

    /// What a client is answered that asks now.
    #[track_caller]
    fn ask(&mut self) -> String {
        let mut client = self.client(GET);
        self.all(&mut client).expect("an answer")
    }

    /// Turns until a client's connection is one of the server's.
    #[track_caller]
    fn until(&mut self, connections: usize) {
        for _ in 0..TURNS {
            if self.server.connections() == connections {
                return;
            }
            self.turn();
        }
        panic!("connections={} expected={connections}", self.server.connections());
    }
}

fn is_ok(answer: &str) -> bool {
    answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\ntold\n")
}

#[test]
fn connections_that_send_nothing_or_half_a_request_hold_nobody_up() {
    let mut world = World::new();
    let idle: Vec<TcpStream> =
        (0..100).map(|n| world.client(if n % 2 == 0 { b"" } else { b"GET /met" })).collect();
    assert!(is_ok(&world.ask()));
    world.until(CONNECTIONS_MAX);
    assert!(is_ok(&world.ask()), "among as many as there may be");
    assert_eq!(world.asked, 2);
    drop(idle);
    world.until(0);
}

#[test]
fn connection_beyond_the_bound_replaces_the_oldest() {
    let mut world = World::new();
    let mut first = world.client(b"GET /met");
    world.until(1);
    let mut second = world.client(b"GET /met");
    world.until(2);
    let rest: Vec<TcpStream> = (2..=CONNECTIONS_MAX).map(|_| world.client(b"")).collect();
    assert_eq!(world.all(&mut first).as_deref(), Some(""), "the oldest is ended");
    world.until(CONNECTIONS_MAX);
    second.write_all(b"rics HTTP/1.1\r\n\r\n").expect("sent");
    assert!(is_ok(&world.all(&mut second).expect("an answer")), "the next is there");
    drop(rest);
}

#[test]
fn connection_ends_with_its_time() {
    let mut world = World::new();
    let (mut silent, mut slow) = (world.client(b""), world.client(b"GET /met"));
    world.until(2);
    world.turn();
    world.pass(LONG);
    assert_eq!(world.server.connections(), 0);
    assert_eq!(world.all(&mut silent).as_deref(), Some(""));
    assert!(world.all(&mut slow).expect("the end").starts_with("HTTP/1.1 408 Request Timeout\r\n"));
}

#[test]
fn body_that_never_comes_is_not_waited_for() {
    let mut world = World::new();
    let mut post = world.client(b"POST /metrics HTTP/1.1\r\nContent-Length: 1000000\r\n\r\nabc");
    assert!(is_ok(&world.all(&mut post).expect("an answer")), "this server answers all");
    assert!(is_ok(&world.ask()));
    // The client has not ended it.
    world.until(1);
    world.pass(LONG);
    assert_eq!(world.server.connections(), 0);
}

#[test]
fn client_that_sends_more_than_a_request_gets_one_whole_answer() {
    let mut world = World::new();
    let mut pipelined = world.client(&GET.repeat(1000));
    assert!(is_ok(&world.all(&mut pipelined).expect("an answer")));
    assert_eq!(world.asked, 1);
    drop(pipelined);
    world.until(0);
    // More than is dropped.
    let endless = world.client(&GET.repeat(4000));
    for _ in 0..TURNS {
        world.turn();
    }
    assert_eq!(
        (world.asked, world.server.connections()),
        (2, 0),
        "it is ended though the client has not ended it"
    );
    drop(endless);
}

#[test]
fn request_line_without_an_end_is_refused() {
    let mut world = World::new();
    let mut endless = world.client(&[&b"GET /"[..], &[b'a'; 20_000]].concat());
    let answer = world.all(&mut endless).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"), "{answer}");
    assert_eq!(world.asked, 0);
}

#[test]
fn answer_that_is_not_read_holds_nobody_up_and_ends_with_its_time() {
    // More than a socket's buffers take.
    let mut world = World::answering("x".repeat(64 << 20));
    let unread = world.client(GET);
    world.until(1);
    world.body = "told\n".to_owned();
    assert!(is_ok(&world.ask()));
    world.until(1);
    world.pass(LONG);
    assert_eq!(world.server.connections(), 0);
    drop(unread);
}

#[test]
fn head_is_answered_without_a_body_and_what_is_refused_says_what_is_not() {
    let mut world = World::new();
    let mut head = world.client(b"HEAD /metrics HTTP/1.1\r\n\r\n");
    let answer = world.all(&mut head).expect("an answer");
    assert!(answer.contains("\r\nContent-Length: 5\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
    let refused = Answer::text("405 Method Not Allowed", "no\n").bytes(true);
    assert!(String::from_utf8_lossy(&refused).contains("\r\nAllow: GET, HEAD\r\n"));
}
