//! Who is connected.
//!
//! The connections of one peer's engine make a session, named by its epoch. A peer that has lost a
//! connection asks, over another one, for its end: what it wrote there may be in our kernel still. The
//! other one may lead to another core of this engine, which asks all its siblings.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use futures_channel::oneshot;
use lunette_auth::Request;
use lunette_runtime::Signal;

use super::Refusal;
use super::grants::Grants;
use super::siblings::Presence;
use crate::server::{Closer, ConnectionId};

/// A connection of this engine: the listener that accepted it, and its name there.
pub(super) type Link = (usize, ConnectionId);

/// What of a connection is on its way to files: it lands also when the connection has ended.
#[derive(Debug, Default)]
struct Landings {
    count: Cell<usize>,
    has_ended: Cell<bool>,
    /// Told when it has ended, and nothing of it lands any more.
    waiting: RefCell<Vec<Told>>,
}

impl Landings {
    fn settle(&self) {
        if self.is_settled() {
            for told in self.waiting.take() {
                told.tell();
            }
        }
    }

    fn is_settled(&self) -> bool {
        self.count.get() == 0 && self.has_ended.get()
    }
}

/// Who waits for the end of a connection.
#[derive(Debug)]
pub(super) enum Told {
    /// A task of this core.
    Here(Rc<Signal>),
    /// Another core.
    There(oneshot::Sender<()>),
}

impl Told {
    fn tell(self) {
        match self {
            Self::Here(signal) => signal.raise(),
            // Nobody waits any more: then nobody is told.
            Self::There(sender) => {
                let _told = sender.send(());
            }
        }
    }
}

/// Something that lands, until it is dropped.
#[derive(Debug)]
pub(super) struct Landing {
    landings: Rc<Landings>,
    is_late: bool,
}

impl Landing {
    /// Nobody knows whether it has landed, or will: fences of its connection never end, so that whoever asks for one
    /// gives up at its deadline, and does not send what might be overtaken by this.
    pub(super) fn may_be_late(mut self) {
        self.is_late = true;
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if !self.is_late {
            self.landings.count.set(self.landings.count.get() - 1);
            self.landings.settle();
        }
    }
}

/// What ends a connection.
pub(super) trait Close {
    fn close(&self);
}

/// A connection, as its session holds it.
#[derive(Debug)]
pub(super) struct Attached {
    closer: Closer,
    _presence: Arc<Presence>,
}

impl Attached {
    pub(super) const fn new(closer: Closer, presence: Arc<Presence>) -> Self {
        Self {
            closer,
            _presence: presence,
        }
    }
}

impl Close for Attached {
    fn close(&self) {
        self.closer.close();
    }
}

#[derive(Debug)]
struct Open<C> {
    link: Link,
    closer: C,
    landings: Rc<Landings>,
}

#[derive(Debug)]
struct Session<C> {
    /// By the number that its peer gave each.
    open: BTreeMap<u64, Open<C>>,
    /// Those that have ended while something of them was landing.
    landing: BTreeMap<u64, Rc<Landings>>,
    /// What it has redeemed, while it has a connection.
    grants: Grants,
}

impl<C> Default for Session<C> {
    fn default() -> Self {
        Self {
            open: BTreeMap::new(),
            landing: BTreeMap::new(),
            grants: Grants::default(),
        }
    }
}

impl<C> Session<C> {
    /// A connection has ended; something of it may still be landing.
    fn ended(&mut self, number: u64, landings: Rc<Landings>) {
        landings.has_ended.set(true);
        landings.settle();
        self.sweep();
        if landings.count.get() > 0 {
            self.landing.insert(number, landings);
        }
    }

    /// Forgets what has landed.
    fn sweep(&mut self) {
        self.landing.retain(|_, landings| landings.count.get() > 0);
    }
}

/// The sessions of the peers of one core of an engine.
#[derive(Debug)]
pub(super) struct Sessions<C = Attached> {
    sessions: BTreeMap<u64, Session<C>>,
    links: BTreeMap<Link, (u64, u64)>,
    /// Sessions of whose last connection something was still landing when it ended.
    landing: Vec<u64>,
}

impl<C> Default for Sessions<C> {
    fn default() -> Self {
        Self {
            sessions: BTreeMap::new(),
            links: BTreeMap::new(),
            landing: Vec::new(),
        }
    }
}

impl<C: Close> Sessions<C> {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// A connection was opened by the engine of `epoch`, which calls it `number`. Says whether it is one more
    /// than before.
    pub(super) fn open(&mut self, link: Link, epoch: u64, number: u64, closer: C) -> bool {
        let session = self.sessions.entry(epoch).or_default();
        let open = Open {
            link,
            closer,
            landings: Rc::default(),
        };
        let older = session.open.insert(number, open);
        let is_one_more = older.is_none();
        if let Some(older) = older {
            // Its peer gives each number once: it is the peer's fault, and its loss.
            older.closer.close();
            self.links.remove(&older.link);
            session.ended(number, older.landings);
        }
        self.links.insert(link, (epoch, number));
        is_one_more
    }

