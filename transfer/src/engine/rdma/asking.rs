//! The asking side: which rails there are, and connecting them.

use std::cell::RefCell;
use std::rc::Rc;

use lunette_runtime::{spawn_local, time};
use lunette_runtime_core::codec::Writer;
use lunette_transfer_proto::engine::message::{Operation, Refusal};
use lunette_transfer_proto::engine::one_sided::{Pairing, read_adapters};
use lunette_transfer_proto::engine::scheduler::RAILS_MAX;
use lunette_verbs::connect::{ConnectError, Exchange, HANDSHAKE_MAX};
use lunette_verbs::{QueuePair, Ready, SetupError};
use thiserror::Error;

use super::super::peer::{Shared, connection_number};
use super::super::{Inner, spawned};
use super::rail::Rail;
use super::telling::Telling;
use super::windows::Windows;
use crate::adapters::{Adapter, Waiting};
use crate::client::{Attachments, Connection};
use crate::error::CallError;

/// Which adapters a rail connects.
#[derive(Clone, Debug)]
pub(super) struct Ends {
    pub(super) ours: Rc<Adapter>,
    index: usize,
    pub(super) theirs: u16,
}

/// The rails from memory to memory of one peer. In the scheduler they come behind its streams.
#[derive(Debug, Default)]
pub(in crate::engine) struct OneSided {
    streams: usize,
    ends: Vec<Ends>,
    /// The queue pair of each that is up.
    rails: RefCell<Vec<Option<Rc<Rail>>>>,
    pub(super) windows: Windows,
    /// Wait until a rail has been connected, or has not.
    pub(super) waiting: Waiting,
}

/// Why a rail was not connected.
#[derive(Debug, Error)]
enum PairError {
    #[error("no stream to the peer is up")]
    NoStream,
    #[error(transparent)]
    Call(CallError),
    #[error(transparent)]
    Refused(Refusal),
    #[error(transparent)]
    Adapter(#[from] SetupError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the peer ended the handshake early")]
    Short,
}

impl OneSided {
    /// Asks a peer for its adapters, if we have any. Each of the side that has more is on one rail.
    pub(in crate::engine) async fn discover(
        engine: &Inner,
        connection: &Connection,
        streams: usize,
    ) -> Self {
        let ours = engine.rdma.adapters();
        if ours.is_empty() {
            return Self::default();
        }
        let theirs = match ask_adapters(engine, connection).await {
            Ok(theirs) => theirs,
            Err(error) => {
                tracing::debug!(%error, "the peer tells of no adapters");
                0
            }
        };
        let count = if theirs == 0 {
            0
        } else {
            theirs.max(ours.len())
        };
        let count = count.min(RAILS_MAX - streams);
        let ends = (0..count).map(|rail| {
            let index = rail % ours.len();
            Ends {
                ours: Rc::clone(&ours[index]),
                index,
                theirs: u16::try_from(rail % theirs).expect("adapters are bounded"),
            }
        });
        Self {
            streams,
            ends: ends.collect(),
            rails: RefCell::new((0..count).map(|_| None).collect()),
            windows: Windows::default(),
            waiting: Waiting::default(),
        }
    }

    /// How many rails there are.
    pub(in crate::engine) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn ends(&self) -> &[Ends] {
        &self.ends
    }

    /// Whether this is one of them, in the scheduler's count.
    pub(in crate::engine) fn has(&self, rail: usize) -> bool {
        !self.ends.is_empty() && rail >= self.streams
    }

    /// Which of our adapters a rail uses.
    pub(in crate::engine) fn adapter(&self, rail: usize) -> Option<usize> {
        self.has(rail).then(|| self.ends[rail - self.streams].index)
    }

    pub(super) fn ends_of(&self, rail: usize) -> &Ends {
        &self.ends[rail - self.streams]
    }

    pub(super) fn rail(&self, rail: usize) -> Option<Rc<Rail>> {
        self.rails.borrow()[rail - self.streams].clone()
    }

    /// Takes a rail's queue pair away, if it is that of this connection.
    pub(super) fn take(&self, rail: usize, connection: u32) -> Option<Rc<Rail>> {
        let mut rails = self.rails.borrow_mut();
        let place = &mut rails[rail - self.streams];
        place.take_if(|rail| rail.connection() == connection)
    }

    fn put(&self, rail: usize, found: Rc<Rail>) {
        self.rails.borrow_mut()[rail - self.streams] = Some(found);
    }

    /// Ends all that are up: nothing that was under way lands any more, here.
    pub(in crate::engine) fn close_all(&self) {
        let rails: Vec<_> = self.rails.borrow().iter().flatten().cloned().collect();
        for rail in rails {
            rail.close();
        }
    }
}

async fn ask_adapters(engine: &Inner, connection: &Connection) -> Result<usize, String> {
    let nothing = |_: &mut Vec<u8>| {};
    let timeout = engine.options.connect_timeout;
    let op = Operation::Adapters.to_wire();
    let asked = connection.call(op, nothing, Attachments::default(), timeout);
    let reply = asked.await.map_err(|failure| failure.error.to_string())?;
    match Refusal::from_wire(reply.status) {
        None => read_adapters(&reply.body).map_err(|fault| fault.to_string()),
        Some(refusal) => Err(refusal.to_string()),
    }
}

impl Shared {
    /// A stream that is up.
    pub(super) fn stream(&self) -> Option<Connection> {
        self.state.borrow().rails.iter().flatten().next().cloned()
    }

