//! RDMA: the verbs library, devices, ports and GIDs. Nothing of it is required, since peers and
//! clients also connect over TCP.

use std::path::Path;
use std::sync::Arc;

use pagelith::io::verbs::{Device, GidWish, Library, Locality, Port, ScoredGid, VerbsError};

use super::check::{Check, State};
use crate::quantity::bytes as size;

const LIBRARY: &str = "rdma-library";
const DEVICES: &str = "rdma-devices";
const SYSFS: &str = "/sys";

/// The checks of the library, of each device and of each port.
pub(super) fn checks() -> Vec<Check> {
    let library = match Library::load() {
        Ok(library) => library,
        Err(error) => {
            let skipped = format!("skipped: see {LIBRARY}");
            return vec![
                failed(LIBRARY, &error),
                Check::note(DEVICES, skipped, "install the library"),
            ];
        }
    };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let path = mapped_path(&maps, library.path()).unwrap_or(library.path());
    let mut checks = vec![Check::ok(LIBRARY, format!("path={path}"))];
    match Device::names(&library) {
        Ok(names) => {
            checks.push(Check::ok(DEVICES, format!("names={}", names.join(","))));
            checks.extend(names.iter().flat_map(|name| of_device(&library, name)));
        }
        Err(error) => checks.push(failed(DEVICES, &error)),
    }
    checks
}

/// The path of a loaded library in the text of /proc/self/maps.
fn mapped_path<'t>(maps: &'t str, library: &str) -> Option<&'t str> {
    let stem = library.split(".so").next()?;
    maps.lines().find_map(|line| {
        let path = &line[line.find('/')?..];
        path.rsplit_once('/')?.1.starts_with(&format!("{stem}.so")).then_some(path)
    })
}

/// The check for an error: a note if RDMA is absent, a problem if installed RDMA does not work.
fn failed(name: &'static str, error: &VerbsError) -> Check {
    match error {
        VerbsError::LibraryAbsent { path, reason } => Check::note(
            name,
            format!("no verbs library: {reason} path={path}"),
            "install libibverbs1 and ibverbs-providers, or use TCP",
        ),
        VerbsError::LibraryUnusable { path, symbol } => Check::problem(
            name,
            format!("not a usable verbs library: {symbol} is missing path={path}"),
            "install rdma-core 32 or newer",
        ),
        VerbsError::KernelWithoutRdma { errno } => Check::note(
            name,
            format!("the kernel offers no RDMA errno={errno}"),
            "load the module ib_uverbs and the device's driver, and pass /dev/infiniband to a \
             container; or use TCP",
        ),
        VerbsError::NoDevice => Check::note(
            name,
            "no RDMA device",
            "check `rdma link` and the device's driver, and pass /dev/infiniband to a container; \
             or use TCP",
        ),
        other => Check::problem(
            name,
            other.to_string(),
            "update rdma-core, let this user open /dev/infiniband, and pass it to a container",
        ),
    }
}

fn of_device(library: &Arc<Library>, name: &str) -> Vec<Check> {
    let device = match Device::open(library, name) {
        Ok(device) => device,
        Err(error) => return vec![failed("rdma-device", &error)],
    };
    let limits = device.limits();
    let locality = Locality::of_device(Path::new(SYSFS), name);
    let found = format!(
        "device={name} numa_node={} ports={} max_mr_size={} max_qp_wr={} max_sge={}",
        locality.node.map_or_else(|| "unknown".to_owned(), |node| node.to_string()),
        limits.ports,
        size(limits.max_mr_size),
        limits.max_qp_wr,
        limits.max_sge
    );
    let gpus = Locality::of_gpus(Path::new(SYSFS));
    let mut checks = vec![Check::ok("rdma-device", found), distances(name, &locality, &gpus)];
    for number in 1..=limits.ports {
        match Port::of(&device, number) {
            Ok(port) => checks.extend(of_port(name, &port)),
            Err(error) => checks.push(failed("rdma-port", &error)),
        }
    }
    checks
}

/// The distance of a device to each GPU, which the automatic choice of devices uses.
fn distances(device: &str, locality: &Locality, gpus: &[(String, Locality)]) -> Check {
    let each = gpus.iter().map(|(gpu, of)| format!("{gpu} {}", of.distance(locality)));
    let all = match gpus.is_empty() {
        true => "no GPU".to_owned(),
        false => each.collect::<Vec<_>>().join("; "),
    };
    Check::ok("rdma-gpu-distance", format!("device={device} gpus: {all}"))
}

