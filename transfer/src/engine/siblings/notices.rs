//! Notifications: those that wait to be taken, and which ones were delivered before.
//!
//! A notification that was lost is sent again, over whatever connection there is then, which may lead to
//! another core. So the cores of an engine remember together, behind a lock that is taken for notifications
//! and for the ends of connections, and for nothing else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::super::{Notification, Refusal};

/// Sessions without a connection whose notifications are remembered.
const GONE_MAX: usize = 1024;
/// Numbers of notifications that are remembered of one session.
const NOTES_MAX: usize = 4096;

/// What was heard of one session.
#[derive(Debug, Default)]
struct Heard {
    notes: BTreeSet<u64>,
    /// How many it has, by the core at which they are.
    connections: BTreeMap<usize, usize>,
    /// When its last connection ended, in the order of such ends.
    gone: Option<u64>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Notification>,
    /// By the number of each wait, so that one that is given up leaves nothing here.
    waiting: BTreeMap<u64, Waker>,
    waits: u64,
    heard: BTreeMap<u64, Heard>,
    gone: BTreeMap<u64, u64>,
    ends: u64,
    /// Cores that still deliver.
    cores: usize,
}

impl State {
    /// A session has no connection to a core any more. Those that have none at all are remembered in the
    /// order in which that came about, up to a bound.
    fn leave(&mut self, core: usize, session: u64) {
        let heard = self.heard.get_mut(&session);
        let heard = heard.expect("it had a connection");
        heard.connections.remove(&core);
        if !heard.connections.is_empty() {
            return;
        }
        self.ends += 1;
        heard.gone = Some(self.ends);
        self.gone.insert(self.ends, session);
        if self.gone.len() > GONE_MAX
            && let Some((_, oldest)) = self.gone.pop_first()
        {
            self.heard.remove(&oldest);
        }
    }
}

/// The notifications of one engine.
#[derive(Debug)]
pub(in crate::engine) struct Notices {
    queue_max: usize,
    state: Mutex<State>,
}

impl Notices {
    pub(super) fn new(queue_max: usize, cores: usize) -> Self {
        let state = State {
            cores,
            ..State::default()
        };
        Self {
            queue_max,
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A core that fails does not fail in here.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection of this session has opened, at that core.
    pub(in crate::engine) fn opened(&self, core: usize, session: u64) {
        let mut state = self.state();
        let state = &mut *state;
        let heard = state.heard.entry(session).or_default();
        *heard.connections.entry(core).or_default() += 1;
        if let Some(gone) = heard.gone.take() {
            state.gone.remove(&gone);
        }
    }

    /// A connection of this session has ended, at that core.
    pub(in crate::engine) fn ended(&self, core: usize, session: u64) {
        let mut state = self.state();
        let heard = state.heard.get_mut(&session);
        let heard = heard.expect("it had a connection");
        let here = heard.connections.get_mut(&core);
        let here = here.expect("it had one here");
        *here -= 1;
        if *here == 0 {
            state.leave(core, session);
        }
    }

    /// A notification that came over a connection, or by a message: queued, unless it was before.
    pub(in crate::engine) fn deliver(
        &self,
        session: u64,
        note: u64,
        bytes: Vec<u8>,
    ) -> Result<(), Refusal> {
        let mut state = self.state();
        // By a message it may come after the last connection has ended.
        let heard = state.heard.get(&session).ok_or(Refusal::Session)?;
        let heard = &heard.notes;
        if heard.contains(&note) {
            return Ok(());
        }
        let is_older = heard.first().is_some_and(|&first| note < first);
        if is_older && heard.len() >= NOTES_MAX {
            return Err(Refusal::Forgotten);
        }
        let from = session;
        self.queue(&mut state, Notification { from, bytes })?;
        let heard = state.heard.get_mut(&session).expect("just looked at");
        heard.notes.insert(note);
        if heard.notes.len() > NOTES_MAX {
            heard.notes.pop_first();
        }
        wake(state);
        Ok(())
    }

    /// A notification of the engine to itself.
    pub(in crate::engine) fn notify(&self, notification: Notification) -> Result<(), Refusal> {
        let mut state = self.state();
        self.queue(&mut state, notification)?;
        wake(state);
        Ok(())
    }

    fn queue(&self, state: &mut State, notification: Notification) -> Result<(), Refusal> {
        if state.queue.len() >= self.queue_max {
            return Err(Refusal::Busy);
        }
        state.queue.push_back(notification);
        Ok(())
    }

    /// A notification, if one waits.
    pub(in crate::engine) fn take(&self) -> Option<Notification> {
        self.state().queue.pop_front()
    }

    /// The next notification; `None` when no core is left that could deliver one.
    pub(in crate::engine) const fn next(&self) -> Next<'_> {
        Next {
            notices: self,
            wait: None,
        }
    }

    /// A core delivers no more. Its connections have ended, also those of which it has not said so.
    pub(super) fn core_ended(&self, core: usize) {
        let mut state = self.state();
        state.cores -= 1;
        let heard = state.heard.iter();
        let here = heard.filter(|(_, heard)| heard.connections.contains_key(&core));
        let sessions: Vec<u64> = here.map(|(&session, _)| session).collect();
        for session in sessions {
            state.leave(core, session);
        }
        wake(state);
    }
}

/// Wakes who waits, outside the lock.
fn wake(mut state: MutexGuard<'_, State>) {
    let waiting = std::mem::take(&mut state.waiting);
    drop(state);
    waiting.into_values().for_each(Waker::wake);
}

/// Somebody who waits for a notification.
#[derive(Debug)]
pub(in crate::engine) struct Next<'a> {
    notices: &'a Notices,
    /// The number under which it waits.
    wait: Option<u64>,
}

