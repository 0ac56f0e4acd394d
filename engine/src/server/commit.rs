//! Commits of groups that a client began.

use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::outcome::GroupState;
use pagelith_layouts::wire::request::Verb;

use super::answer::Answered;
use super::{Manner, World};
use crate::api::error::Result;
use crate::api::outcome::{PutDone, PutOutcome};
use crate::state::shared::Shared;
use crate::write::groups::JoinedGroup;

/// A commit under way.
pub(crate) struct CommitOp {
    joined: JoinedGroup,
    outcome: Option<Result<PutOutcome>>,
}

impl CommitOp {
    pub fn begin(world: &mut World, joined: JoinedGroup, manner: Manner, id: OpId) -> CommitOp {
        let ticket = world.session.submit_commit(joined.id(), manner.options);
        world.batches.insert(ticket, id);
        CommitOp { joined, outcome: None }
    }

    /// The store has committed it, or has not.
    pub fn done(&mut self, shared: &Shared, done: Vec<PutDone>) {
        self.outcome = Some(self.joined.commit_outcome(shared, done));
    }

    /// The outcome, once it is there.
    pub fn advance(&mut self) -> Option<Answered> {
        let state = match self.outcome.take()? {
            Ok(PutOutcome::Stored) => GroupState::Stored,
            Ok(PutOutcome::AlreadyPresent) => GroupState::AlreadyPresent,
            Ok(PutOutcome::Waiting) => GroupState::Waiting,
            Ok(PutOutcome::Refused) => GroupState::Refused,
            Err(error) => return Some(Answered::failed(Verb::Commit, error)),
        };
        Some(Answered::number(Verb::Commit, state as u64))
    }
}
