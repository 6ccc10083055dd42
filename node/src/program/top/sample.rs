//! What nodes have counted at two points in time, and what that is a second.

use std::net::SocketAddr;
use std::time::Duration;

use lunette::kvstore::StoreError;
use lunette::runtime::time;
use lunette_kvstore_proto::message::NodeStat;
use lunette_runtime_core::time::Time;

use crate::program::store::Store;

/// What nodes had counted at some time.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    at: Time,
    stats: Vec<(SocketAddr, Result<NodeStat, StoreError>)>,
}

/// What happened between two samples.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    pub(super) interval: Duration,
    pub(super) rows: Vec<Row>,
}

/// What one node has, and did.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) address: SocketAddr,
    pub(super) stat: Result<NodeStat, StoreError>,
    /// `None` for a node that was not seen before, or has started anew.
    pub(super) deeds: Option<Deeds>,
}

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Deeds {
    pub(super) requests: u64,
    pub(super) refused: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) in_bytes: u64,
    pub(super) out_bytes: u64,
    pub(super) evictions: u64,
    pub(super) drive_reads: u64,
}

impl Sample {
    /// Asks the nodes.
    pub(super) async fn take(store: &Store) -> Self {
        let stats = store.stat().await;
        Self {
            at: time::now(),
            stats,
        }
    }
}

impl Deeds {
    fn counted(stat: &NodeStat) -> Self {
        Self {
            requests: stat.requests,
            refused: stat.refused,
            hits: stat.shards.hits,
            misses: stat.shards.misses,
            in_bytes: stat.payload_in_bytes,
            out_bytes: stat.payload_out_bytes,
            evictions: stat.shards.evictions,
            drive_reads: stat.drive_reads,
        }
    }

    /// What came to what there was; nothing is known if any of it has become less.
    fn between(former: &NodeStat, latter: &NodeStat) -> Option<Self> {
        let (former, latter) = (Self::counted(former), Self::counted(latter));
        Some(Self {
            requests: latter.requests.checked_sub(former.requests)?,
            refused: latter.refused.checked_sub(former.refused)?,
            hits: latter.hits.checked_sub(former.hits)?,
            misses: latter.misses.checked_sub(former.misses)?,
            in_bytes: latter.in_bytes.checked_sub(former.in_bytes)?,
            out_bytes: latter.out_bytes.checked_sub(former.out_bytes)?,
            evictions: latter.evictions.checked_sub(former.evictions)?,
            drive_reads: latter.drive_reads.checked_sub(former.drive_reads)?,
        })
    }

    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.refused += other.refused;
        self.hits += other.hits;
        self.misses += other.misses;
        self.in_bytes += other.in_bytes;
        self.out_bytes += other.out_bytes;
        self.evictions += other.evictions;
        self.drive_reads += other.drive_reads;
    }

    /// Which share of the gets found their object, if there were any.
    pub(super) fn hit_ratio(&self) -> Option<f64> {
        let gets = self.hits + self.misses;
        (gets > 0).then(|| as_float(self.hits) / as_float(gets))
    }
}

impl Watched {
    pub(super) fn between(former: Option<&Sample>, latter: &Sample) -> Self {
        let interval = former.map_or(Duration::ZERO, |former| latter.at.since(former.at));
        let rows = latter.stats.iter().map(|&(address, stat)| {
            let earlier = former.and_then(|former| {
                let mut stats = former.stats.iter();
                let (_, stat) = stats.find(|(its, _)| *its == address)?;
                stat.ok()
            });
            let deeds = match (earlier, stat) {
                (Some(former), Ok(latter)) => Deeds::between(&former, &latter),
                _ => None,
            };
            Row {
                address,
                stat,
                deeds,
            }
        });
        Self {
            interval,
            rows: rows.collect(),
        }
    }

    /// All nodes that answered together.
    pub(super) fn total(&self) -> (NodeStat, Deeds) {
        let (mut stat, mut deeds) = (NodeStat::default(), Deeds::default());
        for row in &self.rows {
            if let Ok(its) = &row.stat {
                stat.add(its);
            }
            deeds.add(row.deeds.unwrap_or_default());
        }
        (stat, deeds)
    }

    /// That many in the interval, a second.
    pub(super) fn per_second(&self, count: u64) -> f64 {
        let seconds = self.interval.as_secs_f64();
        if seconds > 0.0 {
            as_float(count) / seconds
        } else {
            0.0
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "rates and ratios are for looking at"
)]
pub(super) const fn as_float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use lunette_kvstore_proto::shard::ShardStats;

    use super::*;

    fn sample(at_ms: u64, nodes: &[(u16, u64)]) -> Sample {
        let stats = nodes.iter().map(|&(port, count)| {
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            let stat = NodeStat {
                cores: 1,
                requests: 10 * count,
                payload_in_bytes: 100 * count,
                shards: ShardStats {
                    hits: 3 * count,
                    misses: count,
                    ..ShardStats::default()
                },
                ..NodeStat::default()
            };
            (address, Ok(stat))
        });
        Sample {
            at: Time::from_ns(at_ms * 1_000_000),
            stats: stats.collect(),
        }
    }

    #[test]
    fn what_came_in_between_is_told_by_the_second() {
        let former = sample(1000, &[(1, 1), (2, 7)]);
        let latter = sample(3000, &[(1, 5), (2, 3), (3, 1)]);
        let watched = Watched::between(Some(&former), &latter);
        let deeds = watched.rows[0].deeds.expect("it was there before");
        assert_eq!((deeds.requests, deeds.hits, deeds.in_bytes), (40, 12, 400));
        assert_eq!(deeds.hit_ratio(), Some(0.75));
        assert_eq!(watched.rows[1].deeds, None, "it has started anew");
        assert_eq!(watched.rows[2].deeds, None, "it is new");
        let (stat, total) = watched.total();
        assert_eq!((stat.cores, stat.requests, total.requests), (3, 90, 40));
        let rate = watched.per_second(total.requests);
        assert!((rate - 20.0).abs() < 1e-9, "{rate}");
        let first = Watched::between(None, &latter);
        assert_eq!(first.rows[0].deeds, None);
        assert!(first.per_second(7).abs() < 1e-9);
        assert_eq!(Deeds::default().hit_ratio(), None, "nothing was asked for");
    }
}
