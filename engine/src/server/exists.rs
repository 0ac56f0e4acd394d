//! Which objects are here, or at a peer: for a client of a store that has peers.

use pagelith_layouts::ids::OpId;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::request::Verb;

use super::op_outcome::OpOutcome;
use super::{CallContext, ServerCtx};

/// A look under way.
pub(crate) struct ExistsOp {
    pub verb: Verb,
    found: Option<Vec<bool>>,
}

impl ExistsOp {
    /// Look here, and ask the peers for what is not.
    pub fn begin(ctx: &mut ServerCtx, keys: &[ObjectKey], verb: Verb, call: &CallContext, id: OpId) -> ExistsOp {
        let ticket = ctx.session.submit_exists(keys, call.options);
        ctx.batches.insert(ticket, id);
        ExistsOp { verb, found: None }
    }

    /// All have answered, or will not.
    pub fn done(&mut self, found: Vec<bool>) {
        self.found = Some(found);
    }

    /// The outcome, once it is there.
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
