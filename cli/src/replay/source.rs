//! The source of a replay's requests, and its progress.

use std::path::Path;

use crate::trace::{Trace, TraceRequest};
use crate::workload::{Chat, REQUESTS_DEFAULT};

enum Kind {
    Chat(Chat),
    Trace(Trace),
}

/// A stream of requests.
pub(crate) struct RequestSource {
    kind: Kind,
    name: String,
    given: u64,
    limit: Option<u64>,
}

impl RequestSource {
    /// The built-in workload of a seed.
    pub(crate) fn chat(seed: u64, requests: Option<u64>) -> RequestSource {
        let limit = Some(requests.unwrap_or(REQUESTS_DEFAULT));
        RequestSource {
            kind: Kind::Chat(Chat::new(seed)),
            name: "chat".to_owned(),
            given: 0,
            limit,
        }
    }

    /// A trace, or its first `requests` requests.
    pub(crate) fn trace(path: &Path, requests: Option<u64>) -> anyhow::Result<RequestSource> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(RequestSource { kind: Kind::Trace(Trace::open(path)?), name, given: 0, limit: requests })
    }

    /// Name of the source. Pages of different sources are different, even with equal ids.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// (done, total) in requests, or in bytes for a trace that is read to its end.
    pub(crate) fn progress(&self) -> (u64, u64) {
        match (&self.kind, self.limit) {
            (_, Some(limit)) => (self.given, limit),
            (Kind::Trace(trace), None) => trace.progress(),
            (Kind::Chat(_), None) => (self.given, u64::MAX),
        }
    }
}

impl Iterator for RequestSource {
    type Item = anyhow::Result<TraceRequest>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.limit.is_some_and(|limit| self.given >= limit) {
            return None;
        }
        self.given += 1;
        match &mut self.kind {
            Kind::Chat(chat) => Some(Ok(chat.next_request())),
            Kind::Trace(trace) => trace.next(),
        }
    }
}
