//! The handshake of a connection as a state machine for each role. It ends with the agreement or
//! with the reason for its failure.
//!
//! It has no I/O and no clock. The caller reads as many bytes as [`Handshake::need`] returns,
//! passes the whole frame to `Handshake::take`, and sends the bytes in [`Handshake::out`].

use std::sync::Arc;

use pagelith_io::entropy::Entropy;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::auth::{ChallengeBody, ProofBody};
use pagelith_layouts::wire::greeting::{Greeting, Refusal, RefusalReason};
use pagelith_layouts::wire::head::{self, HeadFacts};
use pagelith_layouts::wire::{FrameHead, FrameKind, LinkRole, VERSION_GREETING};

use crate::auth::{AuthSession, Key, KeyRing, Transcript};
use crate::capability::{Capabilities, NegotiatedCapabilities, agree};
use crate::handshake_outcome::HandshakeOutcome;
use crate::link_error::LinkError;
use crate::link_permits::{LinkPermit, LinkPermits};
use crate::rights::Rights;

/// How a server authenticates its clients.
#[derive(Clone, Debug)]
pub enum ClientAuth {
    /// By a key, which determines their rights.
    Keys(Arc<KeyRing>),
    /// By the connection itself: each client that can connect has these rights. For links whose
    /// set-up identifies the peer, and for a server that trusts all processes of its host.
    Connection(Rights),
}

/// The handshake of one end.
pub struct Handshake {
    offer: Capabilities,
    transcript: Transcript,
    nonce: [u8; 32],
    state: State,
    out: Vec<u8>,
    /// The permits of a server that bounds its links.
    permits: Option<Arc<LinkPermits>>,
    /// The name of the client's host, at a server.
    client_host: Option<String>,
}

enum State {
    Client { key: Option<Key>, step: ClientStep },
    Server { admission: ClientAuth, step: ServerStep },
}

enum ClientStep {
    Welcome,
    Challenge(NegotiatedCapabilities),
    Proof(NegotiatedCapabilities, Box<AuthSession>),
    Over,
}

enum ServerStep {
    Hello,
    Proof(NegotiatedCapabilities),
    Over,
}

impl Handshake {
    /// The handshake of a client; its hello is in [`Handshake::out`] at once.
    pub fn client(offer: Capabilities, key: Option<Key>, entropy: &dyn Entropy) -> Handshake {
        Handshake::client_of_host(offer, key, None, entropy)
    }

    /// The same, with the name of this host for the server's log.
    pub fn client_of_host(
        offer: Capabilities,
        key: Option<Key>,
        host: Option<&str>,
        entropy: &dyn Entropy,
    ) -> Handshake {
        let greeting = offer.greeting(key.is_some());
        let hello = host.map_or_else(|| greeting.encode(), |host| greeting.encode_with_host(host));
        let state = State::Client { key, step: ClientStep::Welcome };
        let mut handshake = Handshake::new(offer, state, entropy);
        handshake.queue_frame(FrameKind::Hello, &hello);
        handshake
    }

    /// The handshake of a server.
    pub fn server(offer: Capabilities, admission: ClientAuth, entropy: &dyn Entropy) -> Handshake {
        let state = State::Server { admission, step: ServerStep::Hello };
        Handshake::new(offer, state, entropy)
    }

    /// Admit a peer only with one of these permits.
    pub(crate) fn with_permits(self, permits: Arc<LinkPermits>) -> Handshake {
        Handshake { permits: Some(permits), ..self }
    }

    /// Whether the client's greeting has arrived; always true at a client's end.
    pub(crate) fn is_greeted(&self) -> bool {
        !matches!(self.state, State::Server { step: ServerStep::Hello, .. })
    }

    fn new(offer: Capabilities, state: State, entropy: &dyn Entropy) -> Handshake {
        let mut nonce = [0; 32];
        entropy.fill(&mut nonce);
        let (transcript, out) = (Transcript::default(), Vec::new());
        Handshake { offer, transcript, nonce, state, out, permits: None, client_host: None }
    }

