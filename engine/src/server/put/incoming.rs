//! An object offered by a put: the state of its bytes, and whether they match the offered
//! checksums.

use pagelith_io::buffer::Part;
use pagelith_io::hashed_copy::StoreKind;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksums};
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::ssd::read::Verifier;
use pagelith_transport::shown::Shown;

use super::super::op_outcome::ItemVerdict;
use crate::rpc::verify;
use crate::state::reserve::{ArenaReservation, FilledReservation};
use crate::write::put::client_memory::ClientPayload;

/// An offered object.
pub(crate) struct OfferedObject {
    pub key: ObjectKey,
    pub length: u64,
    /// Checksums of its blocks, from the client; empty if the store computes them.
    pub sums: Checksums,
    /// Reference to the bytes in client memory, if the client passes them by reference and sent
    /// checksums.
    pub shown: Option<Shown>,
    pub buffer: ObjectBuffer,
    pub verdict: Option<ItemVerdict>,
}

/// State of the object's bytes.
pub(crate) enum ObjectBuffer {
    None,
    /// Reserved in the arena; the link may write the bytes.
    Reserved(ArenaReservation),
    /// Arrived, and the checksums match.
    Verified(FilledReservation),
    /// Arrived, and the checksums differ.
    Mismatch,
}

impl OfferedObject {
    /// Takes the bytes that arrived in `parts`, or copies them from `shown`, and verifies them.
    pub fn receive(&mut self, mut parts: Vec<Part>, shown: Option<&Shown>, block_bytes: u32) {
        let ObjectBuffer::Reserved(reservation) =
            std::mem::replace(&mut self.buffer, ObjectBuffer::None)
        else {
            return;
        };
        let all = 0..self.length;
        let sums = match (shown, &mut parts[..]) {
            (Some(shown), parts) => {
                verify::copy_and_checksum(parts, &all, shown, StoreKind::PastCache)
            }
            (None, parts) => verify::block_checksums(parts, &all),
        };
        let part = parts.pop();
        let matches = |sums: &Checksums| match &part {
            _ if self.sums.is_empty() => shown.is_none(),
            _ if block_bytes == BLOCK_BYTES => *sums == self.sums,
            // The client's blocks have another length than the store's.
            Some(part) => {
                let mut verifier =
                    Verifier::new(self.sums.iter().copied(), 0, self.length, block_bytes);
                verifier.update(part.bytes()).is_ok() && verifier.is_complete()
            }
            None => false,
        };
        self.buffer = match (sums.filter(matches), part) {
            (Some(sums), Some(part)) => ObjectBuffer::Verified(reservation.fill(vec![part], sums)),
            _ => ObjectBuffer::Mismatch,
        };
    }

    /// The payload in client memory, if it is passed by reference in blocks of the store's length.
    pub fn client_payload(&mut self) -> Option<ClientPayload> {
        Some(ClientPayload::new(self.shown.take()?, std::mem::take(&mut self.sums)))
    }

    /// The reserved memory with its verified bytes.
    pub fn take(&mut self) -> Option<FilledReservation> {
        match std::mem::replace(&mut self.buffer, ObjectBuffer::None) {
            ObjectBuffer::Verified(filled) => Some(filled),
            ObjectBuffer::None | ObjectBuffer::Reserved(_) | ObjectBuffer::Mismatch => None,
        }
    }
}
