//! What came and went in a store process, for one that is attached to it.

use std::collections::VecDeque;

use pagelith_io::sync::PoisonError;
use pagelith_layouts::wire::request::Ask;

use super::Attached;
use super::instances::Instance;
use crate::api::error::Result;
use crate::api::events::{Event, Events};
use crate::api::request::Options;
use crate::rpc::Told;
use crate::rpc::remote_get::no_link;

/// How far this client has listened, and what it was told and has not handed on.
#[derive(Default)]
pub(crate) struct Listening {
    /// Which process told, and from where on it is asked next.
    at: Option<(Instance, u64)>,
    told: VecDeque<Event>,
    lost: u64,
}

impl Attached {
    /// What came and went in the store since this was called last, `most` events at most; since the first call, which brings
    /// none. Of namespaces that this client may read. A store process that was started again counts as an event that was lost.
    ///
    /// Takes no longer than its timeout, however much there is to be told: what is left comes with the next call. One thread at a
    /// time.
    ///
    /// # Errors
    /// `Incompatible` if the store keeps no events (its setting `events.max`), or is of a time when it told none; `Unavailable` if it
    /// cannot be reached.
    pub fn take_events(&self, most: usize, options: Options) -> Result<Events> {
        let deadline = self.manner(&options).deadline;
        let mut listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        while listening.told.len() < most {
            let from = listening.at.map_or(0, |(_, from)| from);
            let options = Options { timeout: Some(deadline.since(self.clock.now())), ..options };
            let (Told::Events(told), instance) = self.tell(&Ask::Events(from), &options)? else {
                return Err(no_link());
            };
            if listening.at.is_some_and(|(before, _)| before != instance) {
                // Another process's numbers: what it said is about something else.
                listening.at = None;
                listening.lost += 1;
            } else {
                listening.at = Some((instance, told.next));
                listening.lost += told.lost;
                listening.told.extend(told.events);
                // What it may not hear of is passed over, and there may be more behind it.
                if told.next == from {
                    break;
                }
            }
            if self.clock.now() >= deadline {
                break;
            }
        }
        let most = most.min(listening.told.len());
        let events = listening.told.drain(..most).collect();
        Ok(Events { events, lost: std::mem::take(&mut listening.lost) })
    }
}
