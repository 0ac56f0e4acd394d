//! Completion queues, and the completions that they deliver.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::abi;
use super::device::{Device, set_nonblocking};
use super::error::{Result, VerbsError, last_errno};
use super::library::{Handle, check};

/// Completions that one call takes from the queue.
const POLLED_MAX: usize = 16;

/// A completion queue with a channel of its own, whose descriptor wakes a waiting thread.
///
/// Wait in this order: [`arm`](CompletionQueue::arm), poll once more, then sleep until the
/// descriptor is readable. A completion between two of these steps is found by the later one.
pub struct CompletionQueue {
    pub(super) cq: Handle<abi::Cq>,
    channel: Channel,
}

impl CompletionQueue {
    /// A queue with room for `entries` completions.
    pub fn new(device: &Arc<Device>, entries: u32) -> Result<Arc<CompletionQueue>> {
        let limit = device.limits().max_cqe;
        if entries > limit {
            let (device, what) = (device.name().to_owned(), "completions");
            return Err(VerbsError::CapacityTooLarge { device, what, asked: entries, limit });
        }
        let channel = Channel::new(device)?;
        let create = device.library.functions.ibv_create_cq;
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        let context = device.context.pointer();
        // SAFETY: context and channel are open; the queue keeps both.
        let cq = unsafe { create(context, entries, null_mut(), channel.raw.pointer(), 0) };
        let cq = Handle::new(cq, "ibv_create_cq", device.name())?;
        Ok(Arc::new(CompletionQueue { cq, channel }))
    }

    fn device(&self) -> &Device {
        &self.channel.device
    }

    pub(super) fn is_of(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.channel.device, device)
    }

    /// Append the completions that are in the queue, at most 16. Returns their number.
    pub fn poll(&self, to: &mut Vec<Completion>) -> Result<usize> {
        let mut found = [abi::Wc::default(); POLLED_MAX];
        let missing = -Errno::NOSYS.raw_os_error();
        // SAFETY: the queue exists, and the call writes at most as many completions.
        let count = self.device().ops().poll_cq.map_or(missing, |poll| unsafe {
            poll(self.cq.pointer(), POLLED_MAX as i32, found.as_mut_ptr())
        });
        let Ok(count) = usize::try_from(count) else {
            return check(count, "ibv_poll_cq", self.device().name()).map(|()| 0);
        };
        to.extend(found.iter().take(count).map(Completion::of));
        Ok(count)
    }

    /// Make the next completion wake the descriptor.
    pub fn arm(&self) -> Result<()> {
        let missing = Errno::NOSYS.raw_os_error();
        // SAFETY: the queue exists.
        let status = self
            .device()
            .ops()
            .req_notify_cq
            .map_or(missing, |arm| unsafe { arm(self.cq.pointer(), 0) });
        check(status, "ibv_req_notify_cq", self.device().name())
    }

    /// Sleep until the descriptor is readable, for at most `timeout`, and consume its events.
    /// Returns whether there was one.
    pub fn sleep(&self, timeout: Duration) -> Result<bool> {
        let fd = self.as_fd();
        let mut polled = [PollFd::new(&fd, PollFlags::IN)];
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut polled, timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) => Ok(false),
            Ok(_) => self.consume_events(),
            Err(errno) => check(errno.raw_os_error(), "poll", self.device().name()).map(|()| false),
        }
    }

    /// Consume the events of the descriptor. Returns whether there was one.
    pub fn consume_events(&self) -> Result<bool> {
        let functions = &self.device().library.functions;
        let (mut cq, mut context) = (null_mut(), null_mut());
        let mut any = false;
        loop {
            let get = functions.ibv_get_cq_event;
            // SAFETY: the channel is open, and the call fills both pointers if it succeeds.
            let status = unsafe { get(self.channel.raw.pointer(), &raw mut cq, &raw mut context) };
            if status != 0 {
                let errno = last_errno();
                return match Errno::from_raw_os_error(errno) {
                    Errno::AGAIN | Errno::INTR => Ok(any),
                    _ => Err(VerbsError::CallFailed {
                        call: "ibv_get_cq_event",
                        device: self.device().name().to_owned(),
                        errno,
                    }),
                };
            }
            // SAFETY: the event was just taken from the channel, and names the channel's only
            // queue, this one.
            unsafe { (functions.ibv_ack_cq_events)(cq, 1) };
            any = true;
        }
    }
}

