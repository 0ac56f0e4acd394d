//! Links that no call uses, kept for later calls.

use std::collections::VecDeque;
use std::time::Duration;

use pagelith_io::clock::Mono;

use crate::rpc::connections::PeerConnections;

/// Connections that were not used for so long are dropped: the store has closed their links by then
/// (`LinkLimits::dead_after`), and their sockets and rings would stay for the life of the process.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// The connections that no call uses.
pub(super) struct IdleConnections {
    /// A stack, with the times of the last uses, which ascend.
    connections: VecDeque<(PeerConnections, Mono)>,
    /// How often memory was shared. Links that were established earlier do not have all regions.
    share_count: u64,
}

impl IdleConnections {
    pub fn new(connections: PeerConnections, now: Mono) -> IdleConnections {
        IdleConnections { connections: [(connections, now)].into(), share_count: 0 }
    }

    /// Take the connections that were used last, if there are any, and the share count.
    pub fn take(&mut self) -> (Option<PeerConnections>, u64) {
        (self.connections.pop_back().map(|(connections, _)| connections), self.share_count)
    }

    /// Keep connections that were taken at this share count, unless regions that they lack were
    /// shared meanwhile. Returns connections that are dropped instead: these, or at most one that
    /// is idle for too long, so that no call closes many links.
    pub fn put_back(
        &mut self,
        connections: PeerConnections,
        share_count: u64,
        now: Mono,
    ) -> Option<PeerConnections> {
        if self.share_count != share_count {
            return Some(connections);
        }
        self.connections.push_back((connections, now));
        let is_stale =
            |(_, last_used): &&(PeerConnections, Mono)| now.since(*last_used) >= IDLE_MAX;
        self.connections.front().filter(is_stale)?;
        self.connections.pop_front().map(|(connections, _)| connections)
    }

    /// Memory was shared, and a link hands over its regions when it is established.
    pub fn drop_all(&mut self) {
        self.share_count += 1;
        self.connections.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use pagelith_io::sync::Arc;

    use super::*;
    use crate::client::Client;
    use crate::client::stand_ins::{Down, TestClock};

    #[test]
    fn connections_of_a_burst_are_dropped_after_idle_time() {
        let clock = Arc::new(TestClock::default());
        let second = Duration::from_secs(1);
        let client =
            Client::with_link(Arc::new(Down), "store".to_owned(), clock.clone(), second, None)
                .expect("a client");
        let kept = || client.lock_idle().connections.len();
        let burst: Vec<_> = (0..8).map(|_| client.session()).collect();
        drop(burst);
        assert_eq!(kept(), 8);
        // A call uses the connections that were used last.
        for now in 1..10 {
            clock.0.store(now, Relaxed);
            drop(client.session());
            assert_eq!(kept(), 8, "seconds={now}");
        }
        // Each call drops one of those that are idle for 10 s.
        clock.0.store(10, Relaxed);
        for left in (1..8).rev() {
            drop(client.session());
            assert_eq!(kept(), left);
        }
        drop(client.session());
        assert_eq!(kept(), 1, "it was used");
    }
}
