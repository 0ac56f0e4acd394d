//! The first frames of a connection as two state machines: bytes in, bytes out, and in the end what was agreed or why
//! not. No I/O and no clock: a link reads as many bytes as [`Handshake::need`] says, hands them to
//! `Handshake::take`, and sends what [`Handshake::out`] has.

use std::sync::Arc;

use pagelith_io::entropy::Entropy;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::auth::{ChallengeBody, ProofBody};
use pagelith_layouts::wire::greeting::{Greeting, Reason, Refusal};
use pagelith_layouts::wire::head::{self, HeadFacts};
use pagelith_layouts::wire::{FrameHead, Kind, Side, VERSION_GREETING};

use crate::auth::{FrameMac, Key, KeyRing, Session, Transcript};
use crate::capability::{Common, Offer, agree};
use crate::closed::Closed;
use crate::places::{Place, Places};
use crate::rights::Rights;

/// How a server knows its clients.
#[derive(Clone, Debug)]
pub enum Admission {
    /// By a key, which says what they may do.
    Keys(Arc<KeyRing>),
    /// By the connection itself: whoever can make one may do this. For links whose set-up tells who the peer is, and for
    /// a server that trusts everybody on its host.
    Connection(Rights),
}

/// One side's first frames.
pub struct Handshake {
    offer: Offer,
    transcript: Transcript,
    nonce: [u8; 32],
    state: State,
    out: Vec<u8>,
    /// A server's, if it has only so many.
    places: Option<Arc<Places>>,
}

enum State {
    Client { key: Option<Key>, step: ClientStep },
    Server { admission: Admission, step: ServerStep },
}

enum ClientStep {
    Welcome,
    Challenge(Common),
    Proof(Common, Box<Session>),
    Over,
}

enum ServerStep {
    Hello,
    Proof(Common),
    Over,
}

/// What a handshake ends with.
pub(crate) struct Agreed {
    pub common: Common,
    pub rights: Rights,
    pub key_name: Option<String>,
    /// MACs of the frames sent and received; `None` where there is no key.
    pub macs: Option<(FrameMac, FrameMac)>,
    /// At a server that has only so many.
    pub place: Option<Place>,
}

impl Handshake {
    /// A client's; its hello is in [`Handshake::out`] at once.
    pub fn client(offer: Offer, key: Option<Key>, entropy: &dyn Entropy) -> Handshake {
        let hello = offer.greeting(key.is_some()).encode();
        let state = State::Client { key, step: ClientStep::Welcome };
        let mut handshake = Handshake::new(offer, state, entropy);
        handshake.say(Kind::Hello, &hello);
        handshake
    }

    /// A server's.
    pub fn server(offer: Offer, admission: Admission, entropy: &dyn Entropy) -> Handshake {
        let state = State::Server { admission, step: ServerStep::Hello };
        Handshake::new(offer, state, entropy)
    }

    /// The same, which lets a peer in only if one of these is free.
    pub(crate) fn taking_places(self, places: Arc<Places>) -> Handshake {
        Handshake { places: Some(places), ..self }
    }

    /// Whether the other side has greeted; a client's need not.
    pub(crate) fn is_greeted(&self) -> bool {
        !matches!(self.state, State::Server { step: ServerStep::Hello, .. })
    }

    fn new(offer: Offer, state: State, entropy: &dyn Entropy) -> Handshake {
        let mut nonce = [0; 32];
        entropy.fill(&mut nonce);
        let (transcript, out) = (Transcript::default(), Vec::new());
        Handshake { offer, transcript, nonce, state, out, places: None }
    }

    /// Whether there are bytes to be sent.
    pub fn wants_write(&self) -> bool {
        !self.out.is_empty()
    }

    /// Bytes to be sent, in front of all others; whoever sends them takes them out.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Bytes that it holds on the heap.
    pub(crate) fn held_bytes(&self) -> usize {
        self.out.capacity()
    }

    fn side(&self) -> Side {
        match self.state {
            State::Client { .. } => Side::Client,
            State::Server { .. } => Side::Server,
        }
    }

