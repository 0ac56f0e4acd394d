//! The exchange of rails after a handshake: the first frame of each end, the client's first.
//!
//! The server pairs the rails of both ends: those of the same device name and port, then the others
//! in order, as far as they have the same link layer. An end without a usable rail says why, and
//! the link has no data plane.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pagelith_io::verbs::{Endpoint, Gid, LinkLayer, Mtu, Port, RemoteAccess, VerbsError};
use pagelith_layouts::wire::LinkRole;
use pagelith_layouts::wire::rails::{ETHERNET, INFINIBAND, RAILS_MAX, RailItem, Rails};

use super::client_plane::ClientPlane;
use super::counters::NoRdmaReason;
use super::data_plane::DataPlane;
use super::host::RdmaHost;
use super::rail::Rail;
use super::rail_health::PeerHost;
use super::rail_queue::RailQueue;
use super::rails::Rails as LinkRails;
use super::server_plane::ServerPlane;
use crate::link_error::LinkError;

/// The exchange of one end.
pub(crate) struct RailsExchange {
    host: Arc<RdmaHost>,
    peer: PeerHost,
    instance: [u8; 16],
    /// The client's queue pairs, in the order of its frame.
    offered: Vec<RailQueue>,
    /// Why the client offers none.
    reason: Option<String>,
}

impl RailsExchange {
    /// The exchange of an end that has `host` with `peer`; `instance` is random, of this process.
    pub fn new(host: Arc<RdmaHost>, peer: PeerHost, instance: [u8; 16]) -> RailsExchange {
        RailsExchange { host, peer, instance, offered: Vec::new(), reason: None }
    }

    /// The client's frame.
    fn offer(&mut self) -> Rails {
        let host = self.host.clone();
        let (mut rails, mut reasons) = (Vec::new(), Vec::new());
        for (number, rail) in host.rails_up_for(self.peer).take(RAILS_MAX) {
            match RailQueue::new(&host, number, self.packet(), RemoteAccess::READ_WRITE) {
                Ok(queue) => {
                    rails.push(item(rail, &queue, rails.len() as u32));
                    self.offered.push(queue);
                }
                Err(error) => reasons.push(error.to_string()),
            }
        }
        match self.offered.iter().map(RailQueue::receives).min() {
            Some(notices) => Rails { rails, notices, text: String::new() },
            None => Rails::none(self.reason.insert(no_rail(&reasons))),
        }
    }

