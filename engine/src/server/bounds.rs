//! Every bound on the memory and objects that clients use in a store process. A test checks each
//! bound with several clients, and `docs/security.md` lists all of them.

use super::{client_resources, durable, in_flight_sends, invalidation_holds, load};
use crate::config::ValidConfig;
use crate::memory::pins::client::PinTotals;
use crate::memory::pins::early;
use crate::state::reserve;

/// Defines the bounds with their names and values, and the list of all bounds.
macro_rules! bounds {
    ($($(#[$doc:meta])* $bound:ident = $name:literal, $value:expr;)*) => {
        /// A bound.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bound {
            $($(#[$doc])* $bound,)*
        }

        impl Bound {
            /// All bounds.
            pub const ALL: &[Bound] = &[$(Bound::$bound,)*];

            /// The name in `docs/security.md`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Bound::$bound => $name,)*
                }
            }

            /// The value for a store with this configuration.
            pub fn value(self, config: &ValidConfig) -> u64 {
                let value: fn(&ValidConfig) -> u64 = match self {
                    $(Bound::$bound => $value,)*
                };
                value(config)
            }
        }
    };
}

bounds! {
    /// Milliseconds per operation, whatever deadline the client requests.
    Deadline = "operation deadline", |config| config.deadline().as_millis() as u64;
    /// Operations in progress per link, including cancelled ones that still run.
    Operations = "operations per link", |_| super::OPS_MAX as u64;
    /// Bytes of operations in progress and of unsent outcomes per link.
    LinkBytes = "operation memory per link", |_| load::LINK_BYTES_MAX;
    /// The same for all links of a client. Each link may begin
    /// [`FIRST_BYTES_MAX`](load::FIRST_BYTES_MAX) in addition.
    ClientBytes = "operation memory per client", |_| load::CLIENT_BYTES_MAX;
    /// The same for all links. Each link may begin [`FIRST_BYTES_MAX`](load::FIRST_BYTES_MAX) in
    /// addition.
    AllBytes = "operation memory of all links", |_| load::ALL_BYTES_MAX;
    /// Pins per link, counting the bases of pinned objects.
    PinnedByLink = "pins per link", |_| client_resources::PINNED_MAX as u64;
    /// Arena bytes kept by the pins and leases of a client.
    PinnedByClient = "pinned and leased memory per client",
        |config| PinTotals::of(config).share_of_client().bytes;
    /// Arena bytes kept by the pins and leases of all clients.
    PinnedByAll = "pinned and leased memory of all clients", |config| PinTotals::of(config).bytes;
    /// Objects that a client has pinned or leased.
    ObjectsByClient = "pinned and leased objects per client",
        |config| PinTotals::of(config).share_of_client().objects;
    /// Objects that all clients have pinned or leased.
    ObjectsByAll = "pinned and leased objects of all clients", |config| PinTotals::of(config).objects;
    /// Objects that a client has retained before their put.
    EarlyOfClient = "objects retained before their put per client",
        |_| early::CLIENT_OBJECTS_MAX as u64;
    /// Objects that all clients have retained before their put.
    EarlyOfAll = "objects retained before their put of all clients", |_| early::OBJECTS_MAX as u64;
    /// Milliseconds of a lease or hint.
    Lease = "lease duration", |_| client_resources::LEASE_MAX.as_millis() as u64;
    /// Arena bytes kept by views of all clients.
    Viewed = "viewed memory of all clients",
        |config| config.arena_bytes() / client_resources::VIEWED_SHARE;
    /// Objects in the open groups of a link.
    GroupsOfLink = "open-group objects per link", |_| client_resources::REQUIRED_MAX as u64;
    /// Objects in all open groups.
    GroupsOfAll = "open-group objects of all links",
        |_| crate::state::pending_groups::REQUIRED_MAX as u64;
    /// Arena bytes of objects whose groups are incomplete; the oldest group may exceed it.
    Waiting = "memory of incomplete groups", |config| config.arena_bytes() / 2;
    /// Invalidation holds of a link.
    Holds = "invalidation holds per link", |_| invalidation_holds::HOLDS_MAX as u64;
    /// Objects in pending removals.
    Removing = "objects in pending removals", |_| durable::REMOVING_MAX as u64;
    /// Arena bytes reserved for incoming objects.
    Arriving = "memory reserved for incoming objects",
        |config| config.arena_bytes() / reserve::RESERVED_SHARE;
    /// Arena bytes in flight on a link.
    InFlight = "memory in flight per link",
        |config| (config.arena_bytes() / in_flight_sends::IN_FLIGHT_SHARE)
            .min(in_flight_sends::IN_FLIGHT_BYTES_MAX);
}
