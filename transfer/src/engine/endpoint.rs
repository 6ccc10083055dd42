//! Where a peer is: an address, or the name of a host.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use thiserror::Error;

/// Longest name of a host, in bytes (RFC 1035).
pub const HOST_BYTES_MAX: usize = 253;

/// Where a peer listens. Written `10.0.0.2:7600`, `[fd00::2]:7600` or `store-2.rack:7600`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// An address.
    Address(SocketAddr),
    /// A host by its name, whose addresses are looked up, and again when none of them answers.
    Name {
        /// The name.
        host: String,
        /// The port, the same at each address.
        port: u16,
    },
}

/// Why a text is no endpoint.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EndpointFault {
    /// There is no port behind a colon.
    #[error("an endpoint is host:port, like 10.0.0.2:7600 or [fd00::2]:7600")]
    NoPort,
    /// The port is none.
    #[error("`{0}` is not a port")]
    BadPort(String),
    /// The host can be neither an address nor a name.
    #[error("`{0}` is neither an address nor a name of at most {HOST_BYTES_MAX} characters")]
    BadHost(String),
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

impl FromStr for Endpoint {
    type Err = EndpointFault;

    fn from_str(text: &str) -> Result<Self, EndpointFault> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        let (host, port) = text.rsplit_once(':').ok_or(EndpointFault::NoPort)?;
        let shown = |text: &str| text.chars().take(64).collect::<String>();
        // An address with the name of an interface, which the system knows.
        let scoped = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let is_name = match scoped {
            Some(host) => host.contains('%') && host.bytes().all(|b| b.is_ascii_graphic()),
            None => host.bytes().all(is_of_a_name),
        };
        let host = scoped.unwrap_or(host);
        if !is_name || !(1..=HOST_BYTES_MAX).contains(&host.len()) {
            return Err(EndpointFault::BadHost(shown(host)));
        }
        let port = port
            .parse()
            .map_err(|_| EndpointFault::BadPort(shown(port)))?;
        Ok(Self::Name {
            host: host.to_owned(),
            port,
        })
    }
}

const fn is_of_a_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_')
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_and_written_alike() {
        for text in ["10.0.0.2:7600", "[fd00::2]:0", "[fe80::1%3]:65535"] {
            let endpoint: Endpoint = text.parse().expect(text);
            assert!(matches!(endpoint, Endpoint::Address(_)), "{text}");
            assert_eq!(endpoint.to_string(), text);
        }
        let longest = format!("{}:1", "a".repeat(HOST_BYTES_MAX));
        for text in ["store-2.rack_1.:7600", "[fe80::1%eth0]:7600", &longest] {
            let endpoint: Endpoint = text.parse().expect(text);
            assert!(matches!(endpoint, Endpoint::Name { .. }), "{text}");
            assert_eq!(endpoint.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_endpoint_says_why() {
        let long = "a".repeat(HOST_BYTES_MAX + 1);
        let bad_host = |host: &str| EndpointFault::BadHost(host.chars().take(64).collect());
        let bad_port = |port: &str| EndpointFault::BadPort(port.to_owned());
        let cases = [
            ("", EndpointFault::NoPort),
            ("store", EndpointFault::NoPort),
            (":1", bad_host("")),
            ("fd00::2:1", bad_host("fd00::2")),
            ("[fd00::zz]:1", bad_host("fd00::zz")),
            ("a b:1", bad_host("a b")),
            ("store:", bad_port("")),
            ("store:65536", bad_port("65536")),
            ("store:-1", bad_port("-1")),
            (&format!("{long}:1"), bad_host(&long)),
        ];
        for (text, fault) in cases {
            assert_eq!(text.parse::<Endpoint>(), Err(fault), "{text}");
        }
    }
}