    /// How many bytes the frame that begins with `have` has, as far as can be said: a head, or head and body. At most
    /// 1088. Refuses what cannot come now.
    pub fn need(&self, have: &[u8]) -> Result<usize, Closed> {
        let Some(bytes) = have.first_chunk() else { return Ok(FrameHead::BYTES) };
        let (facts, _) = head::decode(bytes, None)?;
        if !facts.kind.is_greeting() || !facts.kind.is_sent_by(self.side().other()) {
            return Err(Closed::broken("kind", format_args!("{:?}", facts.kind)));
        }
        Ok(FrameHead::BYTES + facts.body_bytes as usize)
    }

    /// Take a whole frame. `Ok(None)` is for more to come. After an error a server has a refusal in
    /// [`Handshake::out`], and the connection is over.
    pub(crate) fn take(&mut self, frame: &[u8]) -> Result<Option<Agreed>, Closed> {
        let taken =
            head::split(frame, None).map_err(Closed::from).and_then(|(facts, _, body)| match self.side() {
                Side::Client => self.client_takes(facts.kind, frame, body),
                Side::Server => self.server_takes(facts.kind, frame, body),
            });
        taken.inspect_err(|why| self.refuse(why))
    }

    fn client_takes(&mut self, kind: Kind, frame: &[u8], body: &[u8]) -> Result<Option<Agreed>, Closed> {
        if kind == Kind::Refusal {
            return Err(Closed::Refused(Refusal::decode(body)?));
        }
        let State::Client { key, step } = &mut self.state else { return Err(Closed::Here) };
        let key = key.clone();
        match (std::mem::replace(step, ClientStep::Over), kind) {
            (ClientStep::Welcome, Kind::Welcome) => {
                self.transcript.add(frame);
                let common = agree(&self.offer, &Greeting::decode(body)?, key.is_some())
                    .map_err(|refusal| Closed::Misfit(refusal.text))?;
                if key.is_none() {
                    return Ok(Some(Agreed::without_key(common, Rights::all())));
                }
                self.client_step(ClientStep::Challenge(common));
                Ok(None)
            }
            (ClientStep::Challenge(common), Kind::Challenge) => {
                ChallengeBody::decode(body)?;
                self.transcript.add(frame);
                let transcript = std::mem::take(&mut self.transcript).finish();
                let session = key.and_then(|key| Session::of_client(&key, transcript, self.nonce));
                let session = session.ok_or(Closed::NotAuthentic { what: "the key" })?;
                self.say(Kind::Proof, bytemuck::bytes_of(&session.client_proof()));
                self.client_step(ClientStep::Proof(common, Box::new(session)));
                Ok(None)
            }
            (ClientStep::Proof(common, session), Kind::Proof) => {
                session.check_server(&ProofBody::decode(body)?)?;
                let (own, theirs) = session.frame_macs();
                let key_name = key.map(|key| key.name().to_owned());
                Ok(Some(Agreed {
                    common,
                    rights: Rights::all(),
                    key_name,
                    macs: Some((own, theirs)),
                    place: None,
                }))
            }
            (_, kind) => Err(Closed::broken("kind", format_args!("{kind:?}"))),
        }
    }

    fn client_step(&mut self, next: ClientStep) {
        if let State::Client { step, .. } = &mut self.state {
            *step = next;
        }
    }

    fn server_takes(&mut self, kind: Kind, frame: &[u8], body: &[u8]) -> Result<Option<Agreed>, Closed> {
        let State::Server { admission, step } = &mut self.state else { return Err(Closed::Here) };
        let admission = admission.clone();
        match (std::mem::replace(step, ServerStep::Over), kind) {
            (ServerStep::Hello, Kind::Hello) => {
                let keyed = matches!(admission, Admission::Keys(_));
                self.transcript.add(frame);
                let common = agree(&self.offer, &Greeting::decode(body)?, keyed).map_err(Closed::Refused)?;
                let place = if keyed { None } else { self.take_place()? };
                let welcome = self.offer.greeting(keyed).encode();
                self.say(Kind::Welcome, &welcome);
                if let Admission::Connection(rights) = admission {
                    return Ok(Some(Agreed { place, ..Agreed::without_key(common, rights) }));
                }
                let challenge = ChallengeBody { nonce: self.nonce };
                self.say(Kind::Challenge, bytemuck::bytes_of(&challenge));
                if let State::Server { step, .. } = &mut self.state {
                    *step = ServerStep::Proof(common);
                }
                Ok(None)
            }
            (ServerStep::Proof(common), Kind::Proof) => {
                let Admission::Keys(ring) = admission else { return Err(Closed::Here) };
                let transcript = std::mem::take(&mut self.transcript).finish();
                let proof = ProofBody::decode(body)?;
                let (session, rights) = ring.admit(&proof, transcript)?;
                let place = self.take_place()?;
                self.say(Kind::Proof, bytemuck::bytes_of(&session.server_proof()));
                let (theirs, own) = session.frame_macs();
                let key_name = Some(proof.key_name().to_owned());
                Ok(Some(Agreed { common, rights, key_name, macs: Some((own, theirs)), place }))
            }
            (_, kind) => Err(Closed::broken("kind", format_args!("{kind:?}"))),
        }
    }

