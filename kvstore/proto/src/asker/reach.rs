//! Seats out of reach: how long a read waits for one.
//!
//! A node that is gone is in the map until its lease is over, seconds later. What is read is computed again where it is
//! not found, in less than that, so a read does not wait for it: that nobody can be asked is as good as that nobody knows.
//!
//! ```text
//!                 cannot be reached for REACH_WAIT, or said nothing to a read for SILENT_WAIT
//!   in reach -------------------------------------------------------------------------------> out of reach
//!      ^                                                                                           |
//!      +---------------------------- any answer, or a map without it ------------------------------+
//! ```
//!
//! What is read of a seat that is out of reach is unknown at once where it refuses, and soon where it is silent: each
//! `SILENT_WAIT` one read waits for it as long as if it were in reach, so that a seat whose answers take long is found
//! to be there. Writes and removals wait for the next map, as long as they have.
//!
//! A lookup waits so long for its answer. A get waits as long as anything comes from who was asked, since its bytes may be
//! on their way behind others.

use core::time::Duration;
use std::collections::BTreeMap;

use lunette_cluster_proto::map::ClusterMap;
use lunette_runtime_core::time::Time;

use super::RESEND;
use crate::placement::{Seat, has_seat};

/// How long a seat is tried that cannot be reached, before what is read of it is unknown: it may be starting anew, or
/// the next map on its way.
pub const REACH_WAIT: Duration = Duration::from_millis(250);
/// How long a read waits for a seat that says nothing: longer than an answer would take behind all that a connection has
/// under way, also where processors are scarce.
pub const SILENT_WAIT: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
struct Trouble {
    /// From then on it is out of reach.
    begins: Time,
    /// When a read last began to wait for it as long as if it were in reach.
    tried: Time,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Reach {
    /// Of seats of the map alone, and so as bounded as that.
    troubles: BTreeMap<Seat, Trouble>,
}

impl Reach {
    pub(super) fn answered(&mut self, seat: Seat) {
        self.troubles.remove(&seat);
    }

    pub(super) fn on_map(&mut self, map: &ClusterMap) {
        self.troubles.retain(|seat, _| has_seat(map, *seat));
    }

    /// There is no connection to it, or it says nothing, and that has been so `for_time`. Whether it is out of reach.
    pub(super) fn is_refused(&mut self, now: Time, seat: Seat, for_time: Duration) -> bool {
        now >= self.trouble(now, seat, REACH_WAIT.saturating_sub(for_time))
    }

    /// A lookup has waited for it as long as it may.
    pub(super) fn is_silent(&mut self, now: Time, seat: Seat) {
        self.trouble(now, seat, Duration::ZERO);
    }

    /// How long a read that is sent to it now waits for it to say something.
    pub(super) fn patience(&mut self, now: Time, seat: Seat) -> Duration {
        match self.troubles.get_mut(&seat) {
            Some(trouble) if now >= trouble.begins && now < trouble.tried + SILENT_WAIT => RESEND,
            Some(trouble) => {
                trouble.tried = now;
                SILENT_WAIT
            }
            None => SILENT_WAIT,
        }
    }

    /// It is out of reach after `wait` at the latest: when it is.
    fn trouble(&mut self, now: Time, seat: Seat, wait: Duration) -> Time {
        let (begins, tried) = (now + wait, now);
        let trouble = (self.troubles.entry(seat)).or_insert(Trouble { begins, tried });
        trouble.begins = trouble.begins.min(begins);
        trouble.begins
    }
}

#[cfg(test)]
mod tests {
    use lunette_cluster_proto::map::{Epoch, MapMember};
    use lunette_runtime_core::ids::{CoreIndex, NodeId};

    use super::*;

    const SEAT: Seat = Seat {
        node: NodeId(1),
        incarnation: 1,
        core: CoreIndex(0),
    };

    const fn at(ms: u64) -> Time {
        Time::from_ns(ms * 1_000_000)
    }

    #[test]
    fn who_refuses_is_out_of_reach_after_a_while_and_until_it_answers() {
        let mut reach = Reach::default();
        let refusals = [(0, false), (249, false), (250, true), (9000, true)];
        for (ms, is_out) in refusals {
            let is_refused = reach.is_refused(at(ms), SEAT, Duration::ZERO);
            assert_eq!(is_refused, is_out, "{ms} ms");
        }
        reach.answered(SEAT);
        let is_refused = reach.is_refused(at(9001), SEAT, Duration::ZERO);
        assert!(!is_refused, "it was there meanwhile");
    }

    #[test]
    fn who_was_tried_for_long_is_out_of_reach_at_once() {
        let mut reach = Reach::default();
        let tried = |ms| Duration::from_millis(ms);
        assert!(!reach.is_refused(at(0), SEAT, tried(0)));
        assert!(!reach.is_refused(at(10), SEAT, tried(200)));
        assert!(
            reach.is_refused(at(60), SEAT, tried(0)),
            "200 ms of it over"
        );
        reach.answered(SEAT);
        assert!(reach.is_refused(at(70), SEAT, tried(250)));
    }

    #[test]
    fn who_is_silent_is_waited_for_shortly_but_for_one_lookup_now_and_then() {
        let mut reach = Reach::default();
        assert_eq!(reach.patience(at(0), SEAT), SILENT_WAIT);
        reach.is_silent(at(1000), SEAT);
        let waits = [
            (1000, RESEND),
            (2999, RESEND),
            (3000, SILENT_WAIT),
            (3001, RESEND),
            (4999, RESEND),
            (5000, SILENT_WAIT),
        ];
        for (ms, wait) in waits {
            assert_eq!(reach.patience(at(ms), SEAT), wait, "{ms} ms");
        }
        assert!(
            reach.is_refused(at(5001), SEAT, Duration::ZERO),
            "it is out of reach already"
        );
        reach.answered(SEAT);
        assert_eq!(reach.patience(at(5002), SEAT), SILENT_WAIT);
    }

    #[test]
    fn who_has_left_the_map_is_forgotten() {
        let member = MapMember::new(SEAT.node, 1, ([192, 0, 2, 1], 7000).into());
        let mut reach = Reach::default();
        reach.is_silent(at(0), SEAT);
        reach.on_map(&ClusterMap::new(Epoch(2), 0, vec![member]).expect("a map"));
        assert_eq!(reach.troubles.len(), 1);
        reach.on_map(&ClusterMap::new(Epoch(3), 0, vec![]).expect("a map"));
        assert_eq!(reach.troubles.len(), 0);
    }
}
