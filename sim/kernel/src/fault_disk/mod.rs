//! A file system in memory behind FUSE whose faults a test commands: the store meets them through the real kernel,
//! io_uring and O_DIRECT.
//!
//! Names are durable at once; only the bytes of files can be lost. A power cut needs that nobody writes.

mod image;
mod rules;
mod serve;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::{BackgroundSession, Config, MountOption};

pub use image::{Cut, Image};
pub use rules::{Fault, On, Rule};

use crate::killed::content::Rng;

/// What the file system knows.
#[derive(Debug)]
struct State {
    /// By number; those without a name are still open somewhere.
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
    /// An empty one, mounted at `path`, which must exist; `Err` says why there can be none here.
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

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// From here on, these rules.
    pub fn set(&self, rules: &[Rule]) {
        lock(&self.state).rules = rules.to_vec();
    }

    /// Faults that operations met since the last time this was asked.
    pub fn take_injected(&self) -> u64 {
        std::mem::take(&mut lock(&self.state).injected)
    }

    /// Take what was not synced. Nobody may be writing. Returns how many blocks were at stake.
    pub fn power_cut(&self, cut: Cut) -> u64 {
        let state = &mut *lock(&self.state);
        let rng = &mut state.rng;
        state.files.iter_mut().map(|(_, image)| image.cut(cut, rng)).sum()
    }

    /// Flip one random bit of a file at rest, anywhere in `0..end` (or in all of it).
    pub fn flip_at_rest(&self, name: &str, end: Option<usize>) {
        let state = &mut *lock(&self.state);
        let Some((_, image)) = state.names.get(name).and_then(|n| state.files.get_mut(*n)) else { return };
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
