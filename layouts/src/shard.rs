//! Shards: the slice of a component that an object holds.

use std::fmt;

use crate::error::FormatError;
use crate::format::structure;

structure! {
    /// The encoding of a shard in a key. Fields that a kind does not use are zero.
    pub struct RawShard = 24 {
        /// 1 whole, 2 rank, 3 heads.
        kind: u8,
        /// Zero.
        reserved: [u8; 3],
        /// Rank: tensor-parallel (rank, size). Heads: (head group, head groups).
        first: [u16; 2],
        /// Rank: pipeline-parallel (rank, size). Heads: layers (from, to), the end excluded.
        second: [u16; 2],
        /// Rank: context-parallel (rank, size). Heads: zero.
        third: [u16; 2],
        /// Rank: decode-context-parallel (rank, size). Heads: zero.
        fourth: [u16; 2],
        /// Zero.
        tail: [u8; 4],
    }
}

/// Slice `rank` of `of` equal slices; `rank < of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slice {
    /// Number of the slice, from 0.
    pub rank: u16,
    /// Number of slices, at least 1.
    pub of: u16,
}

impl Slice {
    /// The only slice of one.
    pub const ALL: Slice = Slice { rank: 0, of: 1 };

    /// Slice `rank` of `of`; `None` unless `rank < of`.
    pub fn new(rank: u16, of: u16) -> Option<Slice> {
        (rank < of).then_some(Slice { rank, of })
    }
}

/// The slice of a component that an object holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shard {
    /// The whole component; every reader reads the same bytes.
    Whole,
    /// The slice of one rank of a parallel layout.
    Rank {
        /// Tensor parallel.
        tp: Slice,
        /// Pipeline parallel.
        pp: Slice,
        /// Context parallel.
        cp: Slice,
        /// Decode context parallel.
        dcp: Slice,
    },
    /// A head group over a range of layers, independent of the parallel layout: servers of
    /// different tensor-parallel sizes share it.
    Heads {
        /// Head group.
        group: Slice,
        /// First layer.
        layer_from: u16,
        /// One past the last layer; above `layer_from`.
        layer_to: u16,
    },
}

impl Shard {
    /// The shard of one tensor-parallel rank with no other parallelism.
    pub fn tensor_parallel(rank: u16, of: u16) -> Option<Shard> {
        let tp = Slice::new(rank, of)?;
        Some(Shard::Rank { tp, pp: Slice::ALL, cp: Slice::ALL, dcp: Slice::ALL })
    }

    pub(crate) fn encode(&self) -> RawShard {
        let pair = |s: &Slice| [s.rank, s.of];
        let (kind, first, second, third, fourth) = match self {
            Shard::Whole => (1, [0; 2], [0; 2], [0; 2], [0; 2]),
            Shard::Rank { tp, pp, cp, dcp } => (2, pair(tp), pair(pp), pair(cp), pair(dcp)),
            Shard::Heads { group, layer_from, layer_to } => {
                (3, pair(group), [*layer_from, *layer_to], [0; 2], [0; 2])
            }
        };
        RawShard { kind, reserved: [0; 3], first, second, third, fourth, tail: [0; 4] }
    }

    pub(crate) fn decode(raw: &RawShard) -> Result<Shard, FormatError> {
        let slice = |s: [u16; 2]| Slice::new(s[0], s[1]);
        let shard = match raw.kind {
            1 => Some(Shard::Whole),
            2 => (|| {
                let (tp, pp) = (slice(raw.first)?, slice(raw.second)?);
                Some(Shard::Rank { tp, pp, cp: slice(raw.third)?, dcp: slice(raw.fourth)? })
            })(),
            3 if raw.second[0] < raw.second[1] => slice(raw.first).map(|group| Shard::Heads {
                group,
                layer_from: raw.second[0],
                layer_to: raw.second[1],
            }),
            _ => None,
        };
        // Equality with the re-encoded shard implies that unused fields are zero: each shard has
        // one encoding.
        shard
            .filter(|s| s.encode() == *raw)
            .ok_or_else(|| FormatError::field("object key", "shard", format!("{raw:?}")))
    }

