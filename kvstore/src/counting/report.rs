//! What a core tells of itself.

use std::time::Duration;

use lunette_kvstore_proto::message::{NodeStat, Op};
use lunette_runtime_core::ids::CoreIndex;

use super::outcome::Outcome;

/// Buckets of a [`Histogram`].
pub const HISTOGRAM_BUCKETS: usize = 24;

/// What one core of a node holds, and what it has counted since it was started.
#[derive(Clone, Debug)]
pub struct CoreReport {
    /// Which core.
    pub core: CoreIndex,
    /// What is told to other nodes too.
    pub stat: NodeStat,
    /// Requests by operation: those of its kind of node, and others that came.
    pub requests: Vec<RequestReport>,
    /// Objects written here: copies that began here.
    pub copies_written: u64,
    /// Copies that were moved within memory, so that a longer one has room in one piece.
    pub copies_moved: u64,
    /// How many bytes that was.
    pub moved_bytes: u64,
    /// What only members of clusters count.
    pub member: Option<MemberReport>,
    /// What each tenant has here, of members of clusters: the default one first, then those that have had something or have a quota, up to
    /// [`TENANTS_MAX`](lunette_kvstore_proto::residence::TENANTS_MAX) of those without.
    pub tenants: Vec<TenantReport>,
}

/// What a tenant has of a core's memory, without what is leaving.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantReport {
    /// Its name; in hexadecimal digits its tag, where all that is here are parts of objects, which tell no name.
    pub name: String,
    /// Copies.
    pub copies: u64,
    /// Bytes of memory that these take.
    pub copies_bytes: u64,
    /// What it may have in the whole cluster, if it has a quota.
    pub quota_bytes: Option<u64>,
    /// What it may have here, if so.
    pub credit_bytes: Option<u64>,
}

/// What a core of a member of a cluster counts besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberReport {
    /// Members in the map that it has.
    pub members: u64,
    /// Readers of this host that were told where the bytes lie that they asked for, and not sent them.
    pub one_sided_reads: u64,
    /// Readers of this host that came again because what they had copied was another object, or not to be had.
    pub one_sided_fallbacks: u64,
    /// Puts by threads of other processes of this host that came by memory which both share.
    pub handed_over: u64,
    /// Gets whose bytes an adapter of this core has written to where they belong.
    pub pushed: u64,
    /// How many bytes that was.
    pub pushed_bytes: u64,
    /// Gets that were to be written so, and had to be asked for once more.
    pub pushes_failed: u64,
    /// Requests that came by messages between adapters.
    pub asked_by_adapters: u64,
    /// Puts whose bytes an adapter of this core has read where they lay.
    pub pulled: u64,
    /// How many bytes that was.
    pub pulled_bytes: u64,
    /// Queue pairs over which that is done, now.
    pub queue_pairs: u64,
    /// Copies that were kept here for another node.
    pub copies_replicated: u64,
    /// Copies that their homes had dropped: removed, replaced, surplus.
    pub copies_ordered: u64,
    /// Copies dropped by "remove all".
    pub copies_cleared: u64,
    /// Copies dropped because no home has recorded them.
    pub copies_unrecorded: u64,
    /// Copies on other nodes that were made of those here.
    pub replicas_made: u64,
    /// Copies that were to be made on other nodes, and were not.
    pub replicas_failed: u64,
    /// Copies that were to leave before others, since another of their group had left.
    pub copies_abandoned: u64,
    /// Copies that were written here whose keys had left the memory of another core, as their homes remembered.
    pub copies_back: u64,
    /// Messages that other seats have acknowledged, or that other cores of this node were handed.
    pub messages_sent: u64,
    /// Messages of other seats.
    pub messages_received: u64,
    /// Messages to other seats that are lost, or of which that is not known to be otherwise.
    pub messages_dropped: u64,
    /// Reads and writes beyond the lease, in cache namespaces.
    pub cut_off: u64,
    /// Copies that this core, as their home, knows of.
    pub home_copies: u64,
    /// Keys of them that have fewer copies than are wanted, although there are nodes without one.
    pub scarce_keys: u64,
    /// How often this core, as a home, had copies made that were missing.
    pub repairs: u64,
    /// Of a core that has a drive.
    pub drive: Option<DriveReport>,
}

