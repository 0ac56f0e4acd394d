//! What a batch did not find here, asked of the peers.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_layouts::checksum::{BLOCK_BYTES, block_count};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::request::Terms;
use pagelith_tiers::policy::Recency;

use super::Reply;
use super::call::Wanted;
use super::lines::Standing;
use crate::error::{Error, ErrorKind, Result};
use crate::outcome::{GetDone, GetOutcome};
use crate::session::SessionIo;

/// Most keys of one question.
const KEYS_MAX: usize = 4096;
/// Most bytes that the outcome of one question may take: well below what every reader takes.
const OUTCOME_BYTES_MAX: u64 = 256 << 10;
/// Most bytes of an item's outcome beside its checksums.
const ITEM_BYTES: u64 = 600;

/// An object that a batch of gets did not find.
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
    fn terms(&self, now: Mono) -> Terms {
        let left = self.deadline.since(now).max(Duration::from_millis(1));
        let deadline_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
        Terms { deadline_ms, depth: self.at.depth, request: self.at.epoch }
    }
}

enum State<T> {
    /// To be asked.
    New(Vec<T>),
    /// Asked under this token, of these in the batch.
    Asked(u64, Vec<usize>),
    Over,
}

struct Question<T> {
    peer: usize,
    state: State<T>,
}

/// Split into questions: by owner, each of at most so much.
fn questions<T>(io: &SessionIo, items: impl Iterator<Item = (ObjectKey, u64, T)>) -> Vec<Question<T>> {
    let Some(lines) = &io.lines else { return Vec::new() };
    let mut by_peer: BTreeMap<usize, Vec<(u64, Vec<T>)>> = BTreeMap::new();
    for (key, cost, item) in items {
        let Some(peer) = lines.remote().owner(&key) else { continue };
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
        of_peer.into_iter().map(move |(_, items)| Question { peer, state: State::New(items) })
    };
    by_peer.into_iter().flat_map(question).collect()
}

/// Gets that were not hits here.
pub(crate) struct RemoteGet {
    done: Vec<GetDone>,
    questions: Vec<Question<(usize, Wanted)>>,
    manner: Manner,
    hits: u64,
    bytes: u64,
}

impl RemoteGet {
    /// Ask for what was missed of a batch that is over here.
    pub fn begin(io: &SessionIo, mut done: Vec<GetDone>, missed: Vec<Missed>, manner: Manner) -> RemoteGet {
        let wanted = missed.into_iter().map(|missed| {
            let parts = std::mem::take(&mut done[missed.at].destination.0);
            let wanted = Wanted { key: missed.key, range: missed.range, parts };
            let cost = ITEM_BYTES + 16 * (block_count(wanted.bytes(), BLOCK_BYTES) + 1);
            (missed.key, cost, (missed.at, wanted))
        });
        let questions = questions(io, wanted);
        RemoteGet { done, questions, manner, hits: 0, bytes: 0 }
    }

    /// Go on as far as it goes now; true once every object has its outcome.
    pub fn advance(&mut self, io: &mut SessionIo) -> bool {
        let now = io.shared.now();
        let mut over = true;
        for i in 0..self.questions.len() {
            let peer = self.questions[i].peer;
            let state = std::mem::replace(&mut self.questions[i].state, State::Over);
            self.questions[i].state = match state {
                State::New(items) => self.ask(io, peer, items, now),
                State::Asked(token, of) => match io.replies.remove(&token) {
                    Some(Reply::Get(got)) => {
                        let mut failed = false;
                        for (at, got) in of.into_iter().zip(got) {
                            let lost = got.outcome.as_ref().is_err_and(|e| e.kind == ErrorKind::Unavailable);
                            failed |= lost || got.outcome == Ok(GetOutcome::Miss(crate::MissCause::Late));
                            self.settle(at, got.outcome);
                            self.done[at].destination.0 = got.parts;
                        }
                        note(io, peer, failed, now);
                        State::Over
                    }
                    Some(_) => State::Over,
                    None => State::Asked(token, of),
                },
                State::Over => State::Over,
            };
            over &= is_over(&self.questions[i].state);
        }
        over
    }

    fn ask(
        &mut self,
        io: &mut SessionIo,
        peer: usize,
        items: Vec<(usize, Wanted)>,
        now: Mono,
    ) -> State<(usize, Wanted)> {
        let token = io.next_token();
        let standing = io.lines.as_mut().map_or(Standing::Down, |lines| lines.standing(peer, now));
        let caller = match standing {
            Standing::Up(caller) if now < self.manner.deadline => caller,
            Standing::Soon if now < self.manner.deadline => return State::New(items),
            Standing::Soon => {
                note(io, peer, true, now);
                return self.give_back(items);
            }
            Standing::Up(_) | Standing::Down => return self.give_back(items),
        };
        let (of, wanted): (Vec<usize>, Vec<Wanted>) = items.into_iter().unzip();
        match caller.get(token, wanted, self.manner.terms(now), self.manner.deadline) {
            Ok(()) => State::Asked(token, of),
            // Nothing is on its way that would make room.
            Err((_, wanted)) if caller.calls() == 0 => self.give_back(of.into_iter().zip(wanted).collect()),
            Err((_, wanted)) => State::New(of.into_iter().zip(wanted).collect()),
        }
    }