fn of_port(device: &str, port: &Port) -> [Check; 2] {
    let number = port.number;
    let found = format!(
        "device={device} port={number} state={} link_layer={:?} mtu={}",
        port.state.name(),
        port.link_layer,
        port.mtu.bytes()
    );
    let state = match port.check_active() {
        Ok(()) => Check::ok("rdma-port", found),
        Err(_) => Check::note(
            "rdma-port",
            found,
            "connect its cable, or set its network interface up; nothing to do for an unused port",
        ),
    };
    let chosen = port.choose_gid(GidWish::Best).ok().map(|entry| entry.index);
    [state, gids(device, number, &port.scored_gids(GidWish::Best), chosen)]
}

fn gids(device: &str, port: u8, scored: &[ScoredGid], chosen: Option<u8>) -> Check {
    let all = scored.iter().map(ScoredGid::to_string).collect::<Vec<_>>().join("; ");
    let index = chosen.map_or_else(|| "none".to_owned(), |index| index.to_string());
    let check =
        Check::ok("rdma-gids", format!("device={device} port={port} chosen={index} gids: {all}"));
    match chosen {
        Some(_) => check,
        None => Check {
            state: State::Note,
            remedy: Some("give the port's network interface an IP address".to_owned()),
            ..check
        },
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use pagelith::io::verbs::{Gid, GidEntry, GidKind};

    use super::*;

    #[test]
    fn path_of_loaded_library_is_found_in_maps() {
        let maps = "7f00-7f01 r--p 00000000 fe:00 12   [heap]\n\
                    7f01-7f02 r--p 00000000 fe:00 13   /usr/lib/libc.so.6\n\
                    7f02-7f03 r--p 00000000 fe:00 14   /usr/lib/libibverbs.so.1.14.50\n";
        assert_eq!(mapped_path(maps, "libibverbs.so.1"), Some("/usr/lib/libibverbs.so.1.14.50"));
        assert_eq!(mapped_path("", "libibverbs.so.1"), None);
    }

    #[test]
    fn absent_rdma_is_note_and_unusable_rdma_is_problem() {
        let path = "libibverbs.so.1".to_owned();
        for (error, state) in [
            (
                VerbsError::LibraryAbsent { path: path.clone(), reason: "no file".into() },
                State::Note,
            ),
            (VerbsError::LibraryUnusable { path, symbol: "ibv_reg_mr" }, State::Problem),
            (VerbsError::KernelWithoutRdma { errno: 38 }, State::Note),
            (VerbsError::NoDevice, State::Note),
            (
                VerbsError::CallFailed { call: "ibv_open_device", device: "m".into(), errno: 13 },
                State::Problem,
            ),
        ] {
            let check = failed(LIBRARY, &error);
            assert!(check.state == state && check.remedy.is_some(), "{check:?}");
        }
    }

    #[test]
    fn distance_is_shown_for_each_gpu() {
        let locality = |path: &str, node| {
            let pci = path.split('/').map(str::to_owned).collect();
            Locality { pci, node: Some(node) }
        };
        let nic = locality("pci0000:15/0000:15:01.0/0000:16:00.0", 0);
        let gpus = [
            ("0000:1a:00.0".to_owned(), locality("pci0000:15/0000:15:02.0/0000:1a:00.0", 0)),
            ("0000:85:00.0".to_owned(), locality("pci0000:80/0000:80:01.0/0000:85:00.0", 1)),
        ];
        let check = distances("mlx5_0", &nic, &gpus);
        let right = "device=mlx5_0 gpus: 0000:1a:00.0 same PCIe root complex; \
                     0000:85:00.0 other NUMA node";
        assert_eq!((check.state, check.found.as_str()), (State::Ok, right));
        assert!(distances("mlx5_0", &nic, &[]).found.ends_with("gpus: no GPU"));
    }

    #[test]
    fn gids_are_shown_with_scores_and_the_chosen_one() {
        let gid = Gid(Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped().octets());
        let entry = GidEntry { index: 5, gid, kind: GidKind::RoceV2, interface: 1 };
        let scored = [ScoredGid { entry, score: 80, reason: "RoCE v2 over IPv4" }];
        let check = gids("mlx5_0", 1, &scored, Some(5));
        let right = "device=mlx5_0 port=1 chosen=5 \
                     gids: 5: ::ffff:192.0.2.1 RoCE v2 score 80 (RoCE v2 over IPv4)";
        assert_eq!((check.state, check.found.as_str()), (State::Ok, right));
        let check = gids("mlx5_0", 1, &[], None);
        assert!(check.state == State::Note && check.found.contains("chosen=none"), "{check:?}");
    }
}
