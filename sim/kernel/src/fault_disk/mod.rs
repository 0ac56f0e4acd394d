//! An in-memory FUSE file system, with faults controlled by a test. The store meets them
//! through the real kernel, io_uring and O_DIRECT.
//!
//! Names are durable at once; only bytes of files can be lost. No process may write during a power
//! cut.

mod image;
mod rules;
mod serve;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::{BackgroundSession, Config, MountOption};

pub use image::{Cut, Image};
pub use rules::{Fault, FileOp, Rule};

use crate::killed::content::Rng;

/// State of the file system.
#[derive(Debug)]
struct State {
    /// By file number; files without a name are still open.
    files: Vec<(String, Image)>,
    names: BTreeMap<String, usize>,
    rules: Vec<Rule>,
    rng: Rng,
    injected: u64,
}

/// The mounted file system. Unmounted when dropped.
pub struct FaultDisk {
    state: Arc<Mutex<State>>,
    path: PathBuf,
    session: Option<BackgroundSession>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FaultDisk {
    /// Mounts an empty file system at `path`, which must exist; `Err` says why that is not
    /// possible.
    pub fn mount(path: &Path, seed: u64) -> Result<FaultDisk, String> {
        if !Path::new("/dev/fuse").exists() {
            return Err("no /dev/fuse".into());
        }
        let state = State {
            files: Vec::new(),
            names: BTreeMap::new(),
            rules: Vec::new(),
            rng: Rng(seed ^ 0xd15c),
            injected: 0,
        };
        let state = Arc::new(Mutex::new(state));
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("pagelith-faults".into())];
        let session = fuser::spawn_mount(serve::Server(state.clone()), path, &config)
            .map_err(|e| format!("mounting FUSE: {e}"))?;
        Ok(FaultDisk { state, path: path.to_owned(), session: Some(session) })
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the rules.
    pub fn set(&self, rules: &[Rule]) {
        lock(&self.state).rules = rules.to_vec();
    }

    /// Number of faults since the last call.
    pub fn take_injected(&self) -> u64 {
        std::mem::take(&mut lock(&self.state).injected)
    }

    /// Loses unsynced bytes. No process may be writing. Returns the number of blocks that were
    /// unsynced.
    pub fn power_cut(&self, cut: Cut) -> u64 {
        let state = &mut *lock(&self.state);
        let rng = &mut state.rng;
        state.files.iter_mut().map(|(_, image)| image.cut(cut, rng)).sum()
    }

    /// Flips one random bit of a file at rest, in `0..end` or in the whole file.
    pub fn flip_at_rest(&self, name: &str, end: Option<usize>) {
        let state = &mut *lock(&self.state);
        let Some((_, image)) = state.names.get(name).and_then(|n| state.files.get_mut(*n)) else {
            return;
        };
        let bits = end.unwrap_or(usize::MAX).min(image.len()) as u64 * 8;
        let bit = state.rng.below(bits.max(1));
        if let Some(byte) = image.at_rest((bit / 8) as usize) {
            *byte ^= 1 << (bit % 8);
            state.injected += 1;
        }
    }
}

impl Drop for FaultDisk {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let _ = session.umount_and_join();
        }
    }
}
