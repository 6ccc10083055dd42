//! Queue pairs over which peers ask. They exist, and what comes over them by messages is answered.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Weak;

use lunette_runtime::time;
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::message::Refusal;
use lunette_transfer_proto::engine::one_sided::Pairing;
use lunette_transfer_proto::frame::FrameKind;
use lunette_transfer_proto::message;
use lunette_verbs::connect::{Exchange, HANDSHAKE_MAX};
use lunette_verbs::{Patience, QueuePair, Ready};

use super::super::peer::is_same_rail;
use super::super::siblings::Presence;
use super::telling::ToldFault;
use crate::adapters::{Adapter, Messages};

/// By the session's epoch, and what its peer calls the connection.
type Name = (u64, u64);

/// The queue pairs of those who came.
#[derive(Debug, Default)]
pub(in crate::engine) struct Acceptor {
    pairs: RefCell<BTreeMap<Name, Accepted>>,
    /// The names of those that tell, and of some that have ended, by adapter and number.
    telling: RefCell<BTreeMap<(u16, u32), Name>>,
}

/// What a queue pair is made for.
pub(super) struct Made<'a> {
    pub(super) adapter: &'a Rc<Adapter>,
    /// Where its messages come, if any are heard.
    pub(super) messages: Option<&'a Messages>,
    pub(super) queue_pairs_max: usize,
    pub(super) patience: Patience,
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
    Ready(QueuePair<Ready>),
}

impl Accepted {
    fn new(asker: Weak<Presence>, index: u16, now: Time, made: &Made<'_>) -> Result<Self, Refusal> {
        let pair = match made.messages {
            None => made.adapter.asked(),
            Some(messages) => made.adapter.written(messages.receives()),
        };
        let pair = pair.map_err(|error| {
            tracing::warn!(%error, "no queue pair for a peer");
            Refusal::Busy
        })?;
        let deadline = now + HANDSHAKE_MAX;
        let epoch = made.adapter.epoch();
        let exchange = Exchange::acceptor(pair, made.patience, epoch, deadline);
        Ok(Self {
            asker,
            adapter: index,
            began: now,
            state: State::Shaking(Box::new(exchange)),
        })
    }
}

impl Acceptor {
    /// Takes a step of a handshake, and says what the peer is to be told.
    pub(super) fn step(
        &self,
        made: &Made<'_>,
        (session, asker): (u64, Weak<Presence>),
        pairing: Pairing<'_>,
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
            if pairs.iter().filter(of_both).count() >= made.queue_pairs_max {
                return Err(Refusal::Busy);
            }
            let accepted = Accepted::new(asker, pairing.adapter, now, made)?;
            pairs.insert(name, accepted);
        }
        let accepted = pairs.get_mut(&name).expect("it is there");
        let State::Shaking(exchange) = &mut accepted.state else {
            return Err(Refusal::Malformed);
        };
        let step = exchange.step(now, Some(pairing.message));
        match step.outcome {
            Ok(Some(pair)) => {
                if made.messages.is_some()
                    && let Some(number) = pair.number()
                {
                    let mut telling = self.telling.borrow_mut();
                    telling.insert((pairing.adapter, number), name);
                }
                accepted.state = State::Ready(pair);
                let mut telling = self.telling.borrow_mut();
                telling.retain(|_, name| pairs.contains_key(name));
            }
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, "a handshake of adapters");
                pairs.remove(&name);
            }
        }
        Ok(step.message.unwrap_or_default())
    }

    /// Answers what has come over a queue pair, by what `told` says of it: of whose session it is, and whether that has
    /// a connection. One whose peer does not keep to the rules is broken off.
    pub(super) fn hear(
        &self,
        (adapter, number): (u16, u32),
        messages: &Messages,
        told: impl FnOnce(u64, bool) -> Result<(RequestId, u16), ToldFault>,
    ) {
        let name = self.telling.borrow().get(&(adapter, number)).copied();
        let pairs = self.pairs.borrow();
        let accepted = name.and_then(|name| Some((name.0, pairs.get(&name)?)));
        let Some((session, accepted)) = accepted else {
            return tracing::debug!(number, "a message of a queue pair that has ended");
        };
        let State::Ready(pair) = &accepted.state else {
            return tracing::debug!(number, "a message of a queue pair that has not begun");
        };
        if accepted.adapter != adapter || pair.number() != Some(number) {
            return tracing::debug!(number, "a message of a queue pair that has ended");
        }
        let is_there = accepted.asker.strong_count() > 0;
        let (id, status) = match told(session, is_there) {
            Ok(answer) => answer,
            Err(fault) => {
                tracing::warn!(number, %fault, "a peer's queue pair is broken off");
                return pair.abort();
            }
        };
        let mut out = Vec::new();
        let is_short = message::encode(&mut out, FrameKind::Response, status, id, &[]);
        assert!(is_short, "a status is a message");
        match messages.send(pair, &out) {
            // If it does not arrive, the queue pair ends, and its peer tells again.
            Some(sent) => drop(sent),
            None => pair.abort(),
        }
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
