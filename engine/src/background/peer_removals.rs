//! A removal or clear that peers are told of, all of them: any may have a copy.
//!
//! While one of them has removed and another has not, the first may be sent it again by the second, and keep it. So where there are several,
//! each is asked to hold first ([`crate::server`]), on the same link, and is told behind that. When all have answered, each is asked to
//! release, and says whether it had held until then: at that moment nobody had it, nor had anything of before on its way.
//!
//! If a peer ends its link under that, all of it is done once more: a removal and a clear have the same effect twice as once.
//! A link that this side gave up is not made anew for it: behind it the first could come to be done after what is put next.

use std::collections::BTreeMap;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::greeting::Feature;
use pagelith_layouts::wire::request::{Ask, Terms};
use pagelith_mutants::{self as mutant, Mutant};

use crate::api::error::{Error, ErrorKind};
use crate::rpc::connections::PeerConnections;
use crate::rpc::pool::ConnState;
use crate::rpc::{ControlReply, Response};
use crate::state::core::JobResult;
use crate::state::peer_queue::RemoteJob;

/// Most keys of one request.
const KEYS_MAX: usize = 4096;

/// What a peer was asked.
#[derive(Clone, Copy)]
enum Asked {
    /// To hold, or to remove or clear.
    Told,
    /// Whether it has held.
    Released,
}

/// What came of it.
pub(crate) enum Ended {
    /// This is the answer to whoever waits for the job.
    Over(u64, JobResult),
    /// A link ended under it: the job is to be done once more, by this deadline.
    Again(RemoteJob, Mono),
}

/// One under way.
pub(crate) struct Telling {
    id: u64,
    job: RemoteJob,
    deadline: Mono,
    /// What was not answered yet, and by which peer, by token.
    asked: BTreeMap<u64, (usize, Asked)>,
    failed: Option<Error>,
    /// A peer ended its link under it.
    link_ended: bool,
    /// It is done for the first time.
    is_first: bool,
    /// Peers that hold, under this name of each one's link.
    holding: Vec<usize>,
    name: u64,
}

impl Telling {
    /// Tell peers of what `job` says, to be answered as `id`, by a deadline, for the first time or once more. Links that
    /// are being made are to be waited for before.
    pub fn begin(
        connections: &mut PeerConnections,
        job: RemoteJob,
        id: u64,
        now: Mono,
        (deadline, is_first): (Mono, bool),
    ) -> Telling {
        let name = connections.next_token();
        let peers = concerned(connections, &job);
        let (asked, failed, holding) = (BTreeMap::new(), None, Vec::new());
        let mut telling =
            Telling { id, job, deadline, asked, failed, link_ended: false, is_first, holding, name };
        telling.tell(connections, peers, now);
        telling
    }

    fn tell(&mut self, connections: &mut PeerConnections, peers: Vec<usize>, now: Mono) {
        let holds = peers.len() > 1 && !mutant::on(Mutant::ToldOwnerAlone);
        for peer in peers {
            let has_holds = match connections.pool.connect(peer, now) {
                ConnState::Up(caller) => caller.has_feature(Feature::Holds),
                ConnState::Connecting | ConnState::Down => {
                    self.failed = Some(untold(connections, peer));
                    continue;
                }
            };
            if holds && has_holds {
                // It need not hold for longer than this side waits.
                let left = self.deadline.since(now).max(Duration::from_millis(1)).as_millis();
                let terms = Terms { deadline_ms: left.try_into().unwrap_or(u32::MAX), ..Terms::default() };
                self.ask(connections, peer, Asked::Told, &Ask::Hold(self.name), terms);
                self.holding.push(peer);
            }
            match &self.job {
                RemoteJob::Remove { keys, .. } => {
                    let keys = told_of(connections, peer, keys);
                    // No request is longer than every reader takes.
                    for keys in keys.chunks(KEYS_MAX) {
                        self.ask(
                            connections,
                            peer,
                            Asked::Told,
                            &Ask::Remove(List::of(keys)),
                            Terms::default(),
                        );
                    }
                }
                RemoteJob::Clear { namespace, .. } => {
                    let clear = Ask::Clear(*namespace);
                    self.ask(connections, peer, Asked::Told, &clear, Terms::default());
                }
                RemoteJob::Frame(..) => {}
            }
        }
    }

