//! The parameters of a replay.

use pagelith::config::ValidConfig;
use pagelith::transport::auth::Key;
use pagelith::transport::peer_address::PeerAddress;

use super::pages::Pages;
use crate::content::Content;

/// The parameters of a replay.
pub(crate) struct ReplayPlan {
    pub(crate) target: Target,
    pub(crate) pages: Pages,
    pub(crate) content: Content,
    pub(crate) reopen_at: Option<u64>,
}

/// The store to replay on.
pub(crate) enum Target {
    /// A store of this process.
    Embedded(Box<ValidConfig>),
    /// The store of a store process, and the key for it.
    Attached(PeerAddress, Option<Key>),
}
