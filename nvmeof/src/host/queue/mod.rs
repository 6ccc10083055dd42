//! One connection of a host: commands in flight, each with its deadline.
//!
//! | module | subject |
//! |---|---|
//! | `shared` | what tasks and handles share: sending, receiving, deadlines, the end |
//! | `state` | commands in flight, and who waits |
//! | `slot` | waiting for a free slot |
//! | `abort` | commands that nobody waits for any more |
//! | `flight` | a command in flight, as its caller has it |
//! | `lent` | memory that a command has |

mod abort;
mod flight;
mod lent;
mod shared;
mod slot;
mod state;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use lunette_nvmeof_proto::command::Command;
use lunette_nvmeof_proto::host::HostOptions;
use lunette_runtime::arena::{Exposed, Region, RegionMut};
use lunette_runtime::net::TcpStream;
use lunette_runtime::{spawn_local, time};
use lunette_runtime_core::time::Time;

pub(super) use self::abort::Ask;
pub(super) use self::lent::Incoming;
pub(super) use self::shared::Shared;
use self::slot::SlotWait;
use super::inbound::Inbound;
use crate::error::{CloseReason, CommandError, CommandFailure, ConnectError};
use crate::wire::{Pledge, Wire};

/// Data of a command.
#[derive(Debug)]
pub enum Data {
    /// None.
    None,
    /// To the controller: all of the region, pinned until the command ends.
    Out(Region),
    /// From the controller, to the whole region, which is lent until the command ends.
    In(RegionMut),
    /// As [`Out`](Self::Out), from memory that others may write meanwhile: what is sent is what lies there
    /// then. With a digest of data, bytes that change while they are sent end the connection.
    OutExposed(Exposed),
    /// As [`In`](Self::In), to counted memory, which has to stay as it is until the command ends: nothing is
    /// received into it afterwards.
    InExposed(Exposed),
}

impl Data {
    fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Out(region) => region.len(),
            Self::In(region) => region.len(),
            Self::OutExposed(memory) | Self::InExposed(memory) => memory.len(),
        }
    }
}

/// A command that was carried out.
#[derive(Debug)]
pub struct Done {
    /// What it returned.
    pub result: u64,
    /// The region that was to be filled, and is; none of [`Data::InExposed`].
    pub region: Option<RegionMut>,
}

/// A connection to one queue of a controller. Clones are handles to the same one; it closes when
/// the last handle drops and no command is in flight.
#[derive(Clone, Debug)]
pub struct Queue {
    shared: Rc<Shared>,
    _closes: Rc<CloseOnDrop>,
}

#[derive(Debug)]
struct CloseOnDrop(Rc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.end(CloseReason::Local);
    }
}

