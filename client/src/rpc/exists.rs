//! Lookups at peers, for keys that are not in this store.

use pagelith_io::clock::Mono;
use pagelith_layouts::key::ObjectKey;

use super::Response;
use super::connections::PeerConnections;
use super::pool::ConnState;
use super::remote_get::{
    CallOptions, Choice, LinkFailures, PeerRequest, RequestState, is_done, no_link, split_by_peer,
};
use crate::api::error::{Error, ErrorKind, Result};

/// A lookup of keys at peers.
pub struct RemoteExists {
    keys: Vec<ObjectKey>,
    found: Vec<bool>,
    requests: Vec<PeerRequest<(usize, ObjectKey)>>,
    options: CallOptions,
    failed: Option<Error>,
    /// Keys to request from their owners, if the preferred peer does not have them.
    second_choice: Vec<(usize, ObjectKey)>,
}

impl RemoteExists {
    /// Look up those of `keys` that are not `found` in this store.
    pub fn begin(
        connections: &PeerConnections,
        keys: &[ObjectKey],
        found: Vec<bool>,
        options: CallOptions,
    ) -> RemoteExists {
        let absent =
            || keys.iter().enumerate().filter(|(at, _)| !found[*at]).map(|(at, key)| (at, *key));
        let requests = split_by_peer(
            connections,
            absent().map(|(at, key)| (key, 1, (at, key))),
            Choice::First,
        );
        let second_choice = absent()
            .filter(|(_, key)| connections.pool.remote().second_choice(key).is_some())
            .collect();
        RemoteExists { keys: keys.to_vec(), found, requests, options, failed: None, second_choice }
    }

    /// Make progress without waiting; true once every key has its answer.
    pub fn advance(&mut self, connections: &mut PeerConnections, now: Mono) -> bool {
        let (mut all_done, mut failures) = (true, LinkFailures::default());
        for request in &mut self.requests {
            let peer = request.peer;
            request.state = match std::mem::replace(&mut request.state, RequestState::Done) {
                RequestState::Queued(keys) => {
                    send_exists(connections, peer, keys, self.options, now).unwrap_or_else(
                        |error| {
                            self.failed.get_or_insert(error);
                            RequestState::Done
                        },
                    )
                }
                RequestState::Sent(token, indices) => match connections.take_response(token) {
                    Some(Response::Exists(found)) => {
                        failures.record_response(connections, peer, found.is_err());
                        match found {
                            Ok(found) => {
                                indices
                                    .into_iter()
                                    .zip(found)
                                    .for_each(|(at, here)| self.found[at] |= here);
                                RequestState::Done
                            }
                            Err(_)
                                if request.should_retry(
                                    connections,
                                    self.options.deadline,
                                    now,
                                ) =>
                            {
                                RequestState::Queued(
                                    indices.into_iter().map(|at| (at, self.keys[at])).collect(),
                                )
                            }
                            Err(error) => {
                                self.failed = Some(error);
                                RequestState::Done
                            }
                        }
                    }
                    Some(_) => RequestState::Done,
                    None => RequestState::Sent(token, indices),
                },
                RequestState::Done => RequestState::Done,
            };
            all_done &= is_done(&request.state);
        }
        failures.apply(connections, now);
        all_done && (!self.ask_second_choice(connections) || self.advance(connections, now))
    }

    /// Ask the owners for keys that the preferred peer does not have; false if there are none.
    fn ask_second_choice(&mut self, connections: &PeerConnections) -> bool {
        let mut next = std::mem::take(&mut self.second_choice);
        next.retain(|(at, _)| !self.found[*at]);
        let has_next = !next.is_empty();
        if has_next {
            self.requests = split_by_peer(
                connections,
                next.into_iter().map(|(at, key)| (key, 1, (at, key))),
                Choice::Second,
            );
        }
        has_next
    }

    /// The first error, if some keys have no answer.
    pub fn failed(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// The answers; false for keys without an answer.
    pub fn finish(self) -> Vec<bool> {
        self.found
    }
}

fn send_exists(
    connections: &mut PeerConnections,
    peer: usize,
    keys: Vec<(usize, ObjectKey)>,
    options: CallOptions,
    now: Mono,
) -> Result<RequestState<(usize, ObjectKey)>> {
    let token = connections.next_token();
    let client = match connections.pool.connect(peer, now) {
        ConnState::Up(client) if now < options.deadline => client,
        ConnState::Connecting if now < options.deadline => return Ok(RequestState::Queued(keys)),
        ConnState::Connecting => {
            connections.record_result(peer, true, now);
            return Err(no_link());
        }
        ConnState::Up(_) | ConnState::Down => return Err(no_link()),
    };
    let request: Vec<ObjectKey> = keys.iter().map(|(_, key)| *key).collect();
    let depth = keys.first().map_or(0, |(at, _)| *at);
    match client.exists(token, &request, options.request_options(now, depth), options.deadline) {
        Ok(()) => Ok(RequestState::Sent(token, keys.into_iter().map(|(at, _)| at).collect())),
        Err(Error { kind: ErrorKind::Busy, .. }) if client.expects_response() => {
            Ok(RequestState::Queued(keys))
        }
        Err(error) => Err(error),
    }
}
