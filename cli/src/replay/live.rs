//! The store that a replay drives: this process's own, or another process's that it is attached to.

use std::time::Duration;

use anyhow::{Context, bail};
use pagelith::attach::Attached;
use pagelith::layouts::key::ObjectKey;
use pagelith::{
    Done, ErrorKind, FlushReport, Get, GetDone, Options, PagesFound, PagesQuery, PutDone, PutGroup, Request,
    Session, Store, Ticket,
};
use serde_json::Value;

/// How long the store may do nothing at all, busy or silent, before the replay gives up. Twice the longest
/// default deadline of the store, so that the store's own error comes first.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// An open store and this thread's way into it.
pub(crate) enum Live {
    /// This process's own.
    Own { session: Box<Session>, store: Store },
    /// Another process's.
    Attached(Attached),
}

/// What a store counts that a report needs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) bytes_to_device: u64,
    pub(super) dram_peak_bytes: u64,
    pub(super) groups_dropped: u64,
}

impl Live {
    pub(super) fn begin_request(&self) -> Request {
        match self {
            Live::Own { store, .. } => store.begin_request(),
            Live::Attached(attached) => attached.begin_request(),
        }
    }

    pub(super) fn exists_prefix(&self, keys: &[ObjectKey], options: Options) -> pagelith::Result<usize> {
        match self {
            Live::Own { store, .. } => Ok(store.exists_prefix(keys, options)),
            Live::Attached(attached) => attached.exists_prefix(keys, options),
        }
    }

    pub(super) fn exists_batch(&self, keys: &[ObjectKey], options: Options) -> pagelith::Result<Vec<bool>> {
        match self {
            Live::Own { store, .. } => Ok(store.exists_batch(keys, options)),
            Live::Attached(attached) => attached.exists_batch(keys, options),
        }
    }

    pub(super) fn exists_groups(
        &self,
        query: &PagesQuery<'_>,
        options: Options,
    ) -> pagelith::Result<PagesFound> {
        match self {
            Live::Own { store, .. } => store.exists_groups(query, options),
            Live::Attached(attached) => attached.exists_groups(query, options),
        }
    }

    pub(super) fn get(&mut self, gets: Vec<Get>, options: Options) -> anyhow::Result<Vec<GetDone>> {
        match self {
            Live::Own { session, .. } => {
                let ticket = session.submit_get(gets, options);
                match wait(session, ticket)? {
                    Done::Get(done) => Ok(done),
                    _ => bail!("a get was answered with something else"),
                }
            }
            Live::Attached(attached) => Ok(attached.get(gets, options)),
        }
    }

    pub(super) fn put(&mut self, groups: Vec<PutGroup>, options: Options) -> anyhow::Result<Vec<PutDone>> {
        match self {
            Live::Own { session, .. } => {
                let ticket = session.submit_put(groups, options);
                match wait(session, ticket)? {
                    Done::Put(done) => Ok(done),
                    _ => bail!("a put was answered with something else"),
                }
            }
            Live::Attached(attached) => Ok(attached.put(groups, options)),
        }
    }

    pub(super) fn flush(&self) -> pagelith::Result<FlushReport> {
        match self {
            Live::Own { store, .. } => store.flush(Options::default()),
            Live::Attached(attached) => attached.flush(Options::default()),
        }
    }

    /// What the store has counted; nothing of one that cannot be reached.
    pub(super) fn counted(&self) -> Counted {
        match self {
            Live::Own { store, .. } => {
                let stats = store.stats();
                Counted {
                    bytes_to_device: stats.bytes_to_device,
                    dram_peak_bytes: stats.dram_peak_bytes,
                    groups_dropped: stats.groups_dropped,
                }
            }
            Live::Attached(attached) => {
                let text = attached.stats(Options::default()).unwrap_or_default();
                let stats: Value = serde_json::from_str(&text).unwrap_or_default();
                let number = |name: &str| stats[name].as_u64().unwrap_or(0);
                Counted {
                    bytes_to_device: number("bytes_to_device"),
                    dram_peak_bytes: number("dram_peak_bytes"),
                    groups_dropped: number("groups_dropped"),
                }
            }
        }
    }

    /// Close it, if it is this process's own.
    pub(super) fn close(self) -> pagelith::Result<()> {
        match self {
            Live::Own { session, store } => {
                drop(session);
                store.close().map(|_| ())
            }
            Live::Attached(_) => Ok(()),
        }
    }

    /// Whether what went wrong is that another process could not be reached: it costs misses, and the replay goes on.
    pub(super) fn is_out_of_reach(&self, error: &pagelith::Error) -> bool {
        matches!(self, Live::Attached(_)) && error.kind == ErrorKind::Unavailable
    }
}

pub(super) fn wait(session: &mut Session, ticket: Ticket) -> anyhow::Result<Done> {
    session.wait(ticket, PATIENCE).with_context(|| format!("no answer waited_s={}", PATIENCE.as_secs()))
}