    /// Ask a peer over the link that stands.
    fn ask(
        &mut self,
        connections: &mut PeerConnections,
        peer: usize,
        asked: Asked,
        ask: &Ask<'_>,
        terms: Terms,
    ) {
        let token = connections.next_token();
        let sent = match connections.pool.live_mut(peer) {
            Some(caller) => caller.send_control(token, ask, terms, self.deadline),
            None => Err(untold(connections, peer)),
        };
        match sent {
            Ok(()) => _ = self.asked.insert(token, (peer, asked)),
            Err(error) => self.fail(connections, peer, error),
        }
    }

    /// A peer answered.
    pub fn heard(&mut self, connections: &PeerConnections, token: u64, reply: Response) {
        let Some((peer, asked)) = self.asked.remove(&token) else { return };
        match (asked, reply) {
            (_, Response::Control(Err(error))) => self.fail(connections, peer, error),
            (Asked::Told, _) | (Asked::Released, Response::Control(Ok(ControlReply::Number(1)))) => {}
            (Asked::Released, _) => {
                let name = &connections.pool.remote().owners[peer].name;
                let detail = format!("a peer did not hold until all had been told peer={name}");
                self.failed = Some(Error::new(ErrorKind::Unavailable, detail));
            }
        }
    }

    fn fail(&mut self, connections: &PeerConnections, peer: usize, error: Error) {
        self.failed = Some(error);
        self.link_ended |= connections.pool.was_ended_by_peer(peer);
    }

    /// Go on as far as it goes now; true once all is over.
    pub fn advance(&mut self, connections: &mut PeerConnections) -> bool {
        if !self.asked.is_empty() {
            return false;
        }
        for peer in std::mem::take(&mut self.holding) {
            self.ask(connections, peer, Asked::Released, &Ask::Release(self.name), Terms::default());
        }
        // What has failed is not waited for.
        self.failed.is_some() || self.asked.is_empty() || mutant::on(Mutant::HoldUnasked)
    }

    /// What came of it, once all is over.
    pub fn finish(self, now: Mono) -> Ended {
        let Telling { id, job, deadline, failed, link_ended, is_first, .. } = self;
        match failed {
            Some(_) if link_ended && is_first && now < deadline => Ended::Again(job, deadline),
            failed => Ended::Over(id, failed.map_or(JobResult::Done, JobResult::Failed)),
        }
    }
}

/// Whether a link is being made to a peer that is to be told.
pub(crate) fn is_soon(connections: &mut PeerConnections, job: &RemoteJob, now: Mono) -> bool {
    concerned(connections, job).into_iter().any(|peer| match connections.pool.connect(peer, now) {
        ConnState::Connecting => true,
        ConnState::Up(_) | ConnState::Down => false,
    })
}

/// Which peers are told.
fn concerned(connections: &PeerConnections, job: &RemoteJob) -> Vec<usize> {
    let all = 0..connections.pool.remote().owners.len();
    match job {
        _ if mutant::on(Mutant::PeersUntold) => Vec::new(),
        RemoteJob::Remove { keys, .. } => {
            all.filter(|peer| !told_of(connections, *peer, keys).is_empty()).collect()
        }
        RemoteJob::Clear { .. } => all.collect(),
        RemoteJob::Frame(..) => Vec::new(),
    }
}

/// Which of `keys` a peer is told of.
fn told_of(connections: &PeerConnections, peer: usize, keys: &[ObjectKey]) -> Vec<ObjectKey> {
    let owned = |key: &&ObjectKey| connections.pool.remote().owner(key) == Some(peer);
    match mutant::on(Mutant::ToldOwnerAlone) {
        true => keys.iter().filter(owned).copied().collect(),
        false => keys.to_vec(),
    }
}

fn untold(connections: &PeerConnections, peer: usize) -> Error {
    let name = &connections.pool.remote().owners[peer].name;
    Error::new(ErrorKind::Unavailable, format!("a peer cannot be told peer={name}"))
}
