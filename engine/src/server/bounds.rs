//! Everything that clients can have of a store process, or make it hold: every bound, in one list. A test holds each of them over several clients, and
//! `docs/security.md` names each.

use super::{client_holds, durable, in_flight_sends, load, removal_holds};
use crate::config::ValidConfig;
use crate::memory::pins::client::HoldTotals;
use crate::state::reserve;

/// The bounds, with what they are called and how much that is, as a type that has a list of them all.
macro_rules! bounds {
    ($($(#[$doc:meta])* $bound:ident = $name:literal, $most:expr;)*) => {
        /// A bound.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bound {
            $($(#[$doc])* $bound,)*
        }

        impl Bound {
            /// All of them.
            pub const ALL: &[Bound] = &[$(Bound::$bound,)*];

            /// As `docs/security.md` has it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Bound::$bound => $name,)*
                }
            }

            /// How much it is of a store with this configuration.
            pub fn most(self, config: &ValidConfig) -> u64 {
                let most: fn(&ValidConfig) -> u64 = match self {
                    $(Bound::$bound => $most,)*
                };
                most(config)
            }
        }
    };
}

bounds! {
    /// Milliseconds that an operation takes, whatever its client asks for.
    Deadline = "time of an operation", |config| config.deadline().as_millis() as u64;
    /// Operations under way on a link, those among them that were cancelled and go on.
    Operations = "operations of a link", |_| super::OPS_MAX as u64;
    /// Bytes of operations under way on a link and of outcomes that wait there.
    LinkBytes = "operations and unread outcomes of a link", |_| load::LINK_BYTES_MAX;
    /// The same of all links of a client; each of them may begin [`FIRST_BYTES_MAX`](load::FIRST_BYTES_MAX) beside that.
    ClientBytes = "operations and unread outcomes of a client", |_| load::CLIENT_BYTES_MAX;
    /// The same of all links; each may begin [`FIRST_BYTES_MAX`](load::FIRST_BYTES_MAX) beside that.
    AllBytes = "operations and unread outcomes of all links", |_| load::ALL_BYTES_MAX;
    /// Rows that a link has pinned.
    PinnedByLink = "rows pinned by a link", |_| client_holds::PINNED_MAX as u64;
    /// Bytes of the arena that a client's pins and leases keep.
    PinnedByClient = "memory pinned or leased by a client", |config| HoldTotals::of(config).share_of_client().bytes;
    /// The same of all clients.
    PinnedByAll = "memory pinned or leased by all clients", |config| HoldTotals::of(config).bytes;
    /// Objects that a client has pinned or leased.
    ObjectsByClient = "objects pinned or leased by a client", |config| HoldTotals::of(config).share_of_client().objects;
    /// The same of all clients.
    ObjectsByAll = "objects pinned or leased by all clients", |config| HoldTotals::of(config).objects;
    /// Milliseconds of a lease.
    Lease = "time of a lease", |_| client_holds::LEASE_MAX.as_millis() as u64;
    /// Bytes of the arena that clients look at.
    Viewed = "memory looked at by all clients", |config| config.arena_bytes() / client_holds::VIEWED_SHARE;
    /// Objects of the open groups of a link.
    GroupsOfLink = "objects of the open groups of a link", |_| client_holds::REQUIRED_MAX as u64;
    /// Objects of all open groups.
    GroupsOfAll = "objects of all open groups", |_| crate::state::pending_groups::REQUIRED_MAX as u64;
    /// Bytes of the arena that wait for their groups; the oldest group may have more.
    Waiting = "memory that waits for its groups", |config| config.arena_bytes() / 2;
    /// Holds of a link.
    Holds = "holds of a link", |_| removal_holds::HOLDS_MAX as u64;
    /// Objects of removals that wait.
    Removing = "objects that wait to be removed", |_| durable::REMOVING_MAX as u64;
    /// Bytes of the arena that are set aside for what is on its way.
    Arriving = "memory set aside for what arrives", |config| config.arena_bytes() / reserve::ARRIVING_SHARE;
    /// Bytes of the arena that a link sends.
    Lent = "memory that a link sends", |config| (config.arena_bytes() / in_flight_sends::LENT_SHARE).min(in_flight_sends::LENT_BYTES_MAX);
}
