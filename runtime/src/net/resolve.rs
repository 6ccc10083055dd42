//! Names of hosts.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use thiserror::Error;

use crate::control::{ControlError, control};
use crate::executor::Core;
use crate::time;

/// Addresses that are taken of one name; the system's others are left out.
pub const ADDRESSES_MAX: usize = 16;

/// Why a name has no address now. Names come and go, so the same call may succeed later.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ResolveError {
    /// Nobody is called so, or who would know does not answer.
    #[error("cannot resolve {name}: {reason}")]
    Unknown {
        /// The name.
        name: String,
        /// What the system said.
        reason: String,
    },
    /// Who would know has not answered in time.
    #[error("cannot resolve {name}: no answer in time")]
    TimedOut {
        /// The name.
        name: String,
    },
    /// The control thread did not take the question.
    #[error("cannot resolve {name}: {error}")]
    Control {
        /// The name.
        name: String,
        /// Why not.
        #[source]
        error: ControlError,
    },
}

impl ResolveError {
    /// Whether too much was asked at once.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Control { error, .. } if error.is_backpressure())
    }
}

/// The addresses of a host, in the order in which they should be tried, at most [`ADDRESSES_MAX`].
/// What is an address already is not asked for.
///
/// The control thread asks the system, which may take as long as it likes: other calls of the control
/// thread wait meanwhile, and dropping the future does not take the question back. In a simulated world
/// the names are those that it was given.
///
/// # Errors
/// [`ResolveError`].
pub async fn resolve(name: &str, port: u16) -> Result<Vec<SocketAddr>, ResolveError> {
    if let Ok(ip) = name.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let unknown = |reason: String| ResolveError::Unknown {
        name: name.to_owned(),
        reason,
    };
    if let Some(host) = Core::current().simulated_host() {
        time::sleep(host.latency()).await;
        let known = host.addresses_of(name).into_iter().take(ADDRESSES_MAX);
        let addresses: Vec<SocketAddr> = known.map(|ip| SocketAddr::new(ip, port)).collect();
        if addresses.is_empty() {
            return Err(unknown("no such name in this world".to_owned()));
        }
        return Ok(addresses);
    }
    let asked = name.to_owned();
    let ask = move || {
        let found = (asked.as_str(), port).to_socket_addrs()?;
        std::io::Result::Ok(found.take(ADDRESSES_MAX).collect())
    };
    let answered = control(ask).await.map_err(|error| ResolveError::Control {
        name: name.to_owned(),
        error,
    })?;
    let addresses: Vec<SocketAddr> = answered.map_err(|error| unknown(error.to_string()))?;
    if addresses.is_empty() {
        return Err(unknown("it has no address".to_owned()));
    }
    Ok(addresses)
}
