//! The handshake's state machine, for both sides.
//!
//! | state | event | next | action |
//! |---|---|---|---|
//! | `Fresh` | start | `AwaitAccept` | send Offer |
//! | `AwaitAccept` | Accept | `Connecting` | connect |
//! | `AwaitAccept` | Refuse | `Failed` | fail |
//! | `AwaitOffer` | Offer | `Connecting` | connect, or send Refuse and fail |
//! | `Connecting` (initiator) | connected | `Open` | send Ready, open |
//! | `Connecting` (acceptor) | connected | `AwaitReady` | send Accept |
//! | `Connecting` (acceptor) | connect failed | `Failed` | send Refuse, fail |
//! | `AwaitReady` | Ready | `Open` | open |
//! | any but `Open`, `Failed` | deadline, any other message | `Failed` | fail |
//! | `Open`, `Failed` | anything | as it was | none |

use lunette_runtime_core::time::Time;
use thiserror::Error;

use super::{Card, Malformed, Message, Refusal, VERSION};
use crate::negotiate::Agreement;

/// What happens to a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Initiator: begin. Acceptor: changes nothing.
    Start,
    /// A whole message of the peer.
    Message(&'a [u8]),
    /// The queue pair went to ready-to-send as [`Action::Connect`] asked.
    Connected,
    /// It could not.
    ConnectFailed,
    /// Time has passed.
    Tick,
}

/// The peer, as the queue pair has to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its side.
    pub card: Card,
    /// What both sides can do.
    pub agreement: Agreement,
    /// Its epoch.
    pub epoch: u64,
}

