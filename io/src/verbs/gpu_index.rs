//! The physical index of a process's GPU, translated from `CUDA_VISIBLE_DEVICES`.
//!
//! The first entry that names no GPU ends the list, as it does in CUDA: entries after it are not
//! visible to the process. `-1` is such an entry.

use super::error::{Result, VerbsError};

/// The index of a GPU among all GPUs of the host, in the order of `nvidia-smi`. In a container
/// these are the GPUs of the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhysicalGpu(pub usize);

/// The GPU that a process uses, as the process names it.
#[derive(Clone, Copy, Debug)]
pub struct GpuOfProcess<'a> {
    /// Its index among the GPUs that are visible to the process; `None` for a process without one.
    pub visible: Option<usize>,
    /// The value of `CUDA_VISIBLE_DEVICES`; `None` if it is not set, so that all GPUs are visible.
    pub cuda_visible_devices: Option<&'a str>,
    /// The UUID of each GPU, by physical index. CUDA uses the same order if `CUDA_DEVICE_ORDER` is
    /// `PCI_BUS_ID`, or if all GPUs are of one model.
    pub uuids: &'a [String],
}

impl GpuOfProcess<'_> {
    /// The physical index. The error names the entry of `CUDA_VISIBLE_DEVICES` that is wrong.
    pub fn physical(&self) -> Result<PhysicalGpu> {
        let visible = self.visible.ok_or(VerbsError::ProcessWithoutGpu)?;
        let all = || (0..self.uuids.len()).map(PhysicalGpu).collect();
        let (gpus, end) = match self.cuda_visible_devices {
            None => (all(), "the host has no more GPUs".to_owned()),
            Some(value) => visible_gpus(value, self.uuids)?,
        };
        gpus.get(visible).copied().ok_or_else(|| VerbsError::GpuNotVisible {
            visible,
            count: gpus.len(),
            reason: end,
            value: self.cuda_visible_devices.unwrap_or("not set").to_owned(),
        })
    }
}

/// The GPUs that a value of `CUDA_VISIBLE_DEVICES` makes visible, and the reason why the list ends.
fn visible_gpus(value: &str, uuids: &[String]) -> Result<(Vec<PhysicalGpu>, String)> {
    let mut gpus = Vec::new();
    for entry in value.split(',').map(str::trim) {
        if entry.starts_with("MIG-") {
            let (entry, value) = (entry.to_owned(), value.to_owned());
            return Err(VerbsError::MigDevice { entry, value });
        }
        let gpu = match named_gpu(entry, uuids) {
            Ok(gpu) => gpu,
            Err(reason) => return Ok((gpus, format!("entry `{entry}` {reason}"))),
        };
        if gpus.contains(&gpu) {
            let (entry, value) = (entry.to_owned(), value.to_owned());
            return Err(VerbsError::GpuRepeated { gpu: gpu.0, entry, value });
        }
        gpus.push(gpu);
    }
    Ok((gpus, "the list has no more entries".to_owned()))
}

