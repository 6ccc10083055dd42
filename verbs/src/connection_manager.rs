//! Connecting by the RDMA connection manager, for peers that know no other way and for iWARP, whose
//! adapters know no other way.
//!
//! ```text
//!   connect                                  Listener
//!     | address ─▶ device, route               |
//!     | request (numbers, reads, data) ──────▶ | Incoming: accept, or reject
//!     | ◀─────────────── response, established |
//! ```
//!
//! The queue pair is made as for any other connection; the manager says how it is moved on (those
//! of iWARP it moves itself), and breaks it when the peer ends the connection. What both sides can
//! do beyond that is for the bytes that go with request and response; who the peer is, nobody has
//! established.

use std::fmt;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use lunette_runtime::{JoinHandle, OpError, Watched, spawn_local, time};
use lunette_runtime_core::time::Time;
use lunette_verbs_proto::negotiate::{Agreement, Capabilities};
use rdma_core_sys::Unavailable;
use rustix::io::Errno;
use thiserror::Error;

use crate::error::SetupError;
use crate::provider::Patience;
use crate::provider::real::connection::{self, Asks, Event, Id, Said, What};
use crate::queue_pair::{PairCore, QueuePair, Ready, Unconnected};

/// Most bytes that go with a request or a response.
pub const PRIVATE_BYTES_MAX: usize = 56;
/// How long address and route may be looked for, each.
const RESOLVE_MAX: Duration = Duration::from_secs(2);

/// Why there is no connection.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ManagerError {
    /// There is no RDMA, or no connection manager, here.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The system refused.
    #[error("refused: {0}")]
    Refused(Errno),
    /// The adapter refused.
    #[error(transparent)]
    Adapter(#[from] SetupError),
    /// The channel of events failed.
    #[error(transparent)]
    Channel(#[from] OpError),
    /// The peer said no, with these bytes.
    #[error("the peer said no")]
    Rejected(Vec<u8>),
    /// No device or way leads to the peer, or it does not answer.
    #[error("the peer is not reached: {0}")]
    Unreachable(i32),
    /// The way to the peer begins at this device, which is not the queue pair's.
    #[error("the way to the peer begins at device {0}")]
    OtherDevice(String),
    /// The connection ended before it began, or its device did.
    #[error("the connection ended before it began")]
    Ended,
    /// The deadline passed.
    #[error("the deadline passed")]
    TimedOut,
    /// More bytes than go with a request.
    #[error("{0} bytes are too many to go with a request")]
    TooLong(usize),
}

impl ManagerError {
    /// Whether a new attempt, with a new queue pair, may fare better.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Channel(error) => error.is_retryable(),
            Self::Unreachable(_) | Self::Ended | Self::TimedOut => true,
            _ => false,
        }
    }
}

/// How a side connects.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// Bytes for the peer, at most [`PRIVATE_BYTES_MAX`].
    pub data: &'a [u8],
    /// How stubborn the connection is.
    pub patience: Patience,
    /// When to give up.
    pub deadline: Time,
}

/// A connection in the making, or one that is watched.
struct Watching {
    id: Rc<Id>,
    events: Watched,
}

impl Watching {
    fn new(id: Id) -> Result<Self, ManagerError> {
        let events = id.events().map_err(ManagerError::Refused)?;
        Ok(Self {
            id: Rc::new(id),
            events: Watched::new(events),
        })
    }

    async fn next(&self) -> Result<Event, ManagerError> {
        loop {
            if let Some(event) = self.id.next_event().map_err(ManagerError::Refused)? {
                return Ok(event);
            }
            self.events.readable().await?;
        }
    }

    async fn next_by(&self, deadline: Time) -> Result<Event, ManagerError> {
        let left = deadline - time::now();
        let next = time::timeout(left, self.next()).await;
        next.unwrap_or(Err(ManagerError::TimedOut))
    }

    /// Waits for one kind of event; any other is a failure.
    async fn expect(&self, deadline: Time, is: fn(&What) -> bool) -> Result<Event, ManagerError> {
        let event = self.next_by(deadline).await?;
        if is(&event.what) {
            Ok(event)
        } else {
            Err(failure(event))
        }
    }
}

fn failure(event: Event) -> ManagerError {
    match event.what {
        What::Rejected => ManagerError::Rejected(event.said.data),
        What::Disconnected | What::DeviceGone => ManagerError::Ended,
        _ => ManagerError::Unreachable(event.said.status),
    }
}

