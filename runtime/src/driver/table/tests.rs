//! The table's states: each sequence of events up to a length, against a model.

use std::io::{PipeReader, Read};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use super::super::CompletionFlags;
use super::*;

const RECEIVE: Submission = Submission::Receive { start: 0, len: 1 };

fn insert(table: &mut Table, what: Submission) -> Key {
    let lease = if what.is_multishot() {
        Lease::Nothing
    } else {
        Lease::Bytes(vec![0])
    };
    let (reads, _writes) = std::io::pipe().expect("a pipe");
    let fd = Descriptor::plain(Handle::System(reads.into()));
    table.insert(what, Some(fd), lease).expect("room").0
}

#[derive(Default)]
struct Counted(AtomicUsize);

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn poll(table: &mut Table, key: Key) -> Poll<Polled> {
    table.poll(key, &Context::from_waker(Waker::noop()))
}

fn completion(key: Key, result: i32, more: bool) -> Completion {
    let flags = if more {
        CompletionFlags::NONE.with_more()
    } else {
        CompletionFlags::NONE
    };
    Completion {
        user_data: key.user_data(),
        result,
        flags,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Poll,
    /// A completion after which another follows.
    More,
    /// The last completion.
    Last,
    Abandon,
}

/// Where an operation with one outcome stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Model {
    InFlight,
    Sent,
    Done,
    Orphan,
    Free,
}

/// The whole table of an operation with one outcome: state, event, next state. What is not listed
/// cannot happen.
const TRANSITIONS: [(Model, Event, Model); 11] = [
    (Model::InFlight, Event::Poll, Model::InFlight),
    (Model::InFlight, Event::More, Model::Sent),
    (Model::InFlight, Event::Last, Model::Done),
    (Model::InFlight, Event::Abandon, Model::Orphan),
    (Model::Sent, Event::Poll, Model::Sent),
    (Model::Sent, Event::Last, Model::Done),
    (Model::Sent, Event::Abandon, Model::Orphan),
    (Model::Done, Event::Poll, Model::Free),
    (Model::Done, Event::Abandon, Model::Free),
    (Model::Orphan, Event::More, Model::Orphan),
    (Model::Orphan, Event::Last, Model::Free),
];

/// Runs `path` on a fresh table and checks what each event gives against the model's states.
fn walk(path: &[(Model, Event, Model)]) {
    let mut table = Table::new();
    let key = insert(&mut table, RECEIVE);
    let woken = Arc::new(Counted::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut polled = false;
    for &(from, event, to) in path {
        let owned_by_device = matches!(to, Model::InFlight | Model::Sent | Model::Orphan);
        match event {
            Event::Poll => match table.poll(key, &Context::from_waker(&waker)) {
                Poll::Pending => polled = true,
                Poll::Ready(out) => {
                    assert_eq!((from, to), (Model::Done, Model::Free), "{path:?}");
                    assert_eq!(out.result, 7, "the first completion's result: {path:?}");
                    assert!(matches!(out.lease, Lease::Bytes(bytes) if bytes == [0]));
                }
            },
            Event::More | Event::Last => {
                let is_notice = from == Model::Sent
                    || path.contains(&(Model::Orphan, Event::More, Model::Orphan));
                let result = if is_notice && event == Event::Last {
                    0
                } else {
                    7
                };
                let effect = table.complete(completion(key, result, event == Event::More));
                match effect {
                    Effect::Nothing => assert!(!polled || event == Event::More, "{path:?}"),
                    Effect::Wake(waker) => {
                        assert!(polled && to == Model::Done, "{path:?}");
                        waker.wake();
                    }
                    Effect::Drop(dropped) => {
                        assert_eq!(from, Model::Orphan);
                        assert_eq!(dropped._lease.is_some(), to == Model::Free, "{path:?}");
                    }
                    other @ Effect::WakeAll(..) => panic!("{other:?} of {path:?}"),
                }
            }
            Event::Abandon => {
                let (cancel, dropped) = table.abandon(key);
                assert_eq!(cancel, to == Model::Orphan, "{path:?}");
                assert_eq!(dropped._lease.is_some(), to == Model::Free, "{path:?}");
            }
        }
        assert_eq!(table.len(), usize::from(to != Model::Free), "{path:?}");
        assert_eq!(
            table.in_flight().len(),
            usize::from(owned_by_device),
            "{path:?}"
        );
    }
    let was_done_after_poll = path.iter().any(|&(_, _, to)| to == Model::Done) && polled;
    if was_done_after_poll {
        let first_poll = path.iter().position(|step| step.1 == Event::Poll);
        let done = path.iter().position(|step| step.2 == Model::Done);
        let expected = usize::from(first_poll < done);
        assert_eq!(woken.0.load(Ordering::Relaxed), expected, "{path:?}");
    }
}

#[test]
fn every_path_through_the_states_frees_the_lease_once_and_with_the_last_completion() {
    fn extend(path: &mut Vec<(Model, Event, Model)>, at: Model, walked: &mut usize) {
        walk(path);
        *walked += 1;
        if at == Model::Free || path.len() == 6 {
            return;
        }
        for step in TRANSITIONS.into_iter().filter(|step| step.0 == at) {
            // A send has two completions: one that announces the other at most once.
            if step.1 == Event::More && path.iter().any(|done| done.1 == Event::More) {
                continue;
            }
            path.push(step);
            extend(path, step.2, walked);
            path.pop();
        }
    }
    let mut walked = 0;
    extend(&mut Vec::new(), Model::InFlight, &mut walked);
    assert!(walked > 50, "{walked} paths");
}

/// A descriptor as the kernel would hand it out, and what tells when it is closed.
fn descriptor() -> (i32, PipeReader) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    (OwnedFd::from(writer).into_raw_fd(), reader)
}

