//! Store processes for tests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

/// The program with these arguments, without settings from the environment.
pub fn command(args: &[&str]) -> Command {
    let mut command = super::program();
    command.args(args);
    command
}

/// A store process; killed when dropped.
pub struct StoreProcess {
    pub child: Child,
    /// The address at which it listens.
    pub address: String,
    /// The address of its HTTP server, if it has one.
    pub metrics: Option<String>,
    stderr: Option<BufReader<ChildStderr>>,
}

impl StoreProcess {
    pub fn at(address: &str) -> StoreProcess {
        StoreProcess::with(&["--listen", address])
    }

    pub fn with(flags: &[&str]) -> StoreProcess {
        StoreProcess::logging_to(Stdio::piped(), flags)
    }

    /// A store process that logs to `stderr`; its log cannot be read with [`StoreProcess::says`].
    pub fn logging_to(stderr: Stdio, flags: &[&str]) -> StoreProcess {
        StoreProcess::of(command(&[&["serve", "--dram", "64MiB"], flags].concat()).stderr(stderr))
    }

    /// The store process that `command` starts.
    pub fn of(command: &mut Command) -> StoreProcess {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("spawned");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
        let mut metrics = None;
        let address = loop {
            let line = lines.next().expect("a listening line").expect("a line");
            match (line.strip_prefix("listening "), line.strip_prefix("metrics http://")) {
                (Some(address), _) => break address.to_owned(),
                (None, Some(url)) => metrics = url.strip_suffix("/metrics").map(str::to_owned),
                (None, None) => panic!("{line}"),
            }
        };
        let stderr = child.stderr.take().map(BufReader::new);
        StoreProcess { child, address, metrics, stderr }
    }

    /// Status and body of an HTTP response.
    pub fn get(&self, path: &str) -> (u16, String) {
        let mut stream =
            TcpStream::connect(self.metrics.as_ref().expect("an address")).expect("connected");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .expect("sent");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("received");
        let (head, body) = response.split_once("\r\n\r\n").expect("a head");
        (
            head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"),
            body.to_owned(),
        )
    }

    /// Wait for a log line that contains `text`.
    pub fn says(&mut self, text: &str) {
        let mut log = String::new();
        let stderr = self.stderr.as_mut().expect("its stderr");
        while !log.lines().next_back().is_some_and(|line| line.contains(text)) {
            assert!(
                stderr.read_line(&mut log).expect("a line") > 0,
                "it ended without logging {text:?}: {log}"
            );
        }
    }

    /// The rest of its log.
    pub fn log(&mut self) -> BufReader<ChildStderr> {
        self.stderr.take().expect("its stderr")
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("reaped");
    }
}

impl Drop for StoreProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The JSON output of a successful run.
pub fn json(output: &std::process::Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Prefix hits of a tier in pages.
pub fn hits(report: &Value, tier: &str) -> u64 {
    report["prefix_hits"][tier].as_u64().expect("a number")
}

/// A file with new keys of these names, readable only by its owner.
pub fn keys(dir: &Path, names: &[&str]) -> String {
    let path = dir.join(names.join("+"));
    let entry = |name: &&str| command(&["key", name]).output().expect("run").stdout;
    std::fs::write(&path, names.iter().flat_map(entry).collect::<Vec<u8>>()).expect("written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("made private");
    path.to_str().expect("text").to_owned()
}
