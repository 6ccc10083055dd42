//! What is going to happen, in the order in which it will.

use std::collections::BTreeMap;

use lunette_runtime_core::random::{SplitMix64, mix};
use lunette_runtime_core::time::Time;
use rustix::io::Errno;

use super::network::SocketId;

/// A core of the world, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seat(pub(super) u32);

/// Something that will happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A core turns.
    Step(Seat),
    /// What this socket has sent first arrives at its peer.
    Arrive(SocketId),
    /// This socket's peer has taken so many bytes, which makes room for others.
    Taken { by_peer_of: SocketId, count: usize },
    /// A socket asks its peer whether it is there still, which it has not been since.
    Probe { from: SocketId, since: Time },
    /// A request for a connection reaches its host, for the `tries`th time.
    Request { from: SocketId, tries: u32 },
    /// The answer to it.
    Answer {
        to: SocketId,
        accepted: Option<SocketId>,
    },
    /// A drive does an operation.
    Disk { seat: Seat, key: u64 },
    /// An operation is to end with this error, if it has not by itself.
    End { seat: Seat, key: u64, errno: Errno },
}

/// The name of an event that may be taken back.
pub(super) type EventKey = (u64, u64, u64);

/// The events to come. Those of one time are in an order that the seed chose.
#[derive(Debug, Default)]
pub(super) struct Events {
    queue: BTreeMap<EventKey, Event>,
    count: u64,
}

impl Events {
    pub(super) fn push(&mut self, at: Time, random: &mut SplitMix64, event: Event) -> EventKey {
        self.count += 1;
        let key = (at.as_ns(), random.next(), self.count);
        self.queue.insert(key, event);
        key
    }

    pub(super) fn remove(&mut self, key: EventKey) {
        self.queue.remove(&key);
    }

    /// The next one, if it is due by `until`.
    pub(super) fn pop(&mut self, until: Time) -> Option<(Time, Event)> {
        let entry = self.queue.first_entry()?;
        if entry.key().0 > until.as_ns() {
            return None;
        }
        let ((at, ..), event) = entry.remove_entry();
        Some((Time::from_ns(at), event))
    }
}

/// What has happened: a hash of all of it, and the lines if somebody wants to read them.
#[derive(Debug, Default)]
pub(super) struct Trace {
    hash: u64,
    lines: Option<Vec<String>>,
}

impl Trace {
    pub(super) const fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn keep_lines(&mut self) {
        self.lines.get_or_insert_default();
    }

    pub(super) fn take_lines(&mut self) -> Vec<String> {
        self.lines.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Adds what happened at `now`, told by its kind and numbers.
    pub(super) fn add(&mut self, now: Time, kind: &'static str, numbers: [u64; 3]) {
        let words = kind.bytes().map(u64::from);
        for word in [now.as_ns()].into_iter().chain(words).chain(numbers) {
            self.hash = mix(self.hash ^ word);
        }
        if let Some(lines) = &mut self.lines {
            let [a, b, c] = numbers;
            let seconds = now.since(Time::ZERO).as_secs_f64();
            lines.push(format!("{seconds:>14.9} {kind} {a} {b} {c}"));
        }
    }

    /// Adds a line of words.
    pub(super) fn note(&mut self, now: Time, text: &str) {
        for byte in text.bytes() {
            self.hash = mix(self.hash ^ u64::from(byte));
        }
        if let Some(lines) = &mut self.lines {
            let seconds = now.since(Time::ZERO).as_secs_f64();
            lines.push(format!("{seconds:>14.9} {text}"));
        }
    }
}
