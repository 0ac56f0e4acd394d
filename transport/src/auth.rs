//! Pre-shared keys: the proof of each end that it has the key, and the MAC of the frames after it.
//! `docs/protocol.md` has the formulas; HMAC is RFC 2104, SHA-256 FIPS 180-4.

use std::collections::BTreeMap;
use std::fmt;

use hmac::{Hmac, KeyInit, Mac as _};
use pagelith_io::entropy::Entropy;
use pagelith_layouts::wire::auth::{KEY_NAME_MAX, ProofBody};
use pagelith_layouts::wire::head::Mac;
use sha2::{Digest, Sha256};

use crate::link_error::LinkError;
use crate::rights::Rights;

type HmacSha256 = Hmac<Sha256>;

/// Bytes of a head that its MAC covers.
const HEAD_COVERED: usize = 40;

/// A pre-shared key and its name. `Debug` prints only the name.
#[derive(Clone)]
pub struct Key {
    name: String,
    secret: Vec<u8>,
}

/// A key that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The name is invalid; it has this many bytes.
    #[error(
        "key name must have 1 to {KEY_NAME_MAX} of A-Z a-z 0-9 _ - . (not printed, it may be the key) bytes={0}"
    )]
    Name(usize),
    /// The key is too short to be safe, or too long.
    #[error("a key must have 32 to 64 random bytes bytes={0}")]
    Length(usize),
    /// Two keys have the same name.
    #[error("two keys have the same name, rename one name={0}")]
    DuplicateName(String),
}

impl Key {
    /// Minimum key in bytes. A shorter key could be guessed from an intercepted proof.
    pub const BYTES_MIN: usize = 32;
    /// Maximum key in bytes.
    pub const BYTES_MAX: usize = 64;

    /// A key of 32 to 64 random bytes, and the name by which a client selects it.
    pub fn new(name: &str, secret: &[u8]) -> Result<Key, KeyError> {
        if ProofBody::new(name, [0; 32], [0; 32]).is_none() {
            return Err(KeyError::Name(name.len()));
        }
        if !(Key::BYTES_MIN..=Key::BYTES_MAX).contains(&secret.len()) {
            return Err(KeyError::Length(secret.len()));
        }
        Ok(Key { name: name.into(), secret: secret.into() })
    }

    /// The name of the key; not a secret.
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

fn keyed(secret: &[u8]) -> HmacSha256 {
    HmacSha256::new_from_slice(secret)
        .unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"))
}

/// The keys that a server accepts, and the rights of each.
#[derive(Clone, Debug)]
pub struct KeyRing {
    keys: BTreeMap<String, (Key, Rights)>,
    /// Verifies proofs of unknown names, so that they take the same time and reveal nothing.
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
                return Err(KeyError::DuplicateName(name));
            }
        }
        Ok(ring)
    }

    /// Verify a client's proof and return its rights. The error does not reveal whether the name or
    /// the proof was wrong.
    pub(crate) fn admit(
        &self,
        proof: &ProofBody,
        transcript: [u8; 32],
    ) -> Result<(AuthSession, Rights), LinkError> {
        let known = self.keys.get(proof.key_name());
        let key = known.map_or(&self.decoy, |(key, _)| key);
        let session =
            AuthSession { key: key.clone(), transcript, nonce: proof.nonce, name: *proof };
        let proved = session.derive(Label::ClientProof).verify_slice(&proof.proof).is_ok();
        match known {
            Some((_, rights)) if proved => Ok((session, rights.clone())),
            _ => Err(LinkError::AuthenticationFailed { what: "the client's proof" }),
        }
    }
}

/// The hash of the greeting frames.
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

/// The input from which both ends derive proofs and frame keys.
pub(crate) struct AuthSession {
    key: Key,
    transcript: [u8; 32],
    nonce: [u8; 32],
    /// Only its key name is used, in the padded form that is hashed.
    name: ProofBody,
}

impl AuthSession {
    /// The session of a client with `key` and its own nonce. `None` if a proof cannot hold the
    /// name, which [`Key::new`] excludes.
    pub(crate) fn of_client(
        key: &Key,
        transcript: [u8; 32],
        nonce: [u8; 32],
    ) -> Option<AuthSession> {
        let name = ProofBody::new(key.name(), nonce, [0; 32])?;
        Some(AuthSession { key: key.clone(), transcript, nonce, name })
    }

    fn derive(&self, label: Label) -> HmacSha256 {
        let mut mac = self.key.keyed();
        mac.update(&label.bytes());
        mac.update(&self.transcript);
        mac.update(&self.nonce);
        mac.update(&self.name.key_name);
        mac.update(&[self.name.key_name_bytes]);
        mac
    }

    fn derived(&self, label: Label) -> [u8; 32] {
        self.derive(label).finalize().into_bytes().into()
    }

    /// The client's proof.
    pub(crate) fn client_proof(&self) -> ProofBody {
        ProofBody { proof: self.derived(Label::ClientProof), nonce: self.nonce, ..self.name }
    }