    /// A place for the peer, which is known; a refusal if all are taken.
    fn take_place(&self) -> Result<Option<Place>, Closed> {
        let Some(places) = &self.places else { return Ok(None) };
        let text =
            || format!("as many clients are connected as are served at a time links_max={}", places.most());
        let versions = self.offer.versions;
        let busy = || Refusal { reason: Reason::Busy, versions, missing: 0, text: text() };
        places.take().map(Some).ok_or_else(|| Closed::Refused(busy()))
    }

    /// Queue a frame, and count it to the transcript if it belongs there.
    fn say(&mut self, kind: Kind, body: &[u8]) {
        let facts = HeadFacts::control(VERSION_GREETING, kind, OpId(0), body);
        let frame = [&head::encode(&facts, [0; 16])[..], body].concat();
        if matches!(kind, Kind::Hello | Kind::Welcome | Kind::Challenge) {
            self.transcript.add(&frame);
        }
        self.out.extend_from_slice(&frame);
    }

    /// Queue a server's last frame: why this peer is not served. Says nothing that only a known peer should hear.
    pub(crate) fn refuse(&mut self, why: &Closed) {
        if self.side() == Side::Client {
            return;
        }
        let plain = |reason, text: &str| Refusal {
            reason,
            versions: self.offer.versions,
            missing: 0,
            text: text.into(),
        };
        let refusal = match why {
            Closed::Refused(refusal) => refusal.clone(),
            Closed::NotAuthentic { .. } => plain(Reason::Denied, "the key is not known here"),
            Closed::Late { .. } => plain(Reason::Late, "the handshake took too long"),
            _ => plain(Reason::Malformed, "this is no greeting of the protocol"),
        };
        self.say(Kind::Refusal, &refusal.encode());
    }
}

impl Agreed {
    fn without_key(common: Common, rights: Rights) -> Agreed {
        Agreed { common, rights, key_name: None, macs: None, place: None }
    }
}

#[cfg(test)]
mod tests {
    use pagelith_io::system::SystemEntropy;

    use super::*;

    fn key(secret: u8) -> Key {
        Key::new("rank-0", &[secret; 32]).expect("a key")
    }

    fn keys(secret: u8) -> Admission {
        let ring = KeyRing::new([(key(secret), Rights::all())], &SystemEntropy).expect("a ring");
        Admission::Keys(Arc::new(ring))
    }

    fn offer(versions: (u16, u16)) -> Offer {
        Offer { versions, ..Offer::of_this_build([3; 16]) }
    }

    /// How a side's handshake ended, if it did.
    type End = Option<Result<Agreed, Closed>>;

