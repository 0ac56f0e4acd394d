//! A disk that kills its own process at a point of [`POINTS`]: wraps the real disk.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagelith::io::disk::{Completion, Disk, DiskFacts, FileId, Op, Queue};
use pagelith::io::fault::IoFault;

use super::kill_points::{ObservedOp, OpKind, POINTS, Phase, Point};

/// Where to die: at the nth time that a point is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KillPoint {
    /// Index into [`POINTS`].
    pub point: usize,
    /// From 1.
    pub nth: u32,
}

/// State so far.
#[derive(Debug)]
struct Watch {
    aim: KillPoint,
    left: u32,
    opening: bool,
    names: HashMap<FileId, String>,
    dirty: HashSet<FileId>,
    records: bool,
    tombstones: bool,
    reinserted: bool,
}

/// The disk.
pub struct KillDisk {
    inner: Arc<dyn Disk>,
    watch: Arc<Mutex<Watch>>,
}

impl KillDisk {
    /// Around `inner`.
    pub fn new(inner: Arc<dyn Disk>, aim: KillPoint) -> KillDisk {
        let watch = Watch {
            aim,
            left: aim.nth,
            opening: true,
            names: HashMap::new(),
            dirty: HashSet::new(),
            records: false,
            tombstones: false,
            reinserted: false,
        };
        KillDisk { inner, watch: Arc::new(Mutex::new(watch)) }
    }

    /// Call this once the store is open.
    pub fn opened(&self) -> impl Fn() + use<> {
        let watch = self.watch.clone();
        move || lock(&watch).opening = false
    }

    fn watched<T>(&self, what: OpKind, act: impl FnOnce() -> T) -> T {
        let reached = lock(&self.watch).reaches(&ObservedOp { what, ..ObservedOp::default() });
        die_if(reached == Some(Phase::Before));
        let result = act();
        die_if(reached.is_some());
        result
    }
}

fn lock(watch: &Mutex<Watch>) -> MutexGuard<'_, Watch> {
    watch.lock().unwrap_or_else(PoisonError::into_inner)
}

fn die_if(now: bool) {
    if now {
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

impl Watch {
    fn point(&self) -> &'static Point {
        &POINTS[self.aim.point]
    }

    /// The phase in which to die, if this is the operation.
    fn reaches(&mut self, seen: &ObservedOp) -> Option<Phase> {
        let (_, meant, phase) = self.point();
        if self.left == 0 || !meant(seen) {
            return None;
        }
        self.left -= 1;
        (self.left == 0).then_some(*phase)
    }

    fn seen(&self, op: &Op) -> ObservedOp {
        let (Op::Read { file, .. } | Op::Write { file, .. } | Op::Sync { file }) = op;
        ObservedOp {
            what: OpKind::of(op, self.names.get(file).map_or("", String::as_str)),
            by_flusher: std::thread::current().name() == Some("pagelith-flusher"),
            opening: self.opening,
            records: self.records,
            tombstones: self.tombstones,
            reinserted: self.reinserted,
            dirty: self.dirty.contains(file),
        }
    }

    /// An operation completed.
    fn ended(&mut self, op: &Op) {
        let seen = self.seen(op);
        match (op, seen.what) {
            (Op::Write { file, .. }, what) => {
                self.dirty.insert(*file);
                if let OpKind::Segment(written) = what {
                    self.records |= !written.footer;
                    self.tombstones |= written.tombstones;
                    self.reinserted |= written.reinserted;
                }
            }
            (Op::Sync { file }, what) => {
                self.dirty.remove(file);
                match what {
                    OpKind::SyncSegments => (self.records, self.tombstones) = (false, false),
                    OpKind::SyncManifest(_) => self.reinserted = false,
                    _ => {}
                }
            }
            (Op::Read { .. }, _) => {}
        }
    }
}

impl Disk for KillDisk {
    fn facts(&self) -> DiskFacts {
        self.inner.facts()
    }
    fn dirs(&self) -> usize {
        self.inner.dirs()
    }
    fn dir_name(&self, dir: usize) -> String {
        self.inner.dir_name(dir)
    }
    fn list(&self, dir: usize) -> Result<Vec<(String, u64)>, IoFault> {
        self.inner.list(dir)
    }
    fn create(&self, dir: usize, name: &str, len: u64) -> Result<FileId, IoFault> {
        let made = self.watched(OpKind::Create, || self.inner.create(dir, name, len))?;
        lock(&self.watch).names.insert(made, name.to_owned());
        Ok(made)
    }
    fn open(&self, dir: usize, name: &str) -> Result<(FileId, u64), IoFault> {
        let opened = self.inner.open(dir, name)?;
        lock(&self.watch).names.insert(opened.0, name.to_owned());
        Ok(opened)
    }
    fn remove(&self, dir: usize, name: &str) -> Result<(), IoFault> {
        self.watched(OpKind::of_removal(name), || self.inner.remove(dir, name))
    }
    fn check_names(&self) -> Result<(), IoFault> {
        self.inner.check_names()
    }
    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>, IoFault> {
        let (inner, watch) = (self.inner.queue(depth)?, self.watch.clone());
        Ok(Box::new(KillQueue { inner, watch, after: None, in_flight: false }))
    }
}

struct KillQueue {
    inner: Box<dyn Queue>,
    watch: Arc<Mutex<Watch>>,
    /// Die when this operation has completed.
    after: Option<u64>,
    /// Die as soon as the kernel has the submitted operation.
    in_flight: bool,
}

impl KillQueue {
    fn handed_back(&mut self, done: &[Completion]) {
        die_if(self.in_flight || done.iter().any(|c| Some(c.token) == self.after));
        let mut watch = lock(&self.watch);
        done.iter().filter(|c| c.result.is_ok()).for_each(|c| watch.ended(&c.op));
    }
}

impl Queue for KillQueue {
    fn room(&self) -> usize {
        self.inner.room()
    }
    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
    fn submit(&mut self, token: u64, op: Op) -> Result<(), Op> {
        if self.inner.room() > 0 {
            let mut watch = lock(&self.watch);
            let seen = watch.seen(&op);
            let reached = watch.reaches(&seen);
            drop(watch);
            die_if(reached == Some(Phase::Before));
            self.in_flight |= reached == Some(Phase::InFlight);
            if reached == Some(Phase::After) {
                self.after = Some(token);
            }
        }
        self.inner.submit(token, op)
    }
    fn poll(&mut self, done: &mut Vec<Completion>) {
        let before = done.len();
        self.inner.poll(done);
        self.handed_back(&done[before..]);
    }
    fn wait(&mut self, done: &mut Vec<Completion>, timeout: Duration) {
        let before = done.len();
        // Do not wait for an operation in flight if that phase is the point.
        let timeout = if self.in_flight { Duration::ZERO } else { timeout };
        self.inner.wait(done, timeout);
        self.handed_back(&done[before..]);
    }
}
