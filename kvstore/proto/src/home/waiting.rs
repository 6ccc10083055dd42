//! Requests that wait: for what is before them at their key, or for the home to be rebuilt.

use std::collections::{BTreeMap, VecDeque};

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::time::Time;

use super::table::Full;
use crate::key::Fingerprint;
use crate::message::directory::{AskerId, HoldWish, Only, OpId};
use crate::placement::Seat;
use crate::version::{CopyInfo, WriteKind};

/// What waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiter {
    Claim {
        seat: Seat,
        op: OpId,
        kind: WriteKind,
        namespace: NamespaceKind,
    },
    Publish {
        seat: Seat,
        op: OpId,
        info: CopyInfo,
        namespace: NamespaceKind,
    },
    Remove {
        asker: AskerId,
        request: RequestId,
        namespace: NamespaceKind,
        only: Only,
    },
    Lookup {
        asker: AskerId,
        request: RequestId,
        namespace: NamespaceKind,
        hold: Option<HoldWish>,
    },
}

/// A request, its key, and until when it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) key: Fingerprint,
    pub(super) waiter: Waiter,
    pub(super) until: Time,
}

#[derive(Debug)]
pub(super) struct Waiting {
    by_key: BTreeMap<Fingerprint, VecDeque<Request>>,
    count: usize,
    /// Nothing waits that ends earlier.
    next_end: Time,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            by_key: BTreeMap::new(),
            count: 0,
            next_end: Time::MAX,
        }
    }
}

impl Waiting {
    pub(super) const fn len(&self) -> usize {
        self.count
    }

    /// Puts a request last in the line of its key. One that waits there already is not put twice.
    pub(super) fn push(
        &mut self,
        request: Request,
        waiters_max: usize,
        per_key_max: usize,
    ) -> Result<(), Full> {
        if self.has(request.key, &request.waiter) {
            return Ok(());
        }
        let line = self.by_key.entry(request.key).or_default();
        if self.count >= waiters_max || line.len() >= per_key_max {
            if line.is_empty() {
                self.by_key.remove(&request.key);
            }
            return Err(Full);
        }
        line.push_back(request);
        self.count += 1;
        self.next_end = self.next_end.min(request.until);
        Ok(())
    }

    /// Whether this request waits already.
    pub(super) fn has(&self, key: Fingerprint, waiter: &Waiter) -> bool {
        let mut line = self.by_key.get(&key).into_iter().flatten();
        line.any(|request| request.waiter == *waiter)
    }

    /// Whether anything waits for a key.
    pub(super) fn has_any(&self, key: Fingerprint) -> bool {
        self.by_key.contains_key(&key)
    }

    /// Takes the line of a key.
    pub(super) fn take(&mut self, key: Fingerprint) -> VecDeque<Request> {
        let line = self.by_key.remove(&key).unwrap_or_default();
        self.count -= line.len();
        line
    }

    /// Takes everything, in the order of keys.
    pub(super) fn take_all(&mut self) -> Vec<Request> {
        self.count = 0;
        self.next_end = Time::MAX;
        let all = core::mem::take(&mut self.by_key);
        all.into_values().flatten().collect()
    }

    /// Takes those whose time is over.
    pub(super) fn take_ended(&mut self, now: Time) -> Vec<Request> {
        if now < self.next_end {
            return Vec::new();
        }
        let mut ended = Vec::new();
        self.next_end = Time::MAX;
        let next_end = &mut self.next_end;
        self.by_key.retain(|_, line| {
            line.retain(|request| {
                let is_over = now >= request.until;
                if is_over {
                    ended.push(*request);
                } else {
                    *next_end = (*next_end).min(request.until);
                }
                !is_over
            });
            !line.is_empty()
        });
        self.count -= ended.len();
        ended
    }

    pub(super) fn forget(&mut self, key: Fingerprint, matches: impl Fn(&Waiter) -> bool) {
        if let Some(line) = self.by_key.get_mut(&key) {
            let before = line.len();
            line.retain(|request| !matches(&request.waiter));
            self.count -= before - line.len();
            if line.is_empty() {
                self.by_key.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(key: u128, asker: u64, until: u64) -> Request {
        Request {
            key: Fingerprint(key),
            waiter: Waiter::Remove {
                asker: AskerId(asker),
                request: RequestId(1),
                namespace: NamespaceKind::Strict,
                only: Only::Any,
            },
            until: Time::from_ns(until),
        }
    }

    #[test]
    fn lines_are_bounded_and_in_order() {
        let mut waiting = Waiting::default();
        for asker in [3, 1, 2] {
            assert_eq!(waiting.push(request(1, asker, 9), 4, 3), Ok(()));
        }
        assert_eq!(
            waiting.push(request(1, 1, 9), 4, 3),
            Ok(()),
            "it waits already"
        );
        assert_eq!(waiting.push(request(1, 4, 9), 4, 3), Err(Full), "the line");
        assert_eq!(waiting.push(request(2, 4, 9), 4, 3), Ok(()));
        assert_eq!(waiting.push(request(3, 4, 9), 4, 3), Err(Full), "all lines");
        assert_eq!(waiting.len(), 4);
        let line = waiting.take(Fingerprint(1));
        assert!(
            line.into_iter()
                .eq([3, 1, 2].map(|asker| request(1, asker, 9)))
        );
        assert_eq!(waiting.take_all(), [request(2, 4, 9)]);
        assert_eq!(waiting.len(), 0);
    }

    #[test]
    fn each_waits_for_its_own_time() {
        let mut waiting = Waiting::default();
        for (key, until) in [(1, 5), (1, 7), (2, 6)] {
            assert_eq!(waiting.push(request(key, until, until), 9, 9), Ok(()));
        }
        assert_eq!(waiting.take_ended(Time::from_ns(4)), []);
        assert_eq!(
            waiting.take_ended(Time::from_ns(6)),
            [request(1, 5, 5), request(2, 6, 6)]
        );
        assert_eq!(waiting.take_ended(Time::from_ns(7)), [request(1, 7, 7)]);
        assert_eq!(waiting.len(), 0);
    }
}
