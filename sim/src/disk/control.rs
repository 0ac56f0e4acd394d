//! Control operations: list, create, open, remove. Durable when they return.

use pagelith_io::clock::Clock;
use pagelith_io::disk::FileId;
use pagelith_io::fault::{FaultKind, FaultOp, IoFault};

use super::fault_injector::StruckOp;
use super::file::SimFile;
use super::plan::fault;
use super::state::{OpenFile, State};
use super::table::{FileKey, FileNo, path};

impl State {
    /// Checks made before an operation looks at files: a dead process, a wrong directory, an
    /// injected fault.
    fn admit(&mut self, process: u64, op: FaultOp, key: &FileKey) -> Result<(), IoFault> {
        self.require_alive(process, op, &path(key))?;
        if key.0 >= self.dirs {
            let detail = format!("no such directory dir={} dirs={}", key.0, self.dirs);
            return Err(fault(FaultKind::Invalid, op, &path(key), 0, &detail));
        }
        match self.pending.draw(op) {
            None => Ok(()),
            Some(kind) => {
                self.log_control(op, key, 0, Some(kind));
                Err(fault(kind, op, &path(key), 0, "injected"))
            }
        }
    }

    fn log_control(&mut self, op: FaultOp, key: &FileKey, len: u64, fault: Option<FaultKind>) {
        self.record(op, path(key).into(), 0, len, (fault, None));
    }

    /// Refuses a process that was killed or stopped.
    pub(crate) fn require_alive(
        &self,
        process: u64,
        op: FaultOp,
        path: &str,
    ) -> Result<(), IoFault> {
        if self.alive.contains(&process) && !self.stopped() {
            return Ok(());
        }
        Err(fault(FaultKind::Device, op, path, 0, "the simulated process is dead"))
    }

    /// Names and lengths in a directory, sorted by name.
    pub(crate) fn list(&mut self, process: u64, dir: usize) -> Result<Vec<(String, u64)>, IoFault> {
        let key = (dir, String::new());
        self.admit(process, FaultOp::List, &key)?;
        Ok(self.files.list(dir))
    }

    /// Creates, allocates and locks a file.
    pub(crate) fn create(
        &mut self,
        process: u64,
        key: FileKey,
        len: u64,
    ) -> Result<FileId, IoFault> {
        const OP: FaultOp = FaultOp::Create;
        self.admit(process, OP, &key)?;
        if key.1.is_empty() || key.1.contains('/') {
            return Err(fault(FaultKind::Invalid, OP, &path(&key), 0, "not a file name"));
        }
        if self.files.find(key.0, &key.1).is_some() {
            return Err(fault(FaultKind::Exists, OP, &path(&key), 0, ""));
        }
        if let Some(fault) = self.strikes.draw(OP, &key.1, false) {
            self.record(OP, path(&key).into(), 0, len, (Some(FaultKind::NoSpace), Some(fault)));
            let struck = StruckOp { fault, op: OP, dir: key.0, name: &key.1, offset: 0, len };
            self.strikes.log(self.changes, self.clock.now(), struck, None, true);
            return Err(super::plan::fault(FaultKind::NoSpace, OP, &path(&key), 0, "struck"));
        }
        let used: u64 = self.files.iter().map(|(_, f)| f.file.len).sum();
        if used.checked_add(len).is_none_or(|sum| sum > self.capacity) {
            let detail = format!(
                "the simulated device is full capacity={} used={used} len={len}",
                self.capacity
            );
            return Err(fault(FaultKind::NoSpace, OP, &path(&key), 0, &detail));
        }
        let file = self.files.add(&key, SimFile::new(len));
        self.track_previous();
        self.log_control(OP, &key, len, None);
        Ok(self.number(process, file))
    }

    /// Opens and locks a file.
    pub(crate) fn open(&mut self, process: u64, key: FileKey) -> Result<(FileId, u64), IoFault> {
        const OP: FaultOp = FaultOp::Open;
        self.admit(process, OP, &key)?;
        let Some(file) = self.files.find(key.0, &key.1) else {
            return Err(fault(FaultKind::NotFound, OP, &path(&key), 0, ""));
        };
        let len = self.files.get(file).map_or(0, |f| f.file.len);
        self.require_unlocked(OP, &key, None)?;
        self.log_control(OP, &key, 0, None);
        Ok((self.number(process, file), len))
    }

    /// Removes a file. If this process has it open, its number becomes invalid: later operations on
    /// it are `Invalid`, those in flight `NotFound`. A file that another process holds is `Locked`:
    /// Linux would unlink it, and a store that removes a file that another process writes has a bug
    /// that must not pass here.
    pub(crate) fn remove(&mut self, process: u64, key: FileKey) -> Result<(), IoFault> {
        const OP: FaultOp = FaultOp::Remove;
        self.admit(process, OP, &key)?;
        self.require_unlocked(OP, &key, Some(process))?;
        if let Some(file) = self.files.find(key.0, &key.1) {
            self.files.remove(file);
            self.log_control(OP, &key, 0, None);
            self.open.retain(|_, o| o.file != file);
        }
        Ok(())
    }

    /// Whether every file that the process has open still has its name. Also works after the stop
    /// point: the sync before it was the last change, and its caller gets a reply.
    pub(crate) fn check_names(&self, process: u64) -> Result<(), IoFault> {
        let own = self.open.values().filter(|o| o.process == process);
        let gone = own.filter_map(|o| self.files.get(o.file)).find(|f| f.unlinked);
        gone.map_or(Ok(()), |f| {
            Err(fault(FaultKind::Gone, FaultOp::Sync, &f.path, 0, "the file was removed"))
        })
    }

    fn require_unlocked(
        &self,
        op: FaultOp,
        key: &FileKey,
        except: Option<u64>,
    ) -> Result<(), IoFault> {
        let file = self.files.find(key.0, &key.1);
        match self.open.values().find(|o| Some(o.file) == file && Some(o.process) != except) {
            None => Ok(()),
            Some(holder) => {
                let detail = format!("held by a live process process={}", holder.process);
                Err(fault(FaultKind::Locked, op, &path(key), 0, &detail))
            }
        }
    }

    /// A file number that this disk has never used, so that a number from before a crash is
    /// invalid.
    fn number(&mut self, process: u64, file: FileNo) -> FileId {
        let id = FileId(self.next_file);
        self.next_file += 1;
        self.open.insert(id, OpenFile { file, process });
        id
    }
}