    /// The server's frame, and its data plane.
    fn answer(self, theirs: &Rails) -> Exchanged {
        if theirs.rails.is_empty() {
            return self.refuse(no_rail_of_peer(theirs));
        }
        let (mut rails, mut queues, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
        for (own, pair) in self.pairs(&theirs.rails) {
            match self.connected(own, &theirs.rails[pair], theirs.notices) {
                Ok(queue) => {
                    rails.push(item(&self.host.rails()[own], &queue, pair as u32));
                    queues.push(queue);
                }
                Err(error) => reasons.push(error.to_string()),
            }
        }
        if queues.is_empty() {
            return self.refuse(no_rail(&reasons));
        }
        self.host.counters().links.fetch_add(1, Ordering::Relaxed);
        let plane =
            DataPlane::Server(ServerPlane::new(LinkRails::new(self.host, self.peer, queues)));
        let answer = Rails { rails, notices: 0, text: String::new() };
        Exchanged { answer: Some(answer), plane: Ok(plane) }
    }

    fn refuse(self, reason: String) -> Exchanged {
        self.host.counters().note_no_rdma(NoRdmaReason::Rails);
        Exchanged { answer: Some(Rails::none(&reason)), plane: Err(reason) }
    }

    /// The client's data plane after the server's frame.
    fn finish(self, theirs: &Rails) -> Result<Exchanged, LinkError> {
        let counters = self.host.clone();
        let without = |reason| {
            counters.counters().note_no_rdma(NoRdmaReason::Rails);
            Ok(Exchanged { answer: None, plane: Err(reason) })
        };
        if theirs.rails.is_empty() {
            return without(self.reason.unwrap_or_else(|| no_rail_of_peer(theirs)));
        }
        let notices = self.offered.iter().map(RailQueue::receives).min().unwrap_or(0);
        let mut offered: Vec<Option<RailQueue>> = self.offered.into_iter().map(Some).collect();
        let mut queues = Vec::new();
        for theirs in &theirs.rails {
            let queue = offered.get_mut(theirs.pair as usize).and_then(Option::take);
            let Some(mut queue) = queue else {
                return Err(LinkError::bad_field("pair", theirs.pair));
            };
            if let Err(error) = queue.connect(&endpoint(theirs), notices) {
                // The server has these rails, and would use all of them: so none is used.
                return without(error.to_string());
            }
            queues.push(queue);
        }
        self.host.counters().links.fetch_add(1, Ordering::Relaxed);
        let plane =
            DataPlane::Client(ClientPlane::new(LinkRails::new(self.host, self.peer, queues)));
        Ok(Exchanged { answer: None, plane: Ok(plane) })
    }

    /// Rails of this host, each with the position of the client's rail that it is paired with.
    fn pairs(&self, theirs: &[RailItem]) -> Vec<(usize, usize)> {
        let own: Vec<(usize, RailEnd)> = self
            .host
            .rails_up_for(self.peer)
            .filter_map(|(number, rail)| Some((number, RailEnd::of(&rail.attachment().ok()?.port))))
            .collect();
        let peers: Vec<RailEnd> = theirs.iter().map(RailEnd::of_item).collect();
        let ends: Vec<RailEnd> = own.iter().map(|(_, end)| end.clone()).collect();
        pair_up(&ends, &peers).into_iter().map(|(at, pair)| (own[at].0, pair)).collect()
    }

    fn connected(
        &self,
        own: usize,
        theirs: &RailItem,
        notices: u32,
    ) -> Result<RailQueue, VerbsError> {
        let mut queue = RailQueue::new(&self.host, own, self.packet(), RemoteAccess::NONE)?;
        queue.connect(&endpoint(theirs), notices)?;
        Ok(queue)
    }

    /// The number of a first packet, which differs from those of earlier queue pairs.
    fn packet(&self) -> u32 {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let random = u32::from_le_bytes([0, 1, 2, 3].map(|at: usize| self.instance[at]));
        random.wrapping_add(count.wrapping_mul(0x9e37_79b1)) & 0x00ff_ffff
    }
}

/// Why the peer has no rail.
fn no_rail_of_peer(theirs: &Rails) -> String {
    format!("the peer has no usable rail: {}", theirs.text)
}

/// Why no rail is usable.
fn no_rail(reasons: &[String]) -> String {
    match reasons {
        [] => "every rail is suspended after failures, or none fits the peer's".to_owned(),
        reasons => reasons.join("; "),
    }
}

/// Facts that decide which rails are paired.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RailEnd {
    device: String,
    port: u8,
    link_layer: u8,
}

impl RailEnd {
    fn of(port: &Port) -> RailEnd {
        let link_layer = number_of(port.link_layer);
        RailEnd { device: port.device.clone(), port: port.number, link_layer }
    }

    fn of_item(item: &RailItem) -> RailEnd {
        RailEnd { device: item.device(), port: item.port, link_layer: item.link_layer }
    }
}

/// Pairs of own and peer's rails, by position. Each is in one pair at most.
fn pair_up(own: &[RailEnd], peers: &[RailEnd]) -> Vec<(usize, usize)> {
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    for same_name in [true, false] {
        for (at, end) in own.iter().enumerate() {
            let is_free = |pair: &usize| !pairs.iter().any(|(_, used)| used == pair);
            let fits = |pair: &usize| match same_name {
                true => peers[*pair] == *end,
                false => peers[*pair].link_layer == end.link_layer,
            };
            if pairs.iter().any(|(used, _)| *used == at) {
                continue;
            }
            if let Some(pair) = (0..peers.len()).find(|pair| is_free(pair) && fits(pair)) {
                pairs.push((at, pair));
            }
        }
    }
    pairs.sort_unstable();
    pairs
}

