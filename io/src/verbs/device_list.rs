//! A list of RDMA devices from the configuration: one name for all GPUs, or one name for each
//! physical GPU.

use super::error::{Result, VerbsError};
use super::gpu_index::GpuOfProcess;

/// Names of devices: one for all GPUs, or one for each, by physical index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceList(Vec<String>);

impl DeviceList {
    /// The list in this text, its entries separated by commas. An empty entry is refused.
    pub fn parse(text: &str) -> Result<DeviceList> {
        let entries: Vec<_> = text.split(',').map(|entry| entry.trim().to_owned()).collect();
        match entries.iter().position(String::is_empty) {
            Some(gpu) => Err(VerbsError::DeviceEntryEmpty { gpu, list: text.to_owned() }),
            None => Ok(DeviceList(entries)),
        }
    }

    /// The device for the process's GPU, one of those found. The GPU is translated only if the list
    /// has several names.
    pub fn device(&self, process: &GpuOfProcess<'_>, found: &[String]) -> Result<&str> {
        let is_found = |name: &String| found.contains(name);
        let names = || if found.is_empty() { "none".to_owned() } else { found.join(",") };
        if let [name] = &self.0[..] {
            let unknown = || VerbsError::DeviceUnknown { name: name.clone(), found: names() };
            return if is_found(name) { Ok(name) } else { Err(unknown()) };
        }
        let gpu = process.physical()?.0;
        let name = self.0.get(gpu).ok_or_else(|| VerbsError::DeviceListTooShort {
            gpu,
            entries: self.0.len(),
            list: self.0.join(","),
        })?;
        let unknown =
            || VerbsError::ListedDeviceUnknown { gpu, name: name.clone(), found: names() };
        if is_found(name) { Ok(name) } else { Err(unknown()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    /// The device of a list for a process on a host with 4 GPUs, where `mlx5_0` to `mlx5_2` exist.
    fn device(list: &str, visible: Option<usize>, value: Option<&str>) -> Result<String> {
        let uuids = names(&["GPU-0", "GPU-1", "GPU-2", "GPU-3"]);
        let process = GpuOfProcess { visible, cuda_visible_devices: value, uuids: &uuids };
        let found = names(&["mlx5_0", "mlx5_1", "mlx5_2"]);
        DeviceList::parse(list)?.device(&process, &found).map(str::to_owned)
    }

    fn error(list: &str, visible: Option<usize>, value: Option<&str>) -> String {
        device(list, visible, value).expect_err("no device").to_string()
    }

    #[test]
    fn listed_device_is_that_of_the_physical_gpu() {
        let all = "mlx5_2, mlx5_1,mlx5_0";
        let cases = [
            (all, Some(0), None, "mlx5_2"),
            (all, Some(2), None, "mlx5_0"),
            (all, Some(0), Some("1"), "mlx5_1"),
            (all, Some(1), Some("GPU-0,GPU-2"), "mlx5_0"),
            (" mlx5_1 ", Some(3), None, "mlx5_1"),
            ("mlx5_1", None, None, "mlx5_1"),
            // One name for all needs no GPU, so its translation cannot fail.
            ("mlx5_1", Some(0), Some("MIG-11aa"), "mlx5_1"),
        ];
        for (list, visible, value, expected) in cases {
            assert_eq!(device(list, visible, value), Ok(expected.to_owned()), "{list} {value:?}");
        }
    }

    #[test]
    fn empty_entry_is_refused_with_its_gpu() {
        let cases = [("", 0), (" ", 0), (",mlx5_0", 0), ("mlx5_0,,mlx5_2", 1), ("mlx5_0,", 1)];
        for (list, gpu) in cases {
            let text = error(list, Some(0), None);
            assert!(text.starts_with("the list of RDMA devices has an empty entry"), "{text}");
            assert!(text.contains("name one device for all GPUs, or one for each"), "{text}");
            assert!(text.ends_with(&format!("gpu={gpu} entry={gpu} list={list}")), "{text}");
        }
    }

    #[test]
    fn list_too_short_is_refused_with_its_gpu() {
        let text = error("mlx5_0, mlx5_1", Some(0), Some("3"));
        assert!(text.starts_with("the list of RDMA devices does not cover the GPU"), "{text}");
        assert!(text.ends_with("gpu=3 entries=2 list=mlx5_0,mlx5_1"), "{text}");
    }

    #[test]
    fn unknown_device_is_refused_with_its_gpu() {
        let text = error("mlx5_0,mlx5_9", Some(1), None);
        assert!(text.contains("choose one of those found"), "{text}");
        assert!(text.ends_with("gpu=1 device=mlx5_9 found=mlx5_0,mlx5_1,mlx5_2"), "{text}");
        assert_eq!(device("mlx5_0,mlx5_9", Some(0), None), Ok("mlx5_0".into()), "another GPU's");
        let text = error("mlx5_9", None, None);
        assert!(text.ends_with("device=mlx5_9 found=mlx5_0,mlx5_1,mlx5_2"), "{text}");
    }

    #[test]
    fn list_for_each_gpu_is_refused_without_a_gpu() {
        let text = error("mlx5_0,mlx5_1", None, None);
        assert!(text.contains("name one device for all GPUs"), "{text}");
    }
}
