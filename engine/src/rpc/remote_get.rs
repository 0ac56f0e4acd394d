//! What a batch did not find here, asked of the peers.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksums, block_count};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::outcome::Base;
use pagelith_layouts::wire::request::Terms;
use pagelith_tiers::policy::Recency;

use super::Reply;
use super::call::Wanted;
use super::connections::Desk;
use super::pool::Standing;
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::{GetDone, GetOutcome, MissCause, Proof, Tier};
use crate::api::stats::Counters;
use crate::rpc::removal_fence::Quiet;
use crate::state::group_info::Together;

/// Most keys of one question.
const KEYS_MAX: usize = 4096;
/// Most bytes that the outcome of one question may take: well below what every reader takes.
const OUTCOME_BYTES_MAX: u64 = 256 << 10;
/// Most bytes of an item's outcome beside its checksums.
const ITEM_BYTES: u64 = 600;

/// An object that a batch of gets did not find.
#[derive(Clone)]
pub(crate) struct Missed {
    /// Its number in the batch.
    pub at: usize,
    pub key: ObjectKey,
    pub range: Option<Range<u64>>,
}

/// How a question is put.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    pub at: Recency,
    pub deadline: Mono,
}

impl Manner {
    /// Of a question whose first object lies so far behind the batch's first.
    pub fn terms(&self, now: Mono, behind: usize) -> Terms {
        let left = self.deadline.since(now).max(Duration::from_millis(1));
        let deadline_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
        let depth = self.at.depth.saturating_add(u32::try_from(behind).unwrap_or(u32::MAX));
        Terms { deadline_ms, depth, request: self.at.epoch, of_store: false }
    }
}

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Peers, for what is not here: only their hits count.
    Peers,
    /// The store that this process is attached to: what it says is the outcome.
    Store,
}

/// Of two: the preferred peer is asked for all of it first, and for what it has not whoever owns its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    First,
    Next,
}

pub(crate) enum State<T> {
    /// To be asked.
    New(Vec<T>),
    /// Asked under this token, of these in the batch.
    Asked(u64, Vec<usize>),
    Over,
}

pub(crate) struct Question<T> {
    pub peer: usize,
    pub state: State<T>,
    /// It was asked once more, since its link ended under it.
    repeated: bool,
}

impl<T> Question<T> {
    /// Whether it is asked once more: the link that it was asked over has ended, for the first time.
    pub fn repeats(&mut self, desk: &Desk, deadline: Mono, now: Mono) -> bool {
        let repeats = !self.repeated && now < deadline && desk.lines.stands(self.peer).is_none();
        self.repeated |= repeats;
        repeats
    }
}

/// Split into questions: by who is asked, each of at most so much.
pub(crate) fn questions<T>(
    desk: &Desk,
    items: impl Iterator<Item = (ObjectKey, u64, T)>,
    round: Round,
) -> Vec<Question<T>> {
    let mut by_peer: BTreeMap<usize, Vec<(u64, Vec<T>)>> = BTreeMap::new();
    for (key, cost, item) in items {
        let remote = desk.lines.remote();
        let peer = match round {
            Round::First => remote.asked(&key),
            Round::Next => remote.asked_next(&key),
        };
        let Some(peer) = peer else { continue };
        let of_peer = by_peer.entry(peer).or_default();
        match of_peer.last_mut().filter(|(sum, q)| sum + cost <= OUTCOME_BYTES_MAX && q.len() < KEYS_MAX) {
            Some((sum, question)) => {
                *sum += cost;
                question.push(item);
            }
            None => of_peer.push((cost, vec![item])),
        }
    }
    let question = |(peer, of_peer): (usize, Vec<(u64, Vec<T>)>)| {
        of_peer.into_iter().map(move |(_, items)| Question {
            peer,
            state: State::New(items),
            repeated: false,
        })
    };
    by_peer.into_iter().flat_map(question).collect()
}

/// Who answered, and who failed to. All that one link took with it when it ended is one failure.
#[derive(Default)]
pub(crate) struct Heard(BTreeMap<usize, bool>);

impl Heard {
    pub fn note(&mut self, peer: usize, failed: bool) {
        *self.0.entry(peer).or_default() |= failed;
    }

    /// As `note`, of a reply: one that the end of the link made says nothing of the peer.
    pub fn note_reply(&mut self, desk: &Desk, peer: usize, failed: bool) {
        if !(failed && desk.lines.has_ended(peer)) {
            self.note(peer, failed);
        }
    }

    pub fn tell(self, desk: &Desk, now: Mono) {
        self.0.into_iter().for_each(|(peer, failed)| desk.note(peer, failed, now));
    }
}

/// Gets that were not hits here.
pub(crate) struct RemoteGet {
    done: Vec<GetDone>,
    questions: Vec<Question<(usize, Wanted)>>,
    manner: Manner,
    asked: Asked,
    hits: u64,
    bytes: u64,
    /// When they were asked for, if nothing was being removed then.
    since: Option<Quiet>,
    /// Objects that are asked for whole, by their number in the batch.
    whole: BTreeMap<usize, ObjectKey>,
    /// What of them came, and what is known of it.
    fetched: Vec<Fetched>,
    /// What others are asked for if the preferred peer has it not.
    next: Vec<Missed>,
}