/// What keeps a connection, and tells its queue pair of its end.
pub(crate) struct Managed {
    id: Rc<Id>,
    watch: Option<JoinHandle<()>>,
}

impl Managed {
    fn new(watching: Watching, core: Weak<PairCore>) -> Result<Self, SetupError> {
        let id = Rc::clone(&watching.id);
        let watch = spawn_local(tell_end(watching, core));
        let is_refused = watch.is_finished();
        let watch = Some(watch);
        let managed = Self { id, watch };
        // Nobody would notice its end.
        if is_refused {
            return Err(SetupError::TooManyTasks);
        }
        Ok(managed)
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        self.id.disconnect();
        if let Some(watch) = self.watch.take() {
            watch.abort();
        }
    }
}

/// Breaks the queue pair when its connection ends.
async fn tell_end(watching: Watching, core: Weak<PairCore>) {
    loop {
        let event = watching.next().await;
        let goes_on = match &event {
            Ok(event) => !matches!(event.what, What::Disconnected | What::DeviceGone),
            Err(error) => error.is_retryable(),
        };
        if goes_on {
            continue;
        }
        if let Some(core) = core.upgrade() {
            tracing::debug!(?event, "a connection ended");
            core.abort();
        }
        return;
    }
}

/// Connects a queue pair to who listens at an address; from another one of this machine if `from`
/// says so. Answers with the peer's bytes as well.
///
/// # Errors
/// [`ManagerError`]; the queue pair is gone then.
pub async fn connect(
    mut pair: QueuePair<Unconnected>,
    from: Option<SocketAddr>,
    to: SocketAddr,
    terms: Terms<'_>,
) -> Result<(QueuePair<Ready>, Vec<u8>), ManagerError> {
    check(terms.data)?;
    let watching = Watching::new(new_id()?)?;
    let (id, deadline) = (Rc::clone(&watching.id), terms.deadline);
    let timeout_ms = i32::try_from(RESOLVE_MAX.as_millis()).expect("seconds");
    let resolved = |what: &What| matches!(what, What::Resolved);
    let step = id.resolve_address(from, to, timeout_ms);
    step.map_err(ManagerError::Refused)?;
    watching.expect(deadline, resolved).await?;
    check_device(&pair, &id)?;
    let step = id.resolve_route(timeout_ms);
    step.map_err(ManagerError::Refused)?;
    watching.expect(deadline, resolved).await?;
    let own = pair.card().capabilities;
    let asks = asks(&pair, &terms, own.reads_in_max, own.reads_out_max);
    id.connect(&asks).map_err(ManagerError::Refused)?;
    let answered = |what: &What| matches!(what, What::Response | What::Established);
    let event = watching.expect(deadline, answered).await?;
    let agreement = agree(own, &event.said, pair.is_iwarp());
    pair.move_on(&id, agreement, terms.patience)?;
    if matches!(event.what, What::Response) {
        id.establish().map_err(ManagerError::Refused)?;
    }
    let core = pair.core();
    let ready = pair.managed(Managed::new(watching, core)?, agreement);
    Ok((ready, event.said.data))
}

fn new_id() -> Result<Id, ManagerError> {
    Id::new(connection::library()?).map_err(ManagerError::Refused)
}

const fn check(data: &[u8]) -> Result<(), ManagerError> {
    if data.len() > PRIVATE_BYTES_MAX {
        return Err(ManagerError::TooLong(data.len()));
    }
    Ok(())
}

fn check_device(pair: &QueuePair<Unconnected>, id: &Id) -> Result<(), ManagerError> {
    let name = id.device_name().unwrap_or_default();
    if name == pair.device_name() {
        return Ok(());
    }
    Err(ManagerError::OtherDevice(name))
}

fn asks<'a>(
    pair: &QueuePair<Unconnected>,
    terms: &Terms<'a>,
    reads_in: u8,
    reads_out: u8,
) -> Asks<'a> {
    Asks {
        reads_in,
        reads_out,
        retries: terms.patience.retries,
        receiver_not_ready_retries: terms.patience.receiver_not_ready_retries,
        has_shared_receives: pair.has_shared_receives(),
        pair: pair.card().qp_num,
        data: terms.data,
    }
}

/// What both sides can do, by what the peer said. Old iWARP peers say nothing of reads.
fn agree(own: Capabilities, peer: &Said, is_iwarp: bool) -> Agreement {
    let least = |own: u8, said: u8| {
        if is_iwarp && said == 0 {
            own
        } else {
            own.min(said)
        }
    };
    Agreement {
        mtu_bytes: own.mtu_bytes,
        reads_out: least(own.reads_out_max, peer.reads_out),
        reads_in: least(own.reads_in_max, peer.reads_in),
        has_atomics: own.has_atomics,
    }
}

