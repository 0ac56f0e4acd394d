//! What a client holds of the store beyond its operations: pins. They are of its connection, named by the client, and go
//! with it; what another connection holds has no name here.

use std::time::Duration;

use pagelith_io::sync::Arc;
use pagelith_layouts::wire::request::Ask;
use rustc_hash::FxHashMap;

use crate::error::{Error, Result};
use crate::pin::{self, Pin};
use crate::shared::Shared;

/// Most objects that a connection has pinned; what they are attached to counts too.
const PINNED_MAX: usize = 65_536;
/// Longest lease that a client gets: a lease outlives its connection, and nobody could end it before.
const LEASE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// What a connection holds.
#[derive(Default)]
pub(super) struct Held {
    pins: FxHashMap<u64, Pin>,
    rows: usize,
}

impl Held {
    /// Do what is asked; how many objects it was done with.
    pub fn answer(&mut self, shared: &Arc<Shared>, ask: &Ask<'_>) -> Result<u64> {
        shared.check_open()?;
        let objects = match ask {
            Ask::Pin(name, _) if self.pins.contains_key(name) => {
                return Err(Error::invalid(format!("a pin of this link has this name name={name}")));
            }
            Ask::Pin(name, keys) => {
                let pin = Pin::bounded(shared, keys.iter(), PINNED_MAX - self.rows)?;
                let pinned = pin.pinned();
                self.rows += pin.rows();
                if pinned > 0 {
                    self.pins.insert(*name, pin);
                }
                pinned
            }
            Ask::Unpin(name) => self.pins.remove(name).map_or(0, |pin| {
                self.rows -= pin.rows();
                pin.pinned()
            }),
            Ask::Lease(ms, keys) => {
                let duration = Duration::from_millis(*ms);
                if duration > LEASE_MAX {
                    let max = LEASE_MAX.as_millis();
                    return Err(Error::invalid(format!("a lease is too long ms={ms} max={max}")));
                }
                pin::lease_bounded(shared, keys.iter(), duration)?
            }
            ask => return Err(Error::invalid(format!("nothing to hold verb={:?}", ask.verb()))),
        };
        Ok(objects as u64)
    }

    /// The connection has ended.
    pub fn let_go(&mut self) {
        *self = Held::default();
    }
}
