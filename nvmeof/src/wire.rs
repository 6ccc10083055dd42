//! How bytes go over a connection: as they are, or in TLS 1.3 with a key that both ends share
//! (NVMe/TCP 1.0, "Transport Layer Security").
//!
//! TLS begins with the connection's first byte, before any PDU. It needs the feature `tls`; without it
//! every connection that is to have it ends with [`TlsFault::Absent`].

#[cfg(feature = "tls")]
mod session;

use std::sync::Arc;

use lunette_nvmeof_proto::auth::TlsPsk;
use lunette_nvmeof_proto::nqn::Nqn;
use lunette_runtime::arena::RegionMut;
use lunette_runtime::net::{Outbox, TcpStream};

#[cfg(feature = "tls")]
use self::session::Session;
use crate::error::CloseReason;
#[cfg(not(feature = "tls"))]
use crate::error::TlsFault;

/// A host's key for a subsystem.
#[cfg_attr(
    not(feature = "tls"),
    expect(dead_code, reason = "without TLS nobody shows it")
)]
#[derive(Clone, Debug)]
pub(crate) struct Pledge {
    pub(crate) psk: Arc<TlsPsk>,
    pub(crate) host: Nqn,
    pub(crate) subsystem: Nqn,
}

/// How bytes go over a connection that is set up.
#[derive(Debug)]
pub(crate) enum Wire {
    Plain,
    #[cfg(feature = "tls")]
    Tls(Box<Session>),
}

impl Wire {
    /// Of a host: in TLS, if it has a pledge.
    pub(crate) async fn connect(
        stream: &TcpStream,
        pledge: Option<&Pledge>,
    ) -> Result<Self, CloseReason> {
        match pledge {
            None => Ok(Self::Plain),
            #[cfg(feature = "tls")]
            Some(pledge) => {
                let session = Session::connect(stream, pledge).await?;
                Ok(Self::Tls(Box::new(session)))
            }
            #[cfg(not(feature = "tls"))]
            Some(_) => Err(absent(stream).await),
        }
    }

    /// Of a controller: in TLS, if there is a key. Who the host has shown to be, and for which subsystem,
    /// comes with it then.
    pub(crate) async fn accept(
        stream: &TcpStream,
        psk: Option<&Arc<TlsPsk>>,
    ) -> Result<(Self, Option<(Nqn, Nqn)>), CloseReason> {
        match psk {
            None => Ok((Self::Plain, None)),
            #[cfg(feature = "tls")]
            Some(psk) => {
                let (session, names) = Session::accept(stream, psk).await?;
                Ok((Self::Tls(Box::new(session)), Some(names)))
            }
            #[cfg(not(feature = "tls"))]
            Some(_) => Err(absent(stream).await),
        }
    }

    /// Whether bytes may be received straight into their place.
    pub(crate) const fn is_plain(&self) -> bool {
        matches!(self, Self::Plain)
    }

    /// Sends what is queued until the outbox is closed.
    pub(crate) async fn send(
        &self,
        outbox: &Outbox,
        stream: &TcpStream,
    ) -> Result<(), CloseReason> {
        match self {
            Self::Plain => Ok(outbox.run(stream).await?),
            #[cfg(feature = "tls")]
            Self::Tls(session) => {
                let seal = |plain: &[u8], out: &mut Vec<u8>| session.seal(plain, out);
                outbox.run_changed(stream, seal).await
            }
        }
    }

    /// Receives at most `len` bytes to the front of `region`; 0 means that the peer has finished.
    pub(crate) async fn recv(
        &self,
        stream: &TcpStream,
        region: RegionMut,
        len: usize,
    ) -> (Result<usize, CloseReason>, RegionMut) {
        match self {
            Self::Plain => {
                let (result, region) = stream.recv(region, 0, len).await;
                (result.map_err(CloseReason::Io), region)
            }
            #[cfg(feature = "tls")]
            Self::Tls(session) => session.recv(stream, region, len).await,
        }
    }
}

/// Ends a connection that was to have what this build leaves out.
#[cfg(not(feature = "tls"))]
async fn absent(stream: &TcpStream) -> CloseReason {
    stream.shutdown();
    // In the other build this waits for the peer.
    std::future::ready(CloseReason::Tls(TlsFault::Absent)).await
}