    /// The peer's address with the name of its host, if it has one.
    pub(crate) fn named(&self, peer: String) -> String {
        self.client_host.as_ref().map_or(peer.clone(), |host| format!("{peer} host={host}"))
    }

    /// Whether there are bytes to send.
    pub fn wants_write(&self) -> bool {
        !self.out.is_empty()
    }

    /// Bytes to send before all others; the caller removes the bytes that it has sent.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Bytes of heap memory in use.
    pub(crate) fn held_bytes(&self) -> usize {
        self.out.capacity()
    }

    fn side(&self) -> LinkRole {
        match self.state {
            State::Client { .. } => LinkRole::Client,
            State::Server { .. } => LinkRole::Server,
        }
    }

    /// Length of the frame that begins with `received`: that of a head until the head is complete,
    /// then that of head and body. At most 1088 bytes. An error if the frame is not allowed in this
    /// state.
    pub fn need(&self, received: &[u8]) -> Result<usize, LinkError> {
        let Some(bytes) = received.first_chunk() else { return Ok(FrameHead::BYTES) };
        let (facts, _) = head::decode(bytes, None)?;
        if !facts.kind.is_greeting() || !facts.kind.is_sent_by(self.side().other()) {
            return Err(LinkError::bad_field("kind", format_args!("{:?}", facts.kind)));
        }
        Ok(FrameHead::BYTES + facts.body_bytes as usize)
    }

    /// Process a whole frame. `Ok(None)` if more frames follow. After an error a server has a
    /// refusal in [`Handshake::out`], and the handshake is over.
    pub(crate) fn take(&mut self, frame: &[u8]) -> Result<Option<HandshakeOutcome>, LinkError> {
        let taken = head::split(frame, None).map_err(LinkError::from).and_then(
            |(facts, _, body)| match self.side() {
                LinkRole::Client => self.client_takes(facts.kind, frame, body),
                LinkRole::Server => self.server_takes(facts.kind, frame, body),
            },
        );
        taken.inspect_err(|why| self.refuse(why))
    }

    fn client_takes(
        &mut self,
        kind: FrameKind,
        frame: &[u8],
        body: &[u8],
    ) -> Result<Option<HandshakeOutcome>, LinkError> {
        if kind == FrameKind::Refusal {
            return Err(LinkError::Refused(Refusal::decode(body)?));
        }
        let State::Client { key, step } = &mut self.state else {
            return Err(LinkError::ClosedLocally);
        };
        let key = key.clone();
        match (std::mem::replace(step, ClientStep::Over), kind) {
            (ClientStep::Welcome, FrameKind::Welcome) => {
                self.transcript.add(frame);
                let common = agree(&self.offer, &Greeting::decode(body)?, key.is_some())
                    .map_err(|refusal| LinkError::Incompatible(refusal.text))?;
                if key.is_none() {
                    return Ok(Some(HandshakeOutcome::without_key(common, Rights::all())));
                }
                self.client_step(ClientStep::Challenge(common));
                Ok(None)
            }
            (ClientStep::Challenge(common), FrameKind::Challenge) => {
                ChallengeBody::decode(body)?;
                self.transcript.add(frame);
                let transcript = std::mem::take(&mut self.transcript).finish();
                let session =
                    key.and_then(|key| AuthSession::of_client(&key, transcript, self.nonce));
                let session = session.ok_or(LinkError::AuthenticationFailed { what: "the key" })?;
                self.queue_frame(FrameKind::Proof, bytemuck::bytes_of(&session.client_proof()));
                self.client_step(ClientStep::Proof(common, Box::new(session)));
                Ok(None)
            }
            (ClientStep::Proof(common, session), FrameKind::Proof) => {
                session.check_server(&ProofBody::decode(body)?)?;
                let (own, theirs) = session.frame_macs();
                let key_name = key.map(|key| key.name().to_owned());
                Ok(Some(HandshakeOutcome {
                    common,
                    rights: Rights::all(),
                    key_name,
                    macs: Some((own, theirs)),
                    permit: None,
                }))
            }
            (_, kind) => Err(LinkError::bad_field("kind", format_args!("{kind:?}"))),
        }
    }

