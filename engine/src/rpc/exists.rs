//! Look-ups of what is not here, asked of the peers.

use pagelith_io::clock::Mono;
use pagelith_layouts::key::ObjectKey;

use super::Reply;
use super::connections::Desk;
use super::pool::Standing;
use super::remote_get::{Heard, Manner, Question, Round, State, is_over, no_link, questions};
use crate::api::error::{Error, ErrorKind, Result};

/// Keys that are not here.
pub(crate) struct RemoteExists {
    keys: Vec<ObjectKey>,
    found: Vec<bool>,
    questions: Vec<Question<(usize, ObjectKey)>>,
    manner: Manner,
    failed: Option<Error>,
    /// What others are asked for if the preferred peer has it not.
    next: Vec<(usize, ObjectKey)>,
}

impl RemoteExists {
    /// Ask for those of `keys` that were not `found`.
    pub fn begin(desk: &Desk, keys: &[ObjectKey], found: Vec<bool>, manner: Manner) -> RemoteExists {
        let absent = || keys.iter().enumerate().filter(|(at, _)| !found[*at]).map(|(at, key)| (at, *key));
        let questions = questions(desk, absent().map(|(at, key)| (key, 1, (at, key))), Round::First);
        let next = absent().filter(|(_, key)| desk.lines.remote().asked_next(key).is_some()).collect();
        RemoteExists { keys: keys.to_vec(), found, questions, manner, failed: None, next }
    }

    /// Go on as far as it goes now; true once every key has its answer.
    pub fn advance(&mut self, desk: &mut Desk, now: Mono) -> bool {
        let (mut over, mut heard) = (true, Heard::default());
        for question in &mut self.questions {
            let peer = question.peer;
            question.state = match std::mem::replace(&mut question.state, State::Over) {
                State::New(keys) => ask_exists(desk, peer, keys, self.manner, now).unwrap_or_else(|error| {
                    self.failed.get_or_insert(error);
                    State::Over
                }),
                State::Asked(token, of) => match desk.take(token) {
                    Some(Reply::Exists(found)) => {
                        heard.note_reply(desk, peer, found.is_err());
                        match found {
                            Ok(found) => {
                                of.into_iter().zip(found).for_each(|(at, here)| self.found[at] |= here);
                                State::Over
                            }
                            Err(_) if question.repeats(desk, self.manner.deadline, now) => {
                                State::New(of.into_iter().map(|at| (at, self.keys[at])).collect())
                            }
                            Err(error) => {
                                self.failed = Some(error);
                                State::Over
                            }
                        }
                    }
                    Some(_) => State::Over,
                    None => State::Asked(token, of),
                },
                State::Over => State::Over,
            };
            over &= is_over(&question.state);
        }
        heard.tell(desk, now);
        over && (!self.ask_next(desk) || self.advance(desk, now))
    }

    /// Ask others for what the preferred peer has not, if there is any.
    fn ask_next(&mut self, desk: &Desk) -> bool {
        let mut next = std::mem::take(&mut self.next);
        next.retain(|(at, _)| !self.found[*at]);
        let any = !next.is_empty();
        if any {
            self.questions =
                questions(desk, next.into_iter().map(|(at, key)| (key, 1, (at, key))), Round::Next);
        }
        any
    }

    /// Why some were not answered, if so.
    pub fn failed(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// The answers; of those that were not answered, no.
    pub fn finish(self) -> Vec<bool> {
        self.found
    }
}

fn ask_exists(
    desk: &mut Desk,
    peer: usize,
    keys: Vec<(usize, ObjectKey)>,
    manner: Manner,
    now: Mono,
) -> Result<State<(usize, ObjectKey)>> {
    let token = desk.token();
    let caller = match desk.lines.standing(peer, now) {
        Standing::Up(caller) if now < manner.deadline => caller,
        Standing::Soon if now < manner.deadline => return Ok(State::New(keys)),
        Standing::Soon => {
            desk.note(peer, true, now);
            return Err(no_link());
        }
        Standing::Up(_) | Standing::Down => return Err(no_link()),
    };
    let asked: Vec<ObjectKey> = keys.iter().map(|(_, key)| *key).collect();
    let behind = keys.first().map_or(0, |(at, _)| *at);
    match caller.exists(token, &asked, manner.terms(now, behind), manner.deadline) {
        Ok(()) => Ok(State::Asked(token, keys.into_iter().map(|(at, _)| at).collect())),
        Err(Error { kind: ErrorKind::Busy, .. }) if caller.is_owed() => Ok(State::New(keys)),
        Err(error) => Err(error),
    }
}