    /// Parse the text form; `None` if it is not exactly the text that [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Option<Shard> {
        let shard = Self::parse_loosely(text)?;
        (shard.to_string() == text).then_some(shard)
    }

    fn parse_loosely(text: &str) -> Option<Shard> {
        let pair = |t: &str, word: &str| -> Option<(u16, u16)> {
            let (a, b) = t.split_once(word)?;
            Some((a.parse().ok()?, b.parse().ok()?))
        };
        if text == "whole" {
            return Some(Shard::Whole);
        }
        if let Some(rest) = text.strip_prefix("heads") {
            let (group, layers) = rest.split_once(".layers")?;
            let (rank, of) = pair(group, "of")?;
            let (layer_from, layer_to) = pair(layers, "to")?;
            let group = Slice::new(rank, of)?;
            return (layer_from < layer_to).then_some(Shard::Heads { group, layer_from, layer_to });
        }
        let (mut tp, mut pp, mut cp, mut dcp) = (Slice::ALL, Slice::ALL, Slice::ALL, Slice::ALL);
        for part in text.strip_prefix("rank")?.split('.').filter(|p| !p.is_empty()) {
            let (target, rest) = match part.as_bytes() {
                [b't', ..] => (&mut tp, part.strip_prefix("tp")?),
                [b'p', ..] => (&mut pp, part.strip_prefix("pp")?),
                [b'c', ..] => (&mut cp, part.strip_prefix("cp")?),
                _ => (&mut dcp, part.strip_prefix("dcp")?),
            };
            let (rank, of) = pair(rest, "of")?;
            *target = Slice::new(rank, of)?;
        }
        Some(Shard::Rank { tp, pp, cp, dcp })
    }
}

/// `whole`, `rank.tp3of8.pp1of2` (dimensions with one slice are omitted), `heads2of8.layers0to61`.
impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shard::Whole => f.write_str("whole"),
            Shard::Rank { tp, pp, cp, dcp } => {
                f.write_str("rank")?;
                for (name, s) in [("tp", tp), ("pp", pp), ("cp", cp), ("dcp", dcp)] {
                    if *s != Slice::ALL {
                        write!(f, ".{name}{}of{}", s.rank, s.of)?;
                    }
                }
                Ok(())
            }
            Shard::Heads { group, layer_from, layer_to } => {
                write!(f, "heads{}of{}.layers{layer_from}to{layer_to}", group.rank, group.of)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(rank: u16, of: u16) -> Slice {
        Slice::new(rank, of).expect("rank below of")
    }

    #[test]
    fn every_shard_kind_round_trips_as_bytes_and_text() {
        let full = Shard::Rank {
            tp: slice(3, 8),
            pp: slice(1, 2),
            cp: slice(0, 4),
            dcp: slice(65_534, 65_535),
        };
        let heads = Shard::Heads { group: slice(2, 8), layer_from: 0, layer_to: 61 };
        let rank = Shard::tensor_parallel(3, 8).expect("rank below of");
        for (shard, text) in [
            (Shard::Whole, "whole"),
            (Shard::tensor_parallel(0, 1).expect("rank below of"), "rank"),
            (rank, "rank.tp3of8"),
            (full, "rank.tp3of8.pp1of2.cp0of4.dcp65534of65535"),
            (heads, "heads2of8.layers0to61"),
        ] {
            assert_eq!(shard.to_string(), text);
            assert_eq!(Shard::parse(text), Some(shard));
            assert_eq!(Shard::decode(&shard.encode()), Ok(shard));
        }
    }

    #[test]
    fn shard_text_with_second_spelling_is_refused() {
        for text in [
            "",
            "Whole",
            "whole.",
            "rank.",
            "rank.tp0of1",
            "rank.tp03of8",
            "rank.tp+3of8",
            "rank.tp8of8",
            "rank.tp1of0",
            "rank.pp1of2.tp3of8",
            "rank.tp1of2.tp1of2",
            "rank..tp1of2",
            "rank.xp1of2",
            "ranktp1of2",
            "rank.tp1of65536",
            "heads2of8",
            "heads2of8.layers5to5",
            "heads8of8.layers0to1",
            "heads2of8.layers0to061",
            "heads2of8.layers0to61.",
            "rank.dcp",
            "rank.tp1",
            "rank.\u{e9}",
        ] {
            assert_eq!(Shard::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn shard_with_nonzero_unused_field_is_refused() {
        let raw = Shard::Whole.encode();
        let rank = Shard::tensor_parallel(1, 2).expect("rank below of").encode();
        let heads = Shard::Heads { group: Slice::ALL, layer_from: 1, layer_to: 2 }.encode();
        for bad in [
            RawShard { kind: 0, ..raw },
            RawShard { kind: 4, ..raw },
            RawShard { first: [0, 1], ..raw },
            RawShard { reserved: [0, 0, 1], ..raw },
            RawShard { tail: [0, 0, 0, 1], ..rank },
            RawShard { first: [2, 2], ..rank },
            RawShard { fourth: [0, 0], ..rank },
            RawShard { second: [2, 2], ..heads },
            RawShard { third: [0, 1], ..heads },
        ] {
            assert!(Shard::decode(&bad).is_err(), "{bad:?}");
        }
    }
}
