//! Where a store process listens, and how it is reached.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Longest path of a Unix socket in bytes: `sun_path` less the NUL behind it (unix(7)).
const UNIX_PATH_MAX: usize = 107;

/// An address of a link over a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `tcp:HOST:PORT`, the host as a number.
    Tcp(SocketAddr),
    /// `unix:PATH`: this host, and this user.
    Unix(PathBuf),
}

/// Text that is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It begins with something else.
    #[error("an address begins with tcp: or unix:")]
    Kind,
    /// Not a number and a port.
    #[error("tcp: is followed by an IP address, a colon and a port")]
    Tcp,
    /// No path.
    #[error("unix: is followed by an absolute path")]
    Unix,
    /// A longer path than a socket can have.
    #[error("the path of a unix socket has at most {UNIX_PATH_MAX} bytes, this one has {0}")]
    UnixLength(usize),
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        match text.split_once(':') {
            Some(("tcp", address)) => address.parse().map(Address::Tcp).map_err(|_| AddressError::Tcp),
            Some(("unix", path)) if path.len() > UNIX_PATH_MAX => Err(AddressError::UnixLength(path.len())),
            Some(("unix", path)) if path.starts_with('/') => Ok(Address::Unix(PathBuf::from(path))),
            Some(("unix", _)) => Err(AddressError::Unix),
            Some(_) | None => Err(AddressError::Kind),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Tcp(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "tcp:{address}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_as_it_prints_and_nothing_else_is_one() {
        for text in ["tcp:127.0.0.1:7411", "tcp:[::1]:1", "unix:/run/user/0/pagelith"] {
            assert_eq!(text.parse::<Address>().map(|a| a.to_string()), Ok(text.to_owned()));
        }
        for text in [
            "127.0.0.1:7411",
            "tcp:",
            "tcp:localhost:1",
            "tcp:127.0.0.1",
            "udp:127.0.0.1:1",
            "unix:",
            "unix:here",
            "",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn path_of_a_unix_socket_is_no_longer_than_the_kernel_takes() {
        let of = |bytes: usize| format!("unix:/{}", "p".repeat(bytes - 1)).parse::<Address>();
        assert!(of(107).is_ok());
        assert_eq!(of(108), Err(AddressError::UnixLength(108)));
    }
}
