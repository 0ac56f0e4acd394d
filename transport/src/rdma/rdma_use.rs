//! Whether the links of one end have RDMA.

use std::sync::Arc;

use pagelith_layouts::wire::greeting::Feature;

use super::counters::NoRdmaReason;
use super::host::RdmaHost;
use crate::address::Address;
use crate::capability::Capabilities;
use crate::link_error::LinkError;

/// The use of RDMA by the links of one end.
#[derive(Clone, Debug, Default)]
pub enum RdmaUse {
    /// Bulk bytes travel on the stream.
    #[default]
    Off,
    /// Bulk bytes travel by RDMA if the peer offers it, else on the stream.
    Offered(Arc<RdmaHost>),
    /// A link without RDMA is an error.
    Demanded(Arc<RdmaHost>),
}

impl RdmaUse {
    /// The devices, if RDMA may be used.
    pub fn host(&self) -> Option<&Arc<RdmaHost>> {
        match self {
            RdmaUse::Off => None,
            RdmaUse::Offered(host) | RdmaUse::Demanded(host) => Some(host),
        }
    }

    /// Whether a link without RDMA is an error.
    pub fn is_demanded(&self) -> bool {
        matches!(self, RdmaUse::Demanded(_))
    }

    /// The use on links at `address`: none over a Unix socket, whose ends share memory.
    pub(crate) fn at(&self, address: &Address) -> RdmaUse {
        match address {
            Address::Tcp(_) => self.clone(),
            Address::Unix(_) => RdmaUse::Off,
        }
    }

    /// The offer of an end with this use.
    pub(crate) fn offer(&self, offer: Capabilities) -> Capabilities {
        match self {
            RdmaUse::Off => offer.without(Feature::Rdma),
            RdmaUse::Offered(_) | RdmaUse::Demanded(_) => offer.with(Feature::Rdma),
        }
    }

    /// Check the features that both ends have, and count a link without RDMA.
    ///
    /// # Errors
    /// [`LinkError::NoRdma`] if RDMA is demanded and the peer offers none.
    pub(crate) fn check(&self, features: u64) -> Result<(), LinkError> {
        let Some(host) = self.host() else { return Ok(()) };
        if features & Feature::Rdma.bit() != 0 {
            return Ok(());
        }
        host.counters().note_no_rdma(NoRdmaReason::Peer);
        match self.is_demanded() {
            true => Err(LinkError::NoRdma { reason: "the peer offers none".to_owned() }),
            false => Ok(()),
        }
    }
}
