//! Disk operations one at a time, for open and close, which have nothing to overlap them with.

use std::time::Duration;

use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_io::disk::{Disk, FileId, Op, Queue};
use pagelith_io::fault::{FaultKind, FaultOp, IoFault};

/// An I/O queue for one operation at a time, each with a time limit.
pub struct SerialQueue {
    queue: Box<dyn Queue>,
    timeout: Duration,
    token: u64,
    timed_out: bool,
}

impl SerialQueue {
    /// A new queue on `disk`; each operation may take at most `timeout`.
    pub fn new(disk: &dyn Disk, timeout: Duration) -> Result<SerialQueue, IoFault> {
        Ok(SerialQueue { queue: disk.queue(1)?, timeout, token: 0, timed_out: false })
    }

    /// Whether an operation timed out. No further operation is submitted then: the late completion
    /// may still arrive, and must not be taken for that of another operation.
    pub fn is_late(&self) -> bool {
        self.timed_out
    }

    /// Run one operation and return its parts. After a timeout every further operation fails.
    pub fn run(&mut self, op: Op) -> Result<Vec<Part>, IoFault> {
        let fault = |detail: &str| IoFault {
            kind: FaultKind::Device,
            op: FaultOp::Queue,
            path: String::new(),
            offset: 0,
            errno: 0,
            detail: detail.into(),
        };
        if self.timed_out {
            return Err(fault("an earlier operation timed out"));
        }
        self.token += 1;
        self.queue.submit(self.token, op).map_err(|_| fault("no room in an idle queue"))?;
        let mut done = Vec::new();
        self.queue.wait(&mut done, self.timeout);
        let Some(completion) = done.pop() else {
            self.timed_out = true;
            // The caller has waited long enough: the drop of the queue must not wait again.
            self.queue.set_drop_timeout(Duration::ZERO);
            return Err(fault("operation timed out"));
        };
        completion.result.map(|()| completion.op.into_parts())
    }

    /// Read `len` bytes, a multiple of 4096.
    pub fn read(&mut self, file: FileId, offset: u64, len: usize) -> Result<AlignedBuf, IoFault> {
        let buf = AlignedBuf::new(len).map_err(|e| no_memory(len, &e))?;
        self.read_into(file, offset, buf)
    }

    /// Fill `buf`, whose length is a multiple of 4096. A failed read is retried once.
    pub fn read_into(
        &mut self,
        file: FileId,
        offset: u64,
        buf: AlignedBuf,
    ) -> Result<AlignedBuf, IoFault> {
        let len = buf.len();
        let mut read = self.run(Op::Read { file, offset, parts: vec![buf.into_part()] });
        // Retry: unreadable data counts as lost, and all older objects may be dropped with it.
        if read.is_err() && !self.timed_out {
            let again = AlignedBuf::new(len).map_err(|e| no_memory(len, &e))?;
            read = self.run(Op::Read { file, offset, parts: vec![again.into_part()] });
        }
        read?.pop().and_then(Part::into_buf).ok_or_else(missing_buffer)
    }

    /// Write `bytes`, padded with zeros to a multiple of 4096.
    pub fn write(&mut self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), IoFault> {
        let len = pagelith_layouts::align::align_up(bytes.len() as u64) as usize;
        let mut buf = AlignedBuf::new(len).map_err(|e| no_memory(len, &e))?;
        buf[..bytes.len()].copy_from_slice(bytes);
        self.run(Op::Write { file, offset, parts: vec![buf.into_part()] }).map(|_| ())
    }

    /// Make earlier writes to `file` durable.
    pub fn sync(&mut self, file: FileId) -> Result<(), IoFault> {
        self.run(Op::Sync { file }).map(|_| ())
    }
}

fn missing_buffer() -> IoFault {
    no_memory(0, &std::io::Error::other("the completion of a read has no buffer"))
}

/// The fault for a buffer that could not be allocated.
pub(crate) fn no_memory(len: usize, error: &std::io::Error) -> IoFault {
    IoFault {
        kind: FaultKind::Exhausted,
        op: FaultOp::Queue,
        path: String::new(),
        offset: 0,
        errno: error.raw_os_error().unwrap_or(0),
        detail: format!("no memory for a buffer of {len} bytes: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use pagelith_io::disk::Completion;

    use super::*;

    /// A device that completes nothing. Notes the wait at the drop of its queue.
    #[derive(Clone, Default)]
    struct Hung(Arc<Mutex<Option<Duration>>>);

    impl Queue for Hung {
        fn room(&self) -> usize {
            1
        }

        fn in_flight(&self) -> usize {
            1
        }

        fn submit(&mut self, _token: u64, _op: Op) -> Result<(), Op> {
            Ok(())
        }

        fn poll(&mut self, _done: &mut Vec<Completion>) {}

        fn wait(&mut self, _done: &mut Vec<Completion>, _timeout: Duration) {}

        fn set_drop_timeout(&mut self, wait: Duration) {
            *self.0.lock().expect("one thread") = Some(wait);
        }
    }

    #[test]
    fn drop_after_a_timeout_does_not_wait_again() {
        let device = Hung::default();
        let timeout = Duration::from_millis(1);
        let queue = Box::new(device.clone());
        let mut serial = SerialQueue { queue, timeout, token: 0, timed_out: false };
        assert!(serial.sync(FileId(0)).is_err() && serial.is_late());
        assert_eq!(*device.0.lock().expect("one thread"), Some(Duration::ZERO));
    }
}
