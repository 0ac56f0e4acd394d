//! Challenge and proof: each side proves that it has the key without sending it. `docs/protocol.md`
//! defines the input of the proofs; `transport/src/auth.rs` computes them.

use crate::error::FormatError;
use crate::format::{read, structure};

structure! {
    /// Body of a challenge.
    pub struct ChallengeBody = 32 {
        /// Random bytes, new for every connection.
        pub nonce: [u8; 32],
    }
}

structure! {
    /// Body of a proof.
    pub struct ProofBody = 96 {
        /// Name of the key (not secret), padded with zeros. The server's proof repeats it.
        pub key_name: [u8; 31],
        /// Length of the key's name, 1 to 31.
        pub key_name_bytes: u8,
        /// In the client's proof random bytes, new for every connection; zero in the server's
        /// proof.
        pub nonce: [u8; 32],
        /// HMAC-SHA-256, see the proofs.
        pub proof: [u8; 32],
    }
}

const WHAT: &str = "proof";

/// Longest name of a key in bytes.
pub const KEY_NAME_MAX: usize = 31;

impl ChallengeBody {
    /// Read a body.
    pub fn decode(body: &[u8]) -> Result<ChallengeBody, FormatError> {
        whole("challenge", body)
    }
}

impl ProofBody {
    /// A proof for the key named `key_name`; `None` unless the name is 1 to 31 of A-Z a-z 0-9 _ - .
    pub fn new(key_name: &str, nonce: [u8; 32], proof: [u8; 32]) -> Option<ProofBody> {
        let mut name = [0; KEY_NAME_MAX];
        let place = name.get_mut(..key_name.len()).filter(|_| is_name(key_name.as_bytes()))?;
        place.copy_from_slice(key_name.as_bytes());
        Some(ProofBody { key_name: name, key_name_bytes: key_name.len() as u8, nonce, proof })
    }

    /// Read a body.
    pub fn decode(body: &[u8]) -> Result<ProofBody, FormatError> {
        let p: ProofBody = whole(WHAT, body)?;
        let (name, rest) = p
            .key_name
            .split_at_checked(p.key_name_bytes.into())
            .ok_or_else(|| FormatError::field(WHAT, "key_name_bytes", p.key_name_bytes))?;
        if !is_name(name) || rest.iter().any(|b| *b != 0) {
            return Err(FormatError::field(WHAT, "key_name", "not a name"));
        }
        Ok(p)
    }

    /// The key's name.
    pub fn key_name(&self) -> &str {
        let name = self.key_name.get(..self.key_name_bytes.into()).unwrap_or_default();
        str::from_utf8(name).unwrap_or_default()
    }
}

fn is_name(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(b))
}

fn whole<T: bytemuck::AnyBitPattern>(what: &'static str, body: &[u8]) -> Result<T, FormatError> {
    let need = std::mem::size_of::<T>();
    match read(body) {
        Some(value) if body.len() == need => Ok(value),
        Some(_) => Err(FormatError::field(what, "length", body.len())),
        None => {
            Err(FormatError::Short { structure: what, need: need as u64, have: body.len() as u64 })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proof_round_trips_and_invalid_key_name_is_refused() {
        let proof = ProofBody::new("rank-0", [1; 32], [2; 32]).expect("a name");
        assert_eq!(ProofBody::decode(bytemuck::bytes_of(&proof)), Ok(proof));
        assert_eq!(proof.key_name(), "rank-0");
        for name in ["", "a b", "\u{e9}", &"k".repeat(32)] {
            assert!(ProofBody::new(name, [0; 32], [0; 32]).is_none(), "{name:?}");
        }
        for (name, len) in [(*b"a\0b", 3), (*b"abc", 2), (*b"abc", 0), (*b"abc", 32)] {
            let mut forged = proof;
            forged.key_name = [0; KEY_NAME_MAX];
            forged.key_name[..3].copy_from_slice(&name);
            forged.key_name_bytes = len;
            assert!(ProofBody::decode(bytemuck::bytes_of(&forged)).is_err(), "{name:?} {len}");
        }
        assert!(
            ChallengeBody::decode(&[0; 31]).is_err() && ChallengeBody::decode(&[0; 33]).is_err()
        );
    }
}