    fn client_step(&mut self, next: ClientStep) {
        if let State::Client { step, .. } = &mut self.state {
            *step = next;
        }
    }

    fn server_takes(
        &mut self,
        kind: FrameKind,
        frame: &[u8],
        body: &[u8],
    ) -> Result<Option<HandshakeOutcome>, LinkError> {
        let State::Server { admission, step } = &mut self.state else {
            return Err(LinkError::ClosedLocally);
        };
        let admission = admission.clone();
        match (std::mem::replace(step, ServerStep::Over), kind) {
            (ServerStep::Hello, FrameKind::Hello) => {
                let keyed = matches!(admission, ClientAuth::Keys(_));
                self.transcript.add(frame);
                self.client_host = Greeting::host_of(body).map(str::to_owned);
                let common = agree(&self.offer, &Greeting::decode(body)?, keyed)
                    .map_err(LinkError::Refused)?;
                let permit = if keyed { None } else { self.acquire_permit()? };
                let welcome = self.offer.greeting(keyed).encode();
                self.queue_frame(FrameKind::Welcome, &welcome);
                if let ClientAuth::Connection(rights) = admission {
                    return Ok(Some(HandshakeOutcome {
                        permit,
                        ..HandshakeOutcome::without_key(common, rights)
                    }));
                }
                let challenge = ChallengeBody { nonce: self.nonce };
                self.queue_frame(FrameKind::Challenge, bytemuck::bytes_of(&challenge));
                if let State::Server { step, .. } = &mut self.state {
                    *step = ServerStep::Proof(common);
                }
                Ok(None)
            }
            (ServerStep::Proof(common), FrameKind::Proof) => {
                let ClientAuth::Keys(ring) = admission else {
                    return Err(LinkError::ClosedLocally);
                };
                let transcript = std::mem::take(&mut self.transcript).finish();
                let proof = ProofBody::decode(body)?;
                let (session, rights) = ring.admit(&proof, transcript)?;
                let permit = self.acquire_permit()?;
                self.queue_frame(FrameKind::Proof, bytemuck::bytes_of(&session.server_proof()));
                let (theirs, own) = session.frame_macs();
                let key_name = Some(proof.key_name().to_owned());
                Ok(Some(HandshakeOutcome {
                    common,
                    rights,
                    key_name,
                    macs: Some((own, theirs)),
                    permit,
                }))
            }
            (_, kind) => Err(LinkError::bad_field("kind", format_args!("{kind:?}"))),
        }
    }

    /// A permit for the authenticated peer; a refusal if all are in use.
    fn acquire_permit(&self) -> Result<Option<LinkPermit>, LinkError> {
        let Some(permits) = &self.permits else { return Ok(None) };
        let text = || {
            format!(
                "link limit of the server reached: close other clients links_max={}",
                permits.capacity()
            )
        };
        let versions = self.offer.versions;
        let busy = || Refusal { reason: RefusalReason::Busy, versions, missing: 0, text: text() };
        permits.try_acquire().map(Some).ok_or_else(|| LinkError::Refused(busy()))
    }

    /// Queue a frame, and add it to the transcript if it is part of that.
    fn queue_frame(&mut self, kind: FrameKind, body: &[u8]) {
        let facts = HeadFacts::control(VERSION_GREETING, kind, OpId(0), body);
        let frame = [&head::encode(&facts, [0; 16])[..], body].concat();
        if matches!(kind, FrameKind::Hello | FrameKind::Welcome | FrameKind::Challenge) {
            self.transcript.add(&frame);
        }
        self.out.extend_from_slice(&frame);
    }

