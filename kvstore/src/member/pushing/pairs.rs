//! The queue pairs of those who came, by their connections.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use lunette_kvstore_proto::message::Status;
use lunette_kvstore_proto::message::directory::PairMessage;
use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_transfer::ConnectionId;
use lunette_transfer::adapters::Adapter;
use lunette_verbs::connect::{Exchange, HANDSHAKE_MAX};
use lunette_verbs::{Patience, QueuePair, Ready};

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
}

enum State {
    Shaking(Box<Exchange>),
    Ready(QueuePair<Ready>),
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Pairs(BTreeMap<Name, Accepted>);

/// Queue pairs that have ended, when this is dropped.
pub(super) struct Ended(
    #[expect(dead_code, reason = "dropped, when nobody borrows")] Vec<Accepted>,
);

impl fmt::Debug for Pairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Pairs {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes a step of a handshake: that of a new queue pair of this number, or of one that is there.
    pub(super) fn step(
        &mut self,
        (connection, number): (ConnectionId, u64),
        adapter: &Rc<Adapter>,
        message: &PairMessage<'_>,
        (queue_pairs_max, patience): (usize, Patience),
    ) -> Result<Vec<u8>, Status> {
        let now = time::now();
        let name = (connection, message.connection);
        if !self.0.contains_key(&name) {
            self.make_room(now, name);
            let of_both = |(other, accepted): &(&Name, &Accepted)| {
                other.0 == connection && accepted.adapter == message.adapter
            };
            if self.0.iter().filter(of_both).count() >= queue_pairs_max {
                return Err(Status::Busy);
            }
            let pair = adapter.writing().map_err(|error| {
                tracing::debug!(%error, "no queue pair for a reader");
                Status::Busy
            })?;
            let deadline = now + HANDSHAKE_MAX;
            let exchange = Exchange::acceptor(pair, patience, adapter.epoch(), deadline);
            let accepted = Accepted {
                adapter: message.adapter,
                number,
                began: now,
                state: State::Shaking(Box::new(exchange)),
            };
            self.0.insert(name, accepted);
        }
        let accepted = self.0.get_mut(&name).expect("it is there");
        let State::Shaking(exchange) = &mut accepted.state else {
            return Err(Status::BadRequest);
        };
        let step = exchange.step(now, Some(message.message));
        match step.outcome {
            Ok(Some(pair)) => accepted.state = State::Ready(pair),
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, "a handshake of adapters");
                self.0.remove(&name);
            }
        }
        Ok(step.message.unwrap_or_default())
    }

    /// A rail has one queue pair: an earlier one is of no use to anybody, nor is one that was never finished.
    fn make_room(&mut self, now: Time, (connection, number): Name) {
        self.0.retain(|&(other, earlier), accepted| {
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
        let accepted = self.0.get(&(connection, name))?;
        let State::Ready(pair) = &accepted.state else {
            return None;
        };
        Some((pair, accepted.adapter.into(), accepted.number))
    }

    /// Ends one, unless another one has its name by now.
    pub(super) fn end(&mut self, (connection, name, number): (ConnectionId, u64, u64)) -> Ended {
        let name = (connection, name);
        let is_it = |accepted: &Accepted| accepted.number == number;
        let ended = self.0.get(&name).is_some_and(is_it);
        let ended = ended.then(|| self.0.remove(&name));
        Ended(ended.flatten().into_iter().collect())
    }

    /// Ends those of a connection.
    pub(super) fn end_all(&mut self, connection: ConnectionId) -> Ended {
        let of_it = self.0.range((connection, 0)..=(connection, u64::MAX));
        let names: Vec<Name> = of_it.map(|(name, _)| *name).collect();
        let ended = names.iter().filter_map(|name| self.0.remove(name));
        Ended(ended.collect())
    }
}
