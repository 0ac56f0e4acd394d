//! Planted bugs (mutants): defects that are built in on purpose. Each removes one check or one
//! ordering that correctness depends on, to show that the checkers detect it.
//!
//! They exist only in a build with the feature `planted`, all of them in that one build;
//! `TEST_PAGELITH_MUTANT` names the one that is on in a process. In every other build [`on`] is
//! `false` at compile time, and nothing is left of any of them.

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A read's bytes are not compared with their checksums.
    PayloadUnchecked,
    /// The key in a record is not compared with the requested key.
    KeyUnchecked,
    /// A namespace's generation counts for nothing.
    GenerationUnchecked,
    /// A transfer that moved too few bytes is a success.
    ShortTransferAccepted,
    /// A late completion is taken for that of the operation that has its slot now.
    StaleCompletion,
    /// A flush is answered before its sync.
    FlushBeforeSync,
    /// A remove is answered before its tombstones are synced.
    TombstoneBeforeSync,
    /// A clear is answered before the manifest is synced.
    ClearBeforeSync,
    /// A footer is written before the sync of the records that it lists.
    FooterBeforeData,
    /// A segment is freed before the sync of the records moved out of it.
    FreeBeforeMoved,
    /// A failed sync counts as retried with success.
    SyncRetried,
    /// Reclaim drops pinned objects.
    PinIgnored,
    /// Reclaim does not wait for the readers of the segment.
    ReadersIgnored,
    /// A frame is freed while the flusher writes from it.
    PinnedFrameFreed,
    /// A frame is freed twice.
    FrameFreedTwice,
    /// Staging memory is not released.
    StagingLeak,
    /// An object above the staging budget is a hit after its first chunk.
    SkipAndComplete,
    /// A torn block of the manifest is accepted.
    ManifestTorn,
    /// A checkpoint's log position is after the open segment, whose records and tombstones are
    /// lost.
    CheckpointTooLate,
    /// A checkpoint keeps entries that were replaced or removed while it was taken.
    WithdrawalsLost,
    /// Reclaim does not carry tombstones forward.
    TombstoneDropped,
    /// Recovery takes objects of a checkpoint whose segment was reused since.
    IncarnationUnchecked,
    /// Recovery takes a group with missing members.
    PartialGroup,
    /// An attached object is visible without its base.
    AttachedWithoutBase,
    /// A removal or clear is acknowledged without a notification of the peers.
    PeersNotNotified,
    /// Peers are notified of a removal or clear while an earlier offer is in flight, and store the
    /// offer after it.
    NotifiedBeforeOffers,
    /// An object fetched from a peer is cached although it was removed in the meantime.
    CachedAfterRemoval,
    /// A frame is released before the client has copied the bytes that it got by reference.
    SharedFrameReleasedEarly,
    /// The frames of a client's view are not held.
    ViewFrameNotPinned,
    /// A put out of a client's memory ignores the checksums.
    SharedPutUnverified,
    /// The frames of a client's view stay held after its link ended.
    ViewPinLeaked,
    /// A store forwards the request of another store to its own peers.
    PeerRequestForwarded,
    /// A store that is to remove an object for another store keeps it and acknowledges the removal.
    NotifiedRemovalIgnored,
    /// Peers are not notified of a removal or clear requested by a client.
    ServedRemovalNotNotified,
    /// Only the owners are notified of a removal, and no peer holds.
    OnlyOwnerNotified,
    /// A hold during a removal ends at once.
    HoldDropped,
    /// A removal is acknowledged although a peer did not hold.
    HoldNotConfirmed,
    /// A store acknowledges a removal while its own earlier offers are in flight.
    AcknowledgedBeforeOffers,
    /// A client's session ends while links still have its callers' memory.
    SessionDroppedWithLinks,
    /// A cancelled operation of a client has no outcome.
    CancelledWithoutOutcome,
    /// RDMA: a client has the memory of a cancelled operation back while the server may write to
    /// it.
    RdmaBackAtRetract,
    /// RDMA: a link hands memory back at its end, before its queue pairs are down.
    RdmaBackAtEnd,
    /// RDMA: a client takes the server's word, without a notice, for bytes that have landed.
    RdmaServerBelieved,
    /// RDMA: a server posts the notice before the bytes.
    RdmaNoticeFirst,
    /// RDMA: a server posts notices for which the client has no receive.
    RdmaCreditsIgnored,
    /// RDMA: a server adds the base of another region.
    RdmaWrongBase,
    /// Memory of copies is released before the device is done with them.
    DeviceCopyReleased,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 47] = [
        Mutant::PayloadUnchecked,
        Mutant::KeyUnchecked,
        Mutant::GenerationUnchecked,
        Mutant::ShortTransferAccepted,
        Mutant::StaleCompletion,
        Mutant::FlushBeforeSync,
        Mutant::TombstoneBeforeSync,
        Mutant::ClearBeforeSync,
        Mutant::FooterBeforeData,
        Mutant::FreeBeforeMoved,
        Mutant::SyncRetried,
        Mutant::PinIgnored,
        Mutant::ReadersIgnored,
        Mutant::PinnedFrameFreed,
        Mutant::FrameFreedTwice,
        Mutant::StagingLeak,
        Mutant::SkipAndComplete,
        Mutant::ManifestTorn,
        Mutant::CheckpointTooLate,
        Mutant::WithdrawalsLost,
        Mutant::TombstoneDropped,
        Mutant::IncarnationUnchecked,
        Mutant::PartialGroup,
        Mutant::AttachedWithoutBase,
        Mutant::PeersNotNotified,
        Mutant::NotifiedBeforeOffers,
        Mutant::CachedAfterRemoval,
        Mutant::SharedFrameReleasedEarly,
        Mutant::ViewFrameNotPinned,
        Mutant::SharedPutUnverified,
        Mutant::ViewPinLeaked,
        Mutant::PeerRequestForwarded,
        Mutant::NotifiedRemovalIgnored,
        Mutant::ServedRemovalNotNotified,
        Mutant::OnlyOwnerNotified,
        Mutant::HoldDropped,
        Mutant::HoldNotConfirmed,
        Mutant::AcknowledgedBeforeOffers,
        Mutant::SessionDroppedWithLinks,
        Mutant::CancelledWithoutOutcome,
        Mutant::RdmaBackAtRetract,
        Mutant::RdmaBackAtEnd,
        Mutant::RdmaServerBelieved,
        Mutant::RdmaNoticeFirst,
        Mutant::RdmaCreditsIgnored,
        Mutant::RdmaWrongBase,
        Mutant::DeviceCopyReleased,
    ];

    /// Its name in `TEST_PAGELITH_MUTANT`: that of the variant.
    pub fn name(self) -> String {
        format!("{self:?}")
    }
}

/// Whether this build has planted bugs.
pub const ARE_BUILT: bool = cfg!(feature = "planted");

/// Whether a mutant is planted in this process.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn on(_: Mutant) -> bool {
    false
}

/// Whether a mutant is planted in this process.
///
/// # Panics
/// If `TEST_PAGELITH_MUTANT` names none: a run that plants nothing would prove nothing.
#[cfg(feature = "planted")]
#[allow(clippy::disallowed_methods, reason = "never in what ships")]
pub fn on(mutant: Mutant) -> bool {
    static PLANTED: std::sync::OnceLock<Option<Mutant>> = std::sync::OnceLock::new();
    let planted = PLANTED.get_or_init(|| {
        let name = std::env::var("TEST_PAGELITH_MUTANT").ok()?;
        let found = Mutant::ALL.into_iter().find(|m| m.name() == name);
        Some(found.unwrap_or_else(|| panic!("no such mutant TEST_PAGELITH_MUTANT={name}")))
    });
    *planted == Some(mutant)
}
