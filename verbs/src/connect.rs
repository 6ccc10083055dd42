//! Connecting over a TCP stream: drives the handshake of `lunette-verbs-proto`.
//!
//! Each message is behind its length in two bytes. The stream is the caller's, who has established
//! on it who the peer is; it may be used for anything else afterwards.

use std::time::Duration;

use lunette_runtime::net::TcpStream;
use lunette_runtime::{OpError, time};
use lunette_runtime_core::time::Time;
use lunette_verbs_proto::handshake::{
    Action, Event, Handshake, HandshakeFault, MESSAGE_BYTES_MAX, Message,
};
use thiserror::Error;

use crate::error::SetupError;
use crate::provider::Patience;
use crate::queue_pair::{QueuePair, Ready, Unconnected};

/// How long a handshake may take unless the caller says otherwise.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// Why a queue pair was not connected. It is gone.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ConnectError {
    /// The handshake came to nothing.
    #[error(transparent)]
    Handshake(#[from] HandshakeFault),
    /// The adapter refused.
    #[error(transparent)]
    Adapter(#[from] SetupError),
    /// The stream failed.
    #[error("the stream failed: {0}")]
    Stream(#[from] OpError),
    /// The peer closed the stream.
    #[error("the peer closed the stream")]
    Closed,
    /// A message is longer than any.
    #[error("a message of {0} bytes")]
    TooLong(usize),
}

impl ConnectError {
    /// Whether a new attempt, with a new queue pair, may fare better.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Handshake(fault) => fault.is_retryable(),
            Self::Stream(error) => error.is_retryable(),
            Self::Closed => true,
            Self::Adapter(_) | Self::TooLong(_) => false,
        }
    }
}

/// Connects as the side that begins. The epoch has never been used before by this side.
///
/// # Errors
/// [`ConnectError`].
pub async fn initiate(
    stream: &TcpStream,
    pair: QueuePair<Unconnected>,
    patience: Patience,
    epoch: u64,
) -> Result<QueuePair<Ready>, ConnectError> {
    let deadline = time::now() + HANDSHAKE_MAX;
    let handshake = Handshake::initiator(pair.card(), epoch, deadline);
    drive(stream, pair, patience, handshake, deadline).await
}

/// Connects as the side that is asked.
///
/// # Errors
/// [`ConnectError`].
pub async fn accept(
    stream: &TcpStream,
    pair: QueuePair<Unconnected>,
    patience: Patience,
    epoch: u64,
) -> Result<QueuePair<Ready>, ConnectError> {
    let deadline = time::now() + HANDSHAKE_MAX;
    let handshake = Handshake::acceptor(pair.card(), epoch, deadline);
    drive(stream, pair, patience, handshake, deadline).await
}

async fn drive(
    stream: &TcpStream,
    pair: QueuePair<Unconnected>,
    patience: Patience,
    mut handshake: Handshake,
    deadline: Time,
) -> Result<QueuePair<Ready>, ConnectError> {
    let mut unconnected = Some(pair);
    let mut ready = None;
    let mut message: Vec<u8>;
    handshake.handle(time::now(), Event::Start);
    loop {
        let mut next = None;
        let mut refusal = None;
        while let Some(action) = handshake.poll_action() {
            match action {
                Action::Send(message) => send(stream, &message).await?,
                Action::Connect(peer) => {
                    let pair = unconnected.take().expect("a handshake connects once");
                    match pair.connect(peer, patience) {
                        Ok(pair) => {
                            ready = Some(pair);
                            next = Some(Event::Connected);
                        }
                        Err(error) => {
                            refusal = Some(error);
                            next = Some(Event::ConnectFailed);
                        }
                    }
                }
                Action::Open(_) => return Ok(ready.take().expect("open after connecting")),
                Action::Fail(fault) => return Err(fault.into()),
            }
        }
        if let Some(error) = refusal {
            tracing::warn!(%error, "the adapter refused a connection");
        }
        let event = match next {
            Some(event) => event,
            None => match time::timeout(deadline - time::now(), receive(stream)).await {
                Ok(received) => {
                    message = received?;
                    Event::Message(&message)
                }
                Err(_) => Event::Tick,
            },
        };
        handshake.handle(time::now(), event);
    }
}

async fn send(stream: &TcpStream, message: &Message) -> Result<(), ConnectError> {
    let mut bytes = vec![0; 2];
    message.encode(&mut bytes);
    let len = u16::try_from(bytes.len() - 2).expect("messages are short");
    bytes[..2].copy_from_slice(&len.to_le_bytes());
    let len = bytes.len();
    let (sent, _bytes) = stream.send_all(bytes, 0, len).await;
    Ok(sent?)
}

async fn receive(stream: &TcpStream) -> Result<Vec<u8>, ConnectError> {
    let head = receive_exactly(stream, 2).await?;
    let len = usize::from(u16::from_le_bytes([head[0], head[1]]));
    if len > MESSAGE_BYTES_MAX {
        return Err(ConnectError::TooLong(len));
    }
    receive_exactly(stream, len).await
}

async fn receive_exactly(stream: &TcpStream, len: usize) -> Result<Vec<u8>, ConnectError> {
    let mut buffer = vec![0; len];
    let mut filled = 0;
    while filled < len {
        let (received, back) = stream.recv(buffer, filled, len - filled).await;
        buffer = back;
        match received? {
            0 => return Err(ConnectError::Closed),
            count => filled += count,
        }
    }
    Ok(buffer)
}