fn item(rail: &Rail, queue: &RailQueue, pair: u32) -> RailItem {
    let endpoint = queue.pair.endpoint();
    let mut item = RailItem::of_device(rail.device().name());
    item.gid = endpoint.gid.0;
    (item.queue_pair, item.packet, item.pair) = (endpoint.queue_pair, endpoint.packet, pair);
    (item.lid, item.port, item.reads) = (endpoint.lid, rail.port(), endpoint.reads);
    item.link_layer = number_of(queue.link_layer());
    // Codes are 1 to 5.
    item.mtu = endpoint.mtu.code() as u8;
    item
}

fn number_of(link_layer: LinkLayer) -> u8 {
    match link_layer {
        LinkLayer::InfiniBand => INFINIBAND,
        LinkLayer::Ethernet | LinkLayer::Other(_) => ETHERNET,
    }
}

fn endpoint(item: &RailItem) -> Endpoint {
    Endpoint {
        queue_pair: item.queue_pair,
        packet: item.packet,
        gid: Gid(item.gid),
        lid: item.lid,
        // The decoder has checked the code.
        mtu: Mtu::of_code(item.mtu.into()).unwrap_or(Mtu::SMALLEST),
        reads: item.reads,
    }
}

/// The exchange as frames of the stream, which a connection reads and writes between its handshake
/// and its first request.
pub(crate) struct PendingRails {
    exchange: RailsExchange,
    side: LinkRole,
}

/// The result of an exchange.
pub(crate) struct Exchanged {
    /// The frame to send, of a server.
    pub answer: Option<Rails>,
    /// The data plane, or why there is none; the reason may be a peer's text.
    pub plane: Result<DataPlane, String>,
}

impl PendingRails {
    pub fn new(exchange: RailsExchange, side: LinkRole) -> PendingRails {
        PendingRails { exchange, side }
    }

    /// The frame to send first, of a client.
    pub fn first(&mut self) -> Option<Rails> {
        (self.side == LinkRole::Client).then(|| self.exchange.offer())
    }

    /// Process the peer's frame.
    pub fn receive(self, body: &[u8]) -> Result<Exchanged, LinkError> {
        let theirs = Rails::decode(body)?;
        match self.side {
            LinkRole::Client => self.exchange.finish(&theirs),
            LinkRole::Server => Ok(self.exchange.answer(&theirs)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(device: &str, port: u8, link_layer: u8) -> RailEnd {
        RailEnd { device: device.into(), port, link_layer }
    }

    #[test]
    fn rails_are_paired_by_name_then_in_order() {
        let own = [end("a", 1, ETHERNET), end("b", 1, ETHERNET), end("c", 1, ETHERNET)];
        let peers = [end("b", 1, ETHERNET), end("x", 1, ETHERNET)];
        assert_eq!(pair_up(&own, &peers), [(0, 1), (1, 0)]);
        assert_eq!(pair_up(&peers, &own), [(0, 1), (1, 0)]);
        let second = [end("b", 2, ETHERNET)];
        assert_eq!(pair_up(&own, &second), [(0, 0)], "another port of that name");
        assert_eq!(pair_up(&own, &[]), []);
    }

    #[test]
    fn rails_of_different_link_layers_are_not_paired() {
        let own = [end("a", 1, INFINIBAND), end("b", 1, ETHERNET)];
        assert_eq!(pair_up(&own, &[end("a", 1, ETHERNET)]), [(1, 0)]);
        assert_eq!(pair_up(&own[..1], &[end("a", 1, ETHERNET)]), []);
    }
}
