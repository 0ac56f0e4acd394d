//! Pre-shared keys: how each side proves that it has one, and the MAC of frames behind that.
//! `docs/protocol.md` has the formulas; HMAC is RFC 2104, SHA-256 FIPS 180-4.

use std::collections::BTreeMap;
use std::fmt;

use hmac::{Hmac, KeyInit, Mac as _};
use pagelith_io::entropy::Entropy;
use pagelith_layouts::wire::auth::{KEY_NAME_MAX, ProofBody};
use pagelith_layouts::wire::head::Mac;
use sha2::{Digest, Sha256};

use crate::closed::Closed;
use crate::rights::Rights;

type HmacSha256 = Hmac<Sha256>;

/// Bytes of a head that its MAC covers.
const HEAD_COVERED: usize = 40;

/// A pre-shared key and its name. Prints without the key.
#[derive(Clone)]
pub struct Key {
    name: String,
    secret: Vec<u8>,
}

/// A key that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Its name is none; so many bytes.
    #[error(
        "name of a key must be 1 to {KEY_NAME_MAX} of A-Z a-z 0-9 _ - . (not repeated, it may be the key) bytes={0}"
    )]
    Name(usize),
    /// It is too short to be safe, or too long.
    #[error("a key must have 32 to 64 bytes, random ones bytes={0}")]
    Length(usize),
    /// Two keys of one name.
    #[error("two keys have one name name={0}")]
    Twice(String),
}

impl Key {
    /// Shortest key in bytes: short enough keys could be guessed from a proof that was overheard.
    pub const BYTES_MIN: usize = 32;
    /// Longest key in bytes.
    pub const BYTES_MAX: usize = 64;

    /// A key of 32 to 64 random bytes, and the name that a client says it by.
    pub fn new(name: &str, secret: &[u8]) -> Result<Key, KeyError> {
        if ProofBody::new(name, [0; 32], [0; 32]).is_none() {
            return Err(KeyError::Name(name.len()));
        }
        if !(Key::BYTES_MIN..=Key::BYTES_MAX).contains(&secret.len()) {
            return Err(KeyError::Length(secret.len()));
        }
        Ok(Key { name: name.into(), secret: secret.into() })
    }

    /// Its name; not a secret.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn keyed(&self) -> HmacSha256 {
        keyed(&self.secret)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.name)
    }
}

/// HMAC takes a key of any length.
fn keyed(secret: &[u8]) -> HmacSha256 {
    HmacSha256::new_from_slice(secret).unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"))
}

/// The keys that a server knows, and what each may do.
#[derive(Clone, Debug)]
pub struct KeyRing {
    keys: BTreeMap<String, (Key, Rights)>,
    /// What a name that is not known is checked against, so that it takes as long and tells nothing.
    decoy: Key,
}

impl KeyRing {
    /// A ring of these keys.
    pub fn new(
        keys: impl IntoIterator<Item = (Key, Rights)>,
        entropy: &dyn Entropy,
    ) -> Result<KeyRing, KeyError> {
        let mut secret = [0; Key::BYTES_MIN];
        entropy.fill(&mut secret);
        let decoy = Key { name: String::new(), secret: secret.to_vec() };
        let mut ring = KeyRing { keys: BTreeMap::new(), decoy };
        for (key, rights) in keys {
            let name = key.name.clone();
            if ring.keys.insert(name.clone(), (key, rights)).is_some() {
                return Err(KeyError::Twice(name));
            }
        }
        Ok(ring)
    }

    /// The rights behind a client's proof; the error does not tell whether name or proof was wrong.
    pub(crate) fn admit(&self, proof: &ProofBody, transcript: [u8; 32]) -> Result<(Session, Rights), Closed> {
        let known = self.keys.get(proof.key_name());
        let key = known.map_or(&self.decoy, |(key, _)| key);
        let session = Session { key: key.clone(), transcript, nonce: proof.nonce, said: *proof };
        let proved = session.derive(Label::ClientProof).verify_slice(&proof.proof).is_ok();
        match known {
            Some((_, rights)) if proved => Ok((session, rights.clone())),
            _ => Err(Closed::NotAuthentic { what: "the client's proof" }),
        }
    }
}

