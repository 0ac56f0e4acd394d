//! Sends a removal or a clear to all peers, since any of them may have a copy.
//!
//! While one peer has removed an object and another has not, the second may send it to the first,
//! which would store it again. So with several peers:
//!
//! 1. Each peer gets a hold request ([`crate::server`]), and then the removal on the same link.
//!    While it holds, it stores no objects from other stores.
//! 2. When all have responded, each peer gets a release request. Its response says whether it held
//!    until then. If all did, there was a moment at which no peer had the object, and no transfer
//!    that began before the removal was in flight.
//!
//! If a peer ends its link meanwhile, the job is repeated once: removals and clears are idempotent.
//! If this side gave up the link, the job is not repeated over a new link: the peer could execute
//! the first request after a later put.

use std::collections::BTreeMap;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::greeting::Feature;
use pagelith_layouts::wire::request::{RequestBody, RequestOptions};
use pagelith_mutants::{self as mutant, Mutant};

use crate::api::error::{Error, ErrorKind};
use crate::rpc::connections::PeerConnections;
use crate::rpc::pool::ConnState;
use crate::rpc::{ControlReply, Response};
use crate::state::jobs::JobResult;
use crate::state::peer_queue::PeerJob;

/// Most keys of one request.
const KEYS_MAX: usize = 4096;

/// A request sent to a peer.
#[derive(Clone, Copy)]
enum SentRequest {
    /// A hold, removal or clear.
    Notify,
    /// A release, whose response says whether the peer held until then.
    Release,
}

/// Result of a notification.
pub(crate) enum NotificationResult {
    /// The job's id and result.
    Complete(u64, JobResult),
    /// A peer ended its link: repeat the job, by this deadline.
    Retry(PeerJob, Mono),
}

/// A removal or clear that is being sent to all peers.
pub(crate) struct PeerNotification {
    id: u64,
    job: PeerJob,
    deadline: Mono,
    /// Requests without a response, by token, each with its peer.
    pending: BTreeMap<u64, (usize, SentRequest)>,
    failed: Option<Error>,
    /// A peer ended its link meanwhile.
    link_ended: bool,
    /// This is the first attempt.
    is_first: bool,
    /// Peers that were sent a hold request.
    holding: Vec<usize>,
    /// Name of the hold, the same at all peers.
    hold_name: u64,
}

impl PeerNotification {
    /// Send `job`, whose result has the id `id`, to the peers. The last argument is the deadline,
    /// and whether this is the first attempt. The caller must first wait for links that are being
    /// established ([`is_connecting`]).
    pub fn begin(
        connections: &mut PeerConnections,
        job: PeerJob,
        id: u64,
        now: Mono,
        (deadline, is_first): (Mono, bool),
    ) -> PeerNotification {
        let hold_name = connections.next_token();
        let peers = peers_to_notify(connections, &job);
        let (pending, failed, holding) = (BTreeMap::new(), None, Vec::new());
        let link_ended = false;
        let mut notification = PeerNotification {
            id,
            job,
            deadline,
            pending,
            failed,
            link_ended,
            is_first,
            holding,
            hold_name,
        };
        notification.notify(connections, peers, now);
        notification
    }

    /// Send hold requests and the job's requests to `peers`.
    fn notify(&mut self, connections: &mut PeerConnections, peers: Vec<usize>, now: Mono) {
        let holds = peers.len() > 1 && !mutant::on(Mutant::OnlyOwnerNotified);
        for peer in peers {
            let has_holds = match connections.pool.connect(peer, now) {
                ConnState::Up(client) => client.has_feature(Feature::Holds),
                ConnState::Connecting | ConnState::Down => {
                    self.failed = Some(unreachable_peer(connections, peer));
                    continue;
                }
            };
            if holds && has_holds {
                // The peer need not hold for longer than this side waits.
                let left = self.deadline.since(now).max(Duration::from_millis(1)).as_millis();
                let terms = RequestOptions {
                    deadline_ms: left.try_into().unwrap_or(u32::MAX),
                    ..RequestOptions::default()
                };
                self.send(
                    connections,
                    peer,
                    SentRequest::Notify,
                    &RequestBody::Hold(self.hold_name),
                    terms,
                );
                self.holding.push(peer);
            }
            match &self.job {
                PeerJob::Remove { keys, .. } => {
                    let keys = keys_for(connections, peer, keys);
                    // A peer may reject longer requests.
                    for keys in keys.chunks(KEYS_MAX) {
                        self.send(
                            connections,
                            peer,
                            SentRequest::Notify,
                            &RequestBody::Remove(List::of(keys)),
                            RequestOptions::default(),
                        );
                    }
                }
                PeerJob::Clear { namespace, .. } => {
                    let clear = RequestBody::Clear(*namespace);
                    self.send(
                        connections,
                        peer,
                        SentRequest::Notify,
                        &clear,
                        RequestOptions::default(),
                    );
                }
                PeerJob::Frame(..) => {}
            }
        }
    }

