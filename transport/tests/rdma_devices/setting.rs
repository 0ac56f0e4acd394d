//! The devices of a test, and the processes that it starts.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use pagelith_io::verbs::{Device, NicWish};
use pagelith_transport::rdma::host::{RdmaHost, RdmaSettings};

use crate::fake::{is_real, library};

/// The variable that names the part of a process of this program.
pub const ROLE: &str = "TEST_PAGELITH_RDMA_ROLE";
/// The variable with the address of the other process.
pub const PEER: &str = "TEST_PAGELITH_RDMA_PEER";

/// Whether the test runs over real devices; if not, a line says so. In the virtual machine a test
/// without a device fails.
pub fn has_devices() -> bool {
    if !is_real() {
        println!("skipped: needs real devices, so TEST_PAGELITH_VERBS");
        assert_ne!(std::env::var("TEST_PAGELITH_VM").as_deref(), Ok("1"), "no real devices");
    }
    is_real()
}

fn host(name: &str) -> Arc<RdmaHost> {
    let nics = NicWish::Device(name.to_owned());
    let library = Some(library().clone());
    RdmaHost::open(&RdmaSettings { library, nics, ..RdmaSettings::default() }).expect("a host")
}

fn names() -> Vec<String> {
    let mut names = Device::names(library()).expect("devices");
    names.sort();
    names
}

/// The client's device, which is the first.
pub fn client_host() -> Arc<RdmaHost> {
    host(&names()[0])
}

/// The server's device, which is the last.
pub fn server_host() -> Arc<RdmaHost> {
    host(names().last().expect("a device"))
}

/// The value of a variable that is the length of a campaign.
pub fn length(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().map_or(default, |value| value.parse().expect("a number"))
}

/// Print the progress of a campaign now and then.
pub fn report(what: &str, done: usize, amid: usize) {
    if done.is_multiple_of(25) {
        println!("{what} done={done} amid_bytes={amid}");
    }
}

/// Another process of this program, which is killed when it is dropped.
pub struct Process {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Process {
    /// Start one with this role.
    pub fn start(role: &str, peer: &str) -> Process {
        let program = std::env::current_exe().expect("the test's own path");
        let mut child = Command::new(program)
            .args(["--exact", "kills::process_of_a_test", "--nocapture", "--test-threads", "1"])
            .env(ROLE, role)
            .env(PEER, peer)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Process { child, output }
    }

    /// The next value that it printed with this name.
    pub fn value(&mut self, name: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let count = self.output.read_line(&mut line).expect("text");
            assert_ne!(count, 0, "the process ended before it printed {name}");
            if let Some((_, value)) = line.split_once(&format!("{name}=")) {
                return value.trim().to_owned();
            }
        }
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("waited");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The numbers of objects that the kernel has for RDMA, by device and kind.
pub fn kernel_objects() -> BTreeMap<String, String> {
    let output = Command::new("rdma").args(["resource", "show"]).output().expect("rdma");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let line = |line: &str| {
        let (device, counts) = line.split_once(": ").expect("device: counts");
        let device = device.split_whitespace().last().expect("a name");
        (device.to_owned(), counts.trim().to_owned())
    };
    text.lines().filter(|line| !line.trim().is_empty()).map(line).collect()
}
