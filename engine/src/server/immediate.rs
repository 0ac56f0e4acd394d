//! Requests that are answered immediately from memory.

use pagelith_layouts::wire::outcome::{EventItem, OutcomeHead};
use pagelith_layouts::wire::request::{RequestBody, Verb};

use super::Server;
use super::op_outcome::OpOutcome;
use crate::api::error::{Error, ErrorKind};
use crate::api::request::Options;
use crate::state::event_log;
use crate::state::session_io::recency;
use crate::state::shared::Shared;
use crate::store::stats;

impl Server {
    /// Events from number `from` on, as many as fit into one outcome. Events of namespaces that the
    /// peer may not read are left out.
    pub(crate) fn events(&self, from: u64) -> OpOutcome {
        let params = self.link.params();
        let room = params.control_bytes_max as usize - OutcomeHead::BYTES;
        let most = (room / EventItem::BYTES).min(event_log::PIECE);
        let Some(since) = self.ctx.shared().lock().events.since_number(from, most) else {
            let detail = "the store keeps no events: its setting events.max is 0";
            return OpOutcome::failed(Verb::Events, Error::new(ErrorKind::Incompatible, detail));
        };
        OpOutcome::events(&since, |event| {
            event.namespace().is_none_or(|namespace| params.rights.may_receive_events(namespace))
        })
    }
}

/// The outcome of a request that needs only memory.
pub(crate) fn outcome_from_memory(
    shared: &Shared,
    body: &RequestBody<'_>,
    options: &Options,
) -> OpOutcome {
    let at = recency(shared, options);
    match body {
        RequestBody::Exists(keys) => {
            OpOutcome::bits(Verb::Exists, crate::read::exists::exists(shared, keys.iter(), at))
        }
        RequestBody::ExistsPrefix(keys) => {
            let found = crate::read::exists::prefix(shared, keys.iter(), at);
            OpOutcome::number(Verb::ExistsPrefix, found as u64)
        }
        RequestBody::Stats => {
            let stats = stats::of(shared);
            OpOutcome::text(serde_json::to_string(&stats).unwrap_or_default())
        }
        body => OpOutcome::number(body.verb(), 0),
    }
}
