//! What admission to SSD has learned, as a checkpoint's file keeps it: counts of touches by class
//! of page and band of age. An age is the number of bytes requested since a page's last touch;
//! bands divide ages on a logarithmic scale.
//!
//! It is optional. It is written into the last chunk of a checkpoint's file if the checkpoint
//! leaves that free, and nothing names it: it is used if it is whole and has the store and the
//! serial of the checkpoint. Otherwise admission learns anew. Builds that do not know it never read
//! there.

use crate::align::align_up;
use crate::checkpoint::CHUNK_BYTES;
use crate::checksum::{Checksum, checksum_around};
use crate::error::FormatError;
use crate::format::{VERSION, is_zero, read, structure};
use crate::ids::StoreId;

structure! {
    /// Start of what admission has learned. It is followed by 23 counts for each of 128 classes,
    /// and zeros up to a multiple of 4096.
    pub struct LearnedHead = 128 {
        /// `PLLEARND`.
        magic: [u8; 8],
        /// XXH3-128 of everything.
        checksum: Checksum,
        /// Format version.
        version: u16,
        /// Zero.
        reserved: u16,
        /// Meaning of classes and bands: 1.
        model: u32,
        /// Store.
        store: StoreId,
        /// Number of the checkpoint.
        serial: u64,
        /// Length of a lap of the log in 1/512 of the SSD's bytes requested, as a 64-bit float.
        lap_units: u64,
        /// Mean worth of what reclaim gave up, as a 64-bit float; all ones before it gave up any.
        victim_worth: u64,
        /// One page of this many is in the sample.
        sample_rate: u64,
        /// Zero.
        tail: [u8; 48],
    }
}

structure! {
    /// Counts of one class in one band of age, as 32-bit floats.
    pub struct BandCounts = 8 {
        /// Touches that ended in the band with another touch.
        pub hits: u32,
        /// Touches that reached the band.
        pub exposures: u32,
    }
}

const WHAT: &str = "learned state";
const MAGIC: [u8; 8] = *b"PLLEARND";
/// Meaning of classes and bands.
const MODEL: u32 = 1;
/// Classes of pages: `PageClass` in `tiers/src/policy/admission/class.rs`.
pub const CLASSES: usize = 128;
/// Bands of age: `STARTS` in `tiers/src/policy/admission/bands.rs`.
pub const BANDS: usize = 23;
/// Value of `victim_worth` while there is none; no finite float.
const NO_WORTH: u64 = u64::MAX;
/// Larger counts, laps and worths are refused: no store reaches them.
const NUMBER_MAX: f64 = 1e18;
/// Length of the encoding in bytes.
pub const LEARNED_BYTES: usize =
    align_up((LearnedHead::BYTES + CLASSES * BANDS * BandCounts::BYTES) as u64) as usize;

const _: () = assert!(LEARNED_BYTES <= CHUNK_BYTES);

/// Hits and exposures of each class in each band.
pub type LearnedCounts = [[[f32; 2]; BANDS]; CLASSES];

/// What was learned.
#[derive(Clone, Debug, PartialEq)]
pub struct Learned {
    /// Length of a lap of the log, in 1/512 of the SSD's bytes requested; positive.
    pub lap_units: f64,
    /// Mean worth of what reclaim gave up; `None` before it gave up anything.
    pub victim_worth: Option<f64>,
    /// One page of this many is in the sample; a power of two.
    pub sample_rate: u64,
    /// The counts, none of which is negative.
    pub counts: Box<LearnedCounts>,
}

/// Encode the state learned up to the checkpoint `serial` of `store`.
pub fn encode(learned: &Learned, store: StoreId, serial: u64) -> Vec<u8> {
    let head = LearnedHead {
        magic: MAGIC,
        checksum: [0; 16],
        version: VERSION,
        reserved: 0,
        model: MODEL,
        store,
        serial,
        lap_units: learned.lap_units.to_bits(),
        victim_worth: learned.victim_worth.map_or(NO_WORTH, f64::to_bits),
        sample_rate: learned.sample_rate,
        tail: [0; 48],
    };
    let mut out = bytemuck::bytes_of(&head).to_vec();
    for [hits, exposures] in learned.counts.iter().flatten() {
        let counts = BandCounts { hits: hits.to_bits(), exposures: exposures.to_bits() };
        out.extend_from_slice(bytemuck::bytes_of(&counts));
    }
    out.resize(LEARNED_BYTES, 0);
    if let Some(sum) = checksum_around(&out, 8) {
        out[8..24].copy_from_slice(&sum);
    }
    out
}

