//! Negotiation of capabilities. Both peers compute the result from the two greetings, without
//! further messages.

use pagelith_layouts::record::OBJECT_BYTES_MAX;
use pagelith_layouts::wire::greeting::{
    AUTH_CONNECTION, AUTH_KEY, CHECKSUM_XXH3_128, Feature, Greeting, Refusal, RefusalReason,
};
use pagelith_layouts::wire::{VERSION_MAX, VERSION_MIN};

use crate::address::Address;

/// The capabilities that one end offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Supported protocol versions, oldest and newest.
    pub versions: (u16, u16),
    /// Features that it has or wants to use, one bit each.
    pub features: u64,
    /// The required ones among `features`.
    pub required: u64,
    /// Alignment in bytes of memory that is transferred without another copy; a power of two.
    pub alignment: u32,
    /// Maximum length in bytes of a control body that it reads, at least 16 KiB.
    pub control_bytes_max: u32,
    /// Maximum length in bytes of a data frame's body that it reads, at least 64 KiB.
    pub data_bytes_max: u32,
    /// Maximum operations in flight on a connection, at least 1: a server reserves memory for each.
    pub operations_max: u32,
    /// Maximum length in bytes of an object that it can hold.
    pub object_bytes_max: u64,
    /// Random identifier of this process.
    pub instance: [u8; 16],
}

/// Maximum length in bytes of a control body that this build reads.
pub(crate) const CONTROL_BYTES_MAX: u32 = 1 << 20;

impl Capabilities {
    /// The offer of this build for the process `instance`: control bodies up to 1 MiB, and data
    /// frames up to 1 MiB, so that a ping waits for at most one such frame.
    pub fn of_this_build(instance: [u8; 16]) -> Capabilities {
        Capabilities {
            versions: (VERSION_MIN, VERSION_MAX),
            features: Feature::of_this_build(),
            required: 0,
            alignment: 4096,
            control_bytes_max: CONTROL_BYTES_MAX,
            data_bytes_max: 1 << 20,
            operations_max: 256,
            object_bytes_max: OBJECT_BYTES_MAX,
            instance,
        }
    }

    /// A copy without `feature`.
    pub fn without(self, feature: Feature) -> Capabilities {
        Capabilities { features: self.features & !feature.bit(), ..self }
    }

    /// A copy with `feature`.
    pub fn with(self, feature: Feature) -> Capabilities {
        Capabilities { features: self.features | feature.bit(), ..self }
    }

    /// The offer of an end at `address`: shared memory, and references to it, only within a host.
    pub(crate) fn at(self, address: &Address, can_share: bool) -> Capabilities {
        match address {
            Address::Unix(_) if can_share => self,
            Address::Unix(_) | Address::Tcp(_) => {
                self.without(Feature::SharedMemory).without(Feature::Shown)
            }
        }
    }

    /// The greeting for this offer; `keyed` tells whether peers authenticate by a key.
    pub(crate) fn greeting(&self, keyed: bool) -> Greeting {
        Greeting {
            version_min: self.versions.0,
            version_max: self.versions.1,
            auth: if keyed { AUTH_KEY } else { AUTH_CONNECTION },
            checksums: CHECKSUM_XXH3_128,
            reserved: 0,
            alignment: self.alignment,
            control_bytes_max: self.control_bytes_max,
            data_bytes_max: self.data_bytes_max,
            operations_max: self.operations_max,
            object_bytes_max: self.object_bytes_max,
            features: self.features,
            instance: self.instance,
            reserved_too: [0; 8],
        }
    }
}

/// The capabilities that two peers have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NegotiatedCapabilities {
    /// Protocol version.
    pub version: u16,
    /// Features of both peers.
    pub features: u64,
    /// Names of the features that this end offers and the peer lacks.
    pub missing: Vec<&'static str>,
    /// The larger alignment in bytes.
    pub alignment: u32,
    /// Maximum length in bytes of a control body that the peer reads.
    pub control_bytes_max: u32,
    /// Maximum length in bytes of a data frame's body that the peer reads and this end sends.
    pub data_bytes_max: u32,
    /// Maximum operations in flight: the smaller of both limits.
    pub operations_max: u32,
    /// Maximum length in bytes of an object that both can hold.
    pub object_bytes_max: u64,
    /// Identifies the peer's process.
    pub peer_instance: [u8; 16],
}