/// What the frames of the greeting hash to.
#[derive(Clone, Default)]
pub(crate) struct Transcript(Sha256);

impl Transcript {
    /// Append a whole frame, as it was sent.
    pub(crate) fn add(&mut self, frame: &[u8]) {
        self.0.update(frame);
    }

    /// The hash.
    pub(crate) fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

#[derive(Clone, Copy)]
enum Label {
    ClientProof,
    ServerProof,
    ClientFrames,
    ServerFrames,
}

impl Label {
    fn bytes(self) -> [u8; 32] {
        let text: &[u8] = match self {
            Label::ClientProof => b"pagelith-link-v1 client proof",
            Label::ServerProof => b"pagelith-link-v1 server proof",
            Label::ClientFrames => b"pagelith-link-v1 client frames",
            Label::ServerFrames => b"pagelith-link-v1 server frames",
        };
        let mut bytes = [0; 32];
        bytes[..text.len()].copy_from_slice(text);
        bytes
    }
}

/// What both sides compute proofs and frame keys from.
pub(crate) struct Session {
    key: Key,
    transcript: [u8; 32],
    nonce: [u8; 32],
    /// Holds the key's name as it is hashed.
    said: ProofBody,
}

impl Session {
    /// Of a client that says `key` with a nonce of its own. A key has a name that a proof takes.
    pub(crate) fn of_client(key: &Key, transcript: [u8; 32], nonce: [u8; 32]) -> Option<Session> {
        let said = ProofBody::new(key.name(), nonce, [0; 32])?;
        Some(Session { key: key.clone(), transcript, nonce, said })
    }

    fn derive(&self, label: Label) -> HmacSha256 {
        let mut mac = self.key.keyed();
        mac.update(&label.bytes());
        mac.update(&self.transcript);
        mac.update(&self.nonce);
        mac.update(&self.said.key_name);
        mac.update(&[self.said.key_name_bytes]);
        mac
    }

    fn derived(&self, label: Label) -> [u8; 32] {
        self.derive(label).finalize().into_bytes().into()
    }

    /// The client's proof.
    pub(crate) fn client_proof(&self) -> ProofBody {
        ProofBody { proof: self.derived(Label::ClientProof), nonce: self.nonce, ..self.said }
    }

    /// The server's proof.
    pub(crate) fn server_proof(&self) -> ProofBody {
        ProofBody { proof: self.derived(Label::ServerProof), nonce: [0; 32], ..self.said }
    }

    /// Whether a server's proof is one, and of this session.
    pub(crate) fn check_server(&self, proof: &ProofBody) -> Result<(), Closed> {
        let same = proof.key_name() == self.said.key_name() && proof.nonce == [0; 32];
        let proved = self.derive(Label::ServerProof).verify_slice(&proof.proof).is_ok();
        if same && proved { Ok(()) } else { Err(Closed::NotAuthentic { what: "the server's proof" }) }
    }

    /// The MACs of the client's frames and of the server's.
    pub(crate) fn frame_macs(&self) -> (FrameMac, FrameMac) {
        let of = |label| FrameMac { keyed: keyed(&self.derived(label)), count: 0 };
        (of(Label::ClientFrames), of(Label::ServerFrames))
    }
}

/// The MAC of one direction's frames: its key, and how many it has seen.
#[derive(Clone)]
pub(crate) struct FrameMac {
    keyed: HmacSha256,
    count: u64,
}

impl FrameMac {
    fn over(&mut self, head: &[u8; 64], body: &[u8]) -> HmacSha256 {
        let mut mac = self.keyed.clone();
        mac.update(&self.count.to_le_bytes());
        mac.update(&head[..HEAD_COVERED]);
        mac.update(body);
        self.count += 1;
        mac
    }

    /// The MAC of the next frame; `body` is empty for data.
    pub(crate) fn next(&mut self, head: &[u8; 64], body: &[u8]) -> Mac {
        let whole: [u8; 32] = self.over(head, body).finalize().into_bytes().into();
        std::array::from_fn(|i| whole[i])
    }