impl AsFd for CompletionQueue {
    /// The descriptor of the channel.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        let device = self.device();
        // SAFETY: each queue pair of this queue holds an Arc of it, so none is left; each event was
        // acknowledged when it was taken.
        let status = unsafe { (device.library.functions.ibv_destroy_cq)(self.cq.pointer()) };
        if let Err(error) = check(status, "ibv_destroy_cq", device.name()) {
            tracing::warn!(%error, "completion queue stays allocated");
            std::mem::forget(self.channel.device.clone());
        }
    }
}

/// A completion channel. It is destroyed after its queue, as a later field of it.
struct Channel {
    raw: Handle<abi::Channel>,
    device: Arc<Device>,
}

impl Channel {
    fn new(device: &Arc<Device>) -> Result<Channel> {
        let create = device.library.functions.ibv_create_comp_channel;
        // SAFETY: the context is open.
        let raw = unsafe { create(device.context.pointer()) };
        let raw = Handle::new(raw, "ibv_create_comp_channel", device.name())?;
        let channel = Channel { raw, device: device.clone() };
        set_nonblocking(channel.as_fd(), device.name())?;
        Ok(channel)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the channel, which exists as long as `self`.
        unsafe { BorrowedFd::borrow_raw((*self.raw.pointer()).fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let destroy = self.device.library.functions.ibv_destroy_comp_channel;
        // SAFETY: the channel's only queue was destroyed before it.
        let status = unsafe { destroy(self.raw.pointer()) };
        if let Err(error) = check(status, "ibv_destroy_comp_channel", self.device.name()) {
            tracing::warn!(%error, "completion channel stays allocated");
            std::mem::forget(self.device.clone());
        }
    }
}

/// A completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number that the request was posted with.
    pub id: u64,
    /// Success, or the kind of failure.
    pub status: Status,
    /// The number of the queue pair.
    pub queue_pair: u32,
    /// The operation; `None` after a failure, where the device does not report it.
    pub kind: Option<CompletionKind>,
}

/// The operation that completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    /// A SEND of this side.
    Send,
    /// A WRITE of this side, with or without a notice.
    Write,
    /// A READ of this side.
    Read,
    /// A SEND of the peer, which filled this many bytes of a receive.
    Received(u32),
    /// The notice of a WRITE of the peer, with its immediate value. Every earlier WRITE of that
    /// queue pair has landed.
    Notice(u32),
    /// Another operation, by its number.
    Other(u32),
}

impl Completion {
    fn of(raw: &abi::Wc) -> Completion {
        use abi::wc_opcode as o;
        let kind = match raw.opcode {
            o::SEND => CompletionKind::Send,
            o::WRITE => CompletionKind::Write,
            o::READ => CompletionKind::Read,
            o::RECV => CompletionKind::Received(raw.byte_len),
            // Immediate values travel in network byte order.
            o::RECV_WITH_IMM => CompletionKind::Notice(u32::from_be(raw.imm_data)),
            other => CompletionKind::Other(other),
        };
        let status = Status(raw.status);
        // After a failure only the number, the status and the queue pair are valid.
        let kind = (status == Status::SUCCESS).then_some(kind);
        Completion { id: raw.wr_id, status, queue_pair: raw.qp_num, kind }
    }
}

/// The status of a completion, by its number in the verbs interface.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// The operation succeeded.
    pub const SUCCESS: Status = Status(abi::status::SUCCESS);
    /// The queue pair was in the error state before the operation began.
    pub const FLUSHED: Status = Status(abi::status::WR_FLUSH);
    /// A local range is not in a region of the key.
    pub const LOCAL_PROTECTION: Status = Status(abi::status::LOC_PROT);
    /// The peer's region does not permit the access.
    pub const REMOTE_ACCESS: Status = Status(abi::status::REM_ACCESS);
    /// The peer did not acknowledge: it is gone, or the network is down.
    pub const RETRIES_EXCEEDED: Status = Status(abi::status::RETRY_EXC);
    /// The peer posted no receive.
    pub const RECEIVER_NOT_READY: Status = Status(abi::status::RNR_RETRY_EXC);

    fn name(self) -> &'static str {
        use abi::status as s;
        match self.0 {
            s::SUCCESS => "success",
            s::LOC_LEN => "local length error",
            s::LOC_QP_OP => "local operation error",
            s::LOC_PROT => "local protection error",
            s::WR_FLUSH => "flushed",
            s::REM_INV_REQ => "invalid request at the peer",
            s::REM_ACCESS => "access denied by the peer",
            s::REM_OP => "operation error at the peer",
            s::RETRY_EXC => "no acknowledgement from the peer",
            s::RNR_RETRY_EXC => "no receive posted at the peer",
            _ => "failed",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} status={}", self.name(), self.0)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