/// Intersect `own` with a peer's greeting. The refusal tells why the intersection is not
/// sufficient.
pub fn agree(
    own: &Capabilities,
    theirs: &Greeting,
    keyed: bool,
) -> Result<NegotiatedCapabilities, Refusal> {
    let refuse =
        |reason, missing, text| Err(Refusal { reason, versions: own.versions, missing, text });
    let (oldest, newest) = own.versions;
    let version = newest.min(theirs.version_max);
    if version < oldest.max(theirs.version_min) {
        let (from, to) = (theirs.version_min, theirs.version_max);
        let text =
            format!("no protocol version in common ours={oldest}..{newest} theirs={from}..{to}");
        return refuse(RefusalReason::Version, 0, text);
    }
    let features = own.features & theirs.features;
    let lacking = own.required & !features;
    if lacking != 0 {
        let names = Feature::names(lacking).join(",");
        return refuse(
            RefusalReason::Feature,
            lacking,
            format!("features are missing names={names}"),
        );
    }
    if theirs.checksums & CHECKSUM_XXH3_128 == 0 {
        let text = format!("no checksum in common ours=xxh3_128 theirs={:#04x}", theirs.checksums);
        return refuse(RefusalReason::Feature, 0, text);
    }
    let auth = if keyed { AUTH_KEY } else { AUTH_CONNECTION };
    if theirs.auth & auth == 0 {
        let need = if keyed { "a key is required" } else { "this connection supports no key" };
        return refuse(RefusalReason::Denied, 0, need.into());
    }
    Ok(NegotiatedCapabilities {
        version,
        features,
        missing: Feature::names(own.features & !features),
        alignment: own.alignment.max(theirs.alignment),
        control_bytes_max: theirs.control_bytes_max,
        // A frame that was begun must be finished, so it is no longer than this end itself would
        // read.
        data_bytes_max: theirs.data_bytes_max.min(own.data_bytes_max),
        operations_max: theirs.operations_max.min(own.operations_max),
        object_bytes_max: own.object_bytes_max.min(theirs.object_bytes_max),
        peer_instance: theirs.instance,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(versions: (u16, u16)) -> Capabilities {
        Capabilities { versions, ..Capabilities::of_this_build([7; 16]) }
    }

    #[test]
    fn version_is_the_newest_common_one_or_refused() {
        let meet = |a, b| agree(&offer(a), &offer(b).greeting(true), true).map(|c| c.version);
        assert_eq!(meet((1, 1), (1, 1)), Ok(1));
        assert_eq!(meet((1, 2), (1, 5)), Ok(2));
        assert_eq!(meet((1, 5), (1, 2)), Ok(2));
        for (a, b) in [((1, 1), (2, 3)), ((2, 3), (1, 1))] {
            let refused = meet(a, b).expect_err("apart");
            assert_eq!((refused.reason, refused.versions), (RefusalReason::Version, a));
            let text = format!(
                "no protocol version in common ours={}..{} theirs={}..{}",
                a.0, a.1, b.0, b.1
            );
            assert_eq!(refused.text, text);
        }
    }

    #[test]
    fn missing_feature_is_named_and_a_required_one_refused() {
        let few = Capabilities { features: Feature::Groups.bit(), ..offer((1, 1)) };
        let common = agree(&offer((1, 1)), &few.greeting(true), true).expect("enough");
        assert_eq!(common.features, Feature::Groups.bit());
        assert_eq!(
            common.missing,
            [
                "ranges",
                "attached",
                "durable",
                "any_pool",
                "server_checksums",
                "shared_memory",
                "parts",
                "shown",
                "pins",
                "begun",
                "events",
                "prefetch",
                "views",
                "members",
                "asks_again",
                "peers",
                "bases",
                "holds",
                "hints",
                "prefill_rate"
            ]
        );
        let strict = Capabilities { required: Feature::Durable.bit(), ..offer((1, 1)) };
        let refused = agree(&strict, &few.greeting(true), true).expect_err("durable is required");
        assert_eq!(
            (refused.reason, refused.missing),
            (RefusalReason::Feature, Feature::Durable.bit())
        );
        assert_eq!(refused.text, "features are missing names=durable");
        // Unknown features of a later version are ignored.
        let later = Capabilities { features: u64::MAX, ..few };
        assert_eq!(agree(&few, &later.greeting(true), true).map(|c| c.features), Ok(few.features));
    }

    #[test]
    fn frame_limits_are_the_receivers_and_object_limits_the_smaller() {
        let small = Capabilities {
            alignment: 512,
            control_bytes_max: 16 << 10,
            object_bytes_max: 9,
            ..offer((1, 1))
        };
        let common = agree(&offer((1, 1)), &small.greeting(false), false).expect("enough");
        assert_eq!(
            (common.alignment, common.control_bytes_max, common.object_bytes_max),
            (4096, 16 << 10, 9)
        );
        let keyless =
            agree(&small, &offer((1, 1)).greeting(true), false).expect_err("not the same way");
        assert_eq!(keyless.reason, RefusalReason::Denied);
    }
}
