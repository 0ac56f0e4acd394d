//! Bytes of an object that lie in a client's memory, where the client vouches for them: by their checksums, or by its word that nobody
//! was told that the memory is theirs again.
//!
//! Invariant: what is published has the checksums that the client sent, made of the copy, or was copied before the client took its word
//! back: who shows bytes may have given up meanwhile, and have others there.

use std::sync::Arc;

use pagelith_io::fused::Copier;
use pagelith_io::shm::Claim;
use pagelith_layouts::checksum::Checksums;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::dram::arena::ArenaMemory;
use pagelith_transport::shown::Shown;

use crate::frame_io::Unpublished;
use crate::remote::verify;

/// How a client vouches for what it shows.
#[derive(Debug)]
pub(crate) enum Word {
    /// The checksums of its blocks, as the store has them.
    Sums(Checksums),
    /// It says so, until it takes that back.
    Steady(Arc<Claim>),
}

/// Where an object's bytes are shown, and what makes them believed.
#[derive(Debug)]
pub(crate) struct Vouched {
    shown: Shown,
    word: Word,
}

impl Vouched {
    pub fn new(shown: Shown, word: Word) -> Vouched {
        Vouched { shown, word }
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.shown.length()
    }

    /// Copy them, and their checksums behind those that are there. Whether the copy is what was vouched for, or will be once the
    /// [`Vouched::claim`] was asked.
    pub fn copy(
        &self,
        to: &Unpublished,
        memory: &ArenaMemory,
        copier: &mut Copier,
        sums: &mut Checksums,
    ) -> bool {
        let is_whole = to.fill_with(memory, |to| verify::copied_whole(to, &self.shown, copier, sums));
        is_whole
            && match &self.word {
                Word::Sums(sent) => sums == sent || mutant::on(Mutant::ShownUnchecked),
                Word::Steady(_) => true,
            }
    }

    /// What is to be asked behind the copy, before it is believed.
    pub fn claim(&self) -> Option<&Arc<Claim>> {
        match &self.word {
            Word::Sums(_) => None,
            Word::Steady(claim) => Some(claim),
        }
    }
}
