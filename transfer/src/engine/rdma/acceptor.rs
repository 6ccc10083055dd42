//! Queue pairs over which peers ask. They exist, and what comes over them by messages is answered.

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
use crate::adapters::{ASKED_MAX, Adapter, Messages};

/// By the session's epoch, and what its peer calls the connection.
type Name = (u64, u64);

type Pairs = BTreeMap<Name, Accepted>;

/// A queue pair over which something was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Over {
    name: Name,
    adapter: u16,
    number: u32,
}

impl Over {
    /// The session of who tells.
    pub(super) const fn session(self) -> u64 {
        self.name.0
    }
}

/// Queue pairs that tell, of one adapter: with the room for their answers they take half of what it completes. Those
/// of more peers leave notifications to the streams.
const TELLING_MAX: usize = 256;

/// The queue pairs of those who came.
#[derive(Debug, Default)]
pub(in crate::engine) struct Acceptor {
    pairs: RefCell<Pairs>,
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
    tells: bool,
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
            Some(messages) => made.adapter.answering(messages.receives(), ASKED_MAX),
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
            tells: made.messages.is_some(),
            began: now,
            state: State::Shaking(Box::new(exchange)),
        })
    }
}

/// A rail has one queue pair: an earlier one is of no use to anybody, nor is one that was never finished.
fn make_room(pairs: &mut Pairs, name: Name, now: Time) {
    pairs.retain(|&(epoch, number), accepted| {
        let is_shaking = matches!(accepted.state, State::Shaking(_));
        let is_late = is_shaking && accepted.began + HANDSHAKE_MAX <= now;
        let is_earlier = epoch == name.0 && is_same_rail(number, name.1);
        !is_late && !is_earlier
    });
}

/// Whether there may be one more of a session and an adapter.
fn has_room(pairs: &Pairs, session: u64, adapter: u16, made: &Made<'_>) -> Result<(), Refusal> {
    let here = pairs.iter().filter(|(_, found)| found.adapter == adapter);
    if here.clone().filter(|(name, _)| name.0 == session).count() >= made.queue_pairs_max {
        return Err(Refusal::Busy);
    }
    if made.messages.is_some() && here.filter(|(_, found)| found.tells).count() >= TELLING_MAX {
        return Err(Refusal::Elsewhere);
    }
    Ok(())
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
            make_room(&mut pairs, name, now);
            has_room(&pairs, session, pairing.adapter, made)?;
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
                let number = pair.number().filter(|_| accepted.tells);
                accepted.state = State::Ready(pair);
                let mut telling = self.telling.borrow_mut();
                // Of those that have ended, the names go.
                telling.retain(|_, name| pairs.contains_key(name));
                let number = number.map(|number| (pairing.adapter, number));
                telling.extend(number.map(|number| (number, name)));
            }
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, "a handshake of adapters");
                pairs.remove(&name);
            }
        }
        Ok(step.message.unwrap_or_default())
    }

    /// Over which queue pair a message came to this adapter; `None` if that has ended.
    pub(super) fn over(&self, adapter: u16, number: u32) -> Option<Over> {
        let name = *self.telling.borrow().get(&(adapter, number))?;
        let over = Over {
            name,
            adapter,
            number,
        };
        self.with(over, |_| over)
    }

    /// Whether who tells over it has a connection.
    pub(super) fn is_there(&self, over: Over) -> bool {
        let pairs = self.pairs.borrow();
        let accepted = pairs.get(&over.name);
        accepted.is_some_and(|accepted| accepted.asker.strong_count() > 0)
    }

    /// What comes of something with a queue pair over which a message came; `None` if it has ended.
    pub(super) fn with<T>(
        &self,
        over: Over,
        some: impl FnOnce(&QueuePair<Ready>) -> T,
    ) -> Option<T> {
        let pairs = self.pairs.borrow();
        let accepted = pairs.get(&over.name)?;
        let State::Ready(pair) = &accepted.state else {
            return None;
        };
        let is_it = accepted.adapter == over.adapter && pair.number() == Some(over.number);
        is_it.then(|| some(pair))
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
