//! The address of a store process to connect to, with the transport of bulk bytes.

use std::fmt;
use std::str::FromStr;

use crate::address::{Address, AddressError, Endpoint, EndpointError};

/// How bulk bytes travel on the links to a peer. Control frames always travel over TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BulkTransport {
    /// Over TCP.
    #[default]
    Tcp,
    /// By RDMA if both ends have it, else over TCP.
    Auto,
    /// By RDMA; a link without it is an error.
    Rdma,
}

impl BulkTransport {
    /// The names, as written in settings.
    pub const NAMES: [&str; 3] = ["tcp", "auto", "rdma"];

    /// The transport of this name; exact spelling.
    pub fn of_name(name: &str) -> Option<BulkTransport> {
        let all = [BulkTransport::Tcp, BulkTransport::Auto, BulkTransport::Rdma];
        all.into_iter().find(|transport| transport.name() == name)
    }

    /// The name, as written in settings.
    pub fn name(self) -> &'static str {
        match self {
            BulkTransport::Tcp => "tcp",
            BulkTransport::Auto => "auto",
            BulkTransport::Rdma => "rdma",
        }
    }
}

/// The address of a store process: `tcp:HOST:PORT`, `unix:PATH`, or `rdma:HOST:PORT` for
/// `tcp:HOST:PORT` with [`BulkTransport::Rdma`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    /// The address to connect to.
    pub address: Address,
    /// The transport of bulk bytes.
    pub transport: BulkTransport,
}

/// Text that is not the address of a store process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerAddressError {
    /// An unknown prefix.
    #[error("an address begins with tcp:, rdma: or unix:")]
    Kind,
    /// Not a host and a port.
    #[error("rdma: is followed by HOST:PORT, {0}")]
    Rdma(EndpointError),
    /// Not an address of another kind.
    #[error(transparent)]
    Address(AddressError),
}

/// Why a transport does not fit an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "transport {} needs an address tcp:HOST:PORT address={address}",
    transport.name()
)]
pub struct TransportMismatch {
    transport: BulkTransport,
    address: PeerAddress,
}

impl PeerAddress {
    /// The same peer with this transport.
    ///
    /// # Errors
    /// If the address is a Unix socket, or begins with `rdma:` and the transport is another.
    pub fn with_transport(
        self,
        transport: BulkTransport,
    ) -> Result<PeerAddress, TransportMismatch> {
        let fits = match &self.address {
            Address::Unix(_) => false,
            Address::Tcp(_) => self.transport != BulkTransport::Rdma,
        };
        match fits || transport == self.transport {
            true => Ok(PeerAddress { transport, ..self }),
            false => Err(TransportMismatch { transport, address: self }),
        }
    }
}

impl From<Address> for PeerAddress {
    fn from(address: Address) -> PeerAddress {
        PeerAddress { address, transport: BulkTransport::Tcp }
    }
}

impl FromStr for PeerAddress {
    type Err = PeerAddressError;

    fn from_str(text: &str) -> Result<PeerAddress, PeerAddressError> {
        let Some(endpoint) = text.strip_prefix("rdma:") else {
            return match text.parse::<Address>() {
                Ok(address) => Ok(address.into()),
                Err(AddressError::Kind) => Err(PeerAddressError::Kind),
                Err(wrong) => Err(PeerAddressError::Address(wrong)),
            };
        };
        let endpoint: Endpoint = endpoint.parse().map_err(PeerAddressError::Rdma)?;
        Ok(PeerAddress { address: Address::Tcp(endpoint), transport: BulkTransport::Rdma })
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.address, self.transport) {
            (Address::Tcp(endpoint), BulkTransport::Rdma) => write!(f, "rdma:{endpoint}"),
            (address, _) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> PeerAddress {
        text.parse().expect(text)
    }

    #[test]
    fn peer_address_round_trips_with_its_transport() {
        for (text, transport) in [
            ("rdma:127.0.0.1:7411", BulkTransport::Rdma),
            ("rdma:store.example:7411", BulkTransport::Rdma),
            ("tcp:[::1]:1", BulkTransport::Tcp),
            ("unix:/run/pagelith", BulkTransport::Tcp),
        ] {
            let address = parsed(text);
            assert_eq!((address.to_string().as_str(), address.transport), (text, transport));
        }
        for text in ["rdma:", "rdma:7411", "rdma:unix:/a", "rdma:/a", "auto:127.0.0.1:1"] {
            assert!(text.parse::<PeerAddress>().is_err(), "{text}");
        }
        assert_eq!(parsed("rdma:a:1").address, parsed("tcp:a:1").address);
    }

    #[test]
    fn transport_that_does_not_fit_the_address_is_refused() {
        use BulkTransport::{Auto, Rdma, Tcp};
        let with = |text: &str, transport| parsed(text).with_transport(transport);
        for (text, transport) in [("tcp:a:1", Auto), ("tcp:a:1", Rdma), ("tcp:a:1", Tcp)] {
            assert_eq!(with(text, transport).expect(text).transport, transport);
        }
        assert!(with("rdma:a:1", Rdma).is_ok() && with("unix:/a", Tcp).is_ok());
        for (text, transport) in
            [("rdma:a:1", Auto), ("rdma:a:1", Tcp), ("unix:/a", Auto), ("unix:/a", Rdma)]
        {
            let error = with(text, transport).expect_err(text).to_string();
            assert!(error.contains(transport.name()) && error.ends_with(text), "{error}");
        }
    }

    #[test]
    fn transports_have_their_names() {
        for name in BulkTransport::NAMES {
            assert_eq!(BulkTransport::of_name(name).map(BulkTransport::name), Some(name));
        }
        assert_eq!(BulkTransport::of_name("RDMA"), None);
    }
}
