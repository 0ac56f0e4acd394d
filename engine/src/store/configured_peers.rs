//! Peers from the configuration, reached over sockets.

use pagelith_io::runtime::Env;
use pagelith_io::sync::Arc;
use pagelith_transport::capability::Capabilities;
use pagelith_transport::dial::SocketDial;
use pagelith_transport::rdma::host::RdmaHost;

use crate::api::error::Result;
use crate::config::{PeerConfig, ValidConfig};
use crate::rpc::Peer;
use crate::store::{key_file, rdma};

/// The configured peers. Without peers, no key file is read.
pub(crate) fn peers(
    config: &ValidConfig,
    env: &Env,
    host: Option<&Arc<RdmaHost>>,
) -> Result<Vec<Peer>> {
    if config.peers().is_empty() {
        return Ok(Vec::new());
    }
    let key = config
        .peers_key()
        .map(key_file::own)
        .transpose()
        .map_err(|error| error.context("remote.key"))?;
    // The capabilities that this process offers on every link.
    let offer = Capabilities::of_this_build(env.entropy.bytes16());
    let peer = |peer: &PeerConfig| {
        let PeerConfig { address, transport, name, weight, preferred } = peer;
        let dial = SocketDial::new(address.clone(), key.clone(), offer, env.clock.clone());
        let local_hostname = config.local_hostname().map(str::to_owned);
        let rdma = rdma::of_peer(*transport, host);
        let dial = SocketDial { rdma, local_hostname, ..dial };
        Peer { name: name.clone(), weight: *weight, preferred: *preferred, dial: Arc::new(dial) }
    };
    Ok(config.peers().iter().map(peer).collect())
}