    /// The server's proof.
    pub(crate) fn server_proof(&self) -> ProofBody {
        ProofBody { proof: self.derived(Label::ServerProof), nonce: [0; 32], ..self.name }
    }

    /// Verify a server's proof for this session.
    pub(crate) fn check_server(&self, proof: &ProofBody) -> Result<(), LinkError> {
        let same = proof.key_name() == self.name.key_name() && proof.nonce == [0; 32];
        let proved = self.derive(Label::ServerProof).verify_slice(&proof.proof).is_ok();
        if same && proved {
            Ok(())
        } else {
            Err(LinkError::AuthenticationFailed { what: "the server's proof" })
        }
    }

    /// The MACs of the client's frames and of the server's.
    pub(crate) fn frame_macs(&self) -> (FrameMac, FrameMac) {
        let of = |label| FrameMac { keyed: keyed(&self.derived(label)), count: 0 };
        (of(Label::ClientFrames), of(Label::ServerFrames))
    }
}

/// The MAC of the frames of one direction: its key, and the number of frames so far.
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

    /// The MAC of the next frame; `body` is empty for data frames.
    pub(crate) fn next(&mut self, head: &[u8; 64], body: &[u8]) -> Mac {
        let whole: [u8; 32] = self.over(head, body).finalize().into_bytes().into();
        std::array::from_fn(|i| whole[i])
    }

    /// Verify the MAC of the next frame in constant time.
    pub(crate) fn check(
        &mut self,
        head: &[u8; 64],
        body: &[u8],
        mac: &Mac,
    ) -> Result<(), LinkError> {
        let same = self.over(head, body).verify_truncated_left(mac).is_ok();
        if same {
            Ok(())
        } else {
            Err(LinkError::AuthenticationFailed { what: "the mac of a frame" })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(secret: u8, name: &str, transcript: u8, nonce: u8) -> AuthSession {
        let key = Key::new(name, &[secret; 32]).expect("a key");
        AuthSession::of_client(&key, [transcript; 32], [nonce; 32]).expect("a name")
    }

    /// RFC 4231, test case 2.
    #[test]
    fn keyed_hash_matches_the_hmac_sha_256_test_vector() {
        let mut mac = keyed(b"Jefe");
        mac.update(b"what do ya want for nothing?");
        let bytes: [u8; 32] = mac.finalize().into_bytes().into();
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    #[test]
    fn proof_depends_on_key_name_transcript_nonce_and_role() {
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
    fn wrong_key_and_unknown_name_give_the_same_error() {
        let known = (Key::new("a", &[1; 32]).expect("a key"), Rights::all());
        let ring =
            KeyRing::new([known.clone()], &pagelith_io::system::SystemEntropy).expect("a ring");
        let ask = |secret, name| {
            let proof = session(secret, name, 9, 3).client_proof();
            ring.admit(&proof, [9; 32]).map(|(_, rights)| rights)
        };
        assert_eq!(ask(1, "a"), Ok(Rights::all()));
        let refused = LinkError::AuthenticationFailed { what: "the client's proof" };
        assert_eq!((ask(2, "a"), ask(1, "b")), (Err(refused.clone()), Err(refused)));
        assert_eq!(
            KeyRing::new([known.clone(), known], &pagelith_io::system::SystemEntropy).map(|_| ()),
            Err(KeyError::DuplicateName("a".into()))
        );
    }

    #[test]
    fn frame_mac_is_bound_to_sequence_direction_and_bytes() {
        let (client, server) = session(1, "a", 1, 1).frame_macs();
        let (head, body) = ([7; 64], b"body");
        let mut sender = client.clone();
        let macs = [sender.next(&head, body), sender.next(&head, body)];
        let mut reader = client.clone();
        assert_eq!(macs.map(|mac| reader.check(&head, body, &mac).is_ok()), [true, true]);
        assert!(client.clone().check(&head, body, &macs[1]).is_err(), "a frame was skipped");
        assert!(server.clone().check(&head, body, &macs[0]).is_err(), "the other direction");
        assert!(client.clone().check(&head, b"Body", &macs[0]).is_err());
        for at in 0..HEAD_COVERED {
            let mut other = head;
            other[at] ^= 1;
            assert!(client.clone().check(&other, body, &macs[0]).is_err(), "at={at}");
        }
    }

    #[test]
    fn key_of_invalid_length_is_refused_and_debug_hides_the_key() {
        assert_eq!(Key::new("a", &[1; 31]).map(|_| ()), Err(KeyError::Length(31)));
        assert_eq!(Key::new("a", &[1; 65]).map(|_| ()), Err(KeyError::Length(65)));
        assert_eq!(Key::new("a b", &[1; 32]).map(|_| ()), Err(KeyError::Name(3)));
        assert_eq!(format!("{:?}", Key::new("a", &[1; 32]).expect("a key")), "Key(a)");
    }
}
