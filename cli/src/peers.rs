//! Addresses and keys of other store processes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use pagelith::client::Client;
use pagelith::config::{Config, PeerConfig, ValidConfig};
use pagelith::io::entropy::Entropy;
use pagelith::io::system::SystemEntropy;
use pagelith::rdma;
use pagelith::transport::auth::Key;
use pagelith::transport::capability::Capabilities;
use pagelith::transport::peer_address::PeerAddress;

/// The capabilities that this process offers on every link.
pub(crate) fn offer() -> Capabilities {
    Capabilities::of_this_build(SystemEntropy.bytes16())
}

/// Maximum duration of a call to another process's store: the default of a store.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Peers of this store: flags that override `remote.peers` and `remote.key` of the configuration.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct PeerFlags {
    /// Address of a peer store process, as `pagelith serve` printed it; repeat for each further.
    /// Its store is a tier below this one, and puts go to the peer that owns the page. Replaces
    /// remote.peers of the configuration, which may have names and weights. With rdma: the payload
    /// travels by RDMA
    #[arg(long, value_name = "tcp:HOST:PORT|rdma:HOST:PORT|unix:PATH")]
    pub(crate) remote: Vec<PeerAddress>,
    /// One of these peers: all puts go to it while it can be reached, and gets ask it before the
    /// owner of the page
    #[arg(long, value_name = "tcp:HOST:PORT|rdma:HOST:PORT|unix:PATH")]
    prefer: Option<PeerAddress>,
    /// Key file of this process, for peers that require a key: one entry, as `pagelith key` prints
    /// it
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
}

impl PeerFlags {
    pub(crate) fn apply(&self, config: &mut Config) {
        let remote = &mut config.remote;
        if !self.remote.is_empty() {
            remote.peers = self.remote.iter().cloned().map(PeerConfig::from).collect();
        }
        if let Some(prefer) = &self.prefer {
            let is_it = |peer: &PeerConfig| peer.address == prefer.address;
            remote.peers.iter_mut().for_each(|peer| peer.preferred = is_it(peer));
        }
        if self.key.is_some() {
            remote.key.clone_from(&self.key);
        }
    }

    /// Check the flags against `config`, to which they were applied.
    pub(crate) fn check(&self, config: &ValidConfig) -> anyhow::Result<()> {
        match &self.prefer {
            Some(prefer) if !config.peers().iter().any(|peer| peer.preferred) => {
                bail!("--prefer {prefer} is not one of --remote or remote.peers")
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Attach to the store process at `address`, authenticated by `key`. RDMA devices and the host's
/// name are those of the environment.
pub(crate) fn attach(address: &PeerAddress, key: Option<&Key>) -> anyhow::Result<Client> {
    let dial = rdma::dial(address, key, &rdma::config_of_environment()?)?;
    Ok(Client::over(dial, TIMEOUT)?)
}
