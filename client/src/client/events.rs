//! Events of a store process, for an attached client.

use std::collections::VecDeque;

use pagelith_io::sync::PoisonError;
use pagelith_layouts::wire::request::RequestBody;

use super::Client;
use super::unflushed_puts::Instance;
use crate::api::error::Result;
use crate::api::events::{Event, Events};
use crate::api::request::Options;
use crate::rpc::ControlReply;
use crate::rpc::remote_get::no_link;

/// Position of this client in the store's events, and the events that it received but did not
/// return.
#[derive(Default)]
pub(crate) struct EventCursor {
    /// The process that sent the last events, and the number of the next event.
    position: Option<(Instance, u64)>,
    queued: VecDeque<Event>,
    lost: u64,
}

impl EventCursor {
    /// Count lost events. The caller looks up again what it wants to know, so events from before
    /// are lost too: applied afterwards, they would be out of order.
    fn lose(&mut self, events: u64) {
        if events > 0 {
            self.lost += events + self.queued.len() as u64;
            self.queued.clear();
        }
    }
}

impl Client {
    /// The events of the store since the last call, at most `most`. The first call starts the
    /// stream and returns none. Only events of namespaces that this client may read are returned. A
    /// restart of the store process counts as one lost event.
    ///
    /// The call ends at its timeout, however many events remain; later calls return the rest. One
    /// thread at a time.
    ///
    /// # Errors
    /// `Incompatible` if the store keeps no events (its setting `events.max`) or is of a version
    /// without events; `Unavailable` if it cannot be reached.
    pub fn take_events(&self, most: usize, options: Options) -> Result<Events> {
        let call = self.split_call(options);
        let mut cursor = self.event_cursor.lock().unwrap_or_else(PoisonError::into_inner);
        while cursor.queued.len() < most {
            let from = cursor.position.map_or(0, |(_, from)| from);
            let (ControlReply::Events(page), instance) =
                self.control(&RequestBody::Events(from), &call.next(0))?
            else {
                return Err(no_link());
            };
            if cursor.position.is_some_and(|(before, _)| before != instance) {
                // The numbers are of another process; so are the events of this page.
                cursor.position = None;
                cursor.lose(1);
            } else {
                cursor.position = Some((instance, page.next));
                cursor.lose(page.lost);
                cursor.queued.extend(page.events);
                // The store skips events that the client may not read, so more events may follow an
                // empty page.
                if page.next == from {
                    break;
                }
            }
            if call.is_late() {
                break;
            }
        }
        let most = most.min(cursor.queued.len());
        let events = cursor.queued.drain(..most).collect();
        Ok(Events { events, lost: std::mem::take(&mut cursor.lost) })
    }
}
