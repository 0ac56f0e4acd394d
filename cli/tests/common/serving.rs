//! Store processes, as tests start and end them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

/// The program, to be run with these arguments. No setting of the environment reaches it.
pub fn command(args: &[&str]) -> Command {
    let mut command = super::unset();
    command.args(args);
    command
}

/// A store process; killed when dropped.
pub struct Serving {
    pub child: Child,
    /// Where it listens.
    pub address: String,
    /// Where it answers HTTP, if it was told to.
    pub metrics: Option<String>,
    said: Option<BufReader<ChildStderr>>,
}

impl Serving {
    pub fn at(address: &str) -> Serving {
        Serving::with(&["--listen", address])
    }

    pub fn with(flags: &[&str]) -> Serving {
        Serving::logging_to(Stdio::piped(), flags)
    }

    /// One whose log goes there: what it says is not to be asked for.
    pub fn logging_to(stderr: Stdio, flags: &[&str]) -> Serving {
        Serving::of(command(&[&["serve", "--dram", "64MiB"], flags].concat()).stderr(stderr))
    }

    /// What `command` starts.
    pub fn of(command: &mut Command) -> Serving {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("spawned");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
        let mut metrics = None;
        let address = loop {
            let line = lines.next().expect("where it listens").expect("a line");
            match (line.strip_prefix("listening "), line.strip_prefix("metrics http://")) {
                (Some(address), _) => break address.to_owned(),
                (None, Some(url)) => metrics = url.strip_suffix("/metrics").map(str::to_owned),
                (None, None) => panic!("{line}"),
            }
        };
        let said = child.stderr.take().map(BufReader::new);
        Serving { child, address, metrics, said }
    }

    /// The status and body of an answer over HTTP.
    pub fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.metrics.as_ref().expect("an address")).expect("connected");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"), body.to_owned())
    }

    /// Wait until it says this.
    pub fn says(&mut self, what: &str) {
        let mut line = String::new();
        let said = self.said.as_mut().expect("its stderr");
        while !line.contains(what) {
            line.clear();
            assert!(said.read_line(&mut line).expect("a line") > 0, "it ended without saying {what:?}");
        }
    }

    /// What it says from now on, to be read to its end.
    pub fn log(&mut self) -> BufReader<ChildStderr> {
        self.said.take().expect("its stderr")
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("reaped");
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a run that ended well printed.
pub fn json(output: &std::process::Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Prefix hits in a tier, in pages.
pub fn hits(report: &Value, tier: &str) -> u64 {
    report["prefix_hits"][tier].as_u64().expect("a number")
}

/// A file of new keys of these names, which only its owner can read.
pub fn keys(dir: &Path, names: &[&str]) -> String {
    let path = dir.join(names.join("+"));
    let entry = |name: &&str| command(&["key", name]).output().expect("run").stdout;
    std::fs::write(&path, names.iter().flat_map(entry).collect::<Vec<u8>>()).expect("written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("kept to oneself");
    path.to_str().expect("text").to_owned()
}
