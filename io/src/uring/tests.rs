use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::Command;

use io_uring::opcode;
use tempfile::TempDir;

use super::*;
use crate::buffer::{AlignedBuf, Part};
use crate::disk::FileId;
use crate::fault::FaultKind;
use crate::files::DataFile;

const ALIGN: Alignment = Alignment { memory: 512, offset: 512 };
pub(super) const LONG: Duration = Duration::from_secs(60);

/// A queue over one file, or `None` (and a message) if io_uring is not available.
pub(super) fn queue_over(fd: OwnedFd, depth: usize) -> Option<(UringQueue, FileId)> {
    queue_over_bytes(fd, 4096, depth)
}

/// As [`queue_over`], over a file of `len` bytes.
pub(super) fn queue_over_bytes(
    fd: OwnedFd,
    len: u64,
    depth: usize,
) -> Option<(UringQueue, FileId)> {
    let files = Arc::new(Files::default());
    let file = DataFile { fd, path: "test".to_owned(), dir: 0, name: "test".to_owned(), len };
    let id = files.insert(file);
    let made = Pool::start().map(Arc::new).and_then(|pool| {
        UringQueue::new(
            UringShared { files, registered: Arc::default(), align: ALIGN, pool },
            depth,
        )
    });
    match made {
        Ok(queue) => Some((queue, id)),
        Err(fault) => {
            eprintln!("skipped: {fault}");
            None
        }
    }
}

pub(super) fn data_file(dir: &TempDir) -> OwnedFd {
    crate::create::create(dir.path(), "a", 4096, false, &Default::default()).unwrap()
}

/// A part, and its guard, whose count shows whether the part still exists.
pub(super) fn guarded() -> (Part, Arc<AlignedBuf>) {
    let mut buf = AlignedBuf::new(4096).unwrap();
    let ptr = std::ptr::NonNull::from(&mut buf[..]).cast();
    let buf = Arc::new(buf);
    // SAFETY: the part covers all of `buf`, which it keeps; the tests do not read its bytes
    // meanwhile.
    let part = unsafe { Part::exclusive(ptr, 4096, Some(buf.clone())) };
    (part, buf)
}

pub(super) fn read(file: FileId) -> Op {
    Op::Read { file, offset: 0, parts: vec![AlignedBuf::new(4096).unwrap().into_part()] }
}

/// Make the kernel post a completion that matches no operation of the queue.
fn complete_stray(queue: &mut UringQueue, id: u64) {
    let entry = opcode::Nop::new().build().user_data(id);
    let ring = &mut *queue.ring;
    let want = ring.completion().len() as u32 + 1;
    // SAFETY: a nop refers to no memory.
    unsafe { ring.submission().push(&entry).unwrap() };
    ring::enter(ring, 1, want, LONG).unwrap();
}

#[test]
fn stray_completion_matches_no_operation() {
    let dir = TempDir::new().unwrap();
    let Some((mut queue, file)) = queue_over(data_file(&dir), 4) else { return };
    queue.submit(1, read(file)).unwrap();
    let stale = queue.pending[0];
    let mut done = Vec::new();
    queue.wait(&mut done, LONG);
    assert_eq!(done.len(), 1);

    // The slot is reused, and foreign completions arrive before its operation is submitted.
    let op = queue.files.get(file).map(|f| InFlightOp::new(2, read(file), f)).unwrap();
    let id = queue.slots.insert(op).unwrap();
    assert_eq!((id as u32, id >> 32), (stale as u32, (stale >> 32) + 1), "another slot was used");
    for stray in [stale, 0, u64::from(id as u32), u64::MAX, id + 1, id + (1 << 32)] {
        complete_stray(&mut queue, stray);
    }
    done.clear();
    queue.reap(&mut done);
    assert_eq!((done.len(), queue.strays, queue.in_flight()), (0, 6, 1));

    assert!(queue.push(id));
    queue.wait(&mut done, LONG);
    assert_eq!(done.iter().map(|c| c.token).collect::<Vec<_>>(), [2]);
    assert_eq!(queue.in_flight(), 0);
}

#[test]
fn wait_for_stuck_read_ends_at_timeout() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let Some((mut queue, file)) = queue_over(reader.into(), 4) else { return };
    queue.submit(1, read(file)).unwrap();
    let mut done = Vec::new();
    queue.wait(&mut done, Duration::from_millis(5));
    queue.wait(&mut done, Duration::ZERO);
    queue.poll(&mut done);
    assert_eq!((done.len(), queue.in_flight()), (0, 1));
    writer.write_all(&[7; 4096]).unwrap();
    queue.wait(&mut done, LONG);
    done[0].result.as_ref().unwrap();
}

