//! A node's counters.

use lunette_runtime_core::codec::{Reader, Writer};

use super::{MessageFault, end_of};
use crate::shard::ShardStats;

/// The body of the answer to a stat: the node's counters, 64 bits each, in the order of the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStat {
    /// The sum over the shards of its cores.
    pub shards: ShardStats,
    /// Bytes that its shards may use together: the sum of their high watermarks.
    pub capacity_bytes: u64,
    /// Connections that are open.
    pub connections: u64,
    /// Payload bytes received.
    pub payload_in_bytes: u64,
    /// Payload bytes sent.
    pub payload_out_bytes: u64,
}

const COUNTERS: usize = 20;

impl NodeStat {
    /// Length of the body in bytes.
    pub const ENCODED_BYTES: usize = COUNTERS * 8;

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut copy = *self;
        let mut writer = Writer::new(out);
        for counter in copy.counters() {
            writer.u64(*counter);
        }
    }

    /// The counters in `body`.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds fewer or more.
    pub fn decode(body: &[u8]) -> Result<Self, MessageFault> {
        let mut reader = Reader::new(body);
        let mut stat = Self::default();
        for counter in stat.counters() {
            *counter = reader.u64()?;
        }
        end_of(&reader)?;
        Ok(stat)
    }

    /// Adds one core's share.
    pub fn add_shard(&mut self, shard: ShardStats, capacity_bytes: u64) {
        let mut other = Self {
            shards: shard,
            capacity_bytes,
            ..Self::default()
        };
        for (sum, counter) in self.counters().into_iter().zip(other.counters()) {
            *sum = sum.saturating_add(*counter);
        }
    }

    /// All counters, in the order in which they travel.
    const fn counters(&mut self) -> [&mut u64; COUNTERS] {
        let Self {
            shards,
            capacity_bytes,
            connections,
            payload_in_bytes,
            payload_out_bytes,
        } = self;
        [
            &mut shards.entries,
            &mut shards.resident_bytes,
            &mut shards.used_bytes,
            &mut shards.evictions,
            &mut shards.evicted_bytes,
            &mut shards.puts,
            &mut shards.touches,
            &mut shards.busy,
            &mut shards.aborts,
            &mut shards.refused_full,
            &mut shards.refused_too_large,
            &mut shards.refused_entries,
            &mut shards.gets,
            &mut shards.hits,
            &mut shards.misses,
            &mut shards.removes,
            capacity_bytes,
            connections,
            payload_in_bytes,
            payload_out_bytes,
        ]
    }
}

const _: () = assert!(
    size_of::<NodeStat>() == NodeStat::ENCODED_BYTES,
    "every counter travels"
);

#[cfg(test)]
mod tests {
    use super::*;

    /// A stat whose counters are 1, 2, 3, ... in the order in which they travel.
    fn numbered() -> NodeStat {
        let mut stat = NodeStat::default();
        for (number, counter) in (1..).zip(stat.counters()) {
            *counter = number;
        }
        stat
    }

    #[test]
    fn counters_travel_in_the_order_of_the_fields() {
        let mut body = Vec::new();
        numbered().encode(&mut body);
        let golden: Vec<u8> = (1..=20_u64).flat_map(u64::to_le_bytes).collect();
        assert_eq!(body, golden);
        assert_eq!(NodeStat::decode(&body), Ok(numbered()));
        assert_eq!(
            (numbered().shards.used_bytes, numbered().payload_out_bytes),
            (3, 20)
        );
        body.push(0);
        assert_eq!(NodeStat::decode(&body), Err(MessageFault::Trailing(1)));
        assert!(matches!(
            NodeStat::decode(&body[..159]),
            Err(MessageFault::Truncated(_))
        ));
    }

    #[test]
    fn shards_add_up() {
        let mut sum = numbered();
        sum.add_shard(numbered().shards, 1000);
        assert_eq!(sum.shards.entries, 2);
        assert_eq!(sum.shards.removes, 32);
        assert_eq!((sum.capacity_bytes, sum.connections), (1017, 18));
    }
}
