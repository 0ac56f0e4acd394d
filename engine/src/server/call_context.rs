//! How the requests of a client are treated.

use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_layouts::wire::request::Terms;
use pagelith_mutants::{self as mutant, Mutant};

use super::Server;
use crate::api::request::Options;
use crate::store::session::begin_request;
use crate::write::put::Came;

/// Most requests of a client that are remembered, so that what it asks for under one of them counts as equally recent.
const REQUESTS_MAX: usize = 1024;

/// How an operation is to be treated.
#[derive(Clone, Copy)]
pub(crate) struct CallContext {
    pub options: Options,
    pub deadline: Mono,
    /// Whose put it is, if it is one.
    pub origin: Came,
}

impl Server {
    pub(crate) fn call_context(&mut self, terms: Terms) -> CallContext {
        let origin = match terms.of_store {
            true => Came::OfStore(self.ctx.shared().removals.quiet()),
            false => Came::Put,
        };
        if terms.of_store && !mutant::on(Mutant::PeersAskOn) {
            // What stores ask their peers goes no further, or two that are each other's would never end.
            self.ctx.session.io.desk = None;
        }
        let timeout = (terms.deadline_ms > 0).then(|| Duration::from_millis(terms.deadline_ms.into()));
        // Clients count theirs up: one that is newer than all is not looked for among them.
        let asked = terms.request <= self.newest_request;
        let youngest_first = asked.then_some(&self.requests).into_iter().flatten().rev();
        let known = youngest_first.filter(|(theirs, _)| *theirs == terms.request).map(|(_, own)| *own).next();
        let request = match (terms.request, known) {
            // All of it is one request, however many batches it becomes here.
            (0, _) => begin_request(self.ctx.shared()),
            (_, Some(own)) => own,
            (theirs, None) => {
                let own = begin_request(self.ctx.shared());
                if self.requests.len() >= REQUESTS_MAX {
                    self.requests.pop_front();
                }
                self.requests.push_back((theirs, own));
                self.newest_request = self.newest_request.max(theirs);
                own
            }
        };
        // The longest that the store would take by itself is the longest that a peer may ask for.
        let shared = self.ctx.shared();
        let timeout = timeout.map(|t| t.min(shared.config.deadline()));
        let options = Options { request: Some(request), depth: terms.depth, timeout, wait: None };
        CallContext { options, deadline: shared.deadline(timeout), origin }
    }
}