#[test]
fn memory_of_stuck_operation_is_freed_only_after_its_end() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let Some((mut queue, file)) = queue_over(reader.into(), 4) else { return };
    let (part, guard) = guarded();
    queue.submit(1, Op::Read { file, offset: 0, parts: vec![part] }).unwrap();
    queue.poll(&mut Vec::new());
    queue.set_drop_timeout(Duration::from_millis(1));
    drop(queue);
    assert_eq!(
        Arc::strong_count(&guard),
        2,
        "the part was dropped while the kernel may write to it"
    );
    // The kernel writes now; a sanitizer would report it if the memory had been freed.
    writer.write_all(&[7; 4096]).unwrap();
    // The operation has ended. Its file, and so the file's lock, is released with its memory.
    let start = Instant::now();
    while Arc::strong_count(&guard) > 1 {
        assert!(start.elapsed() < LONG, "the memory is not freed");
        std::thread::yield_now();
    }
}

#[test]
fn broken_ring_hands_back_pending_operations() {
    let dir = TempDir::new().unwrap();
    let Some((mut queue, file)) = queue_over(data_file(&dir), 4) else { return };
    let (part, guard) = guarded();
    queue.submit(1, Op::Write { file, offset: 0, parts: vec![part] }).unwrap();
    queue.give_up(Errno::BADF);
    queue.submit(2, Op::Sync { file }).unwrap();
    assert_eq!((queue.in_flight(), queue.room()), (2, 2));
    let mut done = Vec::new();
    queue.wait(&mut done, LONG);
    assert_eq!(done.iter().map(|c| c.token).collect::<Vec<_>>(), [1, 2]);
    for completion in done.drain(..) {
        let fault = completion.result.unwrap_err();
        assert_eq!((fault.kind, fault.errno), (FaultKind::Other, Errno::BADF.raw_os_error()));
    }
    queue.poll(&mut done);
    assert!(done.is_empty());
    assert_eq!(Arc::strong_count(&guard), 1);
    // The entry is still in the ring, and the kernel must not find it when the queue is dropped.
    assert_eq!(ring::queued(&mut queue.ring), 1);
    drop(queue);
    assert_eq!(guard[0], 0);
}

#[test]
fn queue_depth_is_clamped() {
    let dir = TempDir::new().unwrap();
    let Some((queue, _)) = queue_over(data_file(&dir), 0) else { return };
    assert_eq!(queue.room(), 1);
    drop(queue);
    let fd = rustix::fs::open(dir.path().join("a"), rustix::fs::OFlags::RDWR, 0.into()).unwrap();
    let Some((queue, _)) = queue_over(fd, usize::MAX) else { return };
    assert!(queue.room() >= 1024 && queue.room() <= 1 << 20, "room={}", queue.room());
}

/// A loop device that ends in the middle of a transfer; detached when dropped.
pub(super) struct TruncatedDevice(pub(super) String);

impl TruncatedDevice {
    pub(super) fn new(bytes: u64, image: &std::path::Path) -> Result<TruncatedDevice, String> {
        let args = ["--find", "--show", "--sizelimit", &bytes.to_string()];
        let done =
            Command::new("losetup").args(args).arg(image).output().map_err(|e| e.to_string())?;
        if !done.status.success() {
            return Err(String::from_utf8_lossy(&done.stderr).trim().to_owned());
        }
        Ok(TruncatedDevice(String::from_utf8_lossy(&done.stdout).trim().to_owned()))
    }
}

impl Drop for TruncatedDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn transfer_past_end_of_device_is_short() {
    const LEN: usize = 64 << 10;
    let dir = TempDir::new().unwrap();
    let image = dir.path().join("image");
    std::fs::write(&image, vec![7; LEN]).unwrap();
    let device = match TruncatedDevice::new(8192, &image) {
        Ok(device) => device,
        Err(why) => return eprintln!("skipped: no loop device: {why}"),
    };
    let file = std::fs::File::options().read(true).write(true).open(&device.0).unwrap();
    crate::create::set_direct(&file.try_clone().unwrap().into(), true).unwrap();
    let Some((mut queue, file)) = queue_over_bytes(file.into(), LEN as u64, 4) else { return };
    let parts = || vec![AlignedBuf::new(LEN).unwrap().into_part()];
    queue.submit(1, Op::Read { file, offset: 0, parts: parts() }).unwrap();
    queue.submit(2, Op::Write { file, offset: 0, parts: parts() }).unwrap();
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.wait(&mut done, LONG);
    }
    for completion in done {
        let fault = completion.result.expect_err("short");
        assert_eq!(fault.kind, FaultKind::Short, "{fault}");
        assert!(fault.detail.contains("moved=8192 wanted=65536"), "{fault}");
    }
}
