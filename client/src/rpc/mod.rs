//! The remote tier: the stores of peers, below DRAM and SSD. A get that misses in this store is
//! sent to the peer that owns the key's page. A put is sent to that peer too, in the background.
//!
//! - Each session has its own link to each peer (`pool`), and so has the task that writes to
//!   peers (`background::peer_writer`).
//! - Bytes from a peer are verified in their destination before the caller gets `Hit` (`verify`).
//! - All peers are notified of removals and clears. Until all have answered, they keep no objects
//!   that stores send each other (`background::peer_removals`).
//! - A peer that does not respond costs misses: after three failures it gets no requests for a
//!   while.

mod breaker;
pub mod call;
mod capacity;
pub mod client;
pub mod connections;
mod decode;
pub mod encode;
pub mod exists;
mod owners;
pub mod pool;
#[cfg(test)]
mod pull_test;
pub mod remote_get;
pub mod removal_fence;
pub mod scatter;
pub mod verify;

use pagelith_io::signal::Signal;
use pagelith_io::sync::{Arc, Mutex, PoisonError};
use pagelith_layouts::key::ObjectKey;
use pagelith_transport::dial::Dial;

use self::breaker::Breaker;
use self::owners::{Owner, owner_of};
use crate::api::error::{Error, Result};

pub use call::{ControlReply, PayloadFn, Response};

/// A store process that holds pages for this one.
#[derive(Clone)]
pub struct Peer {
    /// Its name, the same at every store that shares it. The pages that it owns depend on the name.
    pub name: String,
    /// Its share of the pages, relative to the weights of the other peers; above 0.
    pub weight: f64,
    /// Puts go to this peer while it is reachable, whichever peer owns the page, and gets try it
    /// before the owner: for example, a store on this host. At most one peer may be preferred. A
    /// store that shares the other peers but does not prefer this one finds none of these puts.
    pub preferred: bool,
    /// Connects to it.
    pub dial: Arc<dyn Dial>,
}

/// The peers of a store.
pub struct Peers {
    pub owners: Vec<Owner>,
    preferred: Option<usize>,
    pub dials: Vec<Arc<dyn Dial>>,
    breakers: Vec<Mutex<Breaker>>,
    /// Wakes the peer writer.
    pub writer_signal: Signal,
}

impl Peers {
    /// Requires unique names, weights above 0 and at most one preferred peer.
    pub fn new(peers: Vec<Peer>) -> Result<Peers> {
        for (i, peer) in peers.iter().enumerate() {
            let Peer { name, weight, .. } = peer;
            if !(weight.is_finite() && *weight > 0.0) {
                return Err(Error::invalid(format!(
                    "peer weight must be above 0 name={name} weight={weight}"
                )));
            }
            if peers[..i].iter().any(|other| other.name == *name) {
                return Err(Error::invalid(format!("peer name is not unique name={name}")));
            }
        }
        let preferred = peers.iter().position(|peer| peer.preferred);
        if let Some(second) = peers.iter().filter(|peer| peer.preferred).nth(1) {
            return Err(Error::invalid(format!("two peers are preferred name={}", second.name)));
        }
        let breakers = peers.iter().map(|_| Mutex::new(Breaker::default())).collect();
        let (owners, dials) = peers
            .into_iter()
            .map(|peer| (Owner { name: peer.name, weight: peer.weight }, peer.dial))
            .unzip();
        Ok(Peers { owners, preferred, dials, breakers, writer_signal: Signal::default() })
    }

    /// The peer that owns the key's page.
    pub fn owner(&self, key: &ObjectKey) -> Option<usize> {
        owner_of(&self.owners, key)
    }

    /// The preferred peer, which precedes the owner of a page.
    pub fn preferred(&self) -> Option<usize> {
        self.preferred
    }

    /// The peer that gets the first request for the key.
    pub fn first_choice(&self, key: &ObjectKey) -> Option<usize> {
        self.preferred.or_else(|| self.owner(key))
    }

    /// The peer that gets the second request, if the first does not have the object.
    pub fn second_choice(&self, key: &ObjectKey) -> Option<usize> {
        let preferred = self.preferred?;
        self.owner(key).filter(|owner| *owner != preferred)
    }

    /// Read or update the circuit breaker of a peer.
    pub fn breaker<R>(&self, peer: usize, with: impl FnOnce(&mut Breaker) -> R) -> Option<R> {
        let breaker = self.breakers.get(peer)?;
        Some(with(&mut breaker.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}
