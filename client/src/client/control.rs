//! Requests with one reply.

use pagelith_io::clock::{Clock, Mono};
use pagelith_layouts::wire::greeting::Feature;
use pagelith_layouts::wire::request::RequestBody;

use super::unflushed_puts::Instance;
use super::{Client, STORE, WAIT_STEP, is_unavailable};
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::request::Options;
use crate::rpc::client::RpcClient;
use crate::rpc::connections::PeerConnections;
use crate::rpc::pool::ConnState;
use crate::rpc::remote_get::{CallOptions, no_link};
use crate::rpc::{ControlReply, Response};

impl Client {
    /// Send a request whose reply is a number.
    pub(crate) fn number(&self, ask: &RequestBody<'_>, options: &Options) -> Result<u64> {
        match self.control(ask, options)? {
            (ControlReply::Number(number), _) => Ok(number),
            (
                ControlReply::Flushed(_)
                | ControlReply::Text(_)
                | ControlReply::Bits(_)
                | ControlReply::Events(_)
                | ControlReply::Views(_),
                _,
            ) => Err(no_link()),
        }
    }

    /// Send a request; returns the reply and the process that sent it. If the link ends during the
    /// request, it is sent once more over a new link: all verbs that are sent here are idempotent,
    /// but a hint may be counted twice.
    /// A removal or clear is repeated only if the store ended the link. Over a link that only this
    /// side gave up, the first request could still be executed after the caller's next put.
    /// Requests that belong to one link (pins, views, groups) use the
    /// [`LeaseConnection`](super::lease_connection::LeaseConnection).
    pub(crate) fn control(
        &self,
        ask: &RequestBody<'_>,
        options: &Options,
    ) -> Result<(ControlReply, Instance)> {
        let call = self.call_options(options);
        self.with_connections(|connections| {
            let reply = control_once(&*self.clock, connections, ask, call, &|| self.keep_alive());
            let has_ended = match ask {
                RequestBody::Remove(_) | RequestBody::Clear(_) => {
                    connections.pool.was_ended_by_peer(STORE)
                }
                _ => connections.pool.has_ended(STORE),
            };
            if is_unavailable(&reply) && has_ended && self.clock.now() < call.deadline {
                return control_once(&*self.clock, connections, ask, call, &|| self.keep_alive());
            }
            reply
        })
    }
}

/// Make progress until `advance` returns true; calls `between` before each wait.
pub(crate) fn drive(
    clock: &dyn Clock,
    connections: &mut PeerConnections,
    mut advance: impl FnMut(&mut PeerConnections, Mono) -> bool,
    between: &dyn Fn(),
) {
    let mut now = clock.now();
    connections.poll(now);
    while !advance(connections, now) {
        between();
        connections.wait(clock.now(), WAIT_STEP);
        now = clock.now();
    }
}

/// The error for a request whose feature the store lacks.
fn missing_feature(client: &RpcClient, ask: &RequestBody<'_>) -> Option<Error> {
    let (feature, detail) = match ask {
        RequestBody::Pin(..) | RequestBody::Unpin(_) | RequestBody::Lease(..) => {
            (Feature::Pins, "the store does not support pins and leases by other processes")
        }
        RequestBody::Begin(..)
        | RequestBody::Commit(_)
        | RequestBody::Abort(_)
        | RequestBody::Missing(_) => {
            (Feature::Begun, "the store does not support open groups of other processes")
        }
        RequestBody::Events(_) => {
            (Feature::Events, "the store keeps no events: set events.max on it")
        }
        RequestBody::View(..) => (Feature::Views, "the store shares no memory with this process"),
        RequestBody::Prefetch(_) => {
            (Feature::Prefetch, "the store does not support prefetch by other processes")
        }
        RequestBody::Hint(..) => {
            (Feature::Hints, "the store does not support hints of other processes")
        }
        _ => return None,
    };
    (!client.has_feature(feature)).then(|| Error::new(ErrorKind::Incompatible, detail))
}

/// Send a request once; returns the reply and the process that sent it.
pub(crate) fn control_once(
    clock: &dyn Clock,
    connections: &mut PeerConnections,
    ask: &RequestBody<'_>,
    call: CallOptions,
    between: &dyn Fn(),
) -> Result<(ControlReply, Instance)> {
    let token = connections.next_token();
    let mut sent_to: Option<Result<Instance>> = None;
    let mut reply = None;
    let advance = |connections: &mut PeerConnections, now| match &sent_to {
        Some(Ok(_)) => {
            reply = connections.take_response(token);
            reply.is_some()
        }
        Some(Err(_)) => true,
        None => {
            sent_to = match connections.pool.connect(STORE, now) {
                ConnState::Up(client) if now < call.deadline => {
                    match missing_feature(client, ask) {
                        Some(error) => Some(Err(error)),
                        None => {
                            match client.send_control(
                                token,
                                ask,
                                call.request_options(now, 0),
                                call.deadline,
                            ) {
                                Ok(()) => Some(Ok(client.peer_instance())),
                                Err(error)
                                    if error.kind == ErrorKind::Busy
                                        && client.expects_response() =>
                                {
                                    None
                                }
                                Err(error) => Some(Err(error)),
                            }
                        }
                    }
                }
                ConnState::Connecting if now < call.deadline => None,
                ConnState::Up(_) | ConnState::Connecting | ConnState::Down => Some(Err(no_link())),
            };
            sent_to.as_ref().is_some_and(Result::is_err)
        }
    };
    drive(clock, connections, advance, between);
    let instance = sent_to.unwrap_or_else(|| Err(no_link()))?;
    let reply = match reply {
        Some(Response::Control(reply)) => reply,
        Some(Response::Exists(_) | Response::Get(_) | Response::Put(_)) | None => Err(no_link()),
    };
    connections.record_result(STORE, is_unavailable(&reply), clock.now());
    reply.map(|reply| (reply, instance))
}
