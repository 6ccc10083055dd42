//! Until when a member may serve.
//!
//! A lease is sure to last from when its last renewal was *sent*, since the coordinator counts from
//! when it came. An owner stops [`CLOCK_DRIFT_MAX`] before that end, so that it has stopped when the
//! coordinator, whose clock may run faster, tells others that it is gone.

use core::time::Duration;

use lunette_runtime_core::time::Time;
use thiserror::Error;

/// How far two clocks may drift apart within one lease.
pub const CLOCK_DRIFT_MAX: Duration = Duration::from_millis(500);

/// What a namespace wants of a member that is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceKind {
    /// A key names its content, so an old copy is a right one: reads and local puts go on on the last
    /// map. Until the partition heals, bytes that were removed meanwhile may be read.
    Cache,
    /// Nothing is served that may have been changed elsewhere.
    Strict,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// A get, a lookup.
    Read,
    /// A put into this node's own memory.
    LocalPut,
    /// A remove, an upsert: what must be ordered among all.
    Change,
}

/// How far a permission reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The lease holds.
    Leased,
    /// It does not, and the namespace is a cache: count it.
    CutOff,
}

/// Nothing is served until the coordinator has been reached again. Retry later, or elsewhere.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("this node is cut off from the coordinator and may not serve this")]
pub struct Fenced;

/// The clock of a member's own lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fence {
    /// When serving stops; never begun if `None`.
    until: Option<Time>,
}

impl Fence {
    /// The lease was granted or renewed for `ttl`, by what was sent at `sent`. An older renewal
    /// than one that is known changes nothing.
    pub fn renew(&mut self, sent: Time, ttl: Duration) {
        let until = sent + ttl.saturating_sub(CLOCK_DRIFT_MAX);
        self.until = Some(self.until.map_or(until, |known| known.max(until)));
    }

    /// The lease is known to be over.
    pub fn end(&mut self, now: Time) {
        self.until = self.until.map(|until| until.min(now));
    }

    /// When serving stops, if it has ever begun.
    #[must_use]
    pub const fn until(&self) -> Option<Time> {
        self.until
    }

    /// Whether the lease holds for sure.
    #[must_use]
    pub fn is_leased(&self, now: Time) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Whether this may be done now.
    ///
    /// # Errors
    /// [`Fenced`].
    pub fn permit(
        &self,
        now: Time,
        namespace: NamespaceKind,
        act: Act,
    ) -> Result<Standing, Fenced> {
        if self.is_leased(now) {
            return Ok(Standing::Leased);
        }
        let was_member = self.until.is_some();
        match (namespace, act) {
            (NamespaceKind::Cache, Act::Read | Act::LocalPut) if was_member => Ok(Standing::CutOff),
            _ => Err(Fenced),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(5);

    fn at(ms: u64) -> Time {
        Time::from_ns(ms * 1_000_000)
    }

    #[test]
    fn serving_stops_before_the_lease_does() {
        let mut fence = Fence::default();
        assert!(!fence.is_leased(at(0)));
        fence.renew(at(1000), TTL);
        let stop = 1000 + 5000 - 500;
        assert_eq!(fence.until(), Some(at(stop)));
        assert!(fence.is_leased(at(stop - 1)) && !fence.is_leased(at(stop)));
        fence.renew(at(0), TTL);
        assert_eq!(
            fence.until(),
            Some(at(stop)),
            "answers may overtake each other"
        );
        fence.renew(at(2000), TTL);
        assert!(fence.is_leased(at(stop)));
        fence.end(at(3000));
        assert!(!fence.is_leased(at(3000)) && fence.is_leased(at(2999)));
        let mut short = Fence::default();
        short.renew(at(0), Duration::from_millis(100));
        assert!(
            !short.is_leased(at(0)),
            "a lease shorter than the drift gives nothing"
        );
    }

    #[test]
    fn namespaces_differ_once_cut_off() {
        let mut fence = Fence::default();
        let (cache, strict) = (NamespaceKind::Cache, NamespaceKind::Strict);
        let all = [Act::Read, Act::LocalPut, Act::Change];
        for (namespace, act) in [cache, strict]
            .into_iter()
            .flat_map(|kind| all.map(|act| (kind, act)))
        {
            assert_eq!(
                fence.permit(at(0), namespace, act),
                Err(Fenced),
                "before it was a member"
            );
        }
        fence.renew(at(0), TTL);
        for (namespace, act, cut_off) in [
            (cache, Act::Read, Ok(Standing::CutOff)),
            (cache, Act::LocalPut, Ok(Standing::CutOff)),
            (cache, Act::Change, Err(Fenced)),
            (strict, Act::Read, Err(Fenced)),
            (strict, Act::LocalPut, Err(Fenced)),
            (strict, Act::Change, Err(Fenced)),
        ] {
            assert_eq!(fence.permit(at(4499), namespace, act), Ok(Standing::Leased));
            assert_eq!(fence.permit(at(4500), namespace, act), cut_off);
        }
    }
}
