//! Options, deadline and origin of each request of a client.

use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_layouts::wire::request::RequestOptions;
use pagelith_mutants::{self as mutant, Mutant};

use super::Server;
use crate::api::request::Options;
use crate::state::put_spec::PutOrigin;
use crate::state::session_io::begin_request;

/// Maximum number of the client's request numbers that are remembered. Batches with the same
/// request number get the same recency epoch.
const REQUESTS_MAX: usize = 1024;

/// Options, deadline and origin of an operation.
#[derive(Clone, Copy)]
pub(crate) struct CallContext {
    pub options: Options,
    pub deadline: Mono,
    /// Origin of the objects, if the operation is a put.
    pub origin: PutOrigin,
}

impl Server {
    pub(crate) fn call_context(&mut self, options: RequestOptions) -> CallContext {
        let origin = match options.from_store {
            true => {
                PutOrigin::Offered(self.ctx.shared().remote.removal_fence.version_without_removal())
            }
            false => PutOrigin::Put,
        };
        if options.from_store && !mutant::on(Mutant::PeerRequestForwarded) {
            // A request of another store is not forwarded to peers: two stores that are peers of
            // each other would forward it forever.
            self.ctx.session.io.connections = None;
        }
        let timeout =
            (options.deadline_ms > 0).then(|| Duration::from_millis(options.deadline_ms.into()));
        // Clients count their requests up: a number above `newest_request` needs no search.
        let may_be_known = options.request <= self.newest_request;
        let newest_first = may_be_known.then_some(&self.requests).into_iter().flatten().rev();
        let known = newest_first
            .filter(|(number, _)| *number == options.request)
            .map(|(_, epoch)| *epoch)
            .next();
        let request = match (options.request, known) {
            // Without a request number the batches of this operation share a new epoch.
            (0, _) => begin_request(self.ctx.shared()),
            (_, Some(epoch)) => epoch,
            (number, None) => {
                let epoch = begin_request(self.ctx.shared());
                if self.requests.len() >= REQUESTS_MAX {
                    self.requests.pop_front();
                }
                self.requests.push_back((number, epoch));
                self.newest_request = self.newest_request.max(number);
                epoch
            }
        };
        // A client may shorten the store's own deadline, but not extend it.
        let shared = self.ctx.shared();
        let timeout = timeout.map(|t| t.min(shared.config.deadline()));
        let options = Options::default()
            .request(request)
            .depth(options.depth)
            .timeout(timeout)
            .prefill_tokens_per_s(options.prefill_tokens_per_s);
        CallContext { options, deadline: shared.deadline(timeout), origin }
    }
}
