//! Store processes on several hosts, each a separate network namespace: partitions and kills. Needs
//! root; skipped otherwise.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real files")]

mod common;

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use serde_json::Value;

/// Hosts at one switch; removed on drop.
struct Network {
    prefix: String,
    hosts: usize,
}

impl Network {
    /// A network of `hosts` hosts, 10.77.0.1 and so on; an error if it cannot be created.
    fn new(hosts: usize) -> Result<Network, String> {
        let network = Network { prefix: format!("pagelith-{}", std::process::id()), hosts };
        let switch = network.switch();
        ip(&["netns", "add", &switch])?;
        ip(&["-n", &switch, "link", "add", "bridge0", "type", "bridge"])?;
        ip(&["-n", &switch, "link", "set", "bridge0", "up"])?;
        for n in 0..hosts {
            let (host, port) = (network.host(n), format!("port{n}"));
            ip(&["netns", "add", &host])?;
            ip(&["-n", &host, "link", "set", "lo", "up"])?;
            ip(&[
                "-n", &host, "link", "add", "eth0", "type", "veth", "peer", "name", &port, "netns",
                &switch,
            ])?;
            ip(&["-n", &switch, "link", "set", &port, "master", "bridge0", "up"])?;
            ip(&["-n", &host, "address", "add", &format!("10.77.0.{}/24", n + 1), "dev", "eth0"])?;
            ip(&["-n", &host, "link", "set", "eth0", "up"])?;
        }
        Ok(network)
    }

    fn switch(&self) -> String {
        format!("{}-switch", self.prefix)
    }

    fn host(&self, n: usize) -> String {
        format!("{}-{n}", self.prefix)
    }

    /// Cut a host off from the others, or join it again. Packets are dropped without an error.
    fn join(&self, n: usize, joined: bool) {
        let state = if joined { "up" } else { "down" };
        ip(&["-n", &self.switch(), "link", "set", &format!("port{n}"), state]).expect("a port");
    }

    fn pagelith(&self, n: usize, args: &[&str]) -> Command {
        let mut command = common::without_settings(Command::new("ip"));
        command.args(["netns", "exec", &self.host(n), env!("CARGO_BIN_EXE_pagelith")]).args(args);
        command.env("PAGELITH_DEADLINE_MS", "500");
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for n in 0..self.hosts {
            let _ = ip(&["netns", "delete", &self.host(n)]);
        }
        let _ = ip(&["netns", "delete", &self.switch()]);
    }
}

fn ip(args: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(args).output().map_err(|error| format!("ip: {error}"))?;
    let message = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("ip {}: {}", args.join(" "), message.trim()))
    }
}

/// A store process on a host; killed when dropped.
struct StoreProcess {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl StoreProcess {
    fn on(network: &Network, n: usize, keys: &str) -> StoreProcess {
        let listen = address(n);
        let args =
            ["serve", "--dram", "64MiB", "--listen", &listen, "--keys", keys, "--allow-remote"];
        let mut command = network.pagelith(n, &args);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("spawned");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
        let mut stderr = BufReader::new(child.stderr.take().expect("stderr"));
        if line.trim() != format!("listening {listen}") {
            let mut why = String::new();
            let _ = child.kill();
            let _ = stderr.read_to_string(&mut why);
            panic!("it does not listen on={listen} line={line:?}: {why}");
        }
        StoreProcess { child, stderr }
    }

    /// Wait for a client.
    fn wait_for_client(&mut self) {
        let mut line = String::new();
        while !line.contains("serving peer=") {
            line.clear();
            assert!(self.stderr.read_line(&mut line).expect("a line") > 0, "it ended");
        }
    }
}

impl Drop for StoreProcess {
    fn drop(&mut self) {
        // `ip netns exec` execs the program, so the child is the store process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn address(n: usize) -> String {
    format!("tcp:10.77.0.{}:7411", n + 1)
}

/// A replay on host 0 with all other hosts as peers.
fn replay(network: &Network, key: &str, requests: &str) -> Command {
    let mut args =
        vec!["replay", "--json", "--dram", "2MiB", "--ssd", "0", "--object-bytes", "8KiB"];
    args.extend(["--key", key, "--requests", requests]);
    let peers: Vec<String> = (1..network.hosts).map(address).collect();
    peers.iter().for_each(|peer| args.extend(["--remote", peer]));
    network.pagelith(0, &args)
}

fn report(output: Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&report["wrong_bytes"], &report["partial_groups"]),
        (&0.into(), &0.into()),
        "{report}"
    );
    report
}

fn remote(report: &Value) -> u64 {
    report["prefix_hits"]["remote"].as_u64().expect("a number")
}

#[test]
fn partitions_and_kills_cost_only_misses() {
    let network = match Network::new(4) {
        Ok(network) => network,
        Err(why) => {
            // Not captured by the test harness: a skip must be visible.
            let _ = writeln!(std::io::stderr(), "skipped: several hosts: {why}");
            return;
        }
    };
    let dir = tempfile::tempdir().expect("a directory");
    let key = dir.path().join("key");
    let made =
        Command::new(env!("CARGO_BIN_EXE_pagelith")).args(["key", "client"]).output().expect("run");
    std::fs::write(&key, made.stdout).expect("written");
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).expect("made private");
    let key = key.to_str().expect("text");
    let run = |requests| report(replay(&network, key, requests).output().expect("run"));
    let begin = || {
        let mut command = replay(&network, key, "1000");
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("spawned")
    };

    let mut servers: Vec<StoreProcess> =
        (1..4).map(|n| StoreProcess::on(&network, n, key)).collect();
    run("150");
    // A busy machine may find a peer late once.
    let runs = || [(); 3].map(|()| remote(&run("150")));
    let warm = runs().into_iter().max().expect("three runs");
    assert!(warm > 0);

    // One host is cut off during a replay, and no end of its connections is seen.
    servers[0].wait_for_client();
    let running = begin();
    servers[0].wait_for_client();
    network.join(1, false);
    report(running.wait_with_output().expect("ended"));
    let without = runs().into_iter().min().expect("three runs");
    assert!(without < warm, "the partition had no effect: {without} of {warm}");
    network.join(1, true);
    // Neighbour discovery may take a moment.
    assert!((0..10).any(|_| remote(&run("150")) > without), "the reconnected host is not used");

    // One store process is killed during a replay, and an empty one replaces it.
    servers[2].wait_for_client();
    let running = begin();
    servers[2].wait_for_client();
    drop(servers.pop());
    servers.push(StoreProcess::on(&network, 3, key));
    report(running.wait_with_output().expect("ended"));
    assert!(remote(&run("150")) > 0);
}
