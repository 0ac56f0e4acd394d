//! Accelerators: drivers, devices and their NUMA nodes. Nothing of it is required.

use std::path::Path;

use pagelith::io::device::{Device, DeviceError, DeviceFacts, Driver, DriverKind};
use pagelith::io::verbs::Locality;

use super::check::Check;
use crate::quantity::bytes as size;

const SYSFS: &str = "/sys";
/// Files that show a part of GPUDirect, and its name.
const GPUDIRECT: [(&str, &str); 2] =
    [("peer-memory", "/sys/module/nvidia_peermem"), ("storage", "/proc/driver/nvidia-fs")];

/// The checks of both drivers and of each device.
pub(super) fn checks() -> Vec<Check> {
    DriverKind::ALL.into_iter().flat_map(of_driver).collect()
}

fn of_driver(kind: DriverKind) -> Vec<Check> {
    let name = match kind {
        DriverKind::Cuda => "device-cuda",
        DriverKind::Ascend => "device-ascend",
    };
    let found = Driver::load(kind).and_then(|driver| driver.devices());
    let (version, devices) = match found {
        Ok(found) => found,
        Err(error) => return vec![failed(name, &error)],
    };
    let found = format!("library={} version={version} devices={}", kind.library(), devices.len());
    let mut checks = vec![Check::ok(name, found)];
    checks.extend(devices.iter().map(|facts| of_device(kind, facts, Path::new(SYSFS))));
    if kind == DriverKind::Cuda {
        checks.push(gpudirect(|file| Path::new(file).exists()));
    }
    checks
}

/// A note if the driver or its devices are absent, a problem if installed ones do not work.
fn failed(name: &'static str, error: &DeviceError) -> Check {
    let remedy = "do what it says to copy between the store and a device; nothing to do otherwise";
    match error {
        DeviceError::LibraryAbsent { .. } | DeviceError::NoDevice { .. } => {
            Check::note(name, error.to_string(), remedy)
        }
        _ => Check::problem(name, error.to_string(), "reinstall the driver, or restart the host"),
    }
}

fn of_device(kind: DriverKind, facts: &DeviceFacts, sysfs: &Path) -> Check {
    let device = Device { driver: kind, ordinal: facts.ordinal };
    let unknown = || "unknown".to_owned();
    let place = facts.pci.as_ref().and_then(|pci| Locality::of_pci_device(sysfs, pci).ok());
    let node = place.and_then(|place| place.node).map_or_else(unknown, |node| node.to_string());
    let memory = facts.memory_bytes.map_or_else(unknown, size);
    let pci = facts.pci.clone().unwrap_or_else(unknown);
    let model = &facts.model;
    let found = format!("device={device} model={model} pci={pci} numa_node={node} memory={memory}");
    Check::ok("device", found)
}

/// Whether bytes could move between a GPU and a network card or drive without the host. Pagelith
/// verifies every byte on the host, so it does not do that.
fn gpudirect(exists: impl Fn(&str) -> bool) -> Check {
    let part = |(name, file): &(&str, &str)| {
        format!("{name}={}", if exists(file) { "installed" } else { "absent" })
    };
    let parts: Vec<String> = GPUDIRECT.iter().map(part).collect();
    Check::ok("gpudirect", format!("not used by Pagelith {}", parts.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::*;

    #[test]
    fn absent_driver_is_note_and_unusable_driver_is_problem() {
        let (driver, path) = (DriverKind::Cuda, "libcuda.so.1".to_owned());
        let device = Device::cuda(0);
        for (error, state) in [
            (
                DeviceError::LibraryAbsent { driver, path: path.clone(), reason: "no file".into() },
                State::Note,
            ),
            (DeviceError::NoDevice { device, count: 0 }, State::Note),
            (DeviceError::LibraryUnusable { driver, path, symbol: "cuInit" }, State::Problem),
            (
                DeviceError::CallFailed { device, call: "cuInit", code: 803, name: "x".into() },
                State::Problem,
            ),
        ] {
            let check = failed("device-cuda", &error);
            assert!(check.state == state && check.remedy.is_some(), "{check:?}");
        }
    }

    #[test]
    fn device_is_shown_with_what_is_known_of_it() {
        let facts =
            DeviceFacts { ordinal: 1, model: "N".into(), pci: None, memory_bytes: Some(80 << 30) };
        let check = of_device(DriverKind::Cuda, &facts, Path::new("/nowhere"));
        let right = "device=cuda:1 model=N pci=unknown numa_node=unknown memory=80.0GiB";
        assert_eq!(check.found, right);
        let check = gpudirect(|file| file.contains("peermem"));
        assert_eq!(check.found, "not used by Pagelith peer-memory=installed storage=absent");
    }
}
