//! Kinds of drivers, and the devices that they drive.

use std::fmt;

/// The kinds of drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DriverKind {
    /// NVIDIA's CUDA driver.
    Cuda,
    /// Ascend's Computing Language, the runtime of its NPUs.
    Ascend,
}

impl DriverKind {
    /// Both kinds.
    pub const ALL: [DriverKind; 2] = [DriverKind::Cuda, DriverKind::Ascend];

    /// The name, as in the setting `dram.pin`.
    pub fn name(self) -> &'static str {
        match self {
            DriverKind::Cuda => "cuda",
            DriverKind::Ascend => "ascend",
        }
    }

    /// The library's name on every distribution.
    pub fn library(self) -> &'static str {
        match self {
            DriverKind::Cuda => "libcuda.so.1",
            DriverKind::Ascend => "libascendcl.so",
        }
    }

    pub(super) fn install(self) -> &'static str {
        match self {
            DriverKind::Cuda => {
                "install the NVIDIA driver, or pass it to the container (--gpus, \
                 NVIDIA_DRIVER_CAPABILITIES=compute)"
            }
            DriverKind::Ascend => "install CANN and run its set_env.sh",
        }
    }

    /// The first version that has all functions.
    pub(super) fn oldest(self) -> &'static str {
        match self {
            DriverKind::Cuda => "CUDA 11.0",
            DriverKind::Ascend => "CANN 8.0",
        }
    }

    pub(super) fn tool(self) -> &'static str {
        match self {
            DriverKind::Cuda => "nvidia-smi",
            DriverKind::Ascend => "npu-smi info",
        }
    }

    pub(super) fn visible(self) -> &'static str {
        match self {
            DriverKind::Cuda => "CUDA_VISIBLE_DEVICES",
            DriverKind::Ascend => "ASCEND_RT_VISIBLE_DEVICES",
        }
    }

    pub(super) fn initialise(self) -> &'static str {
        match self {
            DriverKind::Cuda => "torch.cuda.set_device and torch.cuda.init, or cudaSetDevice",
            DriverKind::Ascend => "torch.npu.set_device, or aclrtSetDevice, on the same thread",
        }
    }
}

impl fmt::Display for DriverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A device, by its number among those that the process sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// Its driver.
    pub driver: DriverKind,
    /// Its number.
    pub ordinal: u32,
}

impl Device {
    /// A CUDA device.
    pub fn cuda(ordinal: u32) -> Device {
        Device { driver: DriverKind::Cuda, ordinal }
    }

    /// An Ascend device.
    pub fn ascend(ordinal: u32) -> Device {
        Device { driver: DriverKind::Ascend, ordinal }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.driver, self.ordinal)
    }
}
