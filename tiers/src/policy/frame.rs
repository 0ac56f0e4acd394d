//! The interface of policies that order the frames of DRAM.

use std::cmp::Ordering;

/// Number of a frame, which is the memory of one group of objects. The store assigns numbers from 0
/// and reuses them: a policy has a table whose length is the largest number that it has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

/// The last request for a frame. The smallest value leaves first: that of the older request, and
/// within a request that of the deeper page, so that children leave before their parents. A parent
/// serves every prefix that includes it; a child without its parent serves none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recency {
    /// Number of the request, increasing with time.
    pub request: u64,
    /// Position of the page in its prefix chain, 0 for the first page.
    pub depth: u32,
}

impl Ord for Recency {
    fn cmp(&self, other: &Recency) -> Ordering {
        self.request.cmp(&other.request).then(other.depth.cmp(&self.depth))
    }
}

impl PartialOrd for Recency {
    fn partial_cmp(&self, other: &Recency) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Chooses the frame that leaves DRAM next.
///
/// **Cost.** Every method is O(log frames), plus one call of `evictable` for each frame that
/// `victim` examines. The order is that of [`Recency`], not of the calls. So a store may insert a
/// frame once no write waits for it, with the recency of its put, without changing the order. It
/// should do so if much of the arena can wait for writes: `victim` of LRU and FIFO examines such
/// frames last, since they are the newest, but S3-FIFO examines its small queue first, which has
/// exactly the newest frames.
pub trait FramePolicy: Send {
    /// The name under which [`frame_policy`](super::frame_policy) creates it.
    fn name(&self) -> &'static str;
    /// Reserve memory for at most `frames` frames, if that is better done at once.
    fn reserve(&mut self, _frames: usize) {}
    /// Add a frame of `bytes` that was filled for a request at `at`. `fingerprint` identifies its
    /// page across evictions. A frame that is already known is replaced. Later requests are
    /// recorded in [`LastRequests`](super::LastRequests), without the store's lock.
    fn insert(&mut self, frame: FrameId, bytes: u64, fingerprint: u128, at: Recency);
    /// Remove a frame that leaves without being a victim (removed, cleared, damaged). Unknown
    /// frames are ignored.
    fn remove(&mut self, frame: FrameId);
    /// A frame leaves before all others, until its next request. Unknown frames are ignored. The
    /// caller records it in [`LastRequests`](super::LastRequests).
    fn leave_first(&mut self, _frame: FrameId) {}
    /// The next frame to evict for which `evictable` is true. The caller adds only frames that no
    /// write waits for; `evictable` is false for those of them that are read, pinned or leased. The
    /// frame is removed from the policy. `None` if there is none, or none among
    /// the frames that one call examines. The next call continues where this one stopped, so that a
    /// long run of ineligible frames delays a victim but never hides it.
    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId>;
    /// Number of frames known.
    fn len(&self) -> usize;
    /// Whether no frame is known.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recency_orders_older_requests_then_deeper_pages_first() {
        let at = |request, depth| Recency { request, depth };
        let mut all = vec![at(2, 0), at(1, 0), at(2, 7), at(1, 3), at(1, 9)];
        all.sort();
        assert_eq!(all, vec![at(1, 9), at(1, 3), at(1, 0), at(2, 7), at(2, 0)]);
    }
}
