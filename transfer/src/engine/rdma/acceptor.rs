//! Queue pairs over which peers ask. They do nothing here but exist.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Weak;

use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::message::Refusal;
use lunette_transfer_proto::engine::one_sided::Pairing;
use lunette_verbs::connect::{Exchange, HANDSHAKE_MAX};
use lunette_verbs::{Patience, QueuePair, Ready};

use super::super::peer::is_same_rail;
use super::super::siblings::Presence;
use crate::adapters::Adapter;

/// By the session's epoch, and what its peer calls the connection.
type Name = (u64, u64);

/// The queue pairs of those who came.
#[derive(Debug, Default)]
pub(in crate::engine) struct Acceptor {
    pairs: RefCell<BTreeMap<Name, Accepted>>,
}

#[derive(Debug)]
struct Accepted {
    /// It ends with it.
    asker: Weak<Presence>,
    adapter: u16,
    began: Time,
    state: State,
}

#[derive(Debug)]
enum State {
    Shaking(Box<Exchange>),
    #[expect(dead_code, reason = "it is there to be reached, until it is dropped")]
    Ready(QueuePair<Ready>),
}

impl Acceptor {
    /// Takes a step of a handshake, and says what the peer is to be told.
    pub(super) fn step(
        &self,
        adapter: &Rc<Adapter>,
        (session, asker): (u64, Weak<Presence>),
        pairing: Pairing<'_>,
        queue_pairs_max: usize,
        patience: Patience,
    ) -> Result<Vec<u8>, Refusal> {
        let now = time::now();
        let name = (session, pairing.connection);
        let mut pairs = self.pairs.borrow_mut();
        if !pairs.contains_key(&name) {
            // A rail has one queue pair: an earlier one is of no use to anybody.
            pairs.retain(|&(epoch, number), accepted| {
                let is_late = matches!(accepted.state, State::Shaking(_))
                    && accepted.began + HANDSHAKE_MAX <= now;
                let is_earlier = epoch == session && is_same_rail(number, pairing.connection);
                !is_late && !is_earlier
            });
            let of_both = |(name, accepted): &(&Name, &Accepted)| {
                name.0 == session && accepted.adapter == pairing.adapter
            };
            if pairs.iter().filter(of_both).count() >= queue_pairs_max {
                return Err(Refusal::Busy);
            }
            let pair = adapter.asked().map_err(|error| {
                tracing::warn!(%error, "no queue pair for a peer");
                Refusal::Busy
            })?;
            let deadline = now + HANDSHAKE_MAX;
            let exchange = Exchange::acceptor(pair, patience, adapter.epoch(), deadline);
            let accepted = Accepted {
                asker,
                adapter: pairing.adapter,
                began: now,
                state: State::Shaking(Box::new(exchange)),
            };
            pairs.insert(name, accepted);
        }
        let accepted = pairs.get_mut(&name).expect("it is there");
        let State::Shaking(exchange) = &mut accepted.state else {
            return Err(Refusal::Malformed);
        };
        let step = exchange.step(now, Some(pairing.message));
        match step.outcome {
            Ok(Some(pair)) => accepted.state = State::Ready(pair),
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, "a handshake of adapters");
                pairs.remove(&name);
            }
        }
        Ok(step.message.unwrap_or_default())
    }

    /// Ends a queue pair: nothing that its peer sent over it lands any more.
    pub(in crate::engine) fn fence(&self, session: u64, connection: u64) {
        let ended = self.pairs.borrow_mut().remove(&(session, connection));
        drop(ended);
    }

    /// Ends the queue pairs of those who have no connection any more.
    pub(super) fn sweep(&self) {
        let mut pairs = self.pairs.borrow_mut();
        pairs.retain(|_, accepted| accepted.asker.strong_count() > 0);
    }

    pub(in crate::engine) fn len(&self) -> usize {
        self.pairs.borrow().len()
    }
}