/// What the drive of a core holds, and what it has done since the core was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriveReport {
    /// Records on it, whether or not their copies are in memory too.
    pub records: u64,
    /// What they take.
    pub live_bytes: u64,
    /// Its length.
    pub capacity_bytes: u64,
    /// Bytes written to it, for whatever reason.
    pub written_bytes: u64,
    /// Copies whose memory was freed because they were on it.
    pub demoted: u64,
    /// Copies that are in memory again because they were read.
    pub promoted: u64,
    /// Copies that were read from it.
    pub read: u64,
    /// Copies that were sent on while they were being read.
    pub streamed: u64,
    /// Copies that it did not take when they left memory.
    pub refused: u64,
    /// Copies that are gone with their records: reclaimed, damaged, unreadable.
    pub lost: u64,
    /// Whether it has failed, and takes nothing any more.
    pub has_failed: bool,
    /// Whether it cannot be reached at this time: it takes nothing, and what is there cannot be read.
    pub is_away: bool,
    /// Whether it has what its core knows of removals, without which nobody believes what it holds where all members have
    /// crashed.
    pub remembers: bool,
}

/// Requests of one operation.
#[derive(Clone, Debug)]
pub struct RequestReport {
    /// Which; `None` for codes that stand for none.
    pub op: Option<Op>,
    /// How many ended in which way: by [`Outcome::ALL`].
    pub outcomes: [u64; Outcome::ALL.len()],
    /// How long they took.
    pub durations: Histogram,
}

impl RequestReport {
    /// How many ended, each in one way.
    pub fn by_outcome(&self) -> impl Iterator<Item = (Outcome, u64)> + '_ {
        Outcome::ALL.into_iter().zip(self.outcomes)
    }
}

/// How long requests took, from when they were read to when they were answered.
///
/// A request that is answered at once, without waiting for its payload or for anybody, counts as one
/// that took no time: no clock is read for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Requests by duration: bucket `n` has those up to [`Histogram::bound`] of `n`, and not up to that
    /// of the one before.
    pub buckets: [u64; HISTOGRAM_BUCKETS],
    /// All durations together, in nanoseconds.
    pub sum_ns: u64,
}

impl Histogram {
    /// The longest duration in a bucket: a microsecond in the first, twice as much in each further one.
    /// `None` for the last one, which has no bound.
    #[must_use]
    pub const fn bound(bucket: usize) -> Option<Duration> {
        if bucket + 1 < HISTOGRAM_BUCKETS {
            Some(Duration::from_micros(1 << bucket))
        } else {
            None
        }
    }

    /// The bucket of a duration.
    pub(super) fn bucket(duration_ns: u64) -> usize {
        let us = duration_ns.div_ceil(1000).max(1);
        let bucket = u64::BITS - (us - 1).leading_zeros();
        usize::try_from(bucket).map_or(HISTOGRAM_BUCKETS - 1, |b| b.min(HISTOGRAM_BUCKETS - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_in_the_first_bucket_whose_bound_it_keeps() {
        let around = |bound: Duration| {
            let ns = u64::try_from(bound.as_nanos()).expect("seconds");
            [ns - 1, ns, ns + 1]
        };
        let bounds = (0..HISTOGRAM_BUCKETS).filter_map(Histogram::bound);
        let durations = bounds.flat_map(around).chain([0, u64::MAX]);
        for duration_ns in durations {
            let fits = |bucket: &usize| {
                let bound = Histogram::bound(*bucket).map(|bound| bound.as_nanos());
                bound.is_none_or(|bound| u128::from(duration_ns) <= bound)
            };
            let expected = (0..HISTOGRAM_BUCKETS).find(fits);
            assert_eq!(
                Some(Histogram::bucket(duration_ns)),
                expected,
                "{duration_ns}"
            );
        }
    }
}
