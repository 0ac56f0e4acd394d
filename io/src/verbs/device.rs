//! Devices: their list, limits, ports and asynchronous events.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::abi;
use super::error::{Result, VerbsError, last_errno};
use super::library::{Handle, Library, check};

/// Limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Bytes of a memory region.
    pub max_mr_size: u64,
    /// Work requests of a queue.
    pub max_qp_wr: u32,
    /// Pieces of a scatter list.
    pub max_sge: u32,
    /// Completions of a queue.
    pub max_cqe: u32,
    /// READs in flight that a queue pair answers.
    pub max_reads_in: u8,
    /// READs in flight that a queue pair begins.
    pub max_reads_out: u8,
    /// The number of ports.
    pub ports: u8,
}

/// An open device.
pub struct Device {
    pub(super) library: Arc<Library>,
    pub(super) context: Handle<abi::Context>,
    name: String,
    limits: DeviceLimits,
}

impl Device {
    /// Names of all devices of this host, which are at least one.
    pub fn names(library: &Library) -> Result<Vec<String>> {
        List::of(library)?.names()
    }

    /// Open the device of this name.
    pub fn open(library: &Arc<Library>, name: &str) -> Result<Arc<Device>> {
        let list = List::of(library)?;
        let names = list.names()?;
        let at = names.iter().position(|found| found == name).ok_or_else(|| {
            VerbsError::DeviceUnknown { name: name.to_owned(), found: names.join(",") }
        })?;
        let functions = &library.functions;
        // SAFETY: the entry is one of the list, which is freed after the call.
        let context = unsafe { (functions.ibv_open_device)(list.entry(at)) };
        let context = Handle::new(context, "ibv_open_device", name)?;
        let mut device = Device {
            library: library.clone(),
            context,
            name: name.to_owned(),
            limits: DeviceLimits::of(&abi::DeviceAttr::default()),
        };
        device.limits = DeviceLimits::of(&device.attributes()?);
        device.check_provider()?;
        set_nonblocking(device.as_fd(), &device.name)?;
        Ok(Arc::new(device))
    }

    fn attributes(&self) -> Result<abi::DeviceAttr> {
        let mut attributes = abi::DeviceAttr::default();
        let context = self.context.pointer();
        // SAFETY: the context is open, and the call fills the structure.
        let status =
            unsafe { (self.library.functions.ibv_query_device)(context, &raw mut attributes) };
        check(status, "ibv_query_device", &self.name)?;
        Ok(attributes)
    }

    /// The functions of the data path, which C calls through the context.
    pub(super) fn ops(&self) -> abi::ContextOps {
        // SAFETY: the context is open. The provider set these pointers before it returned the
        // context, and does not change them.
        unsafe { (*self.context.pointer()).ops }
    }

    fn check_provider(&self) -> Result<()> {
        let ops = self.ops();
        let missing = [
            ("poll_cq", ops.poll_cq.is_none()),
            ("req_notify_cq", ops.req_notify_cq.is_none()),
            ("post_send", ops.post_send.is_none()),
            ("post_recv", ops.post_recv.is_none()),
        ];
        match missing.into_iter().find(|(_, missing)| *missing) {
            Some((function, _)) => {
                Err(VerbsError::ProviderUnusable { device: self.name.clone(), function })
            }
            None => Ok(()),
        }
    }

    /// The device's name, such as `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Limits of the device.
    pub fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    /// The next asynchronous event; `None` if there is none. The device's descriptor is readable
    /// while there is one.
    pub fn next_event(&self) -> Result<Option<DeviceEvent>> {
        let mut raw = abi::AsyncEvent::default();
        let functions = &self.library.functions;
        // SAFETY: the context is open, and the call fills the structure if it succeeds.
        let status =
            unsafe { (functions.ibv_get_async_event)(self.context.pointer(), &raw mut raw) };
        if status != 0 {
            let errno = last_errno();
            return match Errno::from_raw_os_error(errno) {
                Errno::AGAIN => Ok(None),
                _ => Err(VerbsError::CallFailed {
                    call: "ibv_get_async_event",
                    device: self.name.clone(),
                    errno,
                }),
            };
        }
        let event = DeviceEvent::of(&raw);
        // The event names an object, and the destruction of that object waits for this call.
        // SAFETY: the event is the library's own, and is acknowledged once.
        unsafe { (functions.ibv_ack_async_event)(&raw mut raw) };
        Ok(Some(event))
    }
}