    /// Queue a server's last frame: the reason for the refusal. It reveals nothing that is reserved
    /// for authenticated peers.
    pub(crate) fn refuse(&mut self, why: &LinkError) {
        if self.side() == LinkRole::Client {
            return;
        }
        let plain = |reason, text: &str| Refusal {
            reason,
            versions: self.offer.versions,
            missing: 0,
            text: text.into(),
        };
        let refusal = match why {
            LinkError::Refused(refusal) => refusal.clone(),
            LinkError::AuthenticationFailed { .. } => {
                plain(RefusalReason::Denied, "unknown key name or wrong key")
            }
            LinkError::HandshakeTimeout { .. } => {
                plain(RefusalReason::Late, "the handshake took too long")
            }
            _ => plain(RefusalReason::Malformed, "invalid handshake frame"),
        };
        self.queue_frame(FrameKind::Refusal, &refusal.encode());
    }
}

#[cfg(test)]
mod tests {
    use pagelith_io::system::SystemEntropy;

    use super::*;

    fn key(secret: u8) -> Key {
        Key::new("rank-0", &[secret; 32]).expect("a key")
    }

    fn keys(secret: u8) -> ClientAuth {
        let ring = KeyRing::new([(key(secret), Rights::all())], &SystemEntropy).expect("a ring");
        ClientAuth::Keys(Arc::new(ring))
    }

    fn offer(versions: (u16, u16)) -> Capabilities {
        Capabilities { versions, ..Capabilities::of_this_build([3; 16]) }
    }

    /// The result of one end's handshake, if it has ended.
    type End = Option<Result<HandshakeOutcome, LinkError>>;

    /// Exchange frames between both ends, one by one, and return the result of each end.
    fn converse(
        client: &mut Handshake,
        server: &mut Handshake,
        alter: &mut dyn FnMut(&mut Vec<u8>),
    ) -> (End, End) {
        let mut ends = (None, None);
        for _ in 0..8 {
            for to_server in [true, false] {
                let (from, to) = if to_server {
                    (&mut *client, &mut *server)
                } else {
                    (&mut *server, &mut *client)
                };
                let mut bytes = std::mem::take(from.out());
                while !bytes.is_empty() {
                    let end = if to_server { &mut ends.1 } else { &mut ends.0 };
                    let taken = to.need(&bytes[..bytes.len().min(64)]).and_then(|need| {
                        let mut frame: Vec<u8> = bytes.drain(..need).collect();
                        alter(&mut frame);
                        to.take(&frame)
                    });
                    match taken {
                        Ok(None) => {}
                        Ok(Some(agreed)) => *end = Some(Ok(agreed)),
                        Err(why) => {
                            *end = end.take().or(Some(Err(why)));
                            bytes.clear();
                        }
                    }
                }
            }
        }
        ends
    }

    fn meet(client: (Capabilities, Option<Key>), server: (Capabilities, ClientAuth)) -> (End, End) {
        let mut client = Handshake::client(client.0, client.1, &SystemEntropy);
        let mut server = Handshake::server(server.0, server.1, &SystemEntropy);
        converse(&mut client, &mut server, &mut |_| {})
    }

    #[test]
    fn both_ends_agree_and_derive_matching_macs() {
        let (c, s) = meet((offer((1, 2)), Some(key(1))), (offer((1, 1)), keys(1)));
        let (c, s) = (c.expect("ended").expect("agreed"), s.expect("ended").expect("agreed"));
        assert_eq!((c.common.version, s.common.version), (1, 1));
        assert_eq!(
            (c.key_name.as_deref(), s.key_name.as_deref()),
            (Some("rank-0"), Some("rank-0"))
        );
        let ((mut c_out, mut c_in), (mut s_out, mut s_in)) =
            (c.macs.expect("a key"), s.macs.expect("a key"));
        let mac = c_out.next(&[1; 64], b"x");
        assert_eq!(s_in.check(&[1; 64], b"x", &mac), Ok(()));
        let mac = s_out.next(&[1; 64], b"x");
        assert_eq!(c_in.check(&[1; 64], b"x", &mac), Ok(()));
        let (c, s) =
            meet((offer((1, 1)), None), (offer((1, 1)), ClientAuth::Connection(Rights::all())));
        assert!(c.expect("ended").expect("agreed").macs.is_none());
        assert!(s.expect("ended").expect("agreed").macs.is_none());
    }

