//! Addresses at which a store process listens and is reached.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Maximum path of a Unix socket in bytes: `sun_path` without its terminating NUL (unix(7)).
const UNIX_PATH_MAX: usize = 107;
/// Maximum host name in bytes, as in DNS.
const NAME_BYTES_MAX: usize = 253;

/// An address of a link over a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `tcp:HOST:PORT`.
    Tcp(Endpoint),
    /// `unix:PATH`: a process of this user on this host.
    Unix(PathBuf),
}

/// `HOST:PORT`. Prints as it was parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// The host as an IP address; IPv6 in brackets.
    Ip(SocketAddr),
    /// The host as a name, resolved at each use.
    Name {
        /// The name.
        host: String,
        /// The port.
        port: u16,
    },
}

/// Text that is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// An unknown prefix.
    #[error("an address begins with tcp: or unix:")]
    Kind,
    /// Not a host and a port.
    #[error("tcp: is followed by HOST:PORT, {0}")]
    Tcp(#[from] EndpointError),
    /// Not an absolute path.
    #[error("unix: must be followed by an absolute path")]
    Unix,
    /// The path is longer than a socket can have.
    #[error("the path of a unix socket must have at most {UNIX_PATH_MAX} bytes, this one has {0}")]
    UnixLength(usize),
}

/// Text that is not a host and a port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "where HOST is a host name or an IP address (of IPv6 in brackets) and PORT a number up to 65535"
)]
pub struct EndpointError;

impl Endpoint {
    /// The port.
    pub fn port(&self) -> u16 {
        match self {
            Endpoint::Ip(address) => address.port(),
            Endpoint::Name { port, .. } => *port,
        }
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Endpoint, EndpointError> {
        if let Ok(address) = text.parse() {
            return Ok(Endpoint::Ip(address));
        }
        let (host, port) = text.rsplit_once(':').ok_or(EndpointError)?;
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| is_number).ok_or(EndpointError)?;
        match is_name(host) {
            true => Ok(Endpoint::Name { host: host.to_owned(), port }),
            false => Err(EndpointError),
        }
    }
}

/// Whether `host` is a valid host name. A last label of digits is a mistyped IP address, not a
/// name.
fn is_name(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let is_label = |label: &str| {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        !label.is_empty()
            && label.bytes().all(known)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = host.rsplit('.').next().unwrap_or_default();
    host.len() <= NAME_BYTES_MAX
        && host.split('.').all(is_label)
        && !last.bytes().all(|byte| byte.is_ascii_digit())
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        match text.split_once(':') {
            Some(("tcp", endpoint)) => Ok(Address::Tcp(endpoint.parse()?)),
            Some(("unix", path)) if path.len() > UNIX_PATH_MAX => {
                Err(AddressError::UnixLength(path.len()))
            }
            Some(("unix", path)) if path.starts_with('/') => Ok(Address::Unix(PathBuf::from(path))),
            Some(("unix", _)) => Err(AddressError::Unix),
            Some(_) | None => Err(AddressError::Kind),
        }
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Endpoint {
        Endpoint::Ip(address)
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Tcp(address.into())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Ip(address) => write!(f, "{address}"),
            Endpoint::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(endpoint) => write!(f, "tcp:{endpoint}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_round_trips_and_invalid_text_is_refused() {
        for text in [
            "tcp:127.0.0.1:7411",
            "tcp:[::1]:1",
            "tcp:localhost:1",
            "tcp:Pagelith-0.pagelith.kv.svc.cluster.local.:7411",
            "tcp:kv_store:7411",
            "tcp:10.0.0.1.example:0",
            "unix:/run/user/0/pagelith",
        ] {
            assert_eq!(text.parse::<Address>().map(|a| a.to_string()), Ok(text.to_owned()));
        }
        let long = format!("tcp:{}:1", "a.".repeat(128));
        for text in [
            "127.0.0.1:7411",
            "tcp:",
            "tcp:127.0.0.1",
            "tcp:localhost",
            "tcp:localhost:",
            "tcp:localhost:+1",
            "tcp:localhost:65536",
            "tcp::7411",
            "tcp:300.0.0.1:7411",
            "tcp:7411:7411",
            "tcp:::1:7411",
            "tcp:a b:1",
            "tcp:a..b:1",
            "tcp:-a:1",
            "tcp://localhost:1",
            &long,
            "udp:127.0.0.1:1",
            "unix:",
            "unix:here",
            "",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn unix_path_beyond_the_kernel_limit_is_refused() {
        let of = |bytes: usize| format!("unix:/{}", "p".repeat(bytes - 1)).parse::<Address>();
        assert!(of(107).is_ok());
        assert_eq!(of(108), Err(AddressError::UnixLength(108)));
    }

    #[test]
    fn endpoint_with_an_ip_address_is_not_a_name() {
        let by_name = |text: &str| matches!(text.parse(), Ok(Endpoint::Name { port: 7411, .. }));
        assert!(by_name("localhost:7411") && by_name("store.example:7411"));
        assert!(!by_name("127.0.0.1:7411") && !by_name("[::1]:7411"));
    }
}
