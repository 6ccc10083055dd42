//! One connection in TLS 1.3: OpenSSL over memory, between the connection's bytes and PDUs.
//!
//! The key is all that either end shows: there are no certificates, and no session is resumed. The cipher
//! suite is `TLS_AES_128_GCM_SHA256`; the one of keys of 48 bytes needs a function of OpenSSL
//! (`SSL_set_psk_use_session_callback`) that the crate does not have.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use lunette_nvmeof_proto::auth::{Hash, TlsPsk};
use lunette_nvmeof_proto::nqn::Nqn;
use lunette_runtime::arena::RegionMut;
use lunette_runtime::net::TcpStream;
use openssl::error::ErrorStack;
use openssl::ssl::{
    ErrorCode, Ssl, SslContext, SslContextBuilder, SslMethod, SslStream, SslVerifyMode, SslVersion,
};

use super::Pledge;
use crate::error::{CloseReason, TlsFault};

const SUITE: &str = "TLS_AES_128_GCM_SHA256";
/// Received at once: some records.
const RECEIVED_BYTES: usize = 128 * 1024;

/// Records that came, and records that are to be sent.
#[derive(Debug, Default)]
struct Memory {
    incoming: Vec<u8>,
    /// What of it has been read.
    read_to: usize,
    outgoing: Vec<u8>,
}

impl Read for Memory {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let unread = &self.incoming[self.read_to..];
        if unread.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = unread.len().min(out.len());
        out[..count].copy_from_slice(&unread[..count]);
        self.read_to += count;
        Ok(count)
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.outgoing.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Memory {
    /// Takes what came, and empties it.
    fn feed(&mut self, bytes: &[u8]) {
        self.incoming.drain(..self.read_to);
        self.read_to = 0;
        self.incoming.extend_from_slice(bytes);
    }
}

/// A connection in TLS whose ends have shown each other that they share a key.
pub(crate) struct Session {
    tls: RefCell<SslStream<Memory>>,
    /// Room for records; none while it is lent to a receive.
    room: Cell<Vec<u8>>,
}

impl Session {
    /// Of a host.
    pub(super) async fn connect(stream: &TcpStream, pledge: &Pledge) -> Result<Self, CloseReason> {
        let Pledge {
            psk,
            host,
            subsystem,
        } = pledge;
        check_hash(psk)?;
        let key = psk.key(host, subsystem);
        let key = key.ok_or(CloseReason::Tls(TlsFault::Identity))?;
        let identity = psk.identity(host, subsystem);
        let context = context(SslMethod::tls_client(), |builder| {
            // A controller with a certificate instead of the key is trusted by nobody.
            builder.set_verify(SslVerifyMode::PEER);
            builder.set_psk_client_callback(move |_, _hint, named, given| {
                // The name ends with a zero.
                let fits = named.len() > identity.len() && given.len() >= key.len();
                if !fits {
                    return Ok(0);
                }
                named[..identity.len()].copy_from_slice(identity.as_bytes());
                named[identity.len()] = 0;
                given[..key.len()].copy_from_slice(&key);
                Ok(key.len())
            });
        });
        let context = context.map_err(library)?;
        let mut tls = Ssl::new(&context).map_err(library)?;
        tls.set_connect_state();
        Self::shaken(stream, tls).await
    }

    /// Of a controller: with the names of the host and of the subsystem that the key was for.
    pub(super) async fn accept(
        stream: &TcpStream,
        psk: &Arc<TlsPsk>,
    ) -> Result<(Self, (Nqn, Nqn)), CloseReason> {
        check_hash(psk)?;
        let shown = Arc::new(Mutex::new(None));
        let (psk, seen) = (Arc::clone(psk), Arc::clone(&shown));
        let context = context(SslMethod::tls_server(), |builder| {
            builder.set_psk_server_callback(move |_, identity, given| {
                let names = identity.and_then(|identity| psk.names(identity));
                let key = names.as_ref().and_then(|(host, to)| psk.key(host, to));
                let key = key.filter(|key| given.len() >= key.len());
                // The last one that there is a key for is the one that is chosen.
                let mut shown = seen.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(key) = key else { return Ok(0) };
                *shown = names;
                given[..key.len()].copy_from_slice(&key);
                Ok(key.len())
            });
        });
        let context = context.map_err(library)?;
        let mut tls = Ssl::new(&context).map_err(library)?;
        tls.set_accept_state();
        let session = Self::shaken(stream, tls).await?;
        let names = shown.lock().unwrap_or_else(PoisonError::into_inner).take();
        let names = names.ok_or(CloseReason::Tls(TlsFault::Refused))?;
        Ok((session, names))
    }

