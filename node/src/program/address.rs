//! Addresses of nodes.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};

use thiserror::Error;

use super::failure::Failure;

/// `host:port`, not resolved yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeAddress {
    host: String,
    port: u16,
}

/// Why a text is no address.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum AddressFault {
    #[error("an address is host:port, like 127.0.0.1:7400")]
    NoPort,
    #[error("`{0}` is not a port")]
    BadPort(String),
}

impl NodeAddress {
    pub(crate) fn parse(text: &str) -> Result<Self, AddressFault> {
        let (host, port) = text.rsplit_once(':').ok_or(AddressFault::NoPort)?;
        if host.is_empty() {
            return Err(AddressFault::NoPort);
        }
        let port = port
            .parse()
            .map_err(|_| AddressFault::BadPort(port.to_owned()))?;
        // As in `[::1]:7400`.
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        Ok(Self { host, port })
    }

    /// Asks the system what the host's address is, and takes the first one.
    pub(crate) fn resolve(&self) -> Result<SocketAddr, Failure> {
        let unresolved = |error: String| Failure::Resolve {
            address: self.clone(),
            error,
        };
        let mut found = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .map_err(|error| unresolved(error.to_string()))?;
        found
            .next()
            .ok_or_else(|| unresolved("no address".to_owned()))
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_alike() {
        for text in ["127.0.0.1:7400", "localhost:0", "[::1]:65535"] {
            assert_eq!(NodeAddress::parse(text).expect(text).to_string(), text);
        }
        let resolved = NodeAddress::parse("[::1]:7400").expect("good").resolve();
        assert_eq!(
            resolved.expect("no name to look up"),
            "[::1]:7400".parse().unwrap()
        );
    }

    #[test]
    fn what_is_no_address_says_why() {
        let bad_port = |port: &str| AddressFault::BadPort(port.to_owned());
        let cases = [
            ("", AddressFault::NoPort),
            ("localhost", AddressFault::NoPort),
            (":7400", AddressFault::NoPort),
            ("localhost:", bad_port("")),
            ("localhost:http", bad_port("http")),
            ("localhost:65536", bad_port("65536")),
        ];
        for (text, fault) in cases {
            assert_eq!(NodeAddress::parse(text), Err(fault), "{text}");
        }
    }
}