/// Where peers ask for connections.
pub struct Listener {
    watching: Watching,
}

impl Listener {
    /// Listens at an address of one of this machine's devices, or of all.
    ///
    /// # Errors
    /// [`ManagerError::Unavailable`] or [`ManagerError::Refused`].
    pub fn bind(address: SocketAddr) -> Result<Self, ManagerError> {
        let id = new_id()?;
        id.listen(address).map_err(ManagerError::Refused)?;
        Ok(Self {
            watching: Watching::new(id)?,
        })
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.watching.id.port()
    }

    /// The next peer that asks. Dropping the future loses none.
    ///
    /// # Errors
    /// [`ManagerError`], of the listener.
    pub async fn next(&self) -> Result<Incoming, ManagerError> {
        loop {
            let event = self.watching.next().await?;
            if let What::Request(id) = event.what {
                return Ok(Incoming {
                    watching: Watching::new(id)?,
                    asked: event.said,
                });
            }
            tracing::debug!(?event, "a listener was told something else");
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({})", self.port())
    }
}

/// A peer that asks. Dropping it says no.
pub struct Incoming {
    watching: Watching,
    asked: Said,
}

impl Incoming {
    /// The bytes that came with the request, with zeros behind them where the transport has a fixed
    /// length.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.asked.data
    }

    /// The device at which it came in, for the queue pair.
    #[must_use]
    pub fn device_name(&self) -> Option<String> {
        self.watching.id.device_name()
    }

    /// Says yes, with a queue pair of that device.
    ///
    /// # Errors
    /// [`ManagerError`]; the queue pair is gone then.
    pub async fn accept(
        self,
        mut pair: QueuePair<Unconnected>,
        terms: Terms<'_>,
    ) -> Result<QueuePair<Ready>, ManagerError> {
        check(terms.data)?;
        let id = Rc::clone(&self.watching.id);
        check_device(&pair, &id)?;
        let is_iwarp = pair.is_iwarp();
        let agreement = agree(pair.card().capabilities, &self.asked, is_iwarp);
        pair.move_on(&id, agreement, terms.patience)?;
        let asks = asks(&pair, &terms, agreement.reads_in, agreement.reads_out);
        id.accept(&asks).map_err(ManagerError::Refused)?;
        let established = |what: &What| matches!(what, What::Established);
        self.watching.expect(terms.deadline, established).await?;
        let core = pair.core();
        Ok(pair.managed(Managed::new(self.watching, core)?, agreement))
    }

    /// Says no, with bytes for the peer.
    ///
    /// # Errors
    /// [`ManagerError::TooLong`] or [`ManagerError::Refused`]; the peer is told no either way.
    pub fn reject(self, data: &[u8]) -> Result<(), ManagerError> {
        check(data)?;
        let rejected = self.watching.id.reject(data);
        rejected.map_err(ManagerError::Refused)
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incoming({:?})", self.asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_the_least_of_both_sides_and_silence_is_iwarps_alone() {
        let own = Capabilities {
            mtu_bytes: 4096,
            reads_out_max: 16,
            reads_in_max: 4,
            has_atomics: true,
        };
        let said = |reads_in, reads_out| Said {
            status: 0,
            reads_in,
            reads_out,
            data: Vec::new(),
        };
        for (reads_in, reads_out, is_iwarp, expected) in [
            (8, 8, false, (4, 8)),
            (2, 32, true, (2, 16)),
            (0, 0, false, (0, 0)),
            (0, 0, true, (4, 16)),
        ] {
            let agreed = agree(own, &said(reads_in, reads_out), is_iwarp);
            assert_eq!((agreed.reads_in, agreed.reads_out), expected);
        }
    }

    #[test]
    fn private_bytes_are_bounded_from_both_sides() {
        assert_eq!(check(&[0; PRIVATE_BYTES_MAX]), Ok(()));
        let long = PRIVATE_BYTES_MAX + 1;
        assert_eq!(check(&vec![0; long]), Err(ManagerError::TooLong(long)));
    }

    #[test]
    fn where_there_is_no_manager_that_is_told() {
        match new_id() {
            Ok(_) => {}
            Err(error) => assert!(
                matches!(
                    error,
                    ManagerError::Unavailable(_) | ManagerError::Refused(_)
                ),
                "{error}"
            ),
        }
    }
}
