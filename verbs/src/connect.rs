//! Connecting over a TCP stream, or by messages that something else carries ([`Exchange`]): drives the
//! handshake of `lunette-verbs-proto`.
//!
//! Each message is behind its length in two bytes. The stream is the caller's, who has established
//! on it who the peer is; it may be used for anything else afterwards.

use std::time::Duration;

use lunette_runtime::net::TcpStream;
use lunette_runtime::{OpError, time};
use lunette_runtime_core::time::Time;
use lunette_verbs_proto::handshake::{
    Action, Event, Handshake, HandshakeFault, MESSAGE_BYTES_MAX, Peer,
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
    let exchange = Exchange::initiator(pair, patience, epoch, deadline);
    drive(stream, exchange, deadline).await
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
    let exchange = Exchange::acceptor(pair, patience, epoch, deadline);
    drive(stream, exchange, deadline).await
}

async fn drive(
    stream: &TcpStream,
    mut exchange: Exchange,
    deadline: Time,
) -> Result<QueuePair<Ready>, ConnectError> {
    let mut received = None;
    loop {
        let step = exchange.step(time::now(), received.as_deref());
        if let Some(message) = &step.message {
            send(stream, message).await?;
        }
        if let Some(pair) = step.outcome? {
            return Ok(pair);
        }
        let next = time::timeout(deadline - time::now(), receive(stream)).await;
        received = match next {
            Ok(received) => Some(received?),
            Err(_) => None,
        };
    }
}

/// One side of a handshake over whatever carries messages: each goes to the other side's
/// [`step`](Self::step), in order. Who the peer is has been established there before.
#[derive(Debug)]
pub struct Exchange {
    handshake: Handshake,
    unconnected: Option<QueuePair<Unconnected>>,
    ready: Option<QueuePair<Ready>>,
    patience: Patience,
}

/// What follows from a message.
#[derive(Debug)]
pub struct Step {
    /// What the other side is to be told, also of a handshake that has failed.
    pub message: Option<Vec<u8>>,
    /// The queue pair, when requests may be posted; `None` while another message is waited for.
    pub outcome: Result<Option<QueuePair<Ready>>, ConnectError>,
}

impl Exchange {
    /// The side that begins, with a first step without a message. The epoch has never been used before by
    /// this side.
    #[must_use]
    pub fn initiator(
        pair: QueuePair<Unconnected>,
        patience: Patience,
        epoch: u64,
        deadline: Time,
    ) -> Self {
        let handshake = Handshake::initiator(pair.card(), epoch, deadline);
        Self::new(handshake, pair, patience)
    }

    /// The side that is asked.
    #[must_use]
    pub fn acceptor(
        pair: QueuePair<Unconnected>,
        patience: Patience,
        epoch: u64,
        deadline: Time,
    ) -> Self {
        let handshake = Handshake::acceptor(pair.card(), epoch, deadline);
        Self::new(handshake, pair, patience)
    }

    const fn new(handshake: Handshake, pair: QueuePair<Unconnected>, patience: Patience) -> Self {
        Self {
            handshake,
            unconnected: Some(pair),
            ready: None,
            patience,
        }
    }

    /// Takes the next message of the other side; `None` to begin, and to see whether time is up. After an
    /// outcome that is no `Ok(None)` there is no further step.
    ///
    /// # Panics
    /// If there is.
    #[must_use]
    pub fn step(&mut self, now: Time, received: Option<&[u8]>) -> Step {
        let mut message = None;
        let event = match received {
            Some(bytes) => Event::Message(bytes),
            None if self.handshake.is_fresh() => Event::Start,
            None => Event::Tick,
        };
        self.handshake.handle(now, event);
        while let Some(action) = self.handshake.poll_action() {
            match action {
                Action::Send(said) => said.encode(message.insert(Vec::new())),
                Action::Connect(peer) => {
                    let is_connected = self.connect(peer);
                    let next = if is_connected {
                        Event::Connected
                    } else {
                        Event::ConnectFailed
                    };
                    self.handshake.handle(now, next);
                }
                Action::Open(_) => {
                    let pair = self.ready.take().expect("open after connecting");
                    let outcome = Ok(Some(pair));
                    return Step { message, outcome };
                }
                Action::Fail(fault) => {
                    let outcome = Err(fault.into());
                    return Step { message, outcome };
                }
            }
        }
        let outcome = Ok(None);
        Step { message, outcome }
    }

    fn connect(&mut self, peer: Peer) -> bool {
        let pair = self.unconnected.take().expect("a handshake connects once");
        match pair.connect(peer, self.patience) {
            Ok(pair) => {
                self.ready = Some(pair);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the adapter refused a connection");
                false
            }
        }
    }
}

async fn send(stream: &TcpStream, message: &[u8]) -> Result<(), ConnectError> {
    let len = u16::try_from(message.len()).expect("messages are short");
    let bytes = [&len.to_le_bytes(), message].concat();
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