    /// Whether the next frame has the MAC that it must have; compared in constant time.
    pub(crate) fn check(&mut self, head: &[u8; 64], body: &[u8], mac: &Mac) -> Result<(), Closed> {
        let same = self.over(head, body).verify_truncated_left(mac).is_ok();
        if same { Ok(()) } else { Err(Closed::NotAuthentic { what: "the mac of a frame" }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(secret: u8, name: &str, transcript: u8, nonce: u8) -> Session {
        let key = Key::new(name, &[secret; 32]).expect("a key");
        Session::of_client(&key, [transcript; 32], [nonce; 32]).expect("a name")
    }

    /// RFC 4231, test case 2: the primitive is the one that the formulas mean.
    #[test]
    fn the_primitive_is_hmac_sha_256() {
        let mut mac = keyed(b"Jefe");
        mac.update(b"what do ya want for nothing?");
        let bytes: [u8; 32] = mac.finalize().into_bytes().into();
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    #[test]
    fn a_proof_depends_on_key_name_transcript_nonce_and_role() {
        let proofs: Vec<[u8; 32]> =
            [(1, "a", 1, 1), (2, "a", 1, 1), (1, "b", 1, 1), (1, "a", 2, 1), (1, "a", 1, 2)]
                .into_iter()
                .map(|(secret, name, transcript, nonce)| session(secret, name, transcript, nonce))
                .flat_map(|s| [s.client_proof().proof, s.server_proof().proof])
                .collect();
        let distinct: std::collections::BTreeSet<_> = proofs.iter().collect();
        assert_eq!(distinct.len(), proofs.len());
    }

    #[test]
    fn a_client_with_another_key_or_an_unknown_name_is_told_the_same() {
        let known = (Key::new("a", &[1; 32]).expect("a key"), Rights::all());
        let ring = KeyRing::new([known.clone()], &pagelith_io::system::SystemEntropy).expect("a ring");
        let ask = |secret, name| {
            let proof = session(secret, name, 9, 3).client_proof();
            ring.admit(&proof, [9; 32]).map(|(_, rights)| rights)
        };
        assert_eq!(ask(1, "a"), Ok(Rights::all()));
        let refused = Closed::NotAuthentic { what: "the client's proof" };
        assert_eq!((ask(2, "a"), ask(1, "b")), (Err(refused.clone()), Err(refused)));
        assert_eq!(
            KeyRing::new([known.clone(), known], &pagelith_io::system::SystemEntropy).map(|_| ()),
            Err(KeyError::Twice("a".into()))
        );
    }

    #[test]
    fn a_frame_counts_once_in_its_place_and_direction() {
        let (client, server) = session(1, "a", 1, 1).frame_macs();
        let (head, body) = ([7; 64], b"body");
        let mut sender = client.clone();
        let macs = [sender.next(&head, body), sender.next(&head, body)];
        let mut reader = client.clone();
        assert_eq!(macs.map(|mac| reader.check(&head, body, &mac).is_ok()), [true, true]);
        assert!(client.clone().check(&head, body, &macs[1]).is_err(), "one was left out");
        assert!(server.clone().check(&head, body, &macs[0]).is_err(), "of the other direction");
        assert!(client.clone().check(&head, b"Body", &macs[0]).is_err());
        for at in 0..HEAD_COVERED {
            let mut other = head;
            other[at] ^= 1;
            assert!(client.clone().check(&other, body, &macs[0]).is_err(), "at={at}");
        }
    }

    #[test]
    fn keys_are_long_and_print_nothing() {
        assert_eq!(Key::new("a", &[1; 31]).map(|_| ()), Err(KeyError::Length(31)));
        assert_eq!(Key::new("a", &[1; 65]).map(|_| ()), Err(KeyError::Length(65)));
        assert_eq!(Key::new("a b", &[1; 32]).map(|_| ()), Err(KeyError::Name(3)));
        assert_eq!(format!("{:?}", Key::new("a", &[1; 32]).expect("a key")), "Key(a)");
    }
}
