//! Bytes of an object that lie in a client's memory, where the client vouches for them.
//!
//! Invariant: what is published has the checksums that the client sent, made of the copy: who shows bytes may have given up meanwhile, and
//! have others there.

use std::sync::Arc;

use pagelith_layouts::checksum::Checksum;
use pagelith_layouts::mutant::{self, Mutant};
use pagelith_tiers::dram::arena::ArenaMemory;
use pagelith_transport::shown::Shown;

use crate::frame_io::Unpublished;
use crate::remote::verify;

/// Where an object's bytes are shown, and the checksums of its blocks.
#[derive(Debug)]
pub(crate) struct Vouched {
    shown: Shown,
    sums: Vec<Checksum>,
}

impl Vouched {
    /// Of blocks as the store has them.
    pub fn new(shown: Shown, sums: Vec<Checksum>) -> Vouched {
        Vouched { shown, sums }
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.shown.length()
    }

    /// Copy them. Their checksums if the copy is what was vouched for.
    pub fn copy(&self, to: &Unpublished, memory: &Arc<ArenaMemory>) -> Option<Vec<Checksum>> {
        let sums = to.fill_with(memory, |to| verify::copied_whole(to, &self.shown));
        sums.filter(|sums| *sums == self.sums || mutant::on(Mutant::ShownUnchecked))
    }
}
