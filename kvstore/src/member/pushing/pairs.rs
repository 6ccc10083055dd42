//! The queue pairs of those who came, by their connections.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use lunette_kvstore_proto::message::Status;
use lunette_kvstore_proto::message::directory::PairMessage;
use lunette_runtime::{Scope, time};
use lunette_runtime_core::time::Time;
use lunette_transfer::ConnectionId;
use lunette_transfer::adapters::{Adapter, Messages};
use lunette_verbs::connect::{Exchange, HANDSHAKE_MAX};
use lunette_verbs::{Patience, QueuePair, Ready};

use super::messages::{Over, UnderWay};
use crate::rails::is_same_rail;

/// The connection, and what its reader calls the queue pair.
type Name = (ConnectionId, u64);

struct Accepted {
    /// Which of our adapters.
    adapter: u16,
    /// No other has had it.
    number: u64,
    began: Time,
    state: State,
    /// What is asked over it, and not answered.
    under_way: Rc<Cell<u32>>,
    answering: Scope,
}

enum State {
    Shaking(Box<Exchange>),
    Ready(QueuePair<Ready>),
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Pairs {
    named: BTreeMap<Name, Accepted>,
    /// The names of those that are connected, and of some that have ended, by adapter and number.
    numbered: BTreeMap<(u16, u32), Name>,
}

/// What a queue pair is made for.
pub(super) struct Made<'a> {
    pub(super) adapter: &'a Rc<Adapter>,
    /// Where its messages come, if it has any.
    pub(super) messages: Option<&'a Messages>,
    pub(super) queue_pairs_max: usize,
    pub(super) patience: Patience,
}

/// Queue pairs that have ended, when this is dropped.
pub(super) struct Ended(
    #[expect(dead_code, reason = "dropped, when nobody borrows")] Vec<Accepted>,
);

impl fmt::Debug for Pairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.named.keys()).finish()
    }
}

impl Accepted {
    fn new((adapter, number): (u16, u64), now: Time, made: &Made<'_>) -> Result<Self, Status> {
        let receives = made.messages.map(Messages::receives);
        let pair = made.adapter.writing(receives).map_err(|error| {
            tracing::debug!(%error, "no queue pair for a reader");
            Status::Busy
        })?;
        let deadline = now + HANDSHAKE_MAX;
        let epoch = made.adapter.epoch();
        let exchange = Exchange::acceptor(pair, made.patience, epoch, deadline);
        Ok(Self {
            adapter,
            number,
            began: now,
            state: State::Shaking(Box::new(exchange)),
            under_way: Rc::default(),
            answering: Scope::new(),
        })
    }
}

impl Pairs {
    pub(super) fn len(&self) -> usize {
        self.named.len()
    }

    /// Takes a step of a handshake: that of a new queue pair of this number, or of one that is there.
    pub(super) fn step(
        &mut self,
        (connection, number): (ConnectionId, u64),
        message: &PairMessage<'_>,
        made: &Made<'_>,
    ) -> Result<Vec<u8>, Status> {
        let now = time::now();
        let name = (connection, message.connection);
        if !self.named.contains_key(&name) {
            self.make_room(now, name);
            let of_both = |(other, accepted): &(&Name, &Accepted)| {
                other.0 == connection && accepted.adapter == message.adapter
            };
            if self.named.iter().filter(of_both).count() >= made.queue_pairs_max {
                return Err(Status::Busy);
            }
            let accepted = Accepted::new((message.adapter, number), now, made)?;
            self.named.insert(name, accepted);
        }
        let accepted = self.named.get_mut(&name).expect("it is there");
        let State::Shaking(exchange) = &mut accepted.state else {
            return Err(Status::BadRequest);
        };
        let step = exchange.step(now, Some(message.message));
        match step.outcome {
            Ok(Some(pair)) => {
                let number = pair.number();
                accepted.state = State::Ready(pair);
                // Of those that have ended, the names go.
                self.numbered
                    .retain(|_, name| self.named.contains_key(name));
                let number = number.map(|number| (message.adapter, number));
                self.numbered.extend(number.map(|number| (number, name)));
            }
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, "a handshake of adapters");
                self.named.remove(&name);
            }
        }
        Ok(step.message.unwrap_or_default())
    }

    /// A rail has one queue pair: an earlier one is of no use to anybody, nor is one that was never finished.
    fn make_room(&mut self, now: Time, (connection, number): Name) {
        self.named.retain(|&(other, earlier), accepted| {
            let is_shaking = matches!(accepted.state, State::Shaking(_));
            let is_late = is_shaking && accepted.began + HANDSHAKE_MAX <= now;
            let is_earlier = other == connection && is_same_rail(earlier, number);
            !is_late && !is_earlier
        });
    }

    /// One that is connected, which of our adapters it is of, and its number.
    pub(super) fn ready(
        &self,
        connection: ConnectionId,
        name: u64,
    ) -> Option<(&QueuePair<Ready>, usize, u64)> {
        let accepted = self.named.get(&(connection, name))?;
        let State::Ready(pair) = &accepted.state else {
            return None;
        };
        Some((pair, accepted.adapter.into(), accepted.number))
    }

    /// Over which of those that are connected a message came.
    pub(super) fn over(&self, adapter: usize, number: u32) -> Option<Over> {
        let adapter = u16::try_from(adapter).ok()?;
        let &(connection, name) = self.numbered.get(&(adapter, number))?;
        let (pair, index, known) = self.ready(connection, name)?;
        let is_it = index == usize::from(adapter) && pair.number() == Some(number);
        is_it.then_some(Over {
            connection,
            name,
            number: known,
        })
    }

    fn accepted(&self, over: Over) -> Option<&Accepted> {
        let accepted = self.named.get(&(over.connection, over.name));
        accepted.filter(|accepted| accepted.number == over.number)
    }

    /// One that was asked over, and which of our adapters it is of, if it has not ended.
    pub(super) fn at(&self, over: Over) -> Option<(&QueuePair<Ready>, usize)> {
        let (pair, adapter, number) = self.ready(over.connection, over.name)?;
        (number == over.number).then_some((pair, adapter))
    }

    pub(super) fn begin_asked(&self, over: Over) -> Option<UnderWay> {
        UnderWay::begin(&self.accepted(over)?.under_way)
    }

    /// Runs a task that ends with the queue pair. False if there is none for it.
    pub(super) fn spawn(&self, over: Over, task: impl Future<Output = ()> + 'static) -> bool {
        let accepted = self.accepted(over);
        accepted.is_some_and(|accepted| accepted.answering.spawn(task).is_ok())
    }

    /// Ends one, unless another one has its name by now.
    pub(super) fn end(&mut self, (connection, name, number): (ConnectionId, u64, u64)) -> Ended {
        let name = (connection, name);
        let is_it = |accepted: &Accepted| accepted.number == number;
        let ended = self.named.get(&name).is_some_and(is_it);
        let ended = ended.then(|| self.named.remove(&name));
        Ended(ended.flatten().into_iter().collect())
    }

    /// Ends those of a connection.
    pub(super) fn end_all(&mut self, connection: ConnectionId) -> Ended {
        let of_it = self.named.range((connection, 0)..=(connection, u64::MAX));
        let names: Vec<Name> = of_it.map(|(name, _)| *name).collect();
        let ended = names.iter().filter_map(|name| self.named.remove(name));
        Ended(ended.collect())
    }
}