/// Read the state learned up to the checkpoint `serial` of `store`.
pub fn decode(bytes: &[u8], store: StoreId, serial: u64) -> Result<Learned, FormatError> {
    let short = FormatError::Short {
        structure: WHAT,
        need: LEARNED_BYTES as u64,
        have: bytes.len() as u64,
    };
    let bytes = bytes.get(..LEARNED_BYTES).ok_or_else(|| short.clone())?;
    let head: LearnedHead = read(bytes).ok_or(short)?;
    if head.magic == [0; 8] {
        return Err(FormatError::Empty { structure: WHAT });
    }
    if head.magic != MAGIC {
        return Err(FormatError::Magic { structure: WHAT });
    }
    if checksum_around(bytes, 8) != Some(head.checksum) {
        return Err(FormatError::Checksum { structure: WHAT });
    }
    if head.version != VERSION {
        return Err(FormatError::Version { structure: WHAT, found: head.version, known: VERSION });
    }
    FormatError::same(WHAT, "store", head.store, store)?;
    FormatError::same(WHAT, "serial", head.serial, serial)?;
    FormatError::same(WHAT, "model", head.model, MODEL)?;
    let (items, rest) = bytes[LearnedHead::BYTES..].split_at(CLASSES * BANDS * BandCounts::BYTES);
    if head.reserved != 0 || !is_zero(&head.tail) || !is_zero(rest) {
        return Err(FormatError::field(WHAT, "reserved", "not zero"));
    }
    let number = |field, value: f64| match (0.0..=NUMBER_MAX).contains(&value) {
        true => Ok(value),
        false => Err(FormatError::field(WHAT, field, value)),
    };
    let lap_units = number("lap_units", f64::from_bits(head.lap_units))?;
    if lap_units == 0.0 {
        return Err(FormatError::field(WHAT, "lap_units", lap_units));
    }
    let victim_worth = match head.victim_worth {
        NO_WORTH => None,
        bits => Some(number("victim_worth", f64::from_bits(bits))?),
    };
    if !head.sample_rate.is_power_of_two() {
        return Err(FormatError::field(WHAT, "sample_rate", head.sample_rate));
    }
    let mut counts = Box::new([[[0.0; 2]; BANDS]; CLASSES]);
    let items = items.chunks_exact(BandCounts::BYTES);
    for (to, item) in counts.iter_mut().flatten().zip(items) {
        let BandCounts { hits, exposures } = bytemuck::pod_read_unaligned(item);
        *to = [f32::from_bits(hits), f32::from_bits(exposures)];
        number("hits", to[0].into())?;
        number("exposures", to[1].into())?;
    }
    Ok(Learned { lap_units, victim_worth, sample_rate: head.sample_rate, counts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::align::ALIGN;

    const STORE: StoreId = StoreId([7; 16]);

    fn learned() -> Learned {
        let mut counts = Box::new([[[0.0; 2]; BANDS]; CLASSES]);
        for (n, count) in counts.iter_mut().flatten().enumerate() {
            *count = [n as f32 / 7.0, n as f32];
        }
        Learned { lap_units: 700.5, victim_worth: Some(0.01), sample_rate: 8, counts }
    }

    fn resealed(mut bytes: Vec<u8>, at: usize, with: &[u8]) -> Vec<u8> {
        bytes[at..at + with.len()].copy_from_slice(with);
        let sum = checksum_around(&bytes, 8).expect("a hole inside");
        bytes[8..24].copy_from_slice(&sum);
        bytes
    }

    #[test]
    fn learned_state_round_trips() {
        for learned in [learned(), Learned { victim_worth: None, ..learned() }] {
            let bytes = encode(&learned, STORE, 9);
            assert_eq!(bytes.len() as u64 % ALIGN, 0);
            assert_eq!(decode(&bytes, STORE, 9), Ok(learned));
        }
    }

    #[test]
    fn learned_state_of_another_checkpoint_is_refused() {
        let bytes = encode(&learned(), STORE, 9);
        let refused = |bytes: &[u8], store, serial| {
            decode(bytes, store, serial).expect_err("another one").to_string()
        };
        assert!(refused(&bytes, STORE, 7).contains("field=serial"));
        assert!(refused(&bytes, StoreId([8; 16]), 9).contains("field=store"));
        assert_eq!(
            decode(&[0; LEARNED_BYTES], STORE, 9),
            Err(FormatError::Empty { structure: WHAT })
        );
        assert!(decode(&bytes[1..], STORE, 9).is_err());
    }

    #[test]
    fn flipped_bit_is_found() {
        let mut bytes = encode(&learned(), STORE, 9);
        for at in (0..LEARNED_BYTES).step_by(61).chain(0..LearnedHead::BYTES) {
            bytes[at] ^= 1 << (at % 8);
            assert!(decode(&bytes, STORE, 9).is_err(), "at={at}");
            bytes[at] ^= 1 << (at % 8);
        }
    }

    #[test]
    fn invalid_field_is_named() {
        let bytes = encode(&learned(), STORE, 9);
        let at = |name: &str| {
            let fields = LearnedHead::STRUCTURE.fields;
            fields.iter().find(|f| f.name == name).expect("a field").offset
        };
        let nan = f64::NAN.to_bits().to_le_bytes();
        let cases: [(&str, usize, &[u8]); 9] = [
            ("model", at("model"), &[2]),
            ("reserved", at("reserved"), &[1]),
            ("reserved", at("tail"), &[1]),
            ("reserved", LEARNED_BYTES - 1, &[1]),
            ("lap_units", at("lap_units"), &nan),
            ("lap_units", at("lap_units"), &[0; 8]),
            ("victim_worth", at("victim_worth"), &f64::NEG_INFINITY.to_bits().to_le_bytes()),
            ("sample_rate", at("sample_rate"), &[3]),
            ("hits", LearnedHead::BYTES, &(-1.0_f32).to_bits().to_le_bytes()),
        ];
        for (field, at, with) in cases {
            let error = decode(&resealed(bytes.clone(), at, with), STORE, 9).expect_err(field);
            assert!(error.to_string().contains(&format!("field={field}")), "{error}");
        }
        let newer = decode(&resealed(bytes, at("version"), &[2]), STORE, 9).expect_err("newer");
        assert!(newer.to_string().contains("newer format version=2"), "{newer}");
    }
}
