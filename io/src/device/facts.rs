//! What a driver reports about its devices.

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Its number among the devices that this process sees.
    pub ordinal: u32,
    /// The model.
    pub model: String,
    /// The address on the PCIe bus, such as `0000:1b:00.0`, if the driver tells it.
    pub pci: Option<String>,
    /// Bytes of its memory, if the driver tells them.
    pub memory_bytes: Option<u64>,
}
