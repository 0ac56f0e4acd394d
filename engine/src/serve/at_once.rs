//! Requests that are answered at once, from memory alone.

use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::greeting::Feature;
use pagelith_layouts::wire::outcome::{EventItem, OutcomeHead};
use pagelith_layouts::wire::request::{Ask, Verb};

use super::Server;
use super::answer::Answered;
use crate::batch::Options;
use crate::error::{Error, ErrorKind};
use crate::events;
use crate::session::recency;
use crate::shared::Shared;
use crate::stats::Counters;

impl Server {
    /// A client got these out of the arena by itself: they count as asked for, and as hits of this store's.
    pub(super) fn used(
        &self,
        bytes: u64,
        keys: impl ExactSizeIterator<Item = ObjectKey> + Clone,
        options: &Options,
    ) -> Answered {
        if self.link.facts().features & Feature::Catalog.bit() == 0 {
            let detail = "the store tells this process nothing of where its objects lie";
            return Answered::failed(Verb::Used, Error::new(ErrorKind::Incompatible, detail));
        }
        let (shared, tally) = (self.world.shared(), self.world.session.io.tally);
        let got = Counters { hits_memory: keys.len() as u64, bytes_memory: bytes, ..Counters::default() };
        shared.tallies.add(tally, &got);
        let here = crate::exists::exists(shared, keys, recency(shared, options));
        Answered::number(Verb::Used, here.iter().filter(|here| **here).count() as u64)
    }

    /// All that came and went, as much of it as fits into an outcome and the peer may hear of.
    pub(super) fn events(&self, from: u64) -> Answered {
        let facts = self.link.facts();
        let room = facts.control_bytes_max as usize - OutcomeHead::BYTES;
        let most = (room / EventItem::BYTES).min(events::PIECE);
        let Some(since) = self.world.shared().lock().events.since_number(from, most) else {
            let detail = "the store keeps no events: its setting events.max is 0";
            return Answered::failed(Verb::Events, Error::new(ErrorKind::Incompatible, detail));
        };
        Answered::events(&since, |event| {
            event.namespace().is_none_or(|namespace| facts.rights.may_hear(namespace))
        })
    }
}

/// Answer what memory alone can answer.
pub(super) fn answer_now(shared: &Shared, ask: &Ask<'_>, options: &Options) -> Answered {
    let at = recency(shared, options);
    match ask {
        Ask::Exists(keys) => Answered::bits(Verb::Exists, crate::exists::exists(shared, keys.iter(), at)),
        Ask::ExistsPrefix(keys) => {
            let found = crate::exists::prefix(shared, keys.iter(), at);
            Answered::number(Verb::ExistsPrefix, found as u64)
        }
        Ask::Stats => {
            let stats = crate::stats::Stats::of(shared);
            Answered::text(serde_json::to_string(&stats).unwrap_or_default())
        }
        ask => Answered::number(ask.verb(), 0),
    }
}
