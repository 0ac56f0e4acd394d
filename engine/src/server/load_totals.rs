//! Bytes that operations of clients under way take, and outcomes that clients have not read: of all together, and of each client.
//!
//! Invariant: what is counted of all is the sum of what is counted of each client.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::sync::atomic::Ordering::Relaxed;

use pagelith_io::sync::{Arc, AtomicU64, Mutex, PoisonError};

use super::load::{ALL_BYTES_MAX, CLIENT_BYTES_MAX};
use crate::memory::pins::ClientName;

/// The counts of a store.
#[derive(Default)]
pub(crate) struct ServedBytes {
    all: AtomicU64,
    /// Of clients that have links.
    clients: Mutex<BTreeMap<ClientName, Weak<AtomicU64>>>,
}

impl ServedBytes {
    /// The count of a client, which all of its links share.
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

    /// Count so many bytes of a client, if there is room; `anyway` also if there is not.
    pub fn begin(&self, client: &AtomicU64, bytes: u64, anyway: bool) -> bool {
        let take = |count: &AtomicU64, most: u64| {
            let fits = |now: u64| (anyway || now + bytes <= most).then_some(now + bytes);
            count.fetch_update(Relaxed, Relaxed, fits).is_ok()
        };
        if !take(client, CLIENT_BYTES_MAX) {
            return false;
        }
        let is_there = take(&self.all, ALL_BYTES_MAX);
        if !is_there {
            client.fetch_sub(bytes, Relaxed);
        }
        is_there
    }

    /// Of a client so many bytes are counted where `before` were.
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
