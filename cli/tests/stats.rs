//! `pagelith stats` and `pagelith top` at a store process.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real processes")]

mod common;

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::process::{Child, Command, Output, Stdio};

use common::store_process::{StoreProcess, command, json, keys};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// Put a few objects into the store of this process.
fn fill(server: &StoreProcess) {
    let replay = ["replay", "--json", "--requests", "20", "--attach", &server.address];
    json(&command(&replay).output().expect("run"));
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("text")
}

#[test]
fn stats_prints_the_counters_of_a_store_process_over_tcp_and_unix_socket() {
    let dir = tempfile::tempdir().expect("a directory");
    for listen in
        ["tcp:127.0.0.1:0".to_owned(), format!("unix:{}", dir.path().join("socket").display())]
    {
        let server = StoreProcess::at(&listen);
        fill(&server);
        let stats = json(&command(&["stats", "--json", &server.address]).output().expect("run"));
        assert!(stats["bytes_put"].as_u64() > Some(0) && stats["ssd_state"] == "off", "{stats}");
        let lines = text(&command(&["stats", &server.address]).output().expect("run"));
        let line = |name: &str| {
            let found = lines.lines().find_map(|line| line.strip_prefix(name));
            found.unwrap_or_else(|| panic!("{name} is not in\n{lines}")).trim().to_owned()
        };
        assert_eq!(line("bytes_put "), stats["bytes_put"].to_string());
        assert_eq!(line("ssd_state "), "off");
        let lookups = stats["exists_absent"]["unknown"].to_string();
        assert_eq!(line("exists_absent.unknown "), lookups);
    }
}

#[test]
fn stats_and_top_without_a_store_or_its_permission_end_with_status_2() {
    let dir = tempfile::tempdir().expect("a directory");
    let known = keys(dir.path(), &["rank-0"]);
    let entry = std::fs::read_to_string(&known).expect("the key");
    let server_keys = dir.path().join("server");
    let restricted =
        format!("{entry}namespaces = [\"{}\"]\nrights = [\"read\"]\n", "00".repeat(16));
    std::fs::copy(&known, &server_keys).expect("copied with its permissions");
    std::fs::write(&server_keys, restricted).expect("written");
    let server_keys = server_keys.to_str().expect("text");
    let server = StoreProcess::with(&["--listen", "tcp:127.0.0.1:0", "--keys", server_keys]);
    for name in ["stats", "top"] {
        for (args, why) in [
            (&[name, "tcp:127.0.0.1:1"][..], "cannot attach address=tcp:127.0.0.1:1"),
            (&[name, &server.address], "cannot attach"),
            (&[name, &server.address, "--key", &known], "operate"),
        ] {
            let ended = command(args).output().expect("run");
            let log = String::from_utf8_lossy(&ended.stderr);
            assert!(ended.status.code() == Some(2) && log.contains(why), "{args:?} {log}");
        }
    }
}

#[test]
fn top_without_a_terminal_prints_one_frame_and_ends() {
    let server = StoreProcess::with(&["--listen", "tcp:127.0.0.1:0"]);
    fill(&server);
    let top = ["top", "--interval", "0.1", &server.address];
    let frame = text(&command(&top).stdin(Stdio::null()).output().expect("run"));
    assert!(!frame.contains('\x1b'), "{frame}");
    assert!(frame.lines().all(|line| line.len() <= 90), "{frame}");
    let memory = frame.lines().find(|line| line.starts_with("memory ")).expect("a tier");
    let objects = memory.split_whitespace().nth(5).expect("a column");
    assert_ne!(objects, "0", "{frame}");
}

/// `pagelith top` in a terminal of this size.
struct Top {
    child: Child,
    terminal: File,
    screen: String,
}

impl Top {
    fn start(server: &StoreProcess, (columns, rows): (u16, u16)) -> Top {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("a terminal");
        grantpt(&master).expect("granted");
        unlockpt(&master).expect("unlocked");
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).expect("set");
        let path = ptsname(&master, Vec::new()).expect("a name").into_string().expect("text");
        let open = || OpenOptions::new().read(true).write(true).open(&path).expect("opened");
        let mut top = command(&["top", "--interval", "0.1", &server.address]);
        let child = top.stdin(open()).stdout(open()).stderr(open()).spawn().expect("spawned");
        Top { child, terminal: File::from(master), screen: String::new() }
    }

    /// Read until `text` is on the screen.
    fn shows(&mut self, text: &str) {
        while !self.screen.contains(text) {
            self.read();
        }
    }

    /// The next whole frame.
    fn next_frame(&mut self) -> String {
        let from = self.screen.len();
        loop {
            let rest = &self.screen[from..];
            let frame = rest.split_once("\x1b[H").and_then(|(_, frame)| frame.split_once("\x1b[J"));
            if let Some((frame, _)) = frame {
                return frame.to_owned();
            }
            self.read();
        }
    }

    fn read(&mut self) {
        let mut bytes = [0; 4096];
        let length = self.terminal.read(&mut bytes).expect("more of the screen");
        self.screen += std::str::from_utf8(&bytes[..length]).expect("plain text");
    }

    /// Wait for the end of the program, and for the screen as it was.
    fn ended(mut self) {
        self.shows("\x1b[?25h\x1b[?1049l");
        assert_eq!(self.child.wait().expect("reaped").code(), Some(0), "{}", self.screen);
        let modes = tcgetattr(&self.terminal).expect("modes").local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO), "{modes:?}");
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn top_refreshes_within_the_terminal_until_a_key_or_a_signal() {
    let server = StoreProcess::at("tcp:127.0.0.1:0");
    fill(&server);
    let ends: [(&str, (u16, u16)); 4] =
        [("q", (80, 24)), ("\x03", (120, 40)), ("SIGTERM", (80, 24)), ("SIGINT", (40, 8))];
    for (end, size) in ends {
        let mut top = Top::start(&server, size);
        // The first frame has no rates yet.
        top.shows("TIER");
        let frame = top.next_frame();
        let lines: Vec<_> =
            frame.split("\r\n").map(|line| line.replace('\r', "").replace("\x1b[K", "")).collect();
        assert!(lines.iter().any(|line| line.contains("TIER")), "{lines:?}");
        assert!(lines.iter().all(|line| line.chars().count() <= size.0.into()), "{lines:?}");
        assert!(lines.len() <= size.1.into(), "{lines:?}");
        match end.strip_prefix("SIG") {
            Some(signal) => {
                let pid = top.child.id().to_string();
                let sent = Command::new("kill").args([&format!("-{signal}"), &pid]).status();
                assert!(sent.expect("run").success());
            }
            None => {
                rustix::io::write(&top.terminal, end.as_bytes()).expect("typed");
            }
        }
        top.ended();
    }
}

#[test]
fn top_shows_that_the_store_process_ended_and_its_return() {
    let mut server = StoreProcess::at("tcp:127.0.0.1:0");
    let mut top = Top::start(&server, (120, 24));
    top.shows("rates over");
    server.kill();
    top.shows("the store process sent no statistics");
    let _again = StoreProcess::at(&server.address.clone());
    top.screen.clear();
    top.shows("rates over");
    rustix::io::write(&top.terminal, b"q").expect("typed");
    top.ended();
}