/// An object that a peer sent, all of it.
pub(crate) struct Fetched {
    /// Its number in the batch.
    pub at: usize,
    pub key: ObjectKey,
    /// The checksums of its blocks.
    pub sums: Checksums,
    /// How many objects were put with it, itself among them; 0 if that is not known.
    pub members: usize,
    /// What they are attached to, if they are, and the question whose other hits with this number they are.
    pub attached: Option<(u64, Base)>,
}

impl RemoteGet {
    /// Ask for what was missed of a batch that is over here.
    pub fn begin(
        desk: &Desk,
        done: Vec<GetDone>,
        missed: Vec<Missed>,
        manner: Manner,
        asked: Asked,
        since: Option<Quiet>,
    ) -> RemoteGet {
        let whole = |missed: &Missed| missed.range.is_none().then_some((missed.at, missed.key));
        let whole = missed.iter().filter(|_| asked == Asked::Peers).filter_map(whole).collect();
        let (questions, fetched) = (Vec::new(), Vec::new());
        let has_next = |missed: &&Missed| desk.lines.remote().asked_next(&missed.key).is_some();
        let next = missed.iter().filter(has_next).cloned().collect();
        let (hits, bytes) = (0, 0);
        let mut get = RemoteGet { done, questions, manner, asked, hits, bytes, since, whole, fetched, next };
        get.ask_for(desk, missed, Round::First);
        get
    }

    /// Ask others for what the preferred peer has not, if there is any. Of a page of which that one has objects that were put together it has
    /// all or none: what others have of it is of another computation.
    fn ask_next(&mut self, desk: &Desk) -> bool {
        let mut next = std::mem::take(&mut self.next);
        let page = |missed: &Missed| (missed.key.namespace(), missed.key.hash());
        let came_together = |missed: &&Missed| {
            let done = &self.done[missed.at];
            let members = done.proof.as_ref().map_or(0, |proof| proof.with.members);
            done.outcome.as_ref().is_ok_and(GetOutcome::is_hit) && members != 1
        };
        let whole: BTreeSet<_> = next.iter().filter(came_together).map(page).collect();
        next.retain(|missed| {
            let is_missed = matches!(self.done[missed.at].outcome, Ok(GetOutcome::Miss(_)));
            is_missed && !whole.contains(&page(missed))
        });
        let any = !next.is_empty();
        if any {
            self.ask_for(desk, next, Round::Next);
        }
        any
    }

    fn ask_for(&mut self, desk: &Desk, missed: Vec<Missed>, round: Round) {
        let asked = self.asked;
        let wanted = missed.into_iter().filter_map(|missed| {
            let done = &mut self.done[missed.at];
            let parts = std::mem::take(&mut done.destination.0);
            let wanted = Wanted { key: missed.key, range: missed.range, parts, sent: false };
            // It would end the link. A peer need not say so of what is not here.
            if let Err(error) = wanted.check() {
                done.destination.0 = wanted.parts;
                if asked == Asked::Store {
                    done.outcome = Err(error);
                }
                return None;
            }
            let cost = ITEM_BYTES + 16 * (block_count(wanted.bytes(), BLOCK_BYTES) + 1);
            Some((missed.key, cost, (missed.at, wanted)))
        });
        self.questions = questions(desk, wanted, round);
    }

    /// Go on as far as it goes now; true once every object has its outcome.
    pub fn advance(&mut self, desk: &mut Desk, now: Mono) -> bool {
        let mut heard = Heard::default();
        let over = self.advance_heard(desk, now, &mut heard);
        heard.tell(desk, now);
        over
    }

    /// The same of one batch of several: what all of them have heard is told together.
    pub fn advance_heard(&mut self, desk: &mut Desk, now: Mono, heard: &mut Heard) -> bool {
        let mut over = true;
        for i in 0..self.questions.len() {
            let peer = self.questions[i].peer;
            let state = std::mem::replace(&mut self.questions[i].state, State::Over);
            self.questions[i].state = match state {
                State::New(items) => self.ask(desk, peer, items, (now, &mut *heard)),
                State::Asked(token, of) => match desk.take(token) {
                    Some(Reply::Get(got)) => {
                        let (mut failed, mut again) = (false, Vec::new());
                        let repeats = got.iter().any(|got| is_lost(&got.outcome))
                            && self.questions[i].repeats(desk, self.manner.deadline, now);
                        for (at, got) in of.into_iter().zip(got) {
                            let lost = is_lost(&got.outcome);
                            failed |= lost || got.outcome == Ok(GetOutcome::Miss(MissCause::Late));
                            if got.again || lost && repeats {
                                let (key, range, sent) = got.asked;
                                let sent = sent || got.again;
                                again.push((at, Wanted { key, range, parts: got.parts, sent }));
                                continue;
                            }
                            let hit = got.outcome.as_ref().is_ok_and(GetOutcome::is_hit);
                            let (sums, members, base) = got.proven;
                            let known = if base.is_none() { members } else { 0 };
                            if let (true, Some(key)) = (hit, self.whole.remove(&at)) {
                                let (sums, members) = (sums.clone(), members as usize);
                                let attached = base.map(|base| (token, *base));
                                self.fetched.push(Fetched { at, key, sums, members, attached });
                            }
                            let with = Together { members: known, attached: None };
                            let proof = Proof { checksums: sums, with };
                            self.done[at].proof = Some(Box::new(proof));
                            self.settle(at, got.outcome);
                            self.done[at].destination.0 = got.parts;
                        }
                        heard.note_reply(desk, peer, failed);
                        if again.is_empty() { State::Over } else { State::New(again) }
                    }
                    Some(_) => State::Over,
                    None => State::Asked(token, of),
                },
                State::Over => State::Over,
            };
            over &= is_over(&self.questions[i].state);
        }
        over && (!self.ask_next(desk) || self.advance_heard(desk, now, heard))
    }