    /// Send a request to a peer over its present link.
    fn send(
        &mut self,
        connections: &mut PeerConnections,
        peer: usize,
        sent_request: SentRequest,
        ask: &RequestBody<'_>,
        terms: RequestOptions,
    ) {
        let token = connections.next_token();
        let sent = match connections.pool.live_mut(peer) {
            Some(client) => client.send_control(token, ask, terms, self.deadline),
            None => Err(unreachable_peer(connections, peer)),
        };
        match sent {
            Ok(()) => _ = self.pending.insert(token, (peer, sent_request)),
            Err(error) => self.fail(connections, peer, error),
        }
    }

    /// Process a response; one to another request is ignored.
    pub fn handle_response(
        &mut self,
        connections: &PeerConnections,
        token: u64,
        response: Response,
    ) {
        let Some((peer, sent_request)) = self.pending.remove(&token) else { return };
        match (sent_request, response) {
            (_, Response::Control(Err(error))) => self.fail(connections, peer, error),
            (SentRequest::Notify, _)
            | (SentRequest::Release, Response::Control(Ok(ControlReply::Number(1)))) => {}
            (SentRequest::Release, _) => {
                let name = &connections.pool.remote().owners[peer].name;
                let detail =
                    format!("peer stopped holding before all peers had removed peer={name}");
                self.failed = Some(Error::new(ErrorKind::Unavailable, detail));
            }
        }
    }

    fn fail(&mut self, connections: &PeerConnections, peer: usize, error: Error) {
        self.failed = Some(error);
        self.link_ended |= connections.pool.was_ended_by_peer(peer);
    }

    /// Make progress; true once the notification is complete.
    pub fn advance(&mut self, connections: &mut PeerConnections) -> bool {
        if !self.pending.is_empty() {
            return false;
        }
        for peer in std::mem::take(&mut self.holding) {
            let release = RequestBody::Release(self.hold_name);
            self.send(connections, peer, SentRequest::Release, &release, RequestOptions::default());
        }
        // After a failure the releases are not waited for.
        self.failed.is_some() || self.pending.is_empty() || mutant::on(Mutant::HoldNotConfirmed)
    }

    /// The result, once [`PeerNotification::advance`] returned true.
    pub fn finish(self, now: Mono) -> NotificationResult {
        let PeerNotification { id, job, deadline, failed, link_ended, is_first, .. } = self;
        match failed {
            Some(_) if link_ended && is_first && now < deadline => {
                NotificationResult::Retry(job, deadline)
            }
            failed => {
                NotificationResult::Complete(id, failed.map_or(JobResult::Done, JobResult::Failed))
            }
        }
    }
}

/// Whether the link to a peer that must be notified is being established.
pub(crate) fn is_connecting(connections: &mut PeerConnections, job: &PeerJob, now: Mono) -> bool {
    peers_to_notify(connections, job).into_iter().any(|peer| {
        match connections.pool.connect(peer, now) {
            ConnState::Connecting => true,
            ConnState::Up(_) | ConnState::Down => false,
        }
    })
}

/// The peers that must be notified.
fn peers_to_notify(connections: &PeerConnections, job: &PeerJob) -> Vec<usize> {
    let all = 0..connections.pool.remote().owners.len();
    match job {
        _ if mutant::on(Mutant::PeersNotNotified) => Vec::new(),
        PeerJob::Remove { keys, .. } => {
            all.filter(|peer| !keys_for(connections, *peer, keys).is_empty()).collect()
        }
        PeerJob::Clear { .. } => all.collect(),
        PeerJob::Frame(..) => Vec::new(),
    }
}

/// The keys that are sent to a peer: all, except with a planted bug.
fn keys_for(connections: &PeerConnections, peer: usize, keys: &[ObjectKey]) -> Vec<ObjectKey> {
    let owned = |key: &&ObjectKey| connections.pool.remote().owner(key) == Some(peer);
    match mutant::on(Mutant::OnlyOwnerNotified) {
        true => keys.iter().filter(owned).copied().collect(),
        false => keys.to_vec(),
    }
}

fn unreachable_peer(connections: &PeerConnections, peer: usize) -> Error {
    let name = &connections.pool.remote().owners[peer].name;
    Error::new(
        ErrorKind::Unavailable,
        format!("peer is unreachable, not notified of a removal or clear peer={name}"),
    )
}
