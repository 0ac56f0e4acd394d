//! The remote tier: peers' stores behind DRAM and SSD. What is not here is asked of the peer that owns its page; what is put
//! here goes to that peer too, in the background.
//!
//! - Each session has its own link to each peer ([`lines`]), and so has the task that writes ([`writer`]).
//! - Bytes that a peer sends are verified where they landed, before the caller hears `Hit` ([`verify`]).
//! - All peers are told of removals and clears, and hold meanwhile ([`telling`]).
//! - A peer that does not answer costs misses: after three failures it is not asked for a while.

pub(crate) mod call;
pub(crate) mod client;
pub(crate) mod connections;
mod decode;
pub(crate) mod exists;
pub(crate) mod pool;
pub(crate) mod remote_get;
pub(crate) mod removal_fence;
mod room;
pub(crate) mod scatter;
pub(crate) mod tail;
pub(crate) mod verify;

use pagelith_io::signal::Signal;
use pagelith_io::sync::{Arc, Mutex, PoisonError};
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::remote::breaker::Breaker;
use pagelith_tiers::remote::owners::{Owner, owner_of};
use pagelith_transport::dial::Dial;

use crate::api::error::{Error, Result};

pub(crate) use call::{Lend, Reply, Told};

/// A store process that holds pages for this one.
#[derive(Clone)]
pub struct Peer {
    /// Its name, the same at every store that shares it: which pages it owns hangs on it.
    pub name: String,
    /// Its share of the pages beside the others'; above 0.
    pub weight: f64,
    /// What is put here goes to it as long as it can be reached, whoever owns its page, and it is asked before that one: a store on this host,
    /// say. One of the peers at most. Who shares the others and does not prefer it finds nothing there.
    pub preferred: bool,
    /// How it is reached.
    pub dial: Arc<dyn Dial>,
}

/// The peers of a store.
pub(crate) struct Remote {
    pub owners: Vec<Owner>,
    preferred: Option<usize>,
    pub dials: Vec<Arc<dyn Dial>>,
    breakers: Vec<Mutex<Breaker>>,
    /// Wakes the task that writes.
    pub work: Signal,
}

impl Remote {
    /// Peers, each name once and each weight above 0, and one preferred at most.
    pub fn new(peers: Vec<Peer>) -> Result<Remote> {
        for (i, peer) in peers.iter().enumerate() {
            let Peer { name, weight, .. } = peer;
            if !(weight.is_finite() && *weight > 0.0) {
                return Err(Error::invalid(format!(
                    "a peer's weight is above 0 name={name} weight={weight}"
                )));
            }
            if peers[..i].iter().any(|other| other.name == *name) {
                return Err(Error::invalid(format!("a peer is named twice name={name}")));
            }
        }
        let preferred = peers.iter().position(|peer| peer.preferred);
        if let Some(second) = peers.iter().filter(|peer| peer.preferred).nth(1) {
            return Err(Error::invalid(format!("two peers are preferred name={}", second.name)));
        }
        let breakers = peers.iter().map(|_| Mutex::new(Breaker::default())).collect();
        let (owners, dials) =
            peers.into_iter().map(|peer| (Owner { name: peer.name, weight: peer.weight }, peer.dial)).unzip();
        Ok(Remote { owners, preferred, dials, breakers, work: Signal::default() })
    }

    /// The peer that owns the key's page.
    pub fn owner(&self, key: &ObjectKey) -> Option<usize> {
        owner_of(&self.owners, key)
    }

    /// The peer that is preferred to whoever owns a page.
    pub fn preferred(&self) -> Option<usize> {
        self.preferred
    }

    /// Who is asked for what lies on the key's page.
    pub fn asked(&self, key: &ObjectKey) -> Option<usize> {
        self.preferred.or_else(|| self.owner(key))
    }

    /// Who is asked for it then, if that one has it not.
    pub fn asked_next(&self, key: &ObjectKey) -> Option<usize> {
        let preferred = self.preferred?;
        self.owner(key).filter(|owner| *owner != preferred)
    }

    /// Look at, or change, what is known of a peer.
    pub fn breaker<R>(&self, peer: usize, with: impl FnOnce(&mut Breaker) -> R) -> Option<R> {
        let breaker = self.breakers.get(peer)?;
        Some(with(&mut breaker.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}