impl DeviceLimits {
    fn of(raw: &abi::DeviceAttr) -> DeviceLimits {
        let count = |value: c_int| u32::try_from(value).unwrap_or(0);
        let reads = |value: c_int| u8::try_from(value.max(0)).unwrap_or(u8::MAX);
        DeviceLimits {
            max_mr_size: raw.max_mr_size,
            max_qp_wr: count(raw.max_qp_wr),
            max_sge: count(raw.max_sge.min(raw.max_sge_rd)),
            max_cqe: count(raw.max_cqe),
            max_reads_in: reads(raw.max_qp_rd_atom),
            max_reads_out: reads(raw.max_qp_init_rd_atom),
            ports: raw.phys_port_cnt,
        }
    }
}

impl AsFd for Device {
    /// The descriptor of asynchronous events.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the context, which is open as long as `self` exists.
        unsafe { BorrowedFd::borrow_raw((*self.context.pointer()).async_fd) }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: each object of the context holds an Arc of the device, so none is left.
        let status = unsafe { (self.library.functions.ibv_close_device)(self.context.pointer()) };
        if let Err(error) = check(status, "ibv_close_device", &self.name) {
            tracing::warn!(%error, "device stays open");
        }
    }
}

/// Make reads of a descriptor of the library return EAGAIN instead of waiting.
pub(super) fn set_nonblocking(fd: BorrowedFd<'_>, device: &str) -> Result<()> {
    let set = |flags: OFlags| fcntl_setfl(fd, flags | OFlags::NONBLOCK);
    fcntl_getfl(fd).and_then(set).map_err(|errno| VerbsError::CallFailed {
        call: "fcntl",
        device: device.to_owned(),
        errno: errno.raw_os_error(),
    })
}

/// The library's list of devices.
struct List<'lib> {
    library: &'lib Library,
    entries: Handle<*mut abi::DeviceEntry>,
    count: usize,
}

impl List<'_> {
    fn of(library: &Library) -> Result<List<'_>> {
        let mut count: c_int = 0;
        // SAFETY: the call writes the number of entries.
        let entries = unsafe { (library.functions.ibv_get_device_list)(&raw mut count) };
        let entries = Handle::new(entries, "ibv_get_device_list", "any").map_err(|error| {
            let VerbsError::CallFailed { errno, .. } = error else { return error };
            match Errno::from_raw_os_error(errno) {
                Errno::NOSYS | Errno::NODEV | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS => {
                    VerbsError::KernelWithoutRdma { errno }
                }
                _ => error,
            }
        })?;
        Ok(List { library, entries, count: usize::try_from(count).unwrap_or(0) })
    }

    fn entry(&self, at: usize) -> *mut abi::DeviceEntry {
        if at >= self.count {
            return null_mut();
        }
        // SAFETY: the list has `count` entries, and exists until it is dropped.
        unsafe { *self.entries.pointer().add(at) }
    }

    fn names(&self) -> Result<Vec<String>> {
        let name = |at: usize| {
            // SAFETY: the entry is one of the list; its name is a C string that exists as long as
            // the list.
            let name = unsafe {
                CStr::from_ptr((self.library.functions.ibv_get_device_name)(self.entry(at)))
            };
            name.to_string_lossy().into_owned()
        };
        let names: Vec<String> = (0..self.count).map(name).collect();
        if names.is_empty() { Err(VerbsError::NoDevice) } else { Ok(names) }
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        // SAFETY: the list is the library's, and is freed once. Open devices stay valid.
        unsafe { (self.library.functions.ibv_free_device_list)(self.entries.pointer()) };
    }
}

/// An asynchronous event of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// The device failed; every object of it is unusable.
    DeviceFatal,
    /// The port became active.
    PortActive(u8),
    /// The port is no longer active.
    PortError(u8),
    /// Addresses or partitions of the port changed: choose its GID again.
    AddressChange(u8),
    /// A queue pair failed without a completion.
    QueuePairError,
    /// A completion queue overflowed or failed; its queue pairs are unusable.
    CompletionQueueError,
    /// An event that needs no action, by its number.
    Other(u32),
}

impl DeviceEvent {
    fn of(raw: &abi::AsyncEvent) -> DeviceEvent {
        use abi::event as e;
        // The union's `port_num` is a C int, in the first bytes of `element`.
        let port = u8::try_from(raw.element & 0xffff_ffff).unwrap_or(0);
        match raw.event_type {
            e::DEVICE_FATAL => DeviceEvent::DeviceFatal,
            e::PORT_ACTIVE => DeviceEvent::PortActive(port),
            e::PORT_ERR => DeviceEvent::PortError(port),
            e::GID_CHANGE | e::LID_CHANGE | e::PKEY_CHANGE | e::CLIENT_REREGISTER => {
                DeviceEvent::AddressChange(port)
            }
            e::QP_FATAL | e::QP_REQ_ERR | e::QP_ACCESS_ERR | e::PATH_MIG_ERR => {
                DeviceEvent::QueuePairError
            }
            e::CQ_ERR => DeviceEvent::CompletionQueueError,
            other => DeviceEvent::Other(other),
        }
    }
}
