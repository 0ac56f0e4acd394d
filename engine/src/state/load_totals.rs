//! Bytes of operations in progress and of unsent outcomes: the total, and the part of each client.
//!
//! Invariant: the total is the sum over all clients.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::sync::atomic::Ordering::Relaxed;

use pagelith_io::sync::{Arc, AtomicU64, Mutex, PoisonError};

use crate::memory::pins::ClientName;

/// Maximum number of bytes of all links of a store.
pub const ALL_BYTES_MAX: u64 = 128 << 20;
/// Maximum number of bytes of all links of a client. A client is a key, or a process if there are
/// no keys.
pub const CLIENT_BYTES_MAX: u64 = ALL_BYTES_MAX / 2;

/// The byte counters of a store.
#[derive(Default)]
pub(crate) struct LoadTotals {
    all: AtomicU64,
    /// The counters of connected clients.
    clients: Mutex<BTreeMap<ClientName, Weak<AtomicU64>>>,
}

impl LoadTotals {
    /// The counter of a client, shared by its links.
    pub fn client(&self, name: &ClientName) -> Arc<AtomicU64> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = clients.get(name).and_then(Weak::upgrade) {
            return count;
        }
        clients.retain(|_, count| count.strong_count() > 0);
        let count = Arc::new(AtomicU64::new(0));
        clients.insert(name.clone(), Arc::downgrade(&count));
        count
    }

    /// Counts `bytes` for a client if they fit, or regardless with `anyway`.
    pub fn begin(&self, client: &AtomicU64, bytes: u64, anyway: bool) -> bool {
        let take = |count: &AtomicU64, most: u64| {
            let fits = |now: u64| (anyway || now + bytes <= most).then_some(now + bytes);
            count.fetch_update(Relaxed, Relaxed, fits).is_ok()
        };
        if !take(client, CLIENT_BYTES_MAX) {
            return false;
        }
        let is_counted = take(&self.all, ALL_BYTES_MAX);
        if !is_counted {
            client.fetch_sub(bytes, Relaxed);
        }
        is_counted
    }

    /// Replaces `before` bytes of a client by `now` bytes.
    pub fn change(&self, client: &AtomicU64, before: u64, now: u64) {
        for count in [client, &self.all] {
            match now >= before {
                true => count.fetch_add(now - before, Relaxed),
                false => count.fetch_sub(before - now, Relaxed),
            };
        }
    }

    /// Bytes of all clients.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.all.load(Relaxed)
    }
}
