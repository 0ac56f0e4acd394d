//! Existence checks of a store that has peers: local objects, and objects of the peers.

use pagelith_layouts::ids::OpId;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::request::Verb;

use super::op_outcome::OpOutcome;
use super::{CallContext, ServerCtx};

/// An existence check in progress.
pub(crate) struct ExistsOp {
    pub verb: Verb,
    found: Option<Vec<bool>>,
}

impl ExistsOp {
    /// Looks up the keys locally and asks the peers for the others.
    pub fn begin(
        ctx: &mut ServerCtx,
        keys: &[ObjectKey],
        verb: Verb,
        call: &CallContext,
        id: OpId,
    ) -> ExistsOp {
        let ticket = ctx.session.submit_exists(keys, call.options);
        ctx.batches.insert(ticket, id);
        ExistsOp { verb, found: None }
    }

    /// Takes the result, once all peers have answered or failed.
    pub fn done(&mut self, found: Vec<bool>) {
        self.found = Some(found);
    }

    /// The outcome, if complete.
    pub fn advance(&mut self) -> Option<OpOutcome> {
        let found = self.found.take()?;
        Some(match self.verb {
            Verb::ExistsPrefix => {
                OpOutcome::number(self.verb, found.iter().take_while(|here| **here).count() as u64)
            }
            verb => OpOutcome::bits(verb, found),
        })
    }
}