    /// A connection has ended. Says whose it was, if it was one of those that count.
    pub(super) fn end(&mut self, link: Link) -> Option<u64> {
        let (epoch, number) = self.links.remove(&link)?;
        let session = self.sessions.get_mut(&epoch).expect("it had a connection");
        let open = session.open.remove(&number);
        let open = open.expect("what is linked is open");
        session.ended(number, open.landings);
        if session.open.is_empty() {
            session.grants = Grants::default();
            self.landing.push(epoch);
        }
        self.sweep();
        Some(epoch)
    }

    /// Forgets sessions without a connection of which nothing lands any more.
    fn sweep(&mut self) {
        let sessions = &mut self.sessions;
        self.landing.retain(|epoch| {
            let Some(session) = sessions.get_mut(epoch) else {
                return false;
            };
            session.sweep();
            let is_back = !session.open.is_empty();
            let is_over = !is_back && session.landing.is_empty();
            if is_over {
                sessions.remove(epoch);
            }
            !is_back && !is_over
        });
    }

    /// The session that a connection belongs to.
    pub(super) fn session(&self, link: Link) -> Option<u64> {
        self.links.get(&link).map(|&(epoch, _)| epoch)
    }

    /// Begins to end a connection of a session. What is returned is raised when it has ended; `None` if it
    /// has already, or never was here.
    pub(super) fn fence(&self, epoch: u64, number: u64) -> Option<Rc<Signal>> {
        let landings = self.close(epoch, number)?;
        let signal = Rc::new(Signal::default());
        let told = Told::Here(Rc::clone(&signal));
        landings.waiting.borrow_mut().push(told);
        Some(signal)
    }

    /// As [`fence`](Self::fence), for another core, which is told also if there is nothing to end.
    pub(super) fn fence_for(&self, epoch: u64, number: u64, told: oneshot::Sender<()>) {
        let told = Told::There(told);
        match self.close(epoch, number) {
            Some(landings) => landings.waiting.borrow_mut().push(told),
            None => told.tell(),
        }
    }

    /// Ends a connection, and says what of it is still to be waited for.
    fn close(&self, epoch: u64, number: u64) -> Option<&Landings> {
        let session = self.sessions.get(&epoch)?;
        let landings = match session.open.get(&number) {
            Some(open) => {
                open.closer.close();
                &open.landings
            }
            None => session.landing.get(&number)?,
        };
        (!landings.is_settled()).then_some(&**landings)
    }

    /// Something that came over a connection is on its way to a file, until what is returned is dropped.
    pub(super) fn land(&self, link: Link) -> Landing {
        let open = self.links.get(&link);
        let open = open.and_then(|(epoch, number)| self.sessions.get(epoch)?.open.get(number));
        // Who belongs to no session asks for no fence.
        let landings = open
            .map(|open| Rc::clone(&open.landings))
            .unwrap_or_default();
        landings.count.set(landings.count.get() + 1);
        Landing {
            landings,
            is_late: false,
        }
    }

    /// Whose session a connection belongs to, and what that has redeemed.
    pub(super) fn grants(&mut self, link: Link) -> Option<(u64, &mut Grants)> {
        let &(epoch, _) = self.links.get(&link)?;
        let session = self.sessions.get_mut(&epoch)?;
        Some((epoch, &mut session.grants))
    }

