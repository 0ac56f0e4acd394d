//! An object of a put over a link: the state of its bytes, and whether they match the checksums
//! that were sent with it.

use pagelith_io::buffer::Part;
use pagelith_io::hashed_copy::CopyMode;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksums};
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::ssd::read::Verifier;
use pagelith_transport::shown::ShmRef;

use super::super::op_outcome::ItemVerdict;
use crate::rpc::verify;
use crate::state::reserve::{ArenaReservation, FilledReservation};
use crate::write::put::client_memory::ClientPayload;

/// An object of a put in progress.
pub(crate) struct IncomingObject {
    pub key: ObjectKey,
    pub length: u64,
    /// Checksums of its blocks, from the client; empty if the store computes them.
    pub sums: Checksums,
    pub bytes: IncomingBytes,
    pub verdict: Option<ItemVerdict>,
}

/// State of the object's bytes.
pub(crate) enum IncomingBytes {
    /// Only the client has them: they are pulled.
    AtClient,
    /// The client passes them by reference, and sent the checksums to verify a copy.
    InClientMemory(ShmRef),
    /// Memory in the arena is reserved; the link may write the bytes.
    Reserved(ArenaReservation),
    /// Arrived, and the checksums match.
    Verified(FilledReservation),
    /// Arrived, and the checksums differ.
    Mismatch,
    /// Moved to the store, or not needed.
    Released,
}

impl IncomingObject {
    /// Takes the bytes that arrived in `parts`, or copies them from `shown`, and verifies them.
    pub fn receive(&mut self, mut parts: Vec<Part>, shown: Option<&ShmRef>, block_bytes: u32) {
        let reservation = match std::mem::replace(&mut self.bytes, IncomingBytes::Mismatch) {
            IncomingBytes::Reserved(reservation) => reservation,
            other => {
                self.bytes = other;
                return;
            }
        };
        let all = 0..self.length;
        let sums = match (shown, &mut parts[..]) {
            (Some(shown), parts) => {
                verify::copy_and_checksum(parts, &all, shown, CopyMode::NonTemporal)
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
        if let (Some(sums), Some(part)) = (sums.filter(matches), part) {
            self.bytes = IncomingBytes::Verified(reservation.fill(vec![part], sums));
        }
    }

    /// Whether the bytes are passed by reference.
    pub fn is_in_client_memory(&self) -> bool {
        matches!(self.bytes, IncomingBytes::InClientMemory(_))
    }

    /// Takes the payload in client memory, with the checksums, if it is passed by reference.
    pub fn take_client_payload(&mut self) -> Option<ClientPayload> {
        match std::mem::replace(&mut self.bytes, IncomingBytes::Released) {
            IncomingBytes::InClientMemory(shown) => {
                Some(ClientPayload::new(shown, std::mem::take(&mut self.sums)))
            }
            _ => None,
        }
    }

    /// Takes the reserved memory with its verified bytes.
    pub fn take_verified(&mut self) -> Option<FilledReservation> {
        match std::mem::replace(&mut self.bytes, IncomingBytes::Released) {
            IncomingBytes::Verified(filled) => Some(filled),
            _ => None,
        }
    }
}
