//! Who is connected.
//!
//! The connections of one peer's engine make a session, named by its epoch. A peer that has lost a
//! connection asks, over another one, for its end: what it wrote there may be in our kernel still.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use lunette_runtime::Signal;

use crate::server::{Closer, ConnectionId};

/// Sessions without a connection that are remembered, for their notifications.
const GONE_MAX: usize = 1024;
/// Numbers of notifications that are remembered of one session.
const NOTES_MAX: usize = 4096;

/// A connection of this engine: the listener that accepted it, and its name there.
pub(super) type Link = (usize, ConnectionId);

#[derive(Debug)]
struct Open {
    link: Link,
    closer: Closer,
    /// Raised when it has ended.
    waiting: Vec<Rc<Signal>>,
}

#[derive(Debug, Default)]
struct Session {
    /// By the number that its peer gave each.
    open: BTreeMap<u64, Open>,
    notes: BTreeSet<u64>,
    /// When its last connection ended, in the order of such ends.
    gone: Option<u64>,
}

/// The sessions of one engine's peers.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    sessions: BTreeMap<u64, Session>,
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
    /// Its connection belongs to no session.
    Nowhere,
}

impl Sessions {
    /// A connection was opened by the engine of `epoch`, which calls it `number`.
    pub(super) fn open(&mut self, link: Link, epoch: u64, number: u64, closer: Closer) {
        let session = self.sessions.entry(epoch).or_default();
        if let Some(gone) = session.gone.take() {
            self.gone.remove(&gone);
        }
        let open = Open {
            link,
            closer,
            waiting: Vec::new(),
        };
        if let Some(older) = session.open.insert(number, open) {
            // Its peer gives each number once: it is the peer's fault, and its loss.
            older.closer.close();
            self.links.remove(&older.link);
            older.waiting.iter().for_each(|signal| signal.raise());
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
            open.waiting.iter().for_each(|signal| signal.raise());
        }
        if session.open.is_empty() {
            self.ends += 1;
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
        let open = self.sessions.get_mut(epoch)?.open.get_mut(&number)?;
        let signal = Rc::new(Signal::default());
        open.waiting.push(Rc::clone(&signal));
        open.closer.close();
        Some(signal)
    }

    /// Whether a notification was delivered before.
    pub(super) fn see(&self, link: Link, note: u64) -> Seen {
        let Some(&(from, _)) = self.links.get(&link) else {
            return Seen::Nowhere;
        };
        let session = &self.sessions[&from];
        // What is older than all that are remembered was delivered long ago.
        let is_old = session.notes.len() >= NOTES_MAX
            && session.notes.first().is_some_and(|&first| note < first);
        if is_old || session.notes.contains(&note) {
            Seen::Before
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
