//! The counters of a store process, as it sends them.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use pagelith::client::Client;
use pagelith::transport::peer_address::PeerAddress;
use pagelith::{ErrorKind, Options, key_file};
use serde_json::{Map, Value};

use crate::peers;

/// Longest wait for an answer: `top` cannot end sooner.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The store process whose counters are shown.
#[derive(Args, Debug)]
pub(crate) struct StoreAddress {
    /// Address of the store process, as `pagelith serve` printed it
    #[arg(value_name = "tcp:HOST:PORT|rdma:HOST:PORT|unix:PATH")]
    pub(crate) address: PeerAddress,
    /// Key file of this process, if the store process requires a key: one entry, as `pagelith key`
    /// prints it. A key with namespaces needs the right `operate`
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

impl StoreAddress {
    pub(crate) fn attach(&self) -> anyhow::Result<AttachedStats> {
        let key = self.key.as_deref().map(key_file::own).transpose()?;
        let client = peers::attach(&self.address, key.as_ref());
        let client = client.with_context(|| format!("cannot attach address={}", self.address))?;
        Ok(AttachedStats { client })
    }
}

/// A link to a store process.
pub(crate) struct AttachedStats {
    client: Client,
}

impl AttachedStats {
    /// The counters now.
    pub(crate) fn take(&self) -> anyhow::Result<Sample> {
        let options = Options::within(TIMEOUT);
        let text = self.client.stats(options).map_err(|error| {
            let why = match error.kind {
                ErrorKind::Denied => {
                    "the key has not the right `operate`: list it in `rights` of its entry in the \
                     server's key file"
                }
                _ => "the store process sent no statistics",
            };
            anyhow::Error::new(error).context(why)
        })?;
        let counters = serde_json::from_str(&text);
        let counters = counters.context("the statistics of the store process are not JSON")?;
        Ok(Sample { counters, taken: Instant::now() })
    }
}

/// The counters of one moment. A store of another version may have more of them or fewer.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) counters: Map<String, Value>,
    pub(crate) taken: Instant,
}

impl Sample {
    /// A counter or gauge; 0 if the store has none of this name.
    pub(crate) fn number(&self, name: &str) -> u64 {
        self.counters.get(name).and_then(Value::as_u64).unwrap_or(0)
    }

    /// The rows of a table or the causes of a counter, by name.
    pub(crate) fn rows(&self, name: &str) -> impl Iterator<Item = (&String, &Value)> {
        self.counters.get(name).and_then(Value::as_object).into_iter().flatten()
    }

    /// The sum of a counter over its causes.
    pub(crate) fn sum(&self, name: &str) -> u64 {
        let counts = self.rows(name).filter_map(|(_, count)| count.as_u64());
        // The counts are another process's.
        counts.fold(0, u64::saturating_add)
    }
}
