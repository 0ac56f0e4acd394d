//! Where other stores are, and how they are reached.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use pagelith::attach::Attached;
use pagelith::config::{Config, PeerConfig, ValidConfig};
use pagelith::io::entropy::Entropy;
use pagelith::io::system::SystemEntropy;
use pagelith::transport::address::Address;
use pagelith::transport::auth::Key;
use pagelith::transport::capability::Offer;

/// What this process says of itself on every link.
pub(crate) fn offer() -> Offer {
    Offer::of_this_build(SystemEntropy.bytes16())
}

/// Longest that a call to another process's store may take: as a store's own default.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Which store processes are behind this store: flags over `remote.peers` and `remote.key` of the configuration.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct PeerFlags {
    /// A store process whose store is a tier behind this one's, as `pagelith serve` printed it; again for each further. What is put here goes
    /// to the one that owns its page. Instead of those of the configuration, which may have names and weights (remote.peers)
    #[arg(long, value_name = "tcp:HOST:PORT|unix:PATH")]
    pub(crate) remote: Vec<Address>,
    /// One of them that everything goes to instead, as long as it can be reached, and that is asked before whoever owns a page
    #[arg(long, value_name = "tcp:HOST:PORT|unix:PATH")]
    prefer: Option<Address>,
    /// This process's key, where a store process demands one: a file with one entry, as `pagelith key` prints it
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
            remote.peers.iter_mut().for_each(|peer| peer.preferred = peer.address == *prefer);
        }
        if self.key.is_some() {
            remote.key.clone_from(&self.key);
        }
    }

    /// What is wrong with them beside `config`, which they were applied to.
    pub(crate) fn check(&self, config: &ValidConfig) -> anyhow::Result<()> {
        match &self.prefer {
            Some(prefer) if !config.peers().iter().any(|peer| peer.preferred) => {
                bail!("--prefer {prefer} is not one of --remote or remote.peers")
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// The store of the process at `address`, which knows this one by `key`.
pub(crate) fn attach(address: &Address, key: Option<&Key>) -> anyhow::Result<Attached> {
    Ok(Attached::to(address, key, TIMEOUT)?)
}
