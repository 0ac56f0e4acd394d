//! Payload of an object in a client's shared memory, with the checksums that the client sent.
//!
//! Invariant: a published object has these checksums, computed from the copy. The client may
//! abandon the put meanwhile and write other bytes to that memory.

use pagelith_io::hashed_copy::Copier;
use pagelith_layouts::checksum::Checksums;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::dram::arena::ArenaMemory;
use pagelith_transport::shown::ShmRef;

use crate::rpc::verify;
use crate::state::frame_access::UnpublishedExtent;

/// A reference to an object's bytes in shared memory, and the checksums of its blocks in the
/// store's format.
#[derive(Debug)]
pub(crate) struct ClientPayload {
    shm_ref: ShmRef,
    sums: Checksums,
}

impl ClientPayload {
    pub fn new(shm_ref: ShmRef, sums: Checksums) -> ClientPayload {
        ClientPayload { shm_ref, sums }
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.shm_ref.length()
    }

    /// Copy the bytes, and add the checksums of the copy to `sums`. Returns whether they equal the
    /// client's checksums.
    pub fn copy(
        &self,
        to: &UnpublishedExtent,
        memory: &ArenaMemory,
        copier: &mut Copier,
        sums: &mut Checksums,
    ) -> bool {
        to.fill_with(memory, |to| verify::copy_whole_and_checksum(to, &self.shm_ref, copier, sums))
            && (*sums == self.sums || mutant::on(Mutant::SharedPutUnverified))
    }
}
