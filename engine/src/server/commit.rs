//! Commits of groups that a client began.

use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::request::Verb;

use super::op_outcome::OpOutcome;
use super::{CallContext, ServerCtx};
use crate::api::error::Result;
use crate::api::outcome::{CompletedPut, PutOutcome};
use crate::rpc::encode::group_state;
use crate::state::shared::Shared;
use crate::write::open_group::JoinedGroup;

/// A commit in progress.
pub(crate) struct CommitOp {
    joined: JoinedGroup,
    outcome: Option<Result<PutOutcome>>,
}

impl CommitOp {
    pub fn begin(
        ctx: &mut ServerCtx,
        joined: JoinedGroup,
        call: CallContext,
        id: OpId,
    ) -> CommitOp {
        let ticket = ctx.session.submit_commit(joined.id(), call.options);
        ctx.batches.insert(ticket, id);
        CommitOp { joined, outcome: None }
    }

    /// Takes the result of the store.
    pub fn done(&mut self, shared: &Shared, done: Vec<CompletedPut>) {
        self.outcome = Some(self.joined.commit_outcome(shared, done));
    }

    /// The outcome, if complete.
    pub fn advance(&mut self) -> Option<OpOutcome> {
        let state = match self.outcome.take()? {
            Ok(outcome) => group_state(outcome),
            Err(error) => return Some(OpOutcome::failed(Verb::Commit, error)),
        };
        Some(OpOutcome::number(Verb::Commit, state as u64))
    }
}
