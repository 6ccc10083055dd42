//! Who is connected.
//!
//! The connections of one peer's engine make a session, named by its epoch. A peer that has lost a
//! connection asks, over another one, for its end: what it wrote there may be in our kernel still.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use lunette_auth::Request;
use lunette_runtime::Signal;

use super::Refusal;
use super::grants::Grants;
use crate::server::{Closer, ConnectionId};

/// Sessions without a connection that are remembered, for their notifications.
const GONE_MAX: usize = 1024;
/// Numbers of notifications that are remembered of one session.
const NOTES_MAX: usize = 4096;

/// A connection of this engine: the listener that accepted it, and its name there.
pub(super) type Link = (usize, ConnectionId);

/// What of a connection is on its way to files: it lands also when the connection has ended.
#[derive(Debug, Default)]
struct Landings {
    count: Cell<usize>,
    has_ended: Cell<bool>,
    /// Raised when it has ended, and nothing of it lands any more.
    waiting: RefCell<Vec<Rc<Signal>>>,
}

impl Landings {
    fn settle(&self) {
        if self.count.get() == 0 && self.has_ended.get() {
            for signal in self.waiting.take() {
                signal.raise();
            }
        }
    }
}

/// Something that lands, until it is dropped.
#[derive(Debug)]
pub(super) struct Landing(Rc<Landings>);

impl Drop for Landing {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
        self.0.settle();
    }
}

/// What ends a connection.
pub(super) trait Close {
    fn close(&self);
}

impl Close for Closer {
    fn close(&self) {
        Self::close(self);
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
    notes: BTreeSet<u64>,
    /// What it has redeemed, while it has a connection.
    grants: Grants,
    /// When its last connection ended, in the order of such ends.
    gone: Option<u64>,
}

impl<C> Default for Session<C> {
    fn default() -> Self {
        Self {
            open: BTreeMap::new(),
            landing: BTreeMap::new(),
            notes: BTreeSet::new(),
            grants: Grants::default(),
            gone: None,
        }
    }
}

impl<C> Session<C> {
    /// A connection has ended; something of it may still be landing.
    fn ended(&mut self, number: u64, landings: Rc<Landings>) {
        landings.has_ended.set(true);
        landings.settle();
        self.landing.retain(|_, landings| landings.count.get() > 0);
        if landings.count.get() > 0 {
            self.landing.insert(number, landings);
        }
    }
}

/// The sessions of one engine's peers.
#[derive(Debug)]
pub(super) struct Sessions<C = Closer> {
    sessions: BTreeMap<u64, Session<C>>,
    links: BTreeMap<Link, (u64, u64)>,
    gone: BTreeMap<u64, u64>,
    ends: u64,
}

/// What is to be done with a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It is to be delivered; it comes from this session.
    New {
        /// The epoch of the session.
        from: u64,
    },
    /// It was delivered before.
    Before,
    /// So many later ones were delivered that it is not known any more.
    Forgotten,
    /// Its connection belongs to no session.
    Nowhere,
}

impl<C> Default for Sessions<C> {
    fn default() -> Self {
        Self {
            sessions: BTreeMap::new(),
            links: BTreeMap::new(),
            gone: BTreeMap::new(),
            ends: 0,
        }
    }
}

impl<C: Close> Sessions<C> {
    /// A connection was opened by the engine of `epoch`, which calls it `number`.
    pub(super) fn open(&mut self, link: Link, epoch: u64, number: u64, closer: C) {
        let session = self.sessions.entry(epoch).or_default();
        if let Some(gone) = session.gone.take() {
            self.gone.remove(&gone);
        }
        let open = Open {
            link,
            closer,
            landings: Rc::default(),
        };
        if let Some(older) = session.open.insert(number, open) {
            // Its peer gives each number once: it is the peer's fault, and its loss.
            older.closer.close();
            self.links.remove(&older.link);
            session.ended(number, older.landings);
        }
        self.links.insert(link, (epoch, number));
    }

