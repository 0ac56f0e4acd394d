//! Which objects are here, or at a peer: for a client of a store that has peers.

use pagelith_layouts::ids::OpId;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::request::Verb;

use super::answer::Answered;
use super::{Manner, World};

/// A look under way.
pub(crate) struct LookOp {
    pub verb: Verb,
    found: Option<Vec<bool>>,
}

impl LookOp {
    /// Look here, and ask the peers for what is not.
    pub fn begin(world: &mut World, keys: &[ObjectKey], verb: Verb, manner: &Manner, id: OpId) -> LookOp {
        let ticket = world.session.submit_exists(keys, manner.options);
        world.batches.insert(ticket, id);
        LookOp { verb, found: None }
    }

    /// All have answered, or will not.
    pub fn done(&mut self, found: Vec<bool>) {
        self.found = Some(found);
    }

    /// The outcome, once it is there.
    pub fn advance(&mut self) -> Option<Answered> {
        let found = self.found.take()?;
        Some(match self.verb {
            Verb::ExistsPrefix => {
                Answered::number(self.verb, found.iter().take_while(|here| **here).count() as u64)
            }
            verb => Answered::bits(verb, found),
        })
    }
}
