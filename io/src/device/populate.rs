//! Makes memory resident with several threads, before a driver locks it with one.

use std::ffi::{c_int, c_ulong};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{Advice, madvise};

use super::chunks::CHUNK_BYTES;
use crate::verbs::DeviceMemory;

/// A bound, so that binding a device does not take all processors of a large host.
const THREADS_MAX: usize = 8;
/// `MPOL_PREFERRED` of `linux/mempolicy.h`: on this node, or else on another.
const PREFERRED: c_int = 1;
/// Highest number of a node that is preferred.
const NODE_MAX: u32 = 63;
/// Bits of the mask of nodes, and one: the kernel uses one less than this.
const MASK_BITS: c_ulong = 65;

/// Make all pages resident, new ones on `node`. Contents stay. Pages that cannot be populated here,
/// as before Linux 5.14, are populated when they are locked.
#[allow(clippy::disallowed_methods, reason = "its threads end before it returns")]
pub(super) fn populate(memory: &dyn DeviceMemory, node: Option<u32>) {
    let (base, bytes) = (memory.base().as_ptr(), memory.bytes());
    if let Some(node) = node.filter(|node| *node <= NODE_MAX)
        && let Err(error) = prefer(base, bytes, node)
    {
        tracing::debug!(node, %error, "mbind failed");
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(THREADS_MAX).min(bytes.div_ceil(CHUNK_BYTES)).max(1);
    let (next, base) = (AtomicUsize::new(0), base.expose_provenance());
    let populate_chunks = || {
        loop {
            let offset = next.fetch_add(CHUNK_BYTES, Ordering::Relaxed);
            if offset >= bytes {
                return;
            }
            let start = std::ptr::with_exposed_provenance_mut(base + offset);
            let length = CHUNK_BYTES.min(bytes - offset);
            // SAFETY: the range is mapped, and the advice changes no contents.
            if let Err(errno) = unsafe { madvise(start, length, Advice::LinuxPopulateWrite) } {
                tracing::debug!(%errno, "memory is not populated");
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // With fewer threads it takes longer.
            if std::thread::Builder::new().spawn_scoped(scope, populate_chunks).is_err() {
                break;
            }
        }
        populate_chunks();
    });
}

/// Prefer `node` for pages of the range that are not resident. It is mapped, or the call fails.
fn prefer(base: *mut u8, bytes: usize, node: u32) -> std::io::Result<()> {
    let mask: c_ulong = 1 << node;
    // SAFETY: the call sets the policy of mapped pages that are not resident, and reads one word.
    let code = unsafe {
        libc::syscall(libc::SYS_mbind, base, bytes, PREFERRED, &raw const mask, MASK_BITS, 0)
    };
    if code == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::AlignedBuf;

    /// The kernel takes a mask without a node for "local", so a lost node is no error.
    #[test]
    fn last_node_that_does_not_exist_is_refused() {
        let mut memory = AlignedBuf::new(4096).expect("memory");
        let exists = std::path::Path::new("/sys/devices/system/node/node63").exists();
        let preferred = prefer(memory.as_mut_ptr(), memory.len(), NODE_MAX);
        assert_eq!(preferred.is_ok(), exists, "{preferred:?}");
    }
}