    /// Hand what one side says to the other, frame by frame, until nobody says more. Each side's end.
    fn converse(
        client: &mut Handshake,
        server: &mut Handshake,
        alter: &mut dyn FnMut(&mut Vec<u8>),
    ) -> (End, End) {
        let mut ends = (None, None);
        for _ in 0..8 {
            for to_server in [true, false] {
                let (from, to) =
                    if to_server { (&mut *client, &mut *server) } else { (&mut *server, &mut *client) };
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

    fn meet(client: (Offer, Option<Key>), server: (Offer, Admission)) -> (End, End) {
        let mut client = Handshake::client(client.0, client.1, &SystemEntropy);
        let mut server = Handshake::server(server.0, server.1, &SystemEntropy);
        converse(&mut client, &mut server, &mut |_| {})
    }

    #[test]
    fn both_sides_end_with_the_same_agreement_and_each_others_macs() {
        let (c, s) = meet((offer((1, 2)), Some(key(1))), (offer((1, 1)), keys(1)));
        let (c, s) = (c.expect("ended").expect("agreed"), s.expect("ended").expect("agreed"));
        assert_eq!((c.common.version, s.common.version), (1, 1));
        assert_eq!((c.key_name.as_deref(), s.key_name.as_deref()), (Some("rank-0"), Some("rank-0")));
        let ((mut c_out, mut c_in), (mut s_out, mut s_in)) = (c.macs.expect("a key"), s.macs.expect("a key"));
        let mac = c_out.next(&[1; 64], b"x");
        assert_eq!(s_in.check(&[1; 64], b"x", &mac), Ok(()));
        let mac = s_out.next(&[1; 64], b"x");
        assert_eq!(c_in.check(&[1; 64], b"x", &mac), Ok(()));
        let (c, s) = meet((offer((1, 1)), None), (offer((1, 1)), Admission::Connection(Rights::all())));
        assert!(c.expect("ended").expect("agreed").macs.is_none());
        assert!(s.expect("ended").expect("agreed").macs.is_none());
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name_on_both_sides() {
        let reason = |end: End| match end.expect("ended").map(|_| ()) {
            Err(Closed::Refused(refusal)) => refusal.reason,
            other => panic!("{other:?}"),
        };
        let no_key = || Admission::Connection(Rights::all());
        for (client, server, expected) in [
            ((offer((1, 1)), Some(key(1))), (offer((2, 3)), keys(1)), Reason::Version),
            ((offer((2, 3)), Some(key(1))), (offer((1, 1)), keys(1)), Reason::Version),
            ((offer((1, 1)), None), (offer((1, 1)), keys(1)), Reason::Denied),
            ((offer((1, 1)), Some(key(1))), (offer((1, 1)), no_key()), Reason::Denied),
        ] {
            let (c, s) = meet(client, server);
            assert_eq!((reason(c), reason(s)), (expected, expected));
        }
        let (c, s) = meet((offer((1, 1)), Some(key(2))), (offer((1, 1)), keys(1)));
        assert_eq!(reason(c), Reason::Denied);
        assert_eq!(s.expect("ended").err(), Some(Closed::NotAuthentic { what: "the client's proof" }));
    }

    /// Somebody on the path who changes any byte of any frame, and makes its checksums right again.
    #[test]
    fn a_greeting_that_was_changed_on_its_way_ends_in_no_agreement() {
        for which in 0..5 {
            for at in 0..96 {
                let mut client = Handshake::client(offer((1, 1)), Some(key(1)), &SystemEntropy);
                let mut server = Handshake::server(offer((1, 1)), keys(1), &SystemEntropy);
                let mut seen = 0;
                let ends = converse(&mut client, &mut server, &mut |frame| {
                    if seen == which && 64 + at < frame.len() {
                        frame[64 + at] ^= 1;
                        let (facts, _) =
                            head::decode(frame.first_chunk().expect("a head"), None).expect("a head");
                        let facts = HeadFacts::control(1, facts.kind, facts.op, &frame[64..]);
                        frame[..64].copy_from_slice(&head::encode(&facts, [0; 16]));
                    }
                    seen += 1;
                });
                let agreed = [&ends.0, &ends.1].map(|end| end.as_ref().is_some_and(|end| end.is_ok()));
                let untouched = at >= [64, 64, 32, 96, 96][which];
                assert_eq!(agreed[0], untouched, "which={which} at={at}");
                // The server's proof is its last word: it cannot know what became of it.
                assert_eq!(agreed[1], untouched || which == 4, "which={which} at={at}");
            }
        }
    }

    #[test]
    fn what_comes_at_the_wrong_time_is_refused() {
        let bare = |kind| {
            let facts = HeadFacts::control(1, kind, OpId(0), &[1; 32]);
            [&head::encode(&facts, [0; 16])[..], &[1; 32]].concat()
        };
        for kind in [Kind::Welcome, Kind::Challenge, Kind::Refusal] {
            let server = Handshake::server(offer((1, 1)), keys(1), &SystemEntropy);
            assert!(server.need(&bare(kind)).is_err(), "{kind:?}");
        }
        let mut server = Handshake::server(offer((1, 1)), keys(1), &SystemEntropy);
        assert!(server.take(&bare(Kind::Proof)).is_err(), "a proof of nothing");
        let mut client = Handshake::client(offer((1, 1)), Some(key(1)), &SystemEntropy);
        assert!(client.take(&bare(Kind::Challenge)).is_err(), "a challenge before a welcome");
        assert!(client.out().len() < 256, "a client refuses nobody");
    }
}