    /// Both ends have shown that they have the key.
    async fn shaken(stream: &TcpStream, tls: Ssl) -> Result<Self, CloseReason> {
        let mut tls = SslStream::new(tls, Memory::default()).map_err(library)?;
        let mut room = vec![0; RECEIVED_BYTES];
        loop {
            let step = tls.do_handshake();
            // What it has to say goes out even if it failed: that is why.
            let said = std::mem::take(&mut tls.get_mut().outgoing);
            let len = said.len();
            stream.send_all(said, 0, len).await.0?;
            match step {
                Ok(()) => break,
                Err(error) if error.code() == ErrorCode::WANT_READ => {}
                Err(error) => {
                    tracing::debug!(%error, "TLS");
                    return Err(CloseReason::Tls(TlsFault::Refused));
                }
            }
            let received;
            (received, room) = stream.recv(room, 0, RECEIVED_BYTES).await;
            match received? {
                0 => return Err(CloseReason::Tls(TlsFault::Refused)),
                count => tls.get_mut().feed(&room[..count]),
            }
        }
        // Without certificates there is nothing else by which it could have succeeded.
        if !tls.ssl().session_reused() {
            return Err(CloseReason::Tls(TlsFault::Refused));
        }
        Ok(Self {
            tls: RefCell::new(tls),
            room: Cell::new(room),
        })
    }

    /// Appends records with `plain` to `out`.
    pub(super) fn seal(&self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), CloseReason> {
        let mut tls = self.tls.borrow_mut();
        let mut rest = plain;
        while !rest.is_empty() {
            let written = tls.ssl_write(rest);
            let count = written.map_err(|_| CloseReason::Tls(TlsFault::Record))?;
            rest = &rest[count..];
        }
        out.append(&mut tls.get_mut().outgoing);
        Ok(())
    }

    /// See [`super::Wire::recv`].
    pub(super) async fn recv(
        &self,
        stream: &TcpStream,
        mut region: RegionMut,
        len: usize,
    ) -> (Result<usize, CloseReason>, RegionMut) {
        loop {
            match self.open(&mut region.as_mut_slice()[..len]) {
                Ok(None) => {}
                Ok(Some(count)) => return (Ok(count), region),
                Err(error) => return (Err(error), region),
            }
            let mut room = self.room.take();
            room.resize(RECEIVED_BYTES, 0);
            let (received, room) = stream.recv(room, 0, RECEIVED_BYTES).await;
            if let Ok(count @ 1..) = received {
                self.tls.borrow_mut().get_mut().feed(&room[..count]);
            }
            self.room.set(room);
            match received {
                Ok(1..) => {}
                // Where PDUs end is known without TLS's own goodbye.
                Ok(0) => return (Ok(0), region),
                Err(error) => return (Err(CloseReason::Io(error)), region),
            }
        }
    }

    /// What there is of what was sealed; `None` if more has to come first, 0 at the end.
    fn open(&self, out: &mut [u8]) -> Result<Option<usize>, CloseReason> {
        let mut tls = self.tls.borrow_mut();
        let mut filled = 0;
        while filled < out.len() {
            match tls.ssl_read(&mut out[filled..]) {
                Ok(count) => filled += count,
                Err(error) => match error.code() {
                    ErrorCode::WANT_READ => break,
                    ErrorCode::ZERO_RETURN if filled == 0 => return Ok(Some(0)),
                    ErrorCode::ZERO_RETURN => break,
                    _ => return Err(CloseReason::Tls(TlsFault::Record)),
                },
            }
        }
        Ok((filled > 0).then_some(filled))
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session")
    }
}

/// What both ends have in common.
fn context(
    method: SslMethod,
    set_key: impl FnOnce(&mut SslContextBuilder),
) -> Result<SslContext, ErrorStack> {
    let mut builder = SslContext::builder(method)?;
    builder.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    builder.set_ciphersuites(SUITE)?;
    builder.set_num_tickets(0)?;
    set_key(&mut builder);
    Ok(builder.build())
}

fn check_hash(psk: &TlsPsk) -> Result<(), CloseReason> {
    if psk.hash() == Hash::Sha256 {
        Ok(())
    } else {
        Err(CloseReason::Tls(TlsFault::Suite))
    }
}

fn library(error: ErrorStack) -> CloseReason {
    tracing::warn!(%error, "OpenSSL");
    CloseReason::Tls(TlsFault::Library)
}
