//! A hostile server: its texts cannot manipulate a terminal or a log.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real processes")]

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;

use common::store_process::command;
use pagelith::layouts::ids::OpId;
use pagelith::layouts::wire::greeting::{Refusal, RefusalReason};
use pagelith::layouts::wire::head::{self, HeadFacts};
use pagelith::layouts::wire::{FrameKind, VERSION_GREETING};

const TEXT: &str =
    "gone\nclosed durable_objects=7\r\u{1b}[2J\u{1b}]0;title\u{7}\u{9b}31m\u{202e}end";

#[test]
fn text_of_an_unauthenticated_server_is_escaped_on_one_line() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("tcp:{}", listener.local_addr().expect("an address"));
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let _ = stream.read(&mut [0; 64]).expect("a greeting");
        let refusal = Refusal {
            reason: RefusalReason::Denied,
            versions: (1, 1),
            missing: 0,
            text: TEXT.into(),
        };
        let body = refusal.encode();
        let facts = HeadFacts::control(VERSION_GREETING, FrameKind::Refusal, OpId(0), &body);
        stream.write_all(&[&head::encode(&facts, [0; 16])[..], &body].concat()).expect("sent");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let output =
        command(&["replay", "--requests", "5", "--attach", &address]).output().expect("run");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && message.contains("gone\\nclosed durable_objects=7"),
        "{message:?}"
    );
    assert!(
        !message.replace('\n', "").contains(|c: char| c.is_control() || c == '\u{202e}'),
        "{message:?}"
    );
    server.join().expect("ended");
}
