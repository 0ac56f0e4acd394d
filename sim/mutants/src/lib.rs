//! Planted bugs. Each takes out one of the things that keep bytes right, so that the checkers can
//! be seen to notice it.
//!
//! They exist only in a build with the feature `planted`, all of them in that one build;
//! `TEST_PAGELITH_MUTANT` names the one that is on in a process. In every other build [`on`] is
//! `false` at compile time, and nothing is left of any of them.

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A read's bytes are not compared with their checksums.
    PayloadUnchecked,
    /// The key in a record is not compared with the key that was asked for.
    KeyUnchecked,
    /// A namespace's generation counts for nothing.
    GenerationUnchecked,
    /// A transfer that moved too few bytes is a success.
    ShortIsOk,
    /// A late completion is taken for that of the operation that has its slot now.
    StaleCompletion,
    /// A flush is answered before its sync.
    FlushBeforeSync,
    /// A remove is answered before its tombstones are synced.
    TombstoneBeforeSync,
    /// A clear is answered before the manifest is synced.
    ClearBeforeSync,
    /// A footer is written before what it vouches for is synced.
    FooterBeforeData,
    /// A segment is freed before what was moved out of it is synced.
    FreeBeforeMoved,
    /// A sync that failed is taken for one that was tried again and succeeded.
    SyncRetried,
    /// Reclaim leaves pinned objects behind.
    PinIgnored,
    /// Reclaim does not wait for those who read in the segment.
    ReadersIgnored,
    /// A frame is freed while the flusher writes from it.
    HeldFrameFreed,
    /// A frame is freed twice.
    FrameFreedTwice,
    /// Staging memory is not given back.
    StagingLeak,
    /// An object above the staging budget is a hit once its first chunk has come.
    SkipAndComplete,
    /// A block of the manifest that was torn is believed.
    ManifestTorn,
    /// A checkpoint's log position is behind the open segment: the records and tombstones in it are
    /// lost.
    CheckpointTooLate,
    /// A checkpoint does not withdraw what was replaced or removed while it was taken.
    WithdrawalsLost,
    /// Reclaim does not carry tombstones forward.
    TombstoneDropped,
    /// Recovery takes objects of a checkpoint whose segment has been used again since.
    IncarnationUnchecked,
    /// Recovery takes a group of which members are missing.
    PartialGroup,
    /// What is attached is visible without its base.
    AttachedAlone,
    /// A removal or clear is answered though peers were not told.
    PeersUntold,
    /// Peers are told of a removal or clear while what was offered them before is on its way still,
    /// and store that behind it.
    ToldBeforeOffers,
    /// What a peer sent is kept though it was removed meanwhile.
    KeptBehindRemoval,
    /// A frame that a client is shown is let go before the client has taken it.
    ShownLetGo,
    /// What a client looks at is not held for it.
    ViewLetGo,
    /// What a client shows is put whatever its checksums.
    ShownUnchecked,
    /// What a client looked at is held when its link has ended.
    HeldForTheGone,
    /// What a store is asked by another it asks its own peers in turn.
    PeersAskOn,
    /// What a store is told to remove by another it keeps, and says that it is gone.
    ToldAndKept,
    /// Peers are not told of a removal or clear that a client asks for.
    ServedUntold,
    /// Of a removal the owners alone are told, and nobody holds.
    ToldOwnerAlone,
    /// What a store is to keep nothing during is over at once.
    HoldDropped,
    /// A removal is answered though a peer says that it did not hold.
    HoldUnasked,
    /// A store that is told of a removal answers while what it offered before is on its way still.
    AnsweredBeforeOffers,
    /// A client's session goes while links have its callers' memory.
    SessionGoesAtOnce,
    /// What a client cancels has no outcome.
    CancelledUnanswered,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 40] = [
        Mutant::PayloadUnchecked,
        Mutant::KeyUnchecked,
        Mutant::GenerationUnchecked,
        Mutant::ShortIsOk,
        Mutant::StaleCompletion,
        Mutant::FlushBeforeSync,
        Mutant::TombstoneBeforeSync,
        Mutant::ClearBeforeSync,
        Mutant::FooterBeforeData,
        Mutant::FreeBeforeMoved,
        Mutant::SyncRetried,
        Mutant::PinIgnored,
        Mutant::ReadersIgnored,
        Mutant::HeldFrameFreed,
        Mutant::FrameFreedTwice,
        Mutant::StagingLeak,
        Mutant::SkipAndComplete,
        Mutant::ManifestTorn,
        Mutant::CheckpointTooLate,
        Mutant::WithdrawalsLost,
        Mutant::TombstoneDropped,
        Mutant::IncarnationUnchecked,
        Mutant::PartialGroup,
        Mutant::AttachedAlone,
        Mutant::PeersUntold,
        Mutant::ToldBeforeOffers,
        Mutant::KeptBehindRemoval,
        Mutant::ShownLetGo,
        Mutant::ViewLetGo,
        Mutant::ShownUnchecked,
        Mutant::HeldForTheGone,
        Mutant::PeersAskOn,
        Mutant::ToldAndKept,
        Mutant::ServedUntold,
        Mutant::ToldOwnerAlone,
        Mutant::HoldDropped,
        Mutant::HoldUnasked,
        Mutant::AnsweredBeforeOffers,
        Mutant::SessionGoesAtOnce,
        Mutant::CancelledUnanswered,
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
