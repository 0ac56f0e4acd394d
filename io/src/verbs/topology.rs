//! Localities of devices in the PCIe tree and on NUMA nodes, read from sysfs, and distances between
//! them.

use std::fmt;
use std::path::Path;

use super::error::{Result, VerbsError};

/// Where a device or a memory is; nothing is known of the default locality.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Locality {
    /// The path in the PCIe tree: root complex, root port, switch ports, device.
    pub pci: Vec<String>,
    /// The NUMA node.
    pub node: Option<u32>,
}

impl Locality {
    /// The memory and the processors of a NUMA node.
    pub fn of_node(node: u32) -> Locality {
        Locality { pci: Vec::new(), node: Some(node) }
    }

    /// The locality of an RDMA device, from `class/infiniband` below `sysfs`, usually `/sys`. A
    /// device without hardware has the default locality.
    #[allow(clippy::disallowed_methods, reason = "reads sysfs, no file of a store")]
    pub fn of_device(sysfs: &Path, name: &str) -> Locality {
        let link = sysfs.join("class/infiniband").join(name).join("device");
        std::fs::canonicalize(link).map(|path| Locality::of_path(&path)).unwrap_or_default()
    }

    /// The locality of a PCI device, such as a GPU, from `bus/pci/devices` below `sysfs`. The
    /// address may have the form that CUDA and `nvidia-smi` print.
    #[allow(clippy::disallowed_methods, reason = "reads sysfs, no file of a store")]
    pub fn of_pci_device(sysfs: &Path, address: &str) -> Result<Locality> {
        let unknown = || VerbsError::PciDeviceUnknown {
            address: address.to_owned(),
            sysfs: sysfs.display().to_string(),
        };
        let name = sysfs_address(address).ok_or_else(unknown)?;
        let path = std::fs::canonicalize(sysfs.join("bus/pci/devices").join(name));
        path.map(|path| Locality::of_path(&path)).map_err(|_| unknown())
    }

    /// The PCI addresses and localities of the GPUs and accelerators of this host, in the order of
    /// their addresses, from `bus/pci/devices` below `sysfs`. No driver has to be loaded for them.
    #[allow(clippy::disallowed_methods, reason = "reads sysfs, no file of a store")]
    pub fn of_gpus(sysfs: &Path) -> Vec<(String, Locality)> {
        let Ok(entries) = std::fs::read_dir(sysfs.join("bus/pci/devices")) else {
            return Vec::new();
        };
        let mut gpus: Vec<_> = entries
            .flatten()
            .filter(|entry| is_gpu(&entry.path()))
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let locality = Locality::of_pci_device(sysfs, &name).ok()?;
                Some((name, locality))
            })
            .collect();
        gpus.sort_by(|(a, _), (b, _)| a.cmp(b));
        gpus
    }

    /// The locality of the device with this directory.
    fn of_path(path: &Path) -> Locality {
        let components = path.iter().filter_map(|component| component.to_str());
        let pci = components.filter(|c| is_root_complex(c) || sysfs_address(c).is_some());
        // A device on a bus inside of a PCI device, such as virtio, has no node of its own.
        let node = path.ancestors().find_map(|dir| numa_node(&dir.join("numa_node")));
        Locality { pci: pci.map(str::to_owned).collect(), node }
    }

    /// The distance between two localities.
    pub fn distance(&self, other: &Locality) -> Distance {
        let shared = self.pci.iter().zip(&other.pci).take_while(|(a, b)| a == b).count();
        let below = self.pci.len().max(other.pci.len()) - shared;
        match (shared, self.node, other.node) {
            // Below the upstream port of a switch: a downstream port, and the device.
            (3.., ..) if below <= 2 => Distance::SameSwitch,
            (2.., ..) => Distance::SameRootPort,
            (1, ..) => Distance::SameRootComplex,
            (_, Some(own), Some(node)) if own == node => Distance::SameNode,
            (_, Some(_), Some(_)) => Distance::OtherNode,
            _ => Distance::Unknown,
        }
    }
}

/// The distance between two localities, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// One PCIe switch connects them.
    SameSwitch,
    /// Several PCIe switches below one root port connect them.
    SameRootPort,
    /// One PCIe root complex connects them.
    SameRootComplex,
    /// They are at one NUMA node.
    SameNode,
    /// They are at different NUMA nodes.
    OtherNode,
    /// The locality of one of them is not known.
    Unknown,
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Distance::SameSwitch => "same PCIe switch",
            Distance::SameRootPort => "same PCIe root port",
            Distance::SameRootComplex => "same PCIe root complex",
            Distance::SameNode => "same NUMA node",
            Distance::OtherNode => "other NUMA node",
            Distance::Unknown => "distance unknown",
        })
    }
}