    fn give_back(&mut self, items: Vec<(usize, Wanted)>) -> State<(usize, Wanted)> {
        for (at, wanted) in items {
            self.done[at].destination.0 = wanted.parts;
        }
        State::Over
    }

    /// A peer's misses and failures leave the miss that it was; what is wrong with the request is said.
    fn settle(&mut self, at: usize, outcome: Result<GetOutcome>) {
        match outcome {
            Ok(GetOutcome::Hit { tier, bytes }) => {
                self.hits += 1;
                self.bytes += bytes;
                self.done[at].outcome = Ok(GetOutcome::Hit { tier, bytes });
            }
            Err(error) if error.kind == ErrorKind::Invalid => self.done[at].outcome = Err(error),
            Ok(GetOutcome::Miss(_)) | Err(_) => {}
        }
    }

    /// The outcomes, once [`RemoteGet::advance`] said that all are there.
    pub fn finish(self, io: &SessionIo) -> Vec<GetDone> {
        let mut core = io.shared.lock();
        core.counters.hits_remote += self.hits;
        core.counters.bytes_remote += self.bytes;
        for done in &self.done {
            if let Ok(GetOutcome::Miss(cause)) = &done.outcome {
                core.counters.miss(*cause);
            }
        }
        drop(core);
        self.done
    }
}

/// Keys that are not here.
pub(crate) struct RemoteExists {
    found: Vec<bool>,
    questions: Vec<Question<(usize, ObjectKey)>>,
    manner: Manner,
}

impl RemoteExists {
    /// Ask for those of `keys` that were not `found`.
    pub fn begin(io: &SessionIo, keys: &[ObjectKey], found: Vec<bool>, manner: Manner) -> RemoteExists {
        let absent = keys.iter().enumerate().filter(|(at, _)| !found[*at]);
        let questions = questions(io, absent.map(|(at, key)| (*key, 1, (at, *key))));
        RemoteExists { found, questions, manner }
    }

    /// Go on as far as it goes now; true once every key has its answer.
    pub fn advance(&mut self, io: &mut SessionIo) -> bool {
        let now = io.shared.now();
        let mut over = true;
        for question in &mut self.questions {
            let peer = question.peer;
            question.state = match std::mem::replace(&mut question.state, State::Over) {
                State::New(keys) => ask_exists(io, peer, keys, self.manner, now),
                State::Asked(token, of) => match io.replies.remove(&token) {
                    Some(Reply::Exists(found)) => {
                        note(io, peer, found.is_err(), now);
                        for (at, here) in of.into_iter().zip(found.unwrap_or_default()) {
                            self.found[at] |= here;
                        }
                        State::Over
                    }
                    Some(_) => State::Over,
                    None => State::Asked(token, of),
                },
                State::Over => State::Over,
            };
            over &= is_over(&question.state);
        }
        over
    }

    /// The answers.
    pub fn finish(self) -> Vec<bool> {
        self.found
    }
}

fn ask_exists(
    io: &mut SessionIo,
    peer: usize,
    keys: Vec<(usize, ObjectKey)>,
    manner: Manner,
    now: Mono,
) -> State<(usize, ObjectKey)> {
    let token = io.next_token();
    let standing = io.lines.as_mut().map_or(Standing::Down, |lines| lines.standing(peer, now));
    let caller = match standing {
        Standing::Up(caller) if now < manner.deadline => caller,
        Standing::Soon if now < manner.deadline => return State::New(keys),
        Standing::Soon => {
            note(io, peer, true, now);
            return State::Over;
        }
        Standing::Up(_) | Standing::Down => return State::Over,
    };
    let asked: Vec<ObjectKey> = keys.iter().map(|(_, key)| *key).collect();
    match caller.exists(token, &asked, manner.terms(now), manner.deadline) {
        Ok(()) => State::Asked(token, keys.into_iter().map(|(at, _)| at).collect()),
        Err(Error { kind: ErrorKind::Busy, .. }) if caller.calls() > 0 => State::New(keys),
        Err(_) => State::Over,
    }
}

fn note(io: &SessionIo, peer: usize, failed: bool, now: Mono) {
    let Some(lines) = &io.lines else { return };
    lines.remote().breaker(peer, |breaker| match failed {
        true => breaker.failed(now),
        false => breaker.answered(),
    });
}

fn is_over<T>(state: &State<T>) -> bool {
    match state {
        State::Over => true,
        State::New(_) | State::Asked(..) => false,
    }
}
