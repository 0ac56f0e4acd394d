//! Objects to be stored, by the location of their bytes.

use pagelith_layouts::key::ObjectKey;

use super::client_memory::ClientPayload;
use crate::api::request::{PutGroup, Source};
use crate::state::reserve::FilledReservation;

/// The bytes of an object to be stored.
#[derive(Debug)]
pub(crate) enum PutPayload {
    /// In the caller's memory.
    Caller(Source),
    /// In the arena, in a reservation: received over a link.
    Reserved(FilledReservation),
    /// In memory that a client shares.
    ClientMemory(ClientPayload),
}

impl PutPayload {
    /// Length in bytes.
    pub fn length(&self) -> u64 {
        match self {
            PutPayload::Caller(source) => source.len(),
            PutPayload::Reserved(filled) => filled.length(),
            PutPayload::ClientMemory(payload) => payload.length(),
        }
    }

    /// Whether the bytes are in the arena.
    pub fn is_in_arena(&self) -> bool {
        match self {
            PutPayload::Reserved(_) => true,
            PutPayload::Caller(_) | PutPayload::ClientMemory(_) => false,
        }
    }

    /// Take the reservation, if the bytes are in one. Nothing is left of them here then.
    pub fn take_reserved(&mut self) -> Option<FilledReservation> {
        if !self.is_in_arena() {
            return None;
        }
        match std::mem::replace(self, PutPayload::Caller(Source::of(Vec::new()))) {
            PutPayload::Reserved(filled) => Some(filled),
            PutPayload::Caller(_) | PutPayload::ClientMemory(_) => None,
        }
    }

    /// The caller's memory, empty if the bytes are elsewhere.
    pub fn into_source(self) -> Source {
        match self {
            PutPayload::Caller(source) => source,
            PutPayload::Reserved(_) | PutPayload::ClientMemory(_) => Source::of(Vec::new()),
        }
    }
}

/// An object to be stored.
#[derive(Debug)]
pub(crate) struct PayloadObject {
    pub key: ObjectKey,
    pub payload: PutPayload,
}

/// As [`PutGroup`], with objects whose bytes may be outside the caller's memory.
#[derive(Debug)]
pub(crate) struct PayloadGroup {
    pub objects: Vec<PayloadObject>,
    pub base: Option<ObjectKey>,
}

impl From<PutGroup> for PayloadGroup {
    fn from(group: PutGroup) -> PayloadGroup {
        let objects = group
            .objects
            .into_iter()
            .map(|put| PayloadObject { key: put.key, payload: PutPayload::Caller(put.source) });
        PayloadGroup { objects: objects.collect(), base: group.base }
    }
}
