//! The queue pairs that belong to a connection to a seat: one per rail, which is one of our adapters and one of
//! theirs. They end with the connection.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore_proto::paths::{Chooser, Path};
use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_transfer::adapters::{Asked, Asking, Messages};
use lunette_verbs::{QueuePair, Ready};

/// How long until a queue pair is connected again that was given up.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
/// The same of one that could not be connected, and of a seat that tells of no adapters.
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// What the two sides call a queue pair: its rail, and which of that rail's it is.
pub(crate) const fn name_of(rail: u32, connection: u32) -> u64 {
    (rail as u64) << u32::BITS | connection as u64
}

/// Whether two queue pairs of one connection are of the same rail.
pub(crate) const fn is_same_rail(one: u64, other: u64) -> bool {
    one >> u32::BITS == other >> u32::BITS
}

/// A queue pair that is connected, until it is given up.
pub(crate) struct Rail {
    pub(crate) name: u64,
    /// Which of our adapters.
    pub(crate) adapter: usize,
    /// Its number at that adapter.
    pub(crate) number: u32,
    /// Gets that come over it.
    pub(crate) under_way: Cell<usize>,
    /// Whether the seat reads what is put, as far as is known.
    pub(crate) is_pulled: Cell<bool>,
    /// When it was picked last, as its connection counts.
    picked: Cell<u64>,
    pair: RefCell<Option<QueuePair<Ready>>>,
    /// What is asked over it, if the seat takes messages.
    asked: Option<Rc<Asked>>,
}

impl Rail {
    /// Of a queue pair that can be used; `None` if it is broken already.
    pub(crate) fn new(
        name: u64,
        adapter: usize,
        pair: QueuePair<Ready>,
        asked: Option<Rc<Asked>>,
    ) -> Option<Rc<Self>> {
        Some(Rc::new(Self {
            name,
            adapter,
            number: pair.number()?,
            under_way: Cell::new(0),
            is_pulled: Cell::new(true),
            picked: Cell::new(0),
            pair: RefCell::new(Some(pair)),
            asked,
        }))
    }

    /// What is asked over it, if the seat takes messages.
    pub(crate) const fn asked(&self) -> Option<&Rc<Asked>> {
        self.asked.as_ref()
    }

    /// Asks over it; `None` if it takes no messages, or none now: nothing was asked.
    pub(crate) fn ask(
        &self,
        messages: &Messages,
        op: u16,
        body: impl FnOnce(&mut Vec<u8>),
    ) -> Option<Asking> {
        let asked = self.asked()?;
        self.with(|pair| Asking::begin(asked, (pair, messages), op, body))?
    }

    pub(crate) fn is_open(&self) -> bool {
        let pair = self.pair.borrow();
        pair.as_ref().is_some_and(QueuePair::is_open)
    }

    /// What comes of something with the queue pair; `None` if it was given up.
    pub(crate) fn with<T>(&self, some: impl FnOnce(&QueuePair<Ready>) -> T) -> Option<T> {
        let pair = self.pair.borrow();
        pair.as_ref().map(some)
    }

    /// Gives it up: nothing lands over it any more, and nobody answers what was asked over it.
    pub(crate) fn close(&self) {
        let pair = self.pair.borrow_mut().take();
        drop(pair);
        if let Some(asked) = &self.asked {
            asked.end();
        }
    }
}

impl fmt::Debug for Rail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rail({:#x}, adapter {})", self.name, self.adapter)
    }
}

/// A rail that is not connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) rail: u32,
    /// Which of that rail's queue pairs comes next.
    pub(crate) connection: u32,
    /// Which adapter of ours.
    pub(crate) ours: usize,
    /// And of theirs.
    pub(crate) theirs: u16,
}

#[derive(Debug)]
struct Place {
    ours: usize,
    theirs: u16,
    rail: Option<Rc<Rail>>,
    connections: u32,
    is_connecting: bool,
    not_before: Time,
}

#[derive(Debug, Default)]
enum State {
    /// Nobody has asked for the seat's adapters.
    #[default]
    Unknown,
    Asking,
    /// There are none; asked again from then on.
    None(Time),
    Known(Vec<Place>),
}

/// What is to be done, where something wants to come over a rail.
#[derive(Debug)]
pub(crate) enum Picked {
    /// The seat is to be asked for its adapters.
    Ask,
    /// These are to be connected; one that is open.
    Rails(Vec<Missing>, Option<Rc<Rail>>),
    /// Nothing.
    Nothing,
}