/// Whether a directory of sysfs is a root complex, such as `pci0000:17`.
fn is_root_complex(component: &str) -> bool {
    component.strip_prefix("pci").is_some_and(|rest| {
        rest.split_once(':').is_some_and(|(domain, bus)| hex(domain).and(hex(bus)).is_some())
    })
}

/// A PCI address as sysfs writes it, `0000:17:00.0`. CUDA writes a domain of 8 digits and capital
/// letters, or omits the domain.
fn sysfs_address(address: &str) -> Option<String> {
    let (front, function) = address.rsplit_once('.')?;
    let (front, device) = front.rsplit_once(':')?;
    let (domain, bus) = front.rsplit_once(':').unwrap_or(("0", front));
    let [domain, bus, device, function] = [hex(domain)?, hex(bus)?, hex(device)?, hex(function)?];
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

fn hex(digits: &str) -> Option<u32> {
    let all = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u32::from_str_radix(digits, 16).ok().filter(|_| all)
}

/// Whether the PCI device with this directory computes for inference engines: a 3D controller, a
/// processing accelerator, or a display controller of a vendor whose GPUs do.
#[allow(clippy::disallowed_methods, reason = "reads sysfs, no file of a store")]
fn is_gpu(dir: &Path) -> bool {
    // Classes and vendors as the PCI ID repository lists them.
    const DISPLAY: u32 = 0x0300;
    const CONTROLLER_3D: u32 = 0x0302;
    const ACCELERATOR: u32 = 0x1200;
    const NVIDIA: u32 = 0x10de;
    const AMD: u32 = 0x1002;
    let number = |file: &str| {
        let text = std::fs::read_to_string(dir.join(file)).ok()?;
        hex(text.trim().strip_prefix("0x")?)
    };
    match number("class").map(|class| class >> 8) {
        Some(CONTROLLER_3D | ACCELERATOR) => true,
        Some(DISPLAY) => matches!(number("vendor"), Some(NVIDIA | AMD)),
        _ => false,
    }
}

/// The node in a `numa_node` file; `None` if there is no file, or -1 in it.
#[allow(clippy::disallowed_methods, reason = "reads sysfs, no file of a store")]
fn numa_node(file: &Path) -> Option<u32> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "makes directories like those of sysfs")]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A locality from a path of PCI addresses, shortened, and a node.
    fn locality(path: &str, node: Option<u32>) -> Locality {
        let pci = path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        Locality { pci, node }
    }

    const GPU: &str = "pci0:15/15:01.0/16:00.0/17:00.0/18:00.0";

    #[test]
    fn distance_is_that_of_the_nearest_common_point() {
        let cases = [
            ("pci0:15/15:01.0/16:00.0/17:01.0/19:00.0", Some(0), Distance::SameSwitch),
            // A second switch below a port of the first.
            (
                "pci0:15/15:01.0/16:00.0/17:02.0/1a:00.0/1b:00.0/1c:00.0",
                Some(0),
                Distance::SameRootPort,
            ),
            ("pci0:15/15:01.0/16:00.1", Some(0), Distance::SameRootPort),
            ("pci0:15/15:02.0/1d:00.0", Some(0), Distance::SameRootComplex),
            ("pci0:15/15:03.0", None, Distance::SameRootComplex),
            ("pci0:25/15:01.0/26:00.0", Some(0), Distance::SameNode),
            ("pci0:85/85:01.0/86:00.0", Some(1), Distance::OtherNode),
            ("pci0:85/85:01.0/86:00.0", None, Distance::Unknown),
            ("", None, Distance::Unknown),
        ];
        let gpu = locality(GPU, Some(0));
        for (path, node, expected) in cases {
            let nic = locality(path, node);
            assert_eq!((gpu.distance(&nic), nic.distance(&gpu)), (expected, expected), "{path}");
        }
        // Two functions of one device, without a switch.
        let functions = ["pci0:15/15:01.0/16:00.0", "pci0:15/15:01.0/16:00.1"];
        let [gpu, nic] = functions.map(|path| locality(path, None));
        assert_eq!(gpu.distance(&nic), Distance::SameRootPort);
    }

    #[test]
    fn distance_to_node_ignores_the_pcie_tree() {
        let nic = locality(GPU, Some(1));
        let distances = [1, 0].map(|node| Locality::of_node(node).distance(&nic));
        assert_eq!(distances, [Distance::SameNode, Distance::OtherNode]);
        assert_eq!(Locality::default().distance(&nic), Distance::Unknown);
    }

    #[test]
    fn distances_are_ordered_from_the_nearest() {
        let order = [
            Distance::SameSwitch,
            Distance::SameRootPort,
            Distance::SameRootComplex,
            Distance::SameNode,
            Distance::OtherNode,
            Distance::Unknown,
        ];
        assert!(order.is_sorted());
    }

    /// A directory like sysfs with a GPU, a NIC at the same switch, a NIC without a node, a virtio
    /// device with an RDMA device on it, and an RDMA device without hardware.
    fn sysfs() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path();
        let switch = root.join("devices/pci0000:15/0000:15:01.0/0000:16:00.0");
        let (gpu, nic) =
            (switch.join("0000:17:00.0/0000:1a:00.0"), switch.join("0000:17:01.0/0000:19:00.0"));
        let bridge = root.join("devices/pci0000:00/0000:00:03.0");
        let virtio = bridge.join("virtio0");
        let other = root.join("devices/pci0000:00/0000:00:04.0");
        for (device, node) in [(&gpu, "1\n"), (&nic, "1\n"), (&bridge, "0\n"), (&other, "-1\n")] {
            fs::create_dir_all(device).expect("a device");
            fs::write(device.join("numa_node"), node).expect("a node");
        }
        fs::create_dir(&virtio).expect("a device");
        let class = root.join("class/infiniband");
        for (name, device) in
            [("mlx5_0", Some(nic)), ("mlx5_1", Some(other)), ("rxe0", Some(virtio)), ("siw0", None)]
        {
            fs::create_dir_all(class.join(name)).expect("a class entry");
            if let Some(device) = device {
                symlink(device, class.join(name).join("device")).expect("a link");
            }
        }
        fs::create_dir_all(root.join("bus/pci/devices")).expect("a bus");
        symlink(gpu, root.join("bus/pci/devices/0000:1a:00.0")).expect("a link");
        dir
    }

    #[test]
    fn places_are_read_from_sysfs() {
        let dir = sysfs();
        let nic = Locality::of_device(dir.path(), "mlx5_0");
        let path = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0";
        assert_eq!(nic, locality(path, Some(1)));
        let rxe = locality("pci0000:00/0000:00:03.0", Some(0));
        assert_eq!(Locality::of_device(dir.path(), "rxe0"), rxe);
        let without_node = locality("pci0000:00/0000:00:04.0", None);
        assert_eq!(Locality::of_device(dir.path(), "mlx5_1"), without_node);
        for name in ["siw0", "absent"] {
            assert_eq!(Locality::of_device(dir.path(), name), Locality::default(), "{name}");
        }
        for address in ["0000:1a:00.0", "00000000:1A:00.0", "1A:00.0"] {
            let gpu = Locality::of_pci_device(dir.path(), address).expect(address);
            assert_eq!(gpu.distance(&nic), Distance::SameSwitch, "{address}");
        }
    }

    #[test]
    fn gpus_are_found_by_class_and_vendor() {
        let dir = sysfs();
        assert_eq!(Locality::of_gpus(dir.path()), [], "a device without a class");
        let bus = dir.path().join("bus/pci/devices");
        let device = |address: &str, class: &str, vendor: &str| {
            let path = bus.join(address);
            fs::create_dir_all(&path).expect("a device");
            fs::write(path.join("class"), class).expect("a class");
            fs::write(path.join("vendor"), vendor).expect("a vendor");
        };
        device("0000:1a:00.0", "0x030200\n", "0x10de\n");
        device("0000:05:00.0", "0x120000\n", "0x1002\n");
        device("0000:06:00.0", "0x030000\n", "0x10de\n");
        // The display controller of a board's management processor, and a network card.
        device("0000:07:00.0", "0x030000\n", "0x1a03\n");
        device("0000:19:00.0", "0x020700\n", "0x15b3\n");
        let gpus = Locality::of_gpus(dir.path());
        let names: Vec<&str> = gpus.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["0000:05:00.0", "0000:06:00.0", "0000:1a:00.0"]);
        let nic = Locality::of_device(dir.path(), "mlx5_0");
        assert_eq!(gpus[2].1.distance(&nic), Distance::SameSwitch);
        assert_eq!(Locality::of_gpus(Path::new("/nowhere")), []);
    }

    #[test]
    fn unknown_pci_device_is_reported_with_its_address() {
        let dir = sysfs();
        let addresses = ["0000:1b:00.0", "", "GPU-1", "..", "0000:../x.0", "+1:00.0"];
        for address in addresses {
            let error = Locality::of_pci_device(dir.path(), address).expect_err(address);
            let text = error.to_string();
            assert!(text.starts_with("no such PCI device"), "{text}");
            assert!(text.contains(&format!("address={address} sysfs=")), "{text}");
        }
    }
}