/// The GPU that an entry names by index, by UUID, or by the beginning of a UUID that no other GPU
/// has; or why it names none.
fn named_gpu(entry: &str, uuids: &[String]) -> std::result::Result<PhysicalGpu, &'static str> {
    if entry.starts_with("GPU-") {
        let mut matches = (0..uuids.len()).filter(|&gpu| uuids[gpu].starts_with(entry));
        return match (matches.next(), matches.next()) {
            (Some(gpu), None) => Ok(PhysicalGpu(gpu)),
            (Some(_), Some(_)) => Err("is the beginning of several UUIDs"),
            (None, _) => Err("is the UUID of no GPU"),
        };
    }
    match entry.parse::<usize>() {
        Ok(gpu) if gpu < uuids.len() => Ok(PhysicalGpu(gpu)),
        Ok(_) => Err("is above the index of the last GPU"),
        Err(_) if entry.is_empty() => Err("is empty"),
        Err(_) if entry == "-1" => Err("ends the list"),
        Err(_) => Err("is neither an index nor a UUID"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn physical(visible: usize, value: Option<&str>) -> Result<usize> {
        let uuids = ["GPU-aa11-0", "GPU-aa22-1", "GPU-bb33-2", "GPU-cc44-3"].map(str::to_owned);
        let process =
            GpuOfProcess { visible: Some(visible), cuda_visible_devices: value, uuids: &uuids };
        process.physical().map(|gpu| gpu.0)
    }

    fn error(visible: usize, value: Option<&str>) -> String {
        physical(visible, value).expect_err("no such GPU").to_string()
    }

    #[test]
    fn visible_index_is_translated_to_physical_index() {
        let cases: [(usize, Option<&str>, usize); 11] = [
            (0, None, 0),
            (3, None, 3),
            (0, Some("2"), 2),
            (1, Some("3,1"), 1),
            (1, Some(" 3 , 1 "), 1),
            (0, Some("GPU-bb33-2"), 2),
            (1, Some("GPU-cc44-3,GPU-aa22-1"), 1),
            (0, Some("GPU-b"), 2),
            (0, Some("GPU-aa2"), 1),
            (1, Some("0,GPU-cc"), 3),
            (0, Some("2,-1,3"), 2),
        ];
        for (visible, value, expected) in cases {
            assert_eq!(physical(visible, value), Ok(expected), "{visible} {value:?}");
        }
    }

    #[test]
    fn gpu_that_is_not_visible_is_reported_with_the_end_of_the_list() {
        let cases = [
            (4, None, 4, "the host has no more GPUs"),
            (1, Some("2"), 1, "the list has no more entries"),
            (0, Some(""), 0, "entry `` is empty"),
            (1, Some("2,,3"), 1, "entry `` is empty"),
            (0, Some("-1,2"), 0, "entry `-1` ends the list"),
            (1, Some("2,-1,3"), 1, "entry `-1` ends the list"),
            (0, Some("4"), 0, "entry `4` is above the index of the last GPU"),
            (0, Some("x"), 0, "entry `x` is neither an index nor a UUID"),
            (0, Some("GPU-dd"), 0, "entry `GPU-dd` is the UUID of no GPU"),
            (2, Some("3,0,GPU-aa"), 2, "entry `GPU-aa` is the beginning of several UUIDs"),
        ];
        for (visible, value, count, reason) in cases {
            let value_text = value.unwrap_or("not set");
            let expected = format!(
                "the process's GPU is not visible: {reason}; correct CUDA_VISIBLE_DEVICES \
                 visible_gpu={visible} visible_gpus={count} CUDA_VISIBLE_DEVICES={value_text}"
            );
            assert_eq!(error(visible, value), expected);
        }
    }

    #[test]
    fn mig_device_is_refused_by_name() {
        for value in ["MIG-11aa", "0,MIG-GPU-aa11-0/1/0"] {
            let text = error(0, Some(value));
            assert!(text.starts_with("CUDA_VISIBLE_DEVICES names a MIG device"), "{text}");
            assert!(text.contains(&format!("entry={}", value.trim_start_matches("0,"))), "{text}");
        }
        assert_eq!(physical(0, Some("0,-1,MIG-11aa")), Ok(0), "an entry after the end");
    }

    #[test]
    fn gpu_named_twice_is_refused() {
        for value in ["1,1", "1,GPU-aa22", "GPU-aa22-1,0,1"] {
            let text = error(0, Some(value));
            assert!(text.starts_with("CUDA_VISIBLE_DEVICES names a GPU twice"), "{text}");
            assert!(text.contains("gpu=1 entry="), "{text}");
        }
    }

    #[test]
    fn process_without_gpu_is_refused() {
        let process = GpuOfProcess { visible: None, cuda_visible_devices: None, uuids: &[] };
        assert_eq!(process.physical(), Err(VerbsError::ProcessWithoutGpu));
    }
}