    fn ask(
        &mut self,
        desk: &mut Desk,
        peer: usize,
        items: Vec<(usize, Wanted)>,
        (now, heard): (Mono, &mut Heard),
    ) -> State<(usize, Wanted)> {
        let token = desk.token();
        let caller = match desk.lines.standing(peer, now) {
            Standing::Up(caller) if now < self.manner.deadline => caller,
            Standing::Soon if now < self.manner.deadline => return State::New(items),
            Standing::Soon => {
                heard.note(peer, true);
                return self.give_back(items, no_link());
            }
            Standing::Up(_) | Standing::Down => return self.give_back(items, no_link()),
        };
        let (of, wanted): (Vec<usize>, Vec<Wanted>) = items.into_iter().unzip();
        let behind = of.first().copied().unwrap_or(0);
        match caller.get(token, wanted, self.manner.terms(now, behind), self.manner.deadline) {
            Ok(()) => State::Asked(token, of),
            // Nothing is on its way that would make room.
            Err((error, wanted)) if !caller.is_owed() => {
                self.give_back(of.into_iter().zip(wanted).collect(), error)
            }
            Err((_, wanted)) => State::New(of.into_iter().zip(wanted).collect()),
        }
    }

    /// These are not asked for.
    fn give_back(&mut self, items: Vec<(usize, Wanted)>, why: Error) -> State<(usize, Wanted)> {
        for (at, wanted) in items {
            self.done[at].destination.0 = wanted.parts;
            self.settle(at, Err(why.clone()));
        }
        State::Over
    }

    /// A peer's misses and failures leave the miss that it was; what is wrong with the request is said.
    fn settle(&mut self, at: usize, outcome: Result<GetOutcome>) {
        let done = &mut self.done[at].outcome;
        match (outcome, self.asked) {
            (outcome, Asked::Store) => *done = outcome,
            (Ok(GetOutcome::Hit { bytes, .. }), Asked::Peers) => {
                self.hits += 1;
                self.bytes += bytes;
                *done = Ok(GetOutcome::Hit { tier: Tier::Remote, bytes });
            }
            (Err(error), Asked::Peers) if error.kind == ErrorKind::Invalid => *done = Err(error),
            (Ok(GetOutcome::Miss(_)) | Err(_), Asked::Peers) => {}
        }
    }

    /// Count what peers brought, and what they did not.
    pub fn count(&self, counters: &mut Counters) {
        counters.hits_remote += self.hits;
        counters.bytes_remote += self.bytes;
        for done in &self.done {
            if let Ok(GetOutcome::Miss(cause)) = &done.outcome {
                counters.miss(*cause);
            }
        }
    }

    /// What came whole.
    pub fn take_fetched(&mut self) -> Vec<Fetched> {
        std::mem::take(&mut self.fetched)
    }

    /// All outcomes so far, with the memory of those that are done.
    pub fn done(&self) -> &[GetDone] {
        &self.done
    }

    /// When it was asked for, if nothing was being removed then.
    pub fn since(&self) -> Option<Quiet> {
        self.since
    }

    /// How it was asked for.
    pub fn manner(&self) -> Manner {
        self.manner
    }

    /// The outcomes, once [`RemoteGet::advance`] said that all are there.
    pub fn finish(self) -> Vec<GetDone> {
        self.done
    }
}

/// Whether the peer could not say what became of it.
fn is_lost(outcome: &Result<GetOutcome>) -> bool {
    outcome.as_ref().is_err_and(|error| error.kind == ErrorKind::Unavailable)
}

/// There is no link, or none in time.
pub(crate) fn no_link() -> Error {
    Error::new(ErrorKind::Unavailable, "there is no link to the store")
}

pub(crate) fn is_over<T>(state: &State<T>) -> bool {
    match state {
        State::Over => true,
        State::New(_) | State::Asked(..) => false,
    }
}