    /// A connection has ended.
    pub(super) fn end(&mut self, link: Link) {
        let Some((epoch, number)) = self.links.remove(&link) else {
            return;
        };
        let session = self.sessions.get_mut(&epoch).expect("it had a connection");
        if let Some(open) = session.open.remove(&number) {
            session.ended(number, open.landings);
        }
        if session.open.is_empty() {
            self.ends += 1;
            session.grants = Grants::default();
            session.gone = Some(self.ends);
            self.gone.insert(self.ends, epoch);
        }
        if self.gone.len() > GONE_MAX
            && let Some((_, epoch)) = self.gone.pop_first()
        {
            self.sessions.remove(&epoch);
        }
    }

    /// Begins to end a connection of the session that `asking` belongs to. What is returned is raised
    /// when it has ended; `None` if it has already.
    pub(super) fn fence(&mut self, asking: Link, number: u64) -> Option<Rc<Signal>> {
        let (epoch, _) = self.links.get(&asking)?;
        let session = self.sessions.get_mut(epoch)?;
        let landings = match session.open.get(&number) {
            Some(open) => {
                open.closer.close();
                &open.landings
            }
            None => session.landing.get(&number)?,
        };
        if landings.has_ended.get() && landings.count.get() == 0 {
            return None;
        }
        let signal = Rc::new(Signal::default());
        landings.waiting.borrow_mut().push(Rc::clone(&signal));
        Some(signal)
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
        Landing(landings)
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

    /// Whether a notification was delivered before.
    pub(super) fn see(&self, link: Link, note: u64) -> Seen {
        let Some(&(from, _)) = self.links.get(&link) else {
            return Seen::Nowhere;
        };
        let session = &self.sessions[&from];
        let is_older = session.notes.first().is_some_and(|&first| note < first);
        if session.notes.contains(&note) {
            Seen::Before
        } else if is_older && session.notes.len() >= NOTES_MAX {
            Seen::Forgotten
        } else {
            Seen::New { from }
        }
    }

    /// A notification has been delivered.
    pub(super) fn delivered(&mut self, from: u64, note: u64) {
        if let Some(session) = self.sessions.get_mut(&from) {
            session.notes.insert(note);
            if session.notes.len() > NOTES_MAX {
                session.notes.pop_first();
            }
        }
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
        let early = sessions.fence(link(2), 1).expect("it is open");
        drop(first);
        sessions.end(link(1));
        let late = sessions.fence(link(2), 1).expect("something lands");
        assert!(!is_raised(&early) && !is_raised(&late));
        drop(second);
        assert!(is_raised(&early) && is_raised(&late));
        assert!(sessions.fence(link(2), 1).is_none(), "it has ended");
        let landing = sessions.land(link(2));
        drop(landing);
        let fenced = sessions.fence(link(2), 2).expect("it is open");
        sessions.end(link(2));
        assert!(is_raised(&fenced), "nothing lands");
        drop(sessions.land(link(9)));
    }

    #[test]
    fn notifications_are_remembered_up_to_a_bound_beyond_which_nobody_knows() {
        let mut sessions = Sessions::<()>::default();
        sessions.open(link(1), 7, 1, ());
        let newest = NOTES_MAX as u64 + 1;
        for note in 1..newest {
            assert_eq!(sessions.see(link(1), note), Seen::New { from: 7 });
            sessions.delivered(7, note);
            assert_eq!(sessions.see(link(1), note), Seen::Before);
        }
        assert_eq!(sessions.see(link(1), 1), Seen::Before, "the oldest of all");
        sessions.delivered(7, newest);
        assert_eq!(sessions.see(link(1), 1), Seen::Forgotten);
        assert_eq!(sessions.see(link(1), 2), Seen::Before);
        assert_eq!(sessions.see(link(2), 2), Seen::Nowhere);
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
    fn sessions_without_a_connection_are_remembered_up_to_a_bound() {
        let mut sessions = Sessions::<()>::default();
        for epoch in 0..=GONE_MAX as u64 {
            sessions.open(link(epoch), epoch, 1, ());
            sessions.delivered(epoch, 9);
            sessions.end(link(epoch));
        }
        assert_eq!(sessions.gone.len(), GONE_MAX);
        for (epoch, seen) in [(0, Seen::New { from: 0 }), (1, Seen::Before)] {
            let again = link(10_000 + epoch);
            sessions.open(again, epoch, 2, ());
            assert_eq!(sessions.see(again, 9), seen, "of session {epoch}");
        }
    }
}
