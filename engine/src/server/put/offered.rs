//! One object on its way into the store: where its bytes are, and whether they are those that were offered.

use pagelith_io::buffer::Part;
use pagelith_io::fused::Stores;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksums};
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::ssd::read::Verifier;
use pagelith_transport::shown::Shown;

use super::super::answer::Verdict;
use crate::rpc::verify;
use crate::state::reserve::{Arrived, Arriving};
use crate::write::put::client_memory::ClientPayload;

/// One object to be put.
pub(crate) struct Offered {
    pub key: ObjectKey,
    pub length: u64,
    /// Of its blocks, as the client has them; empty for the store's own.
    pub sums: Checksums,
    /// Where they lie in the client's memory, if it shows them, with checksums.
    pub shown: Option<Shown>,
    pub memory: Memory,
    pub verdict: Option<Verdict>,
}

/// The memory that an object's bytes are in.
pub(crate) enum Memory {
    None,
    /// On their way; the link has it.
    Arriving(Arriving),
    /// Here, and what they should be.
    Whole(Arrived),
    /// Here, and something else.
    Wrong,
}

impl Offered {
    /// All of its bytes are here, or shown: note whether they are those that were offered.
    pub fn arrived(&mut self, mut parts: Vec<Part>, shown: Option<&Shown>, block_bytes: u32) {
        let Memory::Arriving(arriving) = std::mem::replace(&mut self.memory, Memory::None) else { return };
        let all = 0..self.length;
        let sums = match (shown, &mut parts[..]) {
            (Some(shown), parts) => verify::copied(parts, &all, shown, Stores::PastCache),
            (None, parts) => verify::sums(parts, &all),
        };
        let part = parts.pop();
        let right = |sums: &Checksums| match &part {
            _ if self.sums.is_empty() => shown.is_none(),
            _ if block_bytes == BLOCK_BYTES => *sums == self.sums,
            // Of blocks of another length.
            Some(part) => {
                let mut verifier = Verifier::new(self.sums.iter().copied(), 0, self.length, block_bytes);
                verifier.update(part.bytes()).is_ok() && verifier.is_complete()
            }
            None => false,
        };
        self.memory = match (sums.filter(right), part) {
            (Some(sums), Some(part)) => Memory::Whole(arriving.arrived(vec![part], sums)),
            _ => Memory::Wrong,
        };
    }

    /// What it is put with, if it is shown in blocks as the store has them.
    pub fn vouched(&mut self) -> Option<ClientPayload> {
        Some(ClientPayload::new(self.shown.take()?, std::mem::take(&mut self.sums)))
    }

    /// It, if it has arrived and is right.
    pub fn take(&mut self) -> Option<Arrived> {
        match std::mem::replace(&mut self.memory, Memory::None) {
            Memory::Whole(arrived) => Some(arrived),
            Memory::None | Memory::Arriving(_) | Memory::Wrong => None,
        }
    }
}
