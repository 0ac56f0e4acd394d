//! The address of a listener, the clients that it admits, and the reasons why it cannot be created.

use crate::address::Address;
use crate::handshake::ClientAuth;
use crate::link_error::LinkError;

/// The address of a listener, and the clients that it admits.
#[derive(Clone, Debug)]
pub struct ListenConfig {
    /// The address; port 0 for any free port. For a host name, all addresses to which it resolves.
    /// The file of a Unix socket is created with access for its user only, and removed with the
    /// listener. It replaces the file of a process that has ended.
    pub address: Address,
    /// How clients authenticate.
    pub admission: ClientAuth,
    /// Admit clients of other hosts, which must authenticate with a key. Otherwise the address must
    /// be loopback.
    pub allow_remote: bool,
}

/// Why a listener could not be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// The host name could not be resolved.
    #[error(transparent)]
    Unresolved(LinkError),
    /// The address is reachable from other hosts without [`ListenConfig::allow_remote`].
    #[error(
        "the address is not loopback: allow other hosts (--allow-remote, with keys) or listen at loopback address={0}"
    )]
    RemoteNotAllowed(Address),
    /// Clients of other hosts could connect without a key.
    #[error("clients of other hosts must authenticate with a key: configure one address={0}")]
    NoKey(Address),
    /// A system call failed.
    #[error("{operation} failed: {} address={address} errno={errno}", std::io::Error::from_raw_os_error(*.errno))]
    System {
        /// Which operation.
        operation: &'static str,
        /// The address.
        address: Address,
        /// The kernel's errno.
        errno: i32,
    },
}
