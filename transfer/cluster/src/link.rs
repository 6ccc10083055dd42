//! A connection that HTTP goes over: as it is, or sealed under the cluster's secret.

use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use lunette_auth::record::{RECORD_BYTES_MAX, RECORD_HEADER_BYTES, RECORD_TAG_BYTES};
use lunette_auth::{
    AuthFault, Encryption, Entropy, Handshake, Opener, Party, Progress, RecordFault, Sealer,
    Secrets,
};
use lunette_runtime::net::TcpStream;
use lunette_runtime::{OpError, time};
use ring::rand::{SecureRandom, SystemRandom};
use thiserror::Error;

/// Longest receive, in bytes.
const RECEIVE_BYTES_MAX: usize = 16 * 1024;
/// How long a handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// How connections are authenticated. Clones share it.
#[derive(Clone)]
pub struct Security {
    /// The cluster's secrets.
    pub secrets: Secrets,
    /// Draws 32 bytes that nobody can guess: [`system_entropy`], or a simulated world's.
    pub entropy: Rc<dyn Fn() -> [u8; 32]>,
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Security({:?})", self.secrets)
    }
}

/// 32 bytes of the system's generator.
///
/// # Panics
/// If the system has none: nothing is secret then.
#[must_use]
pub fn system_entropy() -> [u8; 32] {
    let mut bytes = [0; 32];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.expect("the system has a random generator");
    bytes
}

/// Why a connection is of no further use.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum LinkFault {
    #[error(transparent)]
    Io(#[from] OpError),
    #[error("the peer closed")]
    Closed,
    #[error("no answer in time")]
    TimedOut,
    #[error(transparent)]
    Auth(#[from] AuthFault),
    #[error(transparent)]
    Record(#[from] RecordFault),
}

/// What seals and opens, and sealed bytes that do not make a record yet.
struct Sealed {
    sealer: Sealer,
    opener: Opener,
    arriving: Vec<u8>,
}

/// A connection.
pub(crate) struct Link {
    stream: TcpStream,
    sealed: Option<Sealed>,
}

impl Link {
    pub(crate) async fn connect(
        address: SocketAddr,
        security: Option<&Security>,
        timeout: Duration,
    ) -> Result<Self, LinkFault> {
        let stream = TcpStream::connect_timeout(address, timeout).await?;
        let handshake = |security: &Security, party, deadline| {
            let entropy = Entropy::new((security.entropy)());
            Handshake::initiator(&security.secrets, party, entropy, deadline)
        };
        Self::authenticated(stream, security, timeout, handshake, true).await
    }

    pub(crate) async fn accept(
        stream: TcpStream,
        security: Option<&Security>,
    ) -> Result<Self, LinkFault> {
        let handshake = |security: &Security, party, deadline| {
            let entropy = Entropy::new((security.entropy)());
            Handshake::responder(&security.secrets, party, entropy, deadline)
        };
        Self::authenticated(stream, security, HANDSHAKE_MAX, handshake, false).await
    }

    async fn authenticated(
        stream: TcpStream,
        security: Option<&Security>,
        timeout: Duration,
        handshake: impl FnOnce(&Security, Party, lunette_runtime_core::time::Time) -> Handshake,
        starts: bool,
    ) -> Result<Self, LinkFault> {
        let Some(security) = security else {
            return Ok(Self {
                stream,
                sealed: None,
            });
        };
        let party = Party {
            epoch: 0,
            encryption: Encryption::Required,
        };
        let handshake = handshake(security, party, time::now() + timeout);
        let shaken = time::timeout(timeout, shake(&stream, handshake, starts)).await;
        let sealed = shaken.map_err(|_| LinkFault::TimedOut)??;
        Ok(Self {
            stream,
            sealed: Some(sealed),
        })
    }

    /// Gives the connection up when the peer answers nothing for so long.
    pub(crate) fn set_unanswered_max(&self, limit: Duration) {
        if let Err(error) = self.stream.set_unanswered_max(limit) {
            tracing::debug!(%error, "a connection may outlive its peer");
        }
    }

    /// Sends all of `bytes`.
    pub(crate) async fn send(&mut self, bytes: Vec<u8>) -> Result<(), LinkFault> {
        let bytes = match &mut self.sealed {
            None => bytes,
            Some(sealed) => {
                let mut out = Vec::new();
                sealed.sealer.seal(&bytes, &mut out)?;
                out
            }
        };
        send_all(&self.stream, bytes).await
    }

    /// The next bytes of the stream, at least one.
    pub(crate) async fn receive(&mut self) -> Result<Vec<u8>, LinkFault> {
        loop {
            if let Some(plain) = self.opened()? {
                return Ok(plain);
            }
            let bytes = receive(&self.stream).await?;
            match &mut self.sealed {
                None => return Ok(bytes),
                Some(sealed) => sealed.arriving.extend_from_slice(&bytes),
            }
        }
    }

    /// The next record, if it is here whole and says something.
    fn opened(&mut self) -> Result<Option<Vec<u8>>, LinkFault> {
        let Some(sealed) = &mut self.sealed else {
            return Ok(None);
        };
        loop {
            let Some((header, rest)) = sealed.arriving.split_first_chunk_mut() else {
                return Ok(None);
            };
            let len = sealed.opener.body_len(header)?;
            assert!(len <= RECORD_BYTES_MAX + RECORD_TAG_BYTES);
            let Some(body) = rest.get_mut(..len) else {
                return Ok(None);
            };
            let plain = sealed.opener.open_in_place(header, body)?.to_vec();
            sealed.arriving.drain(..RECORD_HEADER_BYTES + len);
            if !plain.is_empty() {
                return Ok(Some(plain));
            }
        }
    }
}

async fn shake(
    stream: &TcpStream,
    mut handshake: Handshake,
    starts: bool,
) -> Result<Sealed, LinkFault> {
    let mut out = Vec::new();
    if starts {
        handshake.start(&mut out);
        send_all(stream, std::mem::take(&mut out)).await?;
    }
    loop {
        let bytes = receive(stream).await?;
        let mut input = &bytes[..];
        let progress = handshake.handle(&mut input, &mut out);
        if !out.is_empty() {
            send_all(stream, std::mem::take(&mut out)).await?;
        }
        match progress {
            Progress::NeedMore => {}
            Progress::Failed(fault) => return Err(fault.into()),
            Progress::Done(established) => {
                let records = established.records.expect("both sides want it");
                let (sealer, opener) = records;
                let arriving = input.to_vec();
                return Ok(Sealed {
                    sealer,
                    opener,
                    arriving,
                });
            }
        }
    }
}

async fn send_all(stream: &TcpStream, bytes: Vec<u8>) -> Result<(), LinkFault> {
    let len = bytes.len();
    let (sent, _bytes) = stream.send_all(bytes, 0, len).await;
    Ok(sent?)
}

async fn receive(stream: &TcpStream) -> Result<Vec<u8>, LinkFault> {
    let buffer = vec![0; RECEIVE_BYTES_MAX];
    let (received, mut buffer) = stream.recv(buffer, 0, RECEIVE_BYTES_MAX).await;
    match received? {
        0 => Err(LinkFault::Closed),
        count => {
            buffer.truncate(count);
            Ok(buffer)
        }
    }
}