fn is_closed(mut reader: PipeReader) -> bool {
    // Miri, which does not know the call, waits for ever where this fails.
    if !cfg!(miri) {
        rustix::io::ioctl_fionbio(&reader, true).expect("a pipe");
    }
    matches!(reader.read(&mut [0]), Ok(0))
}

fn next(table: &mut Table, key: Key) -> Poll<Result<Arrival, Lease>> {
    table.poll_next(key, &Context::from_waker(Waker::noop()))
}

#[test]
fn a_multishot_operation_hands_each_answer_out_once_and_ends_once() {
    let mut table = Table::new();
    let key = insert(&mut table, Submission::AcceptMany);
    assert!(next(&mut table, key).is_pending());
    let (first, first_end) = descriptor();
    let (second, second_end) = descriptor();
    let effect = table.complete(completion(key, first, true));
    assert!(matches!(effect, Effect::WakeAll(wakers, None) if wakers.len() == 1));
    table.complete(completion(key, second, true));
    table.complete(completion(key, -libc::EMFILE, false));
    assert!(table.in_flight().is_empty());
    let Poll::Ready(Ok(Arrival::Accepted(fd))) = next(&mut table, key) else {
        panic!("the first connection");
    };
    drop(fd);
    assert!(is_closed(first_end));
    assert!(matches!(
        next(&mut table, key),
        Poll::Ready(Ok(Arrival::Accepted(_)))
    ));
    assert!(is_closed(second_end));
    let failed = next(&mut table, key);
    assert!(matches!(
        failed,
        Poll::Ready(Ok(Arrival::Failed(Errno::MFILE)))
    ));
    assert!(matches!(
        next(&mut table, key),
        Poll::Ready(Err(Lease::Nothing))
    ));
    assert_eq!(table.len(), 0);
}

#[test]
fn a_descriptor_that_arrives_before_or_after_its_cancel_is_closed() {
    let mut table = Table::new();
    let key = insert(&mut table, Submission::AcceptMany);
    let (early, early_end) = descriptor();
    let (late, late_end) = descriptor();
    table.complete(completion(key, early, true));
    let (cancel, dropped) = table.abandon(key);
    assert!(cancel);
    drop(dropped);
    assert!(is_closed(early_end));
    drop(table.complete(completion(key, late, true)));
    assert!(is_closed(late_end));
    assert_eq!(table.in_flight(), [key]);
    let last = table.complete(completion(key, -libc::ECANCELED, false));
    assert!(matches!(
        last,
        Effect::Drop(Dropped {
            _lease: Some(Lease::Nothing),
            ..
        })
    ));
    assert_eq!(table.len(), 0);
}

#[test]
fn accepting_stops_at_its_bound() {
    let mut table = Table::new();
    let key = insert(&mut table, Submission::AcceptMany);
    let mut ends = Vec::new();
    for at in 1..=ACCEPTED_MAX + 3 {
        let (fd, end) = descriptor();
        ends.push(end);
        let effect = table.complete(completion(key, fd, true));
        let asked_to_stop = matches!(effect, Effect::WakeAll(_, Some(stopped)) if stopped == key);
        assert_eq!(asked_to_stop, at == ACCEPTED_MAX, "at {at}");
    }
    table.complete(completion(key, -libc::ECANCELED, false));
    // What had been accepted is not lost.
    for _ in 0..ACCEPTED_MAX + 3 {
        assert!(matches!(
            next(&mut table, key),
            Poll::Ready(Ok(Arrival::Accepted(_)))
        ));
    }
    assert!(next(&mut table, key).is_ready());
    assert!(ends.into_iter().all(is_closed));
}

#[test]
fn every_task_that_waits_for_an_answer_is_woken() {
    let mut table = Table::new();
    let key = insert(&mut table, Submission::AcceptMany);
    let woken: Vec<_> = (0..3).map(|_| Arc::new(Counted::default())).collect();
    for counted in &woken {
        let waker = Waker::from(Arc::clone(counted));
        // Polled twice, kept once. Under Miri one waker's tables have two addresses.
        let polls = if cfg!(miri) { 1 } else { 2 };
        for _ in 0..polls {
            assert!(
                table
                    .poll_next(key, &Context::from_waker(&waker))
                    .is_pending()
            );
        }
    }
    let Effect::WakeAll(wakers, None) = table.complete(completion(key, -libc::EMFILE, false))
    else {
        panic!("somebody waits");
    };
    assert_eq!(wakers.len(), 3);
    wakers.into_iter().for_each(Waker::wake);
    assert!(
        woken
            .iter()
            .all(|counted| counted.0.load(Ordering::Relaxed) == 1)
    );
}

#[test]
fn the_table_refuses_at_its_bound_and_gives_the_lease_back() {
    let mut table = Table::new();
    let keys: Vec<Key> = (0..OPERATIONS_MAX)
        .map(|_| insert(&mut table, RECEIVE))
        .collect();
    let refused = table.insert(RECEIVE, None, Lease::Bytes(vec![5]));
    assert!(matches!(refused, Err(Lease::Bytes(bytes)) if bytes == [5]));
    table.complete(completion(keys[0], 0, false));
    assert!(poll(&mut table, keys[0]).is_ready());
    insert(&mut table, RECEIVE);
}
