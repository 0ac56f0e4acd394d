//! Two hosts, each a network namespace of its own, joined by a virtual cable. Needs root.

use std::io::Write as _;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::Command;

use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// 10.78.0.1 and 10.78.0.2; gone when dropped.
pub struct Network {
    prefix: String,
    /// Keeps what was attached to a cable's end.
    _attached: Option<OwnedFd>,
}

/// What is at the second host's end of the cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// What every local receiver is: the kernel copies bytes that are other's memory when they come in, and says so to who sent them.
    Plain,
    /// A program that lets everything pass (XDP in the driver). It is given a copy, made for it when a packet comes in, so that the sender
    /// hears of none: as with a network card, its memory is free when the peer has acknowledged.
    Program,
}

impl Network {
    /// The network; or, said aloud, why there is none.
    pub fn of(test: &str, end: End) -> Option<Network> {
        let made = Network::make(test, end);
        if let Err(why) = &made {
            // Past the test harness's capture: what was not tested is said aloud.
            let _ = writeln!(std::io::stderr(), "skipped: two hosts: {test} {end:?}: {why}");
        }
        made.ok()
    }

    fn make(test: &str, end: End) -> Result<Network, String> {
        let prefix = format!("pagelith-{}-{test}-{end:?}", std::process::id());
        let mut network = Network { prefix, _attached: None };
        let [a, b] = [network.host(0), network.host(1)];
        ip(&["netns", "add", &a])?;
        ip(&["netns", "add", &b])?;
        ip(&["-n", &a, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", &b])?;
        for (n, host) in [&a, &b].into_iter().enumerate() {
            ip(&["-n", host, "address", "add", &format!("10.78.0.{}/24", n + 1), "dev", "eth0"])?;
            ip(&["-n", host, "link", "set", "eth0", "up"])?;
        }
        if end == End::Program {
            let shown = ip(&["-n", &b, "-o", "link", "show", "eth0"])?;
            let index = shown.split(':').next().and_then(|index| index.parse().ok()).ok_or(shown)?;
            network._attached = Some(network.inside(1, || let_all_pass(index))?);
        }
        Ok(network)
    }

    fn host(&self, n: usize) -> String {
        format!("{}-{n}", self.prefix)
    }

    /// Pull the cable out at the second host.
    pub fn pull_out(&self) {
        ip(&["-n", &self.host(1), "link", "set", "eth0", "down"]).expect("a cable");
    }

    /// Do something on a host: sockets that are made there are that host's for good.
    pub fn inside<T: Send>(&self, n: usize, work: impl FnOnce() -> T + Send) -> T {
        let path = format!("/run/netns/{}", self.host(n));
        let host = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).expect("a namespace");
        let there = || {
            move_into_link_name_space(host.as_fd(), Some(LinkNameSpaceType::Network)).expect("root");
            work()
        };
        std::thread::scope(|scope| scope.spawn(there).join().expect("no panic"))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for n in 0..2 {
            let _ = ip(&["netns", "delete", &self.host(n)]);
        }
    }
}

fn ip(args: &[&str]) -> Result<String, String> {
    let output = Command::new("ip").args(args).output().map_err(|error| format!("ip: {error}"))?;
    let said = String::from_utf8_lossy(if output.status.success() { &output.stdout } else { &output.stderr });
    let said = said.trim().to_owned();
    if output.status.success() { Ok(said) } else { Err(format!("ip {}: {said}", args.join(" "))) }
}

/// Attach a program of two instructions (return 2, which is `XDP_PASS`) to a device of this thread's host, in its driver.
fn let_all_pass(device: u32) -> Result<OwnedFd, String> {
    const PROG_LOAD: u32 = 5;
    const LINK_CREATE: u32 = 28;
    const TYPE_XDP: u32 = 6;
    const ATTACH_XDP: u32 = 37;
    const IN_DRIVER: u32 = 4;
    const PROGRAM: [u64; 2] = [0x2_0000_00b7, 0x95];
    const LICENCE: &[u8; 4] = b"GPL\0";
    // `union bpf_attr`, words of 4 bytes: type, instructions, where they are, where the licence is; and the type again at 68.
    let mut load = [0u32; 32];
    (load[0], load[1], load[17]) = (TYPE_XDP, PROGRAM.len() as u32, ATTACH_XDP);
    for (at, address) in [(2, PROGRAM.as_ptr() as u64), (4, LICENCE.as_ptr() as u64)] {
        (load[at], load[at + 1]) = (address as u32, (address >> 32) as u32);
    }
    let program = bpf(PROG_LOAD, &load)?;
    let mut link = [0u32; 32];
    let number = std::os::fd::AsRawFd::as_raw_fd(&program) as u32;
    link[..4].copy_from_slice(&[number, device, ATTACH_XDP, IN_DRIVER]);
    bpf(LINK_CREATE, &link)
}

fn bpf(command: u32, attributes: &[u32; 32]) -> Result<OwnedFd, String> {
    let bytes = size_of_val(attributes);
    // SAFETY: the kernel reads the attributes, which outlive the call, and what they point to, which is constant.
    let made = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), bytes) };
    let number = i32::try_from(made).ok().filter(|number| *number >= 0);
    let number = number.ok_or_else(|| format!("bpf: {}", std::io::Error::last_os_error()))?;
    // SAFETY: both commands make a descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
