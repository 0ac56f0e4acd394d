//! The NVIDIA GPUs of this host, from the driver's files.

use std::path::Path;

/// Where the driver lists its GPUs.
pub const NVIDIA_GPUS: &str = "/proc/driver/nvidia/gpus";

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The address on the PCIe bus, such as `0000:1b:00.0`.
    pub pci: String,
    /// The UUID, such as `GPU-1b2c...`; empty if the driver does not tell it.
    pub uuid: String,
}

/// The GPUs listed in `directory`, usually [`NVIDIA_GPUS`], in the order of their addresses, which
/// is that of `nvidia-smi`. Without an NVIDIA driver there are none.
#[allow(clippy::disallowed_methods, reason = "reads files of the driver, no file of a store")]
pub fn gpus(directory: &Path) -> Vec<Gpu> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let of_entry = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let information = std::fs::read_to_string(entry.path().join("information")).ok()?;
        let uuid = information.lines().find_map(|line| line.strip_prefix("GPU UUID:"));
        let uuid = uuid.unwrap_or_default().trim().to_owned();
        Some(Gpu { pci: entry.file_name().into_string().ok()?, uuid })
    };
    let mut found: Vec<Gpu> = entries.filter_map(of_entry).collect();
    found.sort_by(|a, b| a.pci.cmp(&b.pci));
    found
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "makes files like those of the driver")]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_listed_in_the_order_of_their_addresses() {
        let dir = tempfile::tempdir().expect("a directory");
        let gpu = |address: &str, text: &str| {
            let path = dir.path().join(address);
            std::fs::create_dir(&path).expect("a directory");
            std::fs::write(path.join("information"), text).expect("a file");
        };
        gpu("0000:9b:00.0", "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-22\nBus Type: \t PCIe\n");
        gpu("0000:1b:00.0", "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-11\n");
        gpu("0000:2b:00.0", "Model: \t\t NVIDIA H100\n");
        let of = |pci: &str, uuid: &str| Gpu { pci: pci.into(), uuid: uuid.into() };
        let all =
            [of("0000:1b:00.0", "GPU-11"), of("0000:2b:00.0", ""), of("0000:9b:00.0", "GPU-22")];
        assert_eq!(gpus(dir.path()), all);
        assert_eq!(gpus(&dir.path().join("absent")), []);
    }
}