impl Queue {
    /// Connects to `address` and sets the connection up, within `timeout`. The queue is to be
    /// connected to a controller then.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn open(
        address: SocketAddr,
        options: HostOptions,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        Self::open_as(address, options, timeout, None).await
    }

    /// As [`Queue::open`], in TLS if there is a pledge.
    pub(super) async fn open_as(
        address: SocketAddr,
        options: HostOptions,
        timeout: Duration,
        pledge: Option<Pledge>,
    ) -> Result<Self, ConnectError> {
        let deadline = time::now() + timeout;
        let connected = TcpStream::connect_timeout(address, timeout).await;
        let stream = connected.map_err(|error| {
            if error.is_timeout() {
                ConnectError::TimedOut
            } else {
                ConnectError::Connect(error)
            }
        })?;
        let inbound = Inbound::new().map_err(|_full| CloseReason::NoMemory)?;
        let shaking = Wire::connect(&stream, pledge.as_ref());
        let shaken = time::timeout(deadline.since(time::now()), shaking).await;
        let wire = shaken.map_err(|_late| ConnectError::TimedOut)??;
        let shared = Rc::new(Shared::new(stream, wire, options));
        let mut hello = Vec::new();
        shared.state.borrow_mut().queue.start(&mut hello);
        shared.outbox.append_bytes(&mut hello);
        drop(spawn_local(Rc::clone(&shared).send()));
        drop(spawn_local(Rc::clone(&shared).receive(inbound)));
        drop(spawn_local(Rc::clone(&shared).keep_deadlines()));
        let closes = Rc::new(CloseOnDrop(Rc::clone(&shared)));
        let queue = Self {
            shared,
            _closes: closes,
        };
        let left = deadline.since(time::now());
        let set_up = time::timeout(left, queue.shared.set_up()).await;
        set_up.map_err(|_late| ConnectError::TimedOut)??;
        Ok(queue)
    }

    /// Data up to this length go with their command, without being asked for. To be taken from
    /// what the controller says of itself.
    pub fn set_in_capsule_bytes_max(&self, bytes_max: usize) {
        self.shared.in_capsule_bytes_max.set(bytes_max);
    }

    /// Why the connection has ended, if it has.
    #[must_use]
    pub fn closed(&self) -> Option<CloseReason> {
        self.shared.state.borrow().closed
    }

    /// Waits until the connection has ended.
    pub async fn ended(&self) -> CloseReason {
        poll_fn(|cx| {
            let mut state = self.shared.state.borrow_mut();
            if let Some(reason) = state.closed {
                return Poll::Ready(reason);
            }
            state.watch(cx.waker());
            Poll::Pending
        })
        .await
    }

    /// Commands in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.state.borrow().queue.in_flight()
    }

    /// Ends the connection: commands in flight fail as disconnected by this side.
    pub fn close(&self) {
        self.end(CloseReason::Local);
    }

    /// Ends the connection for `reason`.
    pub(super) fn end(&self, reason: CloseReason) {
        self.shared.end(reason);
    }

    /// Has `command` carried out. The descriptor of its data is set here. It waits while as many
    /// commands are in flight as may be. Dropping the future gives the command up: its region is
    /// freed as soon as no receive into it is in flight, and its answer is discarded.
    ///
    /// # Errors
    /// [`CommandFailure`], with the region.
    pub async fn command(
        &self,
        command: Command,
        data: Data,
        timeout: Duration,
    ) -> Result<Done, CommandFailure> {
        self.command_until(command, data, time::now() + timeout)
            .await
    }

    /// As [`Queue::command`], with the point at which the timeout is over.
    pub(super) async fn command_until(
        &self,
        command: Command,
        data: Data,
        deadline: Time,
    ) -> Result<Done, CommandFailure> {
        Self::command_on(&self.shared, command, data, deadline).await
    }

    /// As [`Queue::command_until`], and no longer in flight than `patience`. It is asked for at
    /// `now`: the clock is read again only if there is something to wait for.
    pub(super) async fn command_within(
        &self,
        command: Command,
        data: Data,
        deadline: Time,
        (now, patience): (Time, Duration),
    ) -> Result<Done, CommandFailure> {
        let (data, began) = if self.shared.must_wait() {
            let data = Self::slot_on(&self.shared, data, deadline).await?;
            (data, time::now())
        } else {
            (data, now)
        };
        let deadline = deadline.min(began + patience);
        match self.shared.start(command, data, deadline) {
            Ok(flight) => flight.await,
            Err(failure) => Err(failure),
        }
    }

    async fn command_on(
        shared: &Rc<Shared>,
        command: Command,
        data: Data,
        deadline: Time,
    ) -> Result<Done, CommandFailure> {
        let data = Self::slot_on(shared, data, deadline).await?;
        match shared.start(command, data, deadline) {
            Ok(flight) => flight.await,
            Err(failure) => Err(failure),
        }
    }

    /// Waits until a slot is free, or the connection has ended.
    async fn slot_on(
        shared: &Rc<Shared>,
        data: Data,
        deadline: Time,
    ) -> Result<Data, CommandFailure> {
        if shared.must_wait() {
            let slot = SlotWait::new(shared);
            let left = deadline.since(time::now());
            if time::timeout(left, slot).await.is_err() {
                return Err(failure(CommandError::DeadlineExceeded, data));
            }
        }
        Ok(data)
    }
}

fn failure(error: CommandError, data: Data) -> CommandFailure {
    let region = match data {
        Data::In(region) => Some(region),
        Data::None | Data::Out(_) | Data::OutExposed(_) | Data::InExposed(_) => None,
    };
    CommandFailure { error, region }
}
