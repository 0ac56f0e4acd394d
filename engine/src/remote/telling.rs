//! A removal or clear that peers are told of, all of them: any may have a copy.
//!
//! While one of them has removed and another has not, the first may be sent it again by the second, and keep it. So where there are several,
//! each is asked to hold first ([`crate::serve`]), on the same link, and is told behind that. When all have answered, each is asked to
//! release, and says whether it had held until then: at that moment nobody had it, nor had anything of before on its way.

use std::collections::BTreeMap;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::mutant::{self, Mutant};
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::greeting::Feature;
use pagelith_layouts::wire::request::{Ask, Terms};

use super::desk::Desk;
use super::lines::Standing;
use super::queue::RemoteJob;
use super::{Reply, Told};
use crate::core::Answer;
use crate::error::{Error, ErrorKind};

/// Most keys of one request.
const KEYS_MAX: usize = 4096;

/// What a peer was asked.
#[derive(Clone, Copy)]
enum Asked {
    /// To hold, or to remove or clear.
    Told,
    /// Whether it has held.
    Released(usize),
}

/// One under way.
pub(super) struct Telling {
    id: u64,
    deadline: Mono,
    /// What was not answered yet, by token.
    asked: BTreeMap<u64, Asked>,
    failed: Option<Error>,
    /// Peers that hold, under this name of each one's link.
    holding: Vec<usize>,
    name: u64,
}

impl Telling {
    /// Tell peers of what `job` says, to be answered as `id`. Links that are being made are to be waited for before.
    pub fn begin(desk: &mut Desk, job: &RemoteJob, id: u64, now: Mono, deadline: Mono) -> Telling {
        let name = desk.token();
        let mut telling =
            Telling { id, deadline, asked: BTreeMap::new(), failed: None, holding: Vec::new(), name };
        let peers = concerned(desk, job);
        let holds = peers.len() > 1 && !mutant::on(Mutant::ToldOwnerAlone);
        for peer in peers {
            let has_holds = match desk.lines.standing(peer, now) {
                Standing::Up(caller) => caller.has(Feature::Holds),
                Standing::Soon | Standing::Down => {
                    telling.failed = Some(untold(desk, peer));
                    continue;
                }
            };
            if holds && has_holds {
                // It need not hold for longer than this side waits.
                let left = deadline.since(now).max(Duration::from_millis(1)).as_millis();
                let terms = Terms { deadline_ms: left.try_into().unwrap_or(u32::MAX), ..Terms::default() };
                telling.ask(desk, peer, Asked::Told, &Ask::Hold(name), terms);
                telling.holding.push(peer);
            }
            match job {
                RemoteJob::Remove { keys, .. } => {
                    let keys = told_of(desk, peer, keys);
                    // No request is longer than every reader takes.
                    for keys in keys.chunks(KEYS_MAX) {
                        telling.ask(desk, peer, Asked::Told, &Ask::Remove(List::of(keys)), Terms::default());
                    }
                }
                RemoteJob::Clear { namespace, .. } => {
                    telling.ask(desk, peer, Asked::Told, &Ask::Clear(*namespace), Terms::default());
                }
                RemoteJob::Frame(..) => {}
            }
        }
        telling
    }

    /// Ask a peer over the link that stands.
    fn ask(&mut self, desk: &mut Desk, peer: usize, asked: Asked, ask: &Ask<'_>, terms: Terms) {
        let token = desk.token();
        let sent = match desk.lines.stands_mut(peer) {
            Some(caller) => caller.tell(token, ask, terms, self.deadline),
            None => Err(untold(desk, peer)),
        };
        match sent {
            Ok(()) => _ = self.asked.insert(token, asked),
            Err(error) => self.failed = Some(error),
        }
    }

    /// A peer answered.
    pub fn heard(&mut self, desk: &Desk, token: u64, reply: Reply) {
        let Some(asked) = self.asked.remove(&token) else { return };
        match (asked, reply) {
            (_, Reply::Told(Err(error))) => self.failed = Some(error),
            (Asked::Told, _) | (Asked::Released(_), Reply::Told(Ok(Told::Number(1)))) => {}
            (Asked::Released(peer), _) => {
                let name = &desk.lines.remote().owners[peer].name;
                let detail = format!("a peer did not hold until all had been told peer={name}");
                self.failed = Some(Error::new(ErrorKind::Unavailable, detail));
            }
        }
    }

    /// What to answer, and whom, once all is over.
    pub fn advance(&mut self, desk: &mut Desk) -> Option<(u64, Answer)> {
        if !self.asked.is_empty() {
            return None;
        }
        for peer in std::mem::take(&mut self.holding) {
            self.ask(desk, peer, Asked::Released(peer), &Ask::Release(self.name), Terms::default());
        }
        // What has failed is not waited for.
        if self.failed.is_none() && !self.asked.is_empty() && !mutant::on(Mutant::HoldUnasked) {
            return None;
        }
        Some((self.id, self.failed.take().map_or(Answer::Done, Answer::Failed)))
    }
}

/// Whether a link is being made to a peer that is to be told.
pub(super) fn is_soon(desk: &mut Desk, job: &RemoteJob, now: Mono) -> bool {
    concerned(desk, job).into_iter().any(|peer| match desk.lines.standing(peer, now) {
        Standing::Soon => true,
        Standing::Up(_) | Standing::Down => false,
    })
}

/// Which peers are told.
fn concerned(desk: &Desk, job: &RemoteJob) -> Vec<usize> {
    let all = 0..desk.lines.remote().owners.len();
    match job {
        _ if mutant::on(Mutant::PeersUntold) => Vec::new(),
        RemoteJob::Remove { keys, .. } => all.filter(|peer| !told_of(desk, *peer, keys).is_empty()).collect(),
        RemoteJob::Clear { .. } => all.collect(),
        RemoteJob::Frame(..) => Vec::new(),
    }
}

/// Which of `keys` a peer is told of.
fn told_of(desk: &Desk, peer: usize, keys: &[ObjectKey]) -> Vec<ObjectKey> {
    let owned = |key: &&ObjectKey| desk.lines.remote().owner(key) == Some(peer);
    match mutant::on(Mutant::ToldOwnerAlone) {
        true => keys.iter().filter(owned).copied().collect(),
        false => keys.to_vec(),
    }
}

fn untold(desk: &Desk, peer: usize) -> Error {
    let name = &desk.lines.remote().owners[peer].name;
    Error::new(ErrorKind::Unavailable, format!("a peer cannot be told peer={name}"))
}