    #[test]
    fn incompatible_handshakes_are_refused_with_a_reason_at_both_ends() {
        let reason = |end: End| match end.expect("ended").map(|_| ()) {
            Err(LinkError::Refused(refusal)) => refusal.reason,
            other => panic!("{other:?}"),
        };
        let no_key = || ClientAuth::Connection(Rights::all());
        for (client, server, expected) in [
            ((offer((1, 1)), Some(key(1))), (offer((2, 3)), keys(1)), RefusalReason::Version),
            ((offer((2, 3)), Some(key(1))), (offer((1, 1)), keys(1)), RefusalReason::Version),
            ((offer((1, 1)), None), (offer((1, 1)), keys(1)), RefusalReason::Denied),
            ((offer((1, 1)), Some(key(1))), (offer((1, 1)), no_key()), RefusalReason::Denied),
        ] {
            let (c, s) = meet(client, server);
            assert_eq!((reason(c), reason(s)), (expected, expected));
        }
        let (c, s) = meet((offer((1, 1)), Some(key(2))), (offer((1, 1)), keys(1)));
        assert_eq!(reason(c), RefusalReason::Denied);
        assert_eq!(
            s.expect("ended").err(),
            Some(LinkError::AuthenticationFailed { what: "the client's proof" })
        );
    }

    /// An attacker on the path changes any byte of any frame and corrects its checksums.
    #[test]
    fn handshake_with_a_tampered_frame_fails() {
        for which in 0..5 {
            for at in 0..96 {
                let mut client = Handshake::client(offer((1, 1)), Some(key(1)), &SystemEntropy);
                let mut server = Handshake::server(offer((1, 1)), keys(1), &SystemEntropy);
                let mut seen = 0;
                let ends = converse(&mut client, &mut server, &mut |frame| {
                    if seen == which && 64 + at < frame.len() {
                        frame[64 + at] ^= 1;
                        let (facts, _) = head::decode(frame.first_chunk().expect("a head"), None)
                            .expect("a head");
                        let facts = HeadFacts::control(1, facts.kind, facts.op, &frame[64..]);
                        frame[..64].copy_from_slice(&head::encode(&facts, [0; 16]));
                    }
                    seen += 1;
                });
                let agreed =
                    [&ends.0, &ends.1].map(|end| end.as_ref().is_some_and(|end| end.is_ok()));
                let untouched = at >= [64, 64, 32, 96, 96][which];
                assert_eq!(agreed[0], untouched, "which={which} at={at}");
                // The server's proof is its last frame, so it cannot learn whether that arrived
                // unchanged.
                assert_eq!(agreed[1], untouched || which == 4, "which={which} at={at}");
            }
        }
    }

    #[test]
    fn frame_out_of_order_is_refused() {
        let bare = |kind| {
            let facts = HeadFacts::control(1, kind, OpId(0), &[1; 32]);
            [&head::encode(&facts, [0; 16])[..], &[1; 32]].concat()
        };
        for kind in [FrameKind::Welcome, FrameKind::Challenge, FrameKind::Refusal] {
            let server = Handshake::server(offer((1, 1)), keys(1), &SystemEntropy);
            assert!(server.need(&bare(kind)).is_err(), "{kind:?}");
        }
        let mut server = Handshake::server(offer((1, 1)), keys(1), &SystemEntropy);
        assert!(server.take(&bare(FrameKind::Proof)).is_err(), "a proof before a hello");
        let mut client = Handshake::client(offer((1, 1)), Some(key(1)), &SystemEntropy);
        assert!(client.take(&bare(FrameKind::Challenge)).is_err(), "a challenge before a welcome");
        assert!(client.out().len() < 256, "a client sends no refusal");
    }
}
