//! Calls that are several requests.

use pagelith_io::clock::{Clock, Mono};

use super::Client;
use crate::api::request::{Options, RequestEpoch};
use crate::rpc::remote_get::CallOptions;

/// A call that is several requests: they have one request number, and one deadline ends them all.
pub(super) struct SplitCall<'a> {
    clock: &'a dyn Clock,
    options: Options,
    deadline: Mono,
}

impl Client {
    /// Begin a call of several requests.
    pub(super) fn split_call(&self, options: Options) -> SplitCall<'_> {
        let CallOptions { request, deadline, .. } = self.call_options(&options);
        let options = Options { request: Some(RequestEpoch(request)), ..options };
        SplitCall { clock: &*self.clock, options, deadline }
    }
}

impl SplitCall<'_> {
    /// The options of the next request, whose first key is `pages` after that of the call.
    pub(super) fn next(&self, pages: usize) -> Options {
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        let depth = self.options.depth.saturating_add(pages);
        Options { depth, timeout: Some(self.deadline.since(self.clock.now())), ..self.options }
    }

    /// Whether the time of the call has passed.
    pub(super) fn is_late(&self) -> bool {
        self.clock.now() >= self.deadline
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;

    use pagelith_io::sync::Arc;

    use super::*;
    use crate::client::stand_ins::{Down, TestClock};

    #[test]
    fn requests_of_one_call_share_its_number_and_deadline() {
        let clock = Arc::new(TestClock::default());
        let seconds = Duration::from_secs;
        let client =
            Client::with_link(Arc::new(Down), "store".to_owned(), clock.clone(), seconds(9), None)
                .expect("a client");
        let call = client.split_call(Options::default().depth(3));
        let first = call.next(0);
        clock.0.store(4, Relaxed);
        let second = call.next(7);
        assert!(first.request.is_some());
        assert_eq!(second.request, first.request);
        assert_eq!([first.timeout, second.timeout], [Some(seconds(9)), Some(seconds(5))]);
        assert_eq!([first.depth, second.depth], [3, 10]);
        clock.0.store(9, Relaxed);
        assert_eq!((call.next(0).timeout, call.is_late()), (Some(Duration::ZERO), true));
    }
}
