//! Bytes of an object that lie in a client's memory, with the checksums that the client sent.
//!
//! Invariant: what is published has these checksums, made of the copy: a client may give the put up
//! meanwhile, and write other bytes there.

use pagelith_io::fused::Copier;
use pagelith_layouts::checksum::Checksums;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::dram::arena::ArenaMemory;
use pagelith_transport::shown::Shown;

use crate::rpc::verify;
use crate::state::frame_access::Unpublished;

/// Where an object's bytes are shown, and the checksums of its blocks, as the store has them.
#[derive(Debug)]
pub(crate) struct Vouched {
    shown: Shown,
    sums: Checksums,
}

impl Vouched {
    pub fn new(shown: Shown, sums: Checksums) -> Vouched {
        Vouched { shown, sums }
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.shown.length()
    }

    /// Copy them, and add the checksums of the copy to `sums`. Whether the copy is what was vouched for.
    pub fn copy(
        &self,
        to: &Unpublished,
        memory: &ArenaMemory,
        copier: &mut Copier,
        sums: &mut Checksums,
    ) -> bool {
        to.fill_with(memory, |to| verify::copy_whole_and_checksum(to, &self.shown, copier, sums))
            && (*sums == self.sums || mutant::on(Mutant::ShownUnchecked))
    }
}
