//! The store or client under test, and its calls.

use std::sync::Arc;
use std::time::Duration;

use pagelith::client::Client;
use pagelith::{
    CompletedBatch, CompletedGet, CompletedPut, Get, Options, PageStore, PutGroup, Session, Store,
};

use super::machine::Machine;

/// Longer than any deadline.
pub(super) const FOREVER: Duration = Duration::from_secs(60);

/// The store or client under test.
pub enum StoreHandle {
    /// A client of a store process, and that store's number.
    Attached(Arc<Client>, Machine, usize),
    /// A store with peers, and its number.
    Front(Arc<Store>, Box<Session>, usize),
}

impl StoreHandle {
    pub(super) fn links(&self) -> u64 {
        match self {
            StoreHandle::Attached(_, machine, _) => machine.dialled(),
            StoreHandle::Front(..) => 0,
        }
    }

    /// Whether the store passes bytes by reference to it.
    pub(super) fn shares_memory(&self) -> bool {
        match self {
            StoreHandle::Attached(_, machine, _) => machine.shares_memory(),
            StoreHandle::Front(..) => false,
        }
    }

    /// The store that answers.
    pub(super) fn store(&self) -> usize {
        match self {
            StoreHandle::Attached(_, _, number) | StoreHandle::Front(_, _, number) => *number,
        }
    }

    pub(super) fn put(&mut self, groups: Vec<PutGroup>, options: Options) -> Vec<CompletedPut> {
        match self {
            StoreHandle::Attached(client, ..) => client.put(groups, options),
            StoreHandle::Front(_, session, _) => {
                let ticket = session.submit_put(groups, options);
                match session.wait(ticket, FOREVER) {
                    Some(CompletedBatch::Put(done)) => done,
                    _ => Vec::new(),
                }
            }
        }
    }

    /// `meanwhile` runs while the get is in progress.
    pub(super) fn get(
        &mut self,
        gets: Vec<Get>,
        options: Options,
        meanwhile: impl FnOnce(&Store),
    ) -> Vec<CompletedGet> {
        match self {
            StoreHandle::Attached(client, ..) => client.get(gets, options),
            StoreHandle::Front(store, session, _) => {
                let ticket = session.submit_get(gets, options);
                meanwhile(store);
                match session.wait(ticket, FOREVER) {
                    Some(CompletedBatch::Get(done)) => done,
                    _ => Vec::new(),
                }
            }
        }
    }

    /// The store as any caller uses it.
    pub(super) fn pages(&self) -> &dyn PageStore {
        match self {
            StoreHandle::Attached(client, ..) => &**client,
            StoreHandle::Front(store, ..) => &**store,
        }
    }
}
