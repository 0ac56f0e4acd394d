//! The open store that a replay drives: one of this process, or one that it is attached to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use pagelith::client::{self, Client};
use pagelith::transport::rdma::host::RdmaHost;
use pagelith::{
    CompletedBatch, CompletedGet, CompletedPut, ErrorKind, Get, Options, PageSession, PageStore,
    PutGroup, Session, Store, Ticket,
};
use serde_json::Value;

/// Maximum time without any progress, busy or silent, before the replay gives up. Twice the longest
/// default deadline of the store, so that the store's own error comes first.
pub(super) const STALL_MAX: Duration = Duration::from_secs(60);

/// An open store, and the session of this thread.
pub(crate) enum OpenTarget {
    /// A store of this process.
    Embedded { session: Box<Session>, store: Store },
    /// The store of another process.
    Attached { session: Box<client::Session>, client: Client },
}

/// The counters of a store that a report needs.
#[derive(Clone, Debug, Default)]
pub(super) struct StoreCounters {
    pub(super) bytes_to_device: u64,
    pub(super) dram_peak_bytes: u64,
    pub(super) groups_dropped: u64,
    /// Objects that lookups and gets did not find, by cause.
    pub(super) absent: BTreeMap<String, u64>,
}

impl OpenTarget {
    /// The RDMA devices, if bytes may move by RDMA.
    pub(super) fn rdma(&self) -> Option<&Arc<RdmaHost>> {
        match self {
            OpenTarget::Embedded { store, .. } => store.rdma(),
            OpenTarget::Attached { client, .. } => client.rdma(),
        }
    }

    pub(super) fn pages(&self) -> &dyn PageStore {
        match self {
            OpenTarget::Embedded { store, .. } => store,
            OpenTarget::Attached { client, .. } => client,
        }
    }

    fn session(&mut self) -> &mut dyn PageSession {
        match self {
            OpenTarget::Embedded { session, .. } => &mut **session,
            OpenTarget::Attached { session, .. } => &mut **session,
        }
    }

    pub(super) fn get(
        &mut self,
        gets: Vec<Get>,
        options: Options,
    ) -> anyhow::Result<Vec<CompletedGet>> {
        let session = self.session();
        let ticket = session.submit_get(gets, options);
        match wait(session, ticket)? {
            CompletedBatch::Get(done) => Ok(done),
            _ => bail!("a get returned another result"),
        }
    }

    pub(super) fn put(
        &mut self,
        groups: Vec<PutGroup>,
        options: Options,
    ) -> anyhow::Result<Vec<CompletedPut>> {
        let session = self.session();
        let ticket = session.submit_put(groups, options);
        match wait(session, ticket)? {
            CompletedBatch::Put(done) => Ok(done),
            _ => bail!("a put returned another result"),
        }
    }

    /// The counters of the store; zero if it is unreachable.
    pub(super) fn counters(&self) -> StoreCounters {
        let text = self.pages().stats(Options::default()).unwrap_or_default();
        let stats: Value = serde_json::from_str(&text).unwrap_or_default();
        let number = |name: &str| stats[name].as_u64().unwrap_or(0);
        let by_cause = |name: &str| serde_json::from_value(stats[name].clone()).unwrap_or_default();
        StoreCounters {
            bytes_to_device: number("bytes_to_device"),
            dram_peak_bytes: number("dram_peak_bytes"),
            groups_dropped: number("groups_dropped"),
            absent: sum_by_cause(["absent", "exists_absent"].map(by_cause)),
        }
    }

    /// Close it, if it is a store of this process.
    pub(super) fn close(self) -> pagelith::Result<()> {
        match self {
            OpenTarget::Embedded { session, store } => {
                drop(session);
                store.close().map(|_| ())
            }
            OpenTarget::Attached { .. } => Ok(()),
        }
    }

    /// Whether an error means that the store process is unreachable: that causes misses, and the
    /// replay continues.
    pub(super) fn is_unreachable(&self, error: &pagelith::Error) -> bool {
        matches!(self, OpenTarget::Attached { .. }) && error.kind == ErrorKind::Unavailable
    }
}

pub(super) fn wait(
    session: &mut dyn PageSession,
    ticket: Ticket,
) -> anyhow::Result<CompletedBatch> {
    session
        .wait(ticket, STALL_MAX)
        .with_context(|| format!("no result waited_s={}", STALL_MAX.as_secs()))
}

fn sum_by_cause(counts: [BTreeMap<String, u64>; 2]) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    for (cause, n) in counts.into_iter().flatten() {
        *sum.entry(cause).or_default() += n;
    }
    sum
}