/// The rails of one connection. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Rails {
    state: RefCell<State>,
    chooser: RefCell<Chooser>,
    /// Of puts, which are sent, or read by the seat.
    puts: RefCell<Chooser>,
    picks: Cell<u64>,
}

impl Rails {
    /// The rail over which least comes, each in turn, and what is to be done beside that.
    pub(crate) fn pick(&self) -> Picked {
        let now = time::now();
        let mut state = self.state.borrow_mut();
        match &mut *state {
            State::Asking => return Picked::Nothing,
            State::None(until) if now < *until => return Picked::Nothing,
            State::Unknown | State::None(_) => {
                *state = State::Asking;
                return Picked::Ask;
            }
            State::Known(_) => {}
        }
        let State::Known(places) = &mut *state else {
            unreachable!("the others have returned");
        };
        let missing = (0..).zip(places.iter_mut());
        let missing = missing.filter_map(|(rail, place)| place.missing(rail, now));
        let missing = missing.collect();
        let open = places.iter().filter_map(|place| place.rail.as_ref());
        let least = open.min_by_key(|rail| (rail.under_way.get(), rail.picked.get()));
        if let Some(rail) = least {
            self.picks.set(self.picks.get() + 1);
            rail.picked.set(self.picks.get());
        }
        Picked::Rails(missing, least.cloned())
    }

    /// The way of a get of at most so many bytes, of those that there are.
    pub(crate) fn choose(&self, len_bytes: usize, is_there: impl Fn(Path) -> bool) -> Path {
        self.chooser.borrow_mut().choose(len_bytes, is_there)
    }

    /// How long it took.
    pub(crate) fn ended(&self, path: Path, len_bytes: usize, took: Duration) {
        self.chooser.borrow_mut().ended(path, len_bytes, took);
    }

    /// The way of a put of so many bytes that the seat can read.
    pub(crate) fn choose_put(&self, len_bytes: usize) -> Path {
        let is_there = |path| path == Path::Read;
        self.puts.borrow_mut().choose(len_bytes, is_there)
    }

    /// How long it took.
    pub(crate) fn has_put(&self, path: Path, len_bytes: usize, took: Duration) {
        self.puts.borrow_mut().ended(path, len_bytes, took);
    }

    /// The seat has so many adapters, and we have as many: each of the side that has more is on one rail.
    pub(crate) fn on_adapters(&self, ours: usize, theirs: usize) {
        let mut state = self.state.borrow_mut();
        if ours == 0 || theirs == 0 {
            *state = State::None(time::now() + RETRY_PAUSE);
            return;
        }
        let place = |rail: usize| Place {
            ours: rail % ours,
            theirs: u16::try_from(rail % theirs).expect("adapters are bounded"),
            rail: None,
            connections: 0,
            is_connecting: false,
            not_before: Time::ZERO,
        };
        *state = State::Known((0..ours.max(theirs)).map(place).collect());
    }

    /// Gives all up: their connection has ended.
    pub(crate) fn close_all(&self) {
        let state = self.state.borrow();
        let State::Known(places) = &*state else {
            return;
        };
        let rails = places.iter().filter_map(|place| place.rail.clone());
        let rails: Vec<Rc<Rail>> = rails.collect();
        drop(state);
        rails.iter().for_each(|rail| rail.close());
    }

    /// A rail has been connected, or has not.
    pub(crate) fn on_connected(&self, missing: Missing, rail: Option<Rc<Rail>>) {
        let State::Known(places) = &mut *self.state.borrow_mut() else {
            return;
        };
        let place = &mut places[missing.rail as usize];
        place.is_connecting = false;
        if rail.is_none() {
            place.not_before = time::now() + RETRY_PAUSE;
        }
        place.rail = rail;
    }
}

impl Place {
    /// The rail that is to be connected here, if one is: it counts as being connected then.
    fn missing(&mut self, rail: u32, now: Time) -> Option<Missing> {
        if self.rail.take_if(|rail| !rail.is_open()).is_some() {
            self.not_before = now + RECONNECT_PAUSE;
        }
        if self.rail.is_some() || self.is_connecting || now < self.not_before {
            return None;
        }
        self.is_connecting = true;
        self.connections += 1;
        Some(Missing {
            rail,
            connection: self.connections,
            ours: self.ours,
            theirs: self.theirs,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_rails_apart_and_their_queue_pairs() {
        let (one, next, other) = (name_of(3, 1), name_of(3, u32::MAX), name_of(4, 1));
        assert!(is_same_rail(one, next) && !is_same_rail(next, other));
        assert_ne!(one, next);
    }
}