    /// Connects a rail.
    pub(in crate::engine) async fn connect_one_sided(self: Rc<Self>, rail: usize, number: u32) {
        let pair = self.pair_up(rail, number).await;
        let now = time::now();
        let mut state = self.state.borrow_mut();
        match pair {
            Err(error) => {
                tracing::debug!(rail, %error, "a rail of adapters");
                state.scheduler.on_rail_failed(rail, number, now);
            }
            Ok(pair) => {
                if state.scheduler.on_connected(rail, number, now) {
                    let (pair, telling) = pair;
                    let named = telling.and_then(|telling| Some((telling, pair.number()?)));
                    let teller = named.map(|(telling, _)| telling.teller());
                    let connected = Rc::new(Rail::new(pair, (rail, number), teller));
                    if let Some((telling, number)) = named {
                        telling.listen(number, &connected);
                        state.scheduler.on_tells(rail);
                    }
                    self.one_sided.put(rail, Rc::clone(&connected));
                    let reaping = Rc::clone(&self).reap(connected);
                    if !spawned(self.tasks.spawn(reaping)) {
                        let _ended = self.one_sided.take(rail, number);
                        state.scheduler.on_rail_failed(rail, number, now);
                    }
                }
            }
        }
        drop(state);
        self.one_sided.waiting.wake();
        self.pump();
    }

    /// Connects a queue pair that tells, if both sides let it.
    async fn pair_up(
        &self,
        rail: usize,
        number: u32,
    ) -> Result<(QueuePair<Ready>, Option<&Telling>), PairError> {
        let stream = self.stream().ok_or(PairError::NoStream)?;
        let index = self.one_sided.ends_of(rail).index;
        if let Some(telling) = self.engine.rdma.telling(index) {
            match self.pair_over(&stream, (rail, number), Some(telling)).await {
                Ok(pair) => return Ok((pair, Some(telling))),
                Err(PairError::Refused(Refusal::Malformed | Refusal::Elsewhere)) => {
                    tracing::debug!(rail, "the peer hears no messages");
                }
                Err(error) => return Err(error),
            }
        }
        let pair = self.pair_over(&stream, (rail, number), None).await?;
        Ok((pair, None))
    }

    async fn pair_over(
        &self,
        stream: &Connection,
        (rail, number): (usize, u32),
        telling: Option<&Telling>,
    ) -> Result<QueuePair<Ready>, PairError> {
        let ends = self.one_sided.ends_of(rail);
        let (adapter, options) = (&ends.ours, &self.engine.options);
        let deadline = time::now() + HANDSHAKE_MAX;
        let (op, pair) = match telling {
            None => (Operation::Pair, adapter.asking()?),
            Some(telling) => {
                let receives = telling.messages().receives();
                (Operation::PairTelling, adapter.telling(receives)?)
            }
        };
        let patience = options.rdma.patience;
        let mut exchange = Exchange::initiator(pair, patience, adapter.epoch(), deadline);
        let mut received: Option<Vec<u8>> = None;
        loop {
            let step = exchange.step(time::now(), received.as_deref());
            let Some(message) = step.message else {
                // The peer's last word was no message, or a refusal.
                return step.outcome?.ok_or(PairError::Short);
            };
            let pairing = Pairing {
                connection: connection_number(self.number, rail, number),
                adapter: ends.theirs,
                message: &message,
            };
            let body = |out: &mut Vec<u8>| pairing.encode(out);
            let asked = stream.call(
                op.to_wire(),
                body,
                Attachments::default(),
                options.connect_timeout,
            );
            let reply = asked
                .await
                .map_err(|failure| PairError::Call(failure.error))?;
            if let Some(refusal) = Refusal::from_wire(reply.status) {
                return Err(PairError::Refused(refusal));
            }
            if let Some(pair) = step.outcome? {
                return Ok(pair);
            }
            received = Some(reply.body);
        }
    }

    /// Tells the peer that a queue pair is of no use any more. It need not arrive: the next connection of that
    /// rail, or the end of the session, says the same.
    pub(super) fn release(&self, rail: usize, connection: u32) {
        let Some(stream) = self.stream() else {
            return;
        };
        let name = connection_number(self.number, rail, connection);
        let timeout = self.engine.options.connect_timeout;
        drop(spawn_local(async move {
            let body = |out: &mut Vec<u8>| {
                Writer::new(out).u64(name);
            };
            let op = Operation::Fence.to_wire();
            let _told = stream.call(op, body, Attachments::default(), timeout).await;
        }));
    }
}