/// What the driver has to do. At most two follow an event, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this message.
    Send(Message),
    /// Move the queue pair to ready-to-send towards this peer, then say [`Event::Connected`] or
    /// [`Event::ConnectFailed`].
    Connect(Peer),
    /// Requests may be posted.
    Open(Peer),
    /// It came to nothing: destroy the queue pair.
    Fail(HandshakeFault),
}

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum HandshakeFault {
    /// One side did not want to.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The peer's bytes make no sense.
    #[error("malformed: {0}")]
    Malformed(#[from] Malformed),
    /// A message that has no place here.
    #[error("a message out of place")]
    Unexpected,
    /// A message of another attempt.
    #[error("a message of another attempt")]
    StaleEpoch,
    /// The adapter did not connect the queue pair.
    #[error("the adapter did not connect the queue pair")]
    Adapter,
    /// It took too long.
    #[error("the handshake timed out")]
    TimedOut,
}

impl HandshakeFault {
    /// Whether a new attempt, with a new queue pair and epoch, may fare better.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.is_retryable(),
            Self::TimedOut | Self::StaleEpoch => true,
            Self::Malformed(_) | Self::Unexpected | Self::Adapter => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Fresh,
    AwaitAccept,
    AwaitOffer,
    Connecting { peer: Peer, is_initiator: bool },
    AwaitReady { peer: Peer },
    Open,
    Failed,
}

/// The handshake of one side.
#[derive(Debug)]
pub struct Handshake {
    card: Card,
    epoch: u64,
    deadline: Time,
    state: State,
    actions: [Option<Action>; 2],
}

impl Handshake {
    /// The side that begins. The epoch has never been used before by this side.
    #[must_use]
    pub const fn initiator(card: Card, epoch: u64, deadline: Time) -> Self {
        Self::new(card, epoch, deadline, State::Fresh)
    }

    /// The side that is asked.
    #[must_use]
    pub const fn acceptor(card: Card, epoch: u64, deadline: Time) -> Self {
        Self::new(card, epoch, deadline, State::AwaitOffer)
    }

    const fn new(card: Card, epoch: u64, deadline: Time, state: State) -> Self {
        Self {
            card,
            epoch,
            deadline,
            state,
            actions: [None, None],
        }
    }

    /// The next thing to do. Drain it before the next [`Handshake::handle`].
    pub const fn poll_action(&mut self) -> Option<Action> {
        let [first, second] = &mut self.actions;
        let next = first.take();
        *first = second.take();
        next
    }

    /// When to say [`Event::Tick`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        (!self.is_over()).then_some(self.deadline)
    }

    /// Whether it is an initiator's that has not begun.
    #[must_use]
    pub const fn is_fresh(&self) -> bool {
        matches!(self.state, State::Fresh)
    }

    /// Whether it is open or has failed.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.state, State::Open | State::Failed)
    }

    /// Takes an event. Total: what does not fit fails the handshake, and changes nothing once it
    /// is over.
    ///
    /// # Panics
    /// If actions of the event before are left.
    pub fn handle(&mut self, now: Time, event: Event<'_>) {
        assert_eq!(self.actions, [None, None], "actions are drained first");
        if self.is_over() {
            return;
        }
        if now >= self.deadline {
            return self.fail(HandshakeFault::TimedOut);
        }
        match (self.state, event) {
            (_, Event::Tick) | (State::AwaitOffer, Event::Start) => {}
            (State::Fresh, Event::Start) => {
                let (epoch, card) = (self.epoch, self.card);
                let versions = (VERSION, VERSION);
                self.send(Message::Offer {
                    versions,
                    epoch,
                    card,
                });
                self.state = State::AwaitAccept;
            }
            (_, Event::Message(bytes)) => match Message::decode(bytes) {
                Ok(message) => self.on_message(message),
                Err(malformed) => self.fail(malformed.into()),
            },
            (State::Connecting { peer, is_initiator }, Event::Connected) => {
                self.on_connected(peer, is_initiator);
            }
            (State::Connecting { peer, is_initiator }, Event::ConnectFailed) => {
                if !is_initiator {
                    self.refuse(peer.epoch, Refusal::Adapter);
                }
                self.fail(HandshakeFault::Adapter);
            }
            _ => self.fail(HandshakeFault::Unexpected),
        }
    }

    fn on_message(&mut self, message: Message) {
        match (self.state, message) {
            (
                State::AwaitOffer,
                Message::Offer {
                    versions,
                    epoch,
                    card,
                },
            ) => {
                if !(versions.0..=versions.1).contains(&VERSION) {
                    self.refuse(epoch, Refusal::Version);
                    return self.fail(HandshakeFault::Refused(Refusal::Version));
                }
                self.connect(card, epoch, false);
            }
            (
                State::AwaitAccept,
                Message::Accept {
                    version,
                    your_epoch,
                    epoch,
                    card,
                },
            ) => {
                if your_epoch != self.epoch {
                    return self.fail(HandshakeFault::StaleEpoch);
                }
                if version != VERSION {
                    return self.fail(HandshakeFault::Unexpected);
                }
                self.connect(card, epoch, true);
            }
            (State::AwaitAccept, Message::Refuse { your_epoch, reason }) => {
                self.fail(if your_epoch == self.epoch {
                    HandshakeFault::Refused(reason)
                } else {
                    HandshakeFault::StaleEpoch
                });
            }
            (State::AwaitReady { peer }, Message::Ready { your_epoch }) => {
                if your_epoch == self.epoch {
                    self.state = State::Open;
                    self.push(Action::Open(peer));
                } else {
                    self.fail(HandshakeFault::StaleEpoch);
                }
            }
            _ => self.fail(HandshakeFault::Unexpected),
        }
    }

    fn connect(&mut self, card: Card, epoch: u64, is_initiator: bool) {
        let agreement = self.card.capabilities.agree(&card.capabilities);
        let peer = Peer {
            card,
            agreement,
            epoch,
        };
        self.state = State::Connecting { peer, is_initiator };
        self.push(Action::Connect(peer));
    }

    fn on_connected(&mut self, peer: Peer, is_initiator: bool) {
        let (your_epoch, epoch, card) = (peer.epoch, self.epoch, self.card);
        if is_initiator {
            self.send(Message::Ready { your_epoch });
            self.state = State::Open;
            self.push(Action::Open(peer));
        } else {
            let version = VERSION;
            self.send(Message::Accept {
                version,
                your_epoch,
                epoch,
                card,
            });
            self.state = State::AwaitReady { peer };
        }
    }

    fn refuse(&mut self, your_epoch: u64, reason: Refusal) {
        self.send(Message::Refuse { your_epoch, reason });
    }

    fn send(&mut self, message: Message) {
        self.push(Action::Send(message));
    }

    fn fail(&mut self, fault: HandshakeFault) {
        self.state = State::Failed;
        self.push(Action::Fail(fault));
    }

    fn push(&mut self, action: Action) {
        let free = self.actions.iter_mut().find(|slot| slot.is_none());
        *free.expect("an event has at most two actions") = Some(action);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::card;
    use super::*;

    const DEADLINE: Time = Time::from_ns(1000);
    const NOW: Time = Time::from_ns(1);

    fn bytes(message: Message) -> Vec<u8> {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        bytes
    }

    fn drain(handshake: &mut Handshake) -> Vec<String> {
        std::iter::from_fn(|| handshake.poll_action())
            .map(|action| match action {
                Action::Send(Message::Offer { .. }) => "send Offer".to_owned(),
                Action::Send(Message::Accept { .. }) => "send Accept".to_owned(),
                Action::Send(Message::Refuse { reason, .. }) => format!("send Refuse {reason:?}"),
                Action::Send(Message::Ready { .. }) => "send Ready".to_owned(),
                Action::Connect(_) => "connect".to_owned(),
                Action::Open(_) => "open".to_owned(),
                Action::Fail(fault) => format!("fail {fault:?}"),
            })
            .collect()
    }

    const OURS: u64 = 11;
    const THEIRS: u64 = 22;

    /// A handshake in each state, by name.
    fn in_state(name: &str) -> Handshake {
        let offer = bytes(Message::Offer {
            versions: (1, 1),
            epoch: THEIRS,
            card: card(2),
        });
        let accept = Message::Accept {
            version: 1,
            your_epoch: OURS,
            epoch: THEIRS,
            card: card(2),
        };
        let accept = bytes(accept);
        let is_initiator = matches!(name, "Fresh" | "AwaitAccept" | "Connecting-i" | "Open");
        let mut handshake = if is_initiator {
            Handshake::initiator(card(1), OURS, DEADLINE)
        } else {
            Handshake::acceptor(card(1), OURS, DEADLINE)
        };
        let events: &[Event<'_>] = match name {
            "AwaitAccept" => &[Event::Start],
            "Connecting-i" => &[Event::Start, Event::Message(&accept)],
            "Open" => &[Event::Start, Event::Message(&accept), Event::Connected],
            "Connecting-a" => &[Event::Message(&offer)],
            "AwaitReady" => &[Event::Message(&offer), Event::Connected],
            "Failed" => &[Event::Connected],
            _ => &[],
        };
        for event in events {
            handshake.handle(NOW, *event);
            drain(&mut handshake);
        }
        handshake
    }

    /// An event of a script: one of the driver's, or a message.
    enum Scripted {
        Driver(Event<'static>),
        Wire(Vec<u8>),
    }

    fn script() -> [(&'static str, Scripted); 12] {
        let offer = |versions| Message::Offer {
            versions,
            epoch: THEIRS,
            card: card(2),
        };
        let accept = |your_epoch| Message::Accept {
            version: 1,
            your_epoch,
            epoch: THEIRS,
            card: card(2),
        };
        let refuse = Message::Refuse {
            your_epoch: OURS,
            reason: Refusal::Busy,
        };
        let ready = |your_epoch| Message::Ready { your_epoch };
        let wire = |message| Scripted::Wire(bytes(message));
        [
            ("start", Scripted::Driver(Event::Start)),
            ("offer", wire(offer((1, 9)))),
            ("newer offer", wire(offer((2, 9)))),
            ("accept", wire(accept(OURS))),
            ("stale accept", wire(accept(99))),
            ("refuse", wire(refuse)),
            ("ready", wire(ready(OURS))),
            ("stale ready", wire(ready(99))),
            ("noise", Scripted::Wire(b"LRDM\x09".to_vec())),
            ("connected", Scripted::Driver(Event::Connected)),
            ("connect failed", Scripted::Driver(Event::ConnectFailed)),
            ("tick", Scripted::Driver(Event::Tick)),
        ]
    }

    #[test]
    fn every_state_answers_every_event_as_the_table_says() {
        let states = [
            "Fresh",
            "AwaitAccept",
            "AwaitOffer",
            "Connecting-i",
            "Connecting-a",
            "AwaitReady",
            "Open",
            "Failed",
        ];
        let mut rows = Vec::new();
        for state in states {
            for (name, scripted) in script() {
                let mut handshake = in_state(state);
                match &scripted {
                    Scripted::Driver(event) => handshake.handle(NOW, *event),
                    Scripted::Wire(bytes) => handshake.handle(NOW, Event::Message(bytes)),
                }
                let actions = drain(&mut handshake).join(", ");
                // The rule for everything else.
                let elsewhere = ["", "fail Unexpected", "fail Malformed(Kind(9))"];
                if !elsewhere.contains(&actions.as_str()) {
                    rows.push(format!("{state}: {name}: {actions}"));
                }
            }
        }
        let expected = [
            "Fresh: start: send Offer",
            "AwaitAccept: accept: connect",
            "AwaitAccept: stale accept: fail StaleEpoch",
            "AwaitAccept: refuse: fail Refused(Busy)",
            "AwaitOffer: offer: connect",
            "AwaitOffer: newer offer: send Refuse Version, fail Refused(Version)",
            "Connecting-i: connected: send Ready, open",
            "Connecting-i: connect failed: fail Adapter",
            "Connecting-a: connected: send Accept",
            "Connecting-a: connect failed: send Refuse Adapter, fail Adapter",
            "AwaitReady: ready: open",
            "AwaitReady: stale ready: fail StaleEpoch",
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn the_deadline_ends_it_unless_it_is_over() {
        for state in [
            "Fresh",
            "AwaitAccept",
            "AwaitOffer",
            "Connecting-a",
            "AwaitReady",
        ] {
            let mut handshake = in_state(state);
            assert_eq!(handshake.poll_timeout(), Some(DEADLINE));
            handshake.handle(Time::from_ns(999), Event::Tick);
            assert_eq!(drain(&mut handshake), [""; 0], "{state}");
            handshake.handle(DEADLINE, Event::Tick);
            assert_eq!(drain(&mut handshake), ["fail TimedOut"], "{state}");
        }
        for state in ["Open", "Failed"] {
            let mut handshake = in_state(state);
            assert_eq!(handshake.poll_timeout(), None);
            handshake.handle(DEADLINE, Event::Tick);
            assert_eq!(drain(&mut handshake), [""; 0], "{state}");
        }
    }
}
