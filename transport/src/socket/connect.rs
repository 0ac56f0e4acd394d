//! A client's end: connecting, greeting, proof.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::Clock;
use pagelith_io::entropy::Entropy;
use pagelith_io::shm::Region;
use pagelith_layouts::wire::Side;
use pagelith_layouts::wire::greeting::Feature;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect as start, socket_with};

use super::end::fault;
use super::rings::Rings;
use super::{Socket, SocketLink, SocketPending, offered};
use crate::address::{Address, Endpoint};
use crate::auth::Key;
use crate::capability::Offer;
use crate::closed::Closed;
use crate::handshake::Handshake;
use crate::limits::Limits;
use crate::pending::{Pending, Progress};

/// Longest single wait of [`dial`].
const WAIT_STEP: Duration = Duration::from_millis(100);

/// Begin to connect to a server. Its host is an IP address: [`SocketDial`](crate::dial::SocketDial) resolves names. Never
/// waits: connecting, greeting and proof go on in [`Pending::poll`], and together take at most `limits.handshake`. `key` is needed where the server demands one, and refused where it takes none. `shows` is memory
/// of this process that the server may look at, [`REGIONS_MAX`](crate::shown::REGIONS_MAX) regions at most.
pub fn connect(
    to: &Address,
    offer: Offer,
    key: Option<Key>,
    entropy: &dyn Entropy,
    clock: Arc<dyn Clock>,
    limits: Limits,
    shows: &[Arc<Region>],
) -> Result<SocketPending, Closed> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let open = |family| socket_with(family, SocketType::STREAM, flags, None).map_err(fault("socket"));
    let begun = |result| match result {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(()),
        Err(e) => Err(fault("connect")(e)),
    };
    let mut can_share = false;
    let socket = match to {
        Address::Tcp(Endpoint::Name { host, .. }) => {
            let detail = "it is to be resolved before this".to_owned();
            return Err(Closed::Unresolved { host: host.clone(), detail });
        }
        Address::Tcp(Endpoint::Ip(to)) => {
            let socket = open(if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 })?;
            begun(start(&socket, to))?;
            Socket::tcp(socket)?
        }
        Address::Unix(path) => {
            let socket = open(AddressFamily::UNIX)?;
            let to = SocketAddrUnix::new(path).map_err(fault("connect"))?;
            begun(start(&socket, &to))?;
            let memory = (offer.features & Feature::SharedMemory.bit() != 0).then(Rings::memory).flatten();
            can_share = memory.is_some();
            Socket::unix(socket, memory)?.showing(shows.to_vec())
        }
    };
    let offer = offered(offer, to, can_share);
    let handshake = Handshake::client(offer, key, entropy);
    Ok(Pending::new(socket, to.to_string(), Side::Client, offer, handshake, (clock, limits)))
}

/// As [`connect`], and wait for the end of it.
pub fn dial(
    to: &Address,
    offer: Offer,
    key: Option<Key>,
    entropy: &dyn Entropy,
    clock: Arc<dyn Clock>,
    limits: Limits,
) -> Result<SocketLink, Closed> {
    let mut progress = connect(to, offer, key, entropy, clock, limits, &[])?.poll();
    loop {
        progress = match progress {
            Progress::Waiting(pending) => pending.wait(WAIT_STEP),
            Progress::Ready(link) => return Ok(*link),
            Progress::Over(why) => return Err(why),
        };
    }
}
