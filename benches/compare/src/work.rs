//! The work of one object size.

use crate::args::RunArgs;

/// The work of every side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// Bytes of an object, a multiple of 1024.
    pub(crate) object_bytes: usize,
    /// Objects, a multiple of the batch.
    pub(crate) objects: u64,
    /// Objects of a batch.
    pub(crate) batch: usize,
    /// Batches in flight, for sides that support it.
    pub(crate) depth: usize,
    /// Threads for blocking calls.
    pub(crate) threads: usize,
    /// Seed of the contents and of the read order.
    pub(crate) seed: u64,
}

impl Work {
    /// As many objects as `mib` allows; at least one batch.
    pub(crate) fn new(args: &RunArgs, object_bytes: usize) -> Work {
        let batch = args.batch as usize;
        let batches = ((args.mib as usize) << 20) / object_bytes / batch;
        Work {
            object_bytes,
            objects: (batches.max(1) * batch) as u64,
            batch,
            depth: args.depth as usize,
            threads: args.threads as usize,
            seed: args.seed,
        }
    }

    /// Objects per part for threads with blocking calls: all threads are busy when all batches are
    /// in flight.
    pub(crate) fn part(&self) -> usize {
        (self.batch * self.depth).div_ceil(self.threads)
    }

    /// Bytes of all objects.
    pub(crate) fn bytes(&self) -> u64 {
        self.objects * self.object_bytes as u64
    }

    /// The object size for display.
    pub(crate) fn shown_size(&self) -> String {
        shown_size(self.object_bytes)
    }
}

/// A size for display.
pub(crate) fn shown_size(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b => format!("{} KiB", b >> 10),
    }
}
