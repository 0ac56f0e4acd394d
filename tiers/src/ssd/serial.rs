//! One operation at a time, for open and close, where there is nothing to overlap with.

use std::time::Duration;

use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_io::disk::{Disk, FileId, Op, Queue};
use pagelith_io::fault::{FaultKind, FaultOp, IoFault};

/// A queue used one operation at a time, each with a time limit.
pub struct Serial {
    queue: Box<dyn Queue>,
    timeout: Duration,
    token: u64,
    late: bool,
}

impl Serial {
    /// A queue of its own on `disk`; each operation may take `timeout`.
    pub fn new(disk: &dyn Disk, timeout: Duration) -> Result<Serial, IoFault> {
        Ok(Serial { queue: disk.queue(1)?, timeout, token: 0, late: false })
    }

    /// Whether an operation timed out. Nothing is done from then on: its completion may still come, and must
    /// not be taken for another's.
    pub fn is_late(&self) -> bool {
        self.late
    }

    /// Do one operation and hand its parts back. After a time-out every other fails.
    pub fn run(&mut self, op: Op) -> Result<Vec<Part>, IoFault> {
        let late = |detail: &str| IoFault {
            kind: FaultKind::Device,
            op: FaultOp::Queue,
            path: String::new(),
            offset: 0,
            errno: 0,
            detail: detail.into(),
        };
        if self.late {
            return Err(late("an earlier operation timed out"));
        }
        self.token += 1;
        self.queue.submit(self.token, op).map_err(|_| late("no room in an idle queue"))?;
        let mut done = Vec::new();
        self.queue.wait(&mut done, self.timeout);
        let Some(completion) = done.pop() else {
            self.late = true;
            return Err(late("operation timed out"));
        };
        completion.result.map(|()| completion.op.into_parts())
    }

    /// Read `len` bytes, a multiple of 4096.
    pub fn read(&mut self, file: FileId, offset: u64, len: usize) -> Result<AlignedBuf, IoFault> {
        let buf = AlignedBuf::new(len).map_err(|e| no_memory(len, &e))?;
        self.read_into(file, offset, buf)
    }

    /// Fill `buf`, whose length is a multiple of 4096; tried twice if the device fails it.
    pub fn read_into(&mut self, file: FileId, offset: u64, buf: AlignedBuf) -> Result<AlignedBuf, IoFault> {
        let len = buf.len();
        let mut read = self.run(Op::Read { file, offset, parts: vec![buf.into_part()] });
        // Once more: what cannot be read is taken for lost, and everything older may go with it.
        if read.is_err() && !self.late {
            let again = AlignedBuf::new(len).map_err(|e| no_memory(len, &e))?;
            read = self.run(Op::Read { file, offset, parts: vec![again.into_part()] });
        }
        read?.pop().and_then(Part::into_buf).ok_or_else(not_back)
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

fn not_back() -> IoFault {
    no_memory(0, &std::io::Error::other("a buffer did not come back"))
}

/// A buffer that could not be had.
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
