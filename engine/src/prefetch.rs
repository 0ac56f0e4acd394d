//! What will be asked for soon is read from SSD into DRAM before it is: a hint of who has looked a prefix up and does not need it
//! yet.
//!
//! - A hint promises nothing. What finds no room, is not read in time or changes meanwhile stays where it is, and is read when it is
//!   asked for.
//! - Bytes go from the device straight into memory of the arena that was set aside for them, are verified there, and are kept there
//!   ([`crate::promote`]).
//! - One task reads ([`reader`]), with a queue of its own to the device. It begins with the first hint: who gives none has no thread more.

mod reader;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::runtime::Join;
use pagelith_io::signal::Signal;
use pagelith_io::sync::{Mutex, MutexGuard, PoisonError};
use pagelith_layouts::align::align_up;
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::Recency;
use rustc_hash::FxHashSet;

use self::reader::Reader;
use crate::batch::Options;
use crate::core::Core;
use crate::session::recency;
use crate::shared::Shared;
use crate::steps::PageSteps;
use crate::visibility::Sight;

/// Hints that are looked up under the lock at a time.
const LOOK_AT_ONCE: usize = 32;
/// Hints may wait for this share of the arena: what is read ahead pushes out what was.
const SHARE: u64 = 4;

/// An object to be read.
#[derive(Clone, Copy, Debug)]
struct Hint {
    key: ObjectKey,
    /// Length in bytes.
    length: u64,
    at: Recency,
    /// It is of no use after that.
    deadline: Mono,
}

/// What is to be read ahead.
#[derive(Default)]
struct Queue {
    hints: VecDeque<Hint>,
    /// Keys that wait or are being read.
    known: FxHashSet<ObjectKey>,
    /// Bytes of the arena that they will take.
    bytes: u64,
}

impl Queue {
    /// A hint is done with.
    fn forget(&mut self, hint: &Hint) {
        if self.known.remove(&hint.key) {
            self.bytes -= align_up(hint.length);
        }
    }
}

/// Hints, and the task that follows them.
#[derive(Default)]
pub(crate) struct Prefetch {
    queue: Mutex<Queue>,
    /// Wakes the task.
    work: Signal,
    task: Mutex<Option<Box<dyn Join>>>,
}

impl Prefetch {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Objects that wait, or are being read.
    pub fn waiting(&self) -> u64 {
        self.queue().known.len() as u64
    }

    /// Wait for the end of the task, of a store that is closed; false if it did not end in time.
    pub fn stop(&self, timeout: Duration) -> bool {
        self.work.raise();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        task.is_none_or(|task| task.join(timeout))
    }
}

/// See [`crate::Store::prefetch`].
pub(crate) fn prefetch(
    shared: &Arc<Shared>,
    keys: impl Iterator<Item = ObjectKey>,
    options: &Options,
) -> usize {
    // An arena that is only a write buffer keeps nothing.
    if shared.volume.is_none() || shared.config.dram_bytes() == 0 || shared.check_open().is_err() {
        return 0;
    }
    let (at, deadline) = (recency(shared, options), shared.deadline(options.timeout));
    let mut steps = PageSteps::default();
    let mut hints = Vec::new();
    let mut some = Vec::with_capacity(LOOK_AT_ONCE);
    let mut look = |some: &mut Vec<(ObjectKey, u32)>| {
        let core = shared.lock();
        for (key, step) in some.drain(..) {
            if let Some(length) = on_ssd_alone(shared, &core, &key) {
                let at = Recency { depth: at.depth.saturating_add(step), ..at };
                hints.push(Hint { key, length, at, deadline });
            }
        }
    };
    for key in keys {
        some.push((key, steps.step(&key)));
        if some.len() == LOOK_AT_ONCE {
            look(&mut some);
        }
    }
    look(&mut some);
    let taken = take(shared, hints);
    if taken > 0 && begin(shared) {
        shared.prefetch.work.raise();
    }
    taken
}

/// The length of an object that is on SSD and not in DRAM, in bytes.
fn on_ssd_alone(shared: &Shared, core: &Core, key: &ObjectKey) -> Option<u64> {
    let generation = core.generation(key.namespace());
    let fingerprint = shared.fingerprint(key, generation);
    if core.find_memory(key, fingerprint, generation).is_some() {
        return None;
    }
    let seen = core.find_ssd(fingerprint).into_iter().find(|e| core.is_visible(e))?;
    Some(seen.length.into())
}

/// Take on as many of the `hints` as there may be; how many.
fn take(shared: &Shared, hints: Vec<Hint>) -> usize {
    let most = shared.config.arena_bytes() / SHARE;
    let mut queue = shared.prefetch.queue();
    let before = queue.hints.len();
    for hint in hints {
        let bytes = align_up(hint.length);
        // Whoever names the end of a prefix has named its front before.
        if queue.bytes + bytes > most {
            break;
        }
        if queue.known.insert(hint.key) {
            queue.bytes += bytes;
            queue.hints.push_back(hint);
        }
    }
    queue.hints.len() - before
}

/// See to it that there is a task; false if there can be none.
fn begin(shared: &Arc<Shared>) -> bool {
    let mut task = shared.prefetch.task.lock().unwrap_or_else(PoisonError::into_inner);
    if task.is_some() {
        return true;
    }
    // A store that ends has looked for the task already, or will once this is free.
    let begun = shared.check_open().and_then(|()| {
        let reader = Box::new(Reader::new(shared.clone())?);
        Ok(shared.env.runtime.spawn("pagelith-prefetch", reader, shared.prefetch.work.clone())?)
    });
    match begun {
        Ok(begun) => {
            *task = Some(begun);
            true
        }
        Err(error) => {
            tracing::warn!(%error, "nothing is read ahead");
            let mut queue = shared.prefetch.queue();
            let hints = std::mem::take(&mut queue.hints);
            hints.iter().for_each(|hint| queue.forget(hint));
            false
        }
    }
}
