//! The client's end: connecting, and the start of the handshake.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::Clock;
use pagelith_io::entropy::Entropy;
use pagelith_io::shm::SharedRegion;
use pagelith_layouts::wire::LinkRole;
use pagelith_layouts::wire::greeting::Feature;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect as start, socket_with,
};

use super::connected::{Socket, SocketLink, SocketPending};
use super::rings::Rings;
use crate::address::{Address, Endpoint};
use crate::auth::Key;
use crate::capability::Capabilities;
use crate::handshake::Handshake;
use crate::limits::LinkLimits;
use crate::link_error::{LinkError, system_error};
use crate::pending::{HandshakeProgress, PendingHandshake};

/// Maximum single wait of [`dial`].
const WAIT_STEP: Duration = Duration::from_millis(100);

/// Begin to connect to a server. Never waits.
///
/// The host must be an IP address; [`SocketDial`](crate::dial::SocketDial) resolves names.
/// [`PendingHandshake::poll`] does the rest of connecting, greeting and proof, which together take
/// at most `limits.handshake`. `key` is needed if the server requires one, and refused if it
/// supports none. `host` is the name of this host for the server's log. `shared_regions` is memory of this process that the server may read: at most
/// [`REGIONS_MAX`](crate::shown::REGIONS_MAX) regions.
pub fn connect(
    to: &Address,
    offer: Capabilities,
    key: Option<Key>,
    host: Option<&str>,
    entropy: &dyn Entropy,
    (clock, limits): (Arc<dyn Clock>, LinkLimits),
    shared_regions: &[Arc<SharedRegion>],
) -> Result<SocketPending, LinkError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let open = |family| {
        socket_with(family, SocketType::STREAM, flags, None).map_err(system_error("socket"))
    };
    let begun = |result| match result {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(()),
        Err(e) => Err(system_error("connect")(e)),
    };
    let mut can_share = false;
    let socket = match to {
        Address::Tcp(Endpoint::Name { host, .. }) => {
            let detail = "connect takes an IP address, not a name".to_owned();
            return Err(LinkError::NameNotResolved { host: host.clone(), detail });
        }
        Address::Tcp(Endpoint::Ip(to)) => {
            let socket =
                open(if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 })?;
            begun(start(&socket, to))?;
            Socket::tcp(socket)?
        }
        Address::Unix(path) => {
            let socket = open(AddressFamily::UNIX)?;
            let to = SocketAddrUnix::new(path).map_err(system_error("connect"))?;
            begun(start(&socket, &to))?;
            let memory =
                (offer.features & Feature::SharedMemory.bit() != 0).then(Rings::memory).flatten();
            can_share = memory.is_some();
            Socket::unix(socket, memory)?.sharing(shared_regions.to_vec())
        }
    };
    let offer = offer.at(to, can_share);
    let handshake = Handshake::client_of_host(offer, key, host, entropy);
    Ok(PendingHandshake::new(
        socket,
        to.to_string(),
        LinkRole::Client,
        offer,
        handshake,
        (clock, limits),
    ))
}

/// As [`connect`], but wait until the link is established or has failed.
pub fn dial(
    to: &Address,
    offer: Capabilities,
    key: Option<Key>,
    entropy: &dyn Entropy,
    clock: Arc<dyn Clock>,
    limits: LinkLimits,
) -> Result<SocketLink, LinkError> {
    let mut progress = connect(to, offer, key, None, entropy, (clock, limits), &[])?.poll();
    loop {
        progress = match progress {
            HandshakeProgress::Waiting(pending) => pending.wait(WAIT_STEP),
            HandshakeProgress::Ready(link) => return Ok(*link),
            HandshakeProgress::Failed(why) => return Err(why),
        };
    }
}