impl Future for Next<'_> {
    type Output = Option<Notification>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.notices.state();
        match state.queue.pop_front() {
            Some(notification) => Poll::Ready(Some(notification)),
            None if state.cores == 0 => Poll::Ready(None),
            None => {
                let wait = self.wait.unwrap_or_else(|| {
                    state.waits += 1;
                    state.waits
                });
                state.waiting.insert(wait, cx.waker().clone());
                drop(state);
                self.wait = Some(wait);
                Poll::Pending
            }
        }
    }
}

impl Drop for Next<'_> {
    fn drop(&mut self) {
        if let Some(wait) = self.wait {
            self.notices.state().waiting.remove(&wait);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notices(queue_max: usize) -> Notices {
        Notices::new(queue_max, 1)
    }

    #[test]
    fn notifications_are_remembered_up_to_a_bound_beyond_which_nobody_knows() {
        let notices = notices(10_000);
        notices.opened(0, 7);
        let count = || notices.state().queue.len() as u64;
        let newest = NOTES_MAX as u64 + 1;
        for note in 1..newest {
            assert_eq!(notices.deliver(7, note, Vec::new()), Ok(()));
            assert_eq!(notices.deliver(7, note, Vec::new()), Ok(()));
            assert_eq!(count(), note, "delivered once");
        }
        assert_eq!(notices.deliver(7, newest, Vec::new()), Ok(()));
        let forgotten = notices.deliver(7, 1, Vec::new());
        assert_eq!(forgotten, Err(Refusal::Forgotten), "the oldest of all");
        assert_eq!(notices.deliver(7, 2, Vec::new()), Ok(()));
        assert_eq!(count(), newest);
    }

    #[test]
    fn what_finds_no_room_is_not_taken_for_delivered() {
        let notices = notices(1);
        notices.opened(0, 7);
        assert_eq!(notices.deliver(7, 1, vec![1]), Ok(()));
        assert_eq!(notices.deliver(7, 2, vec![2]), Err(Refusal::Busy));
        let own = |bytes| Notification { from: 9, bytes };
        assert_eq!(notices.notify(own(vec![3])), Err(Refusal::Busy));
        let taken = notices.take().map(|notification| notification.bytes);
        assert_eq!(taken, Some(vec![1]));
        assert_eq!(notices.deliver(7, 2, vec![2]), Ok(()));
        let look = || Pin::new(&mut notices.next()).poll(&mut Context::from_waker(Waker::noop()));
        let next = look();
        let expected = Notification {
            from: 7,
            bytes: vec![2],
        };
        assert_eq!(next, Poll::Ready(Some(expected)));
        assert_eq!(look(), Poll::Pending);
        assert!(notices.state().waiting.is_empty(), "it was given up");
        notices.core_ended(0);
        assert_eq!(look(), Poll::Ready(None), "nobody is left");
    }

    #[test]
    fn sessions_without_a_connection_are_remembered_up_to_a_bound() {
        let notices = notices(10_000);
        for session in 0..=GONE_MAX as u64 {
            // Over two cores: it is gone with the last.
            for core in [0, 1, 1] {
                notices.opened(core, session);
            }
            assert_eq!(notices.deliver(session, 9, Vec::new()), Ok(()));
            for core in [1, 0, 1] {
                assert!(!notices.state().gone.values().any(|&gone| gone == session));
                notices.ended(core, session);
            }
        }
        let before = notices.state().queue.len();
        assert_eq!(notices.state().gone.len(), GONE_MAX);
        for (session, delivered) in [(0, 1), (1, 0)] {
            let before = notices.state().queue.len();
            notices.opened(0, session);
            assert_eq!(notices.deliver(session, 9, Vec::new()), Ok(()));
            let after = notices.state().queue.len();
            assert_eq!(after - before, delivered, "of session {session}");
        }
        assert_eq!(notices.state().queue.len(), before + 1);
    }
    #[test]
    fn a_core_that_ends_takes_its_connections_with_it() {
        let notices = Notices::new(10, 2);
        notices.opened(0, 7);
        notices.opened(0, 7);
        notices.opened(0, 8);
        notices.opened(1, 8);
        notices.core_ended(0);
        let gone: Vec<u64> = notices.state().gone.values().copied().collect();
        assert_eq!(gone, [7], "the other is at the other core too");
        notices.ended(1, 8);
        let gone: Vec<u64> = notices.state().gone.values().copied().collect();
        assert_eq!(gone, [7, 8]);
    }
}