    /// Whether an access over a connection is granted while it is the segment's epoch `current`.
    pub(super) fn permit(&self, link: Link, wanted: &Request, current: u64) -> Result<(), Refusal> {
        let &(epoch, _) = self.links.get(&link).ok_or(Refusal::NoCapability)?;
        self.sessions[&epoch].grants.permit(wanted, current)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use lunette_auth::{Capability, Entropy, OwnerKey, Rights, SessionId};
    use lunette_transfer_proto::engine::segment::{SegmentId, Way};

    use super::super::grants::request;
    use super::*;

    impl Close for () {
        fn close(&self) {}
    }

    fn link(number: u64) -> Link {
        (0, ConnectionId(number))
    }

    #[test]
    fn a_fence_waits_for_what_lands_after_the_end_of_its_connection() {
        let is_raised = |signal: &Rc<Signal>| signal.poll(Waker::noop()).is_ready();
        let mut sessions = Sessions::<()>::default();
        for number in [1, 2] {
            sessions.open(link(number), 7, number, ());
        }
        let (first, second) = (sessions.land(link(1)), sessions.land(link(1)));
        let early = sessions.fence(7, 1).expect("it is open");
        drop(first);
        sessions.end(link(1));
        let late = sessions.fence(7, 1).expect("something lands");
        assert!(!is_raised(&early) && !is_raised(&late));
        drop(second);
        assert!(is_raised(&early) && is_raised(&late));
        assert!(sessions.fence(7, 1).is_none(), "it has ended");
        let landing = sessions.land(link(2));
        drop(landing);
        let fenced = sessions.fence(7, 2).expect("it is open");
        sessions.end(link(2));
        assert!(is_raised(&fenced), "nothing lands");
        drop(sessions.land(link(9)));
    }

    #[test]
    fn a_fence_never_ends_where_something_may_still_land() {
        let mut sessions = Sessions::<()>::default();
        sessions.open(link(1), 7, 1, ());
        sessions.land(link(1)).may_be_late();
        drop(sessions.land(link(1)));
        let fence = sessions.fence(7, 1).expect("it is open");
        sessions.end(link(1));
        assert!(fence.poll(Waker::noop()).is_pending());
        let again = sessions.fence(7, 1).expect("nobody knows better later");
        assert!(again.poll(Waker::noop()).is_pending());
        sessions.open(link(2), 7, 2, ());
        let other = sessions.fence(7, 2).expect("it is open");
        sessions.end(link(2));
        assert!(
            other.poll(Waker::noop()).is_ready(),
            "nothing was lost there"
        );
    }

    #[test]
    fn what_was_redeemed_lasts_as_long_as_any_connection_of_its_session() {
        let wanted = request(SegmentId::from_wire(3), Way::Read, 0, 10);
        let session = SessionId([0; 16]);
        let issuer = OwnerKey::new(&Entropy::new([1; 32])).issuer(session, 5);
        let token = issuer.issue(&Capability {
            rights: Rights::READ,
            segment: 3,
            offset_bytes: 0,
            len_bytes: 10,
        });
        let verified = issuer.verify(&token.unwrap()).unwrap();
        let mut sessions = Sessions::<()>::default();
        assert!(sessions.grants(link(1)).is_none(), "no session");
        sessions.open(link(1), 7, 1, ());
        sessions.open(link(2), 7, 2, ());
        sessions.open(link(3), 8, 1, ());
        let (epoch, grants) = sessions.grants(link(1)).unwrap();
        assert_eq!(epoch, 7);
        grants.add(verified, |_| true).unwrap();
        let none = Err(Refusal::NoCapability);
        for (number, expected) in [(1, Ok(())), (2, Ok(())), (3, none), (4, none)] {
            assert_eq!(sessions.permit(link(number), &wanted, 5), expected);
        }
        assert_eq!(sessions.permit(link(2), &wanted, 6), Err(Refusal::Revoked));
        sessions.end(link(1));
        assert_eq!(sessions.permit(link(1), &wanted, 5), none);
        assert_eq!(sessions.permit(link(2), &wanted, 5), Ok(()));
        // A number that is given twice: the session has a connection all the time.
        sessions.open(link(5), 7, 2, ());
        assert_eq!(sessions.permit(link(5), &wanted, 5), Ok(()));
        sessions.end(link(5));
        sessions.open(link(6), 7, 3, ());
        assert_eq!(sessions.permit(link(6), &wanted, 5), none);
    }

    #[test]
    fn a_session_is_forgotten_with_its_last_connection_and_what_lands_of_it() {
        let mut sessions = Sessions::<()>::default();
        assert!(sessions.open(link(1), 7, 1, ()));
        assert!(!sessions.open(link(2), 7, 1, ()), "in place of the first");
        assert_eq!(sessions.end(link(1)), None, "it does not count any more");
        let landing = sessions.land(link(2));
        assert_eq!(
            (sessions.session(link(2)), sessions.end(link(2))),
            (Some(7), Some(7))
        );
        assert!(sessions.fence(7, 1).is_some(), "something lands");
        drop(landing);
        assert!(sessions.open(link(3), 8, 1, ()));
        assert_eq!(sessions.end(link(3)), Some(8));
        assert!(sessions.sessions.is_empty() && sessions.landing.is_empty());
    }

    #[test]
    fn another_core_is_told_of_what_ends_and_of_what_never_was() {
        let mut sessions = Sessions::<()>::default();
        sessions.open(link(1), 7, 1, ());
        let ask = |sessions: &Sessions<()>, number| {
            let (sender, receiver) = oneshot::channel();
            sessions.fence_for(7, number, sender);
            receiver
        };
        let (mut never, mut waits) = (ask(&sessions, 9), ask(&sessions, 1));
        assert_eq!(never.try_recv(), Ok(Some(())));
        assert_eq!(waits.try_recv(), Ok(None));
        sessions.end(link(1));
        assert_eq!(waits.try_recv(), Ok(Some(())));
        let mut again = ask(&sessions, 1);
        assert_eq!(again.try_recv(), Ok(Some(())), "it has ended");
    }
}
