//! A node's counters and state.

use lunette_runtime_core::codec::{Reader, Writer};

use super::MessageFault;
use crate::shard::ShardStats;

/// What a node is doing, worst last: the state of a node is the worst of its cores'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeState {
    /// It does not say: its version is an older one, or a later one with states of its own.
    #[default]
    Unknown,
    /// It serves, and is no member of a cluster.
    Alone,
    /// It serves, as a member of its cluster.
    Serving,
    /// Its connections are ending, or its memory is being emptied.
    Draining,
    /// It is not in its cluster's map yet.
    Joining,
    /// Its lease is over: it serves cache namespaces only, by the last map that it knows.
    Fenced,
    /// It has given its place in the cluster up.
    Left,
}

impl NodeState {
    /// All states; the code of each is its index.
    pub const ALL: [Self; 7] = [
        Self::Unknown,
        Self::Alone,
        Self::Serving,
        Self::Draining,
        Self::Joining,
        Self::Fenced,
        Self::Left,
    ];

    /// Its code on the wire.
    #[must_use]
    pub const fn code(self) -> u64 {
        self as u64
    }

    /// The state of a code on the wire.
    #[must_use]
    pub fn from_code(code: u64) -> Self {
        let index = usize::try_from(code).unwrap_or(usize::MAX);
        Self::ALL.get(index).copied().unwrap_or_default()
    }

    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Alone => "alone",
            Self::Serving => "serving",
            Self::Draining => "draining",
            Self::Joining => "joining",
            Self::Fenced => "fenced",
            Self::Left => "left",
        }
    }

    /// Whether clients are to go there.
    #[must_use]
    pub const fn is_serving(self) -> bool {
        matches!(self, Self::Alone | Self::Serving)
    }
}

/// The body of the answer to a stat: the node's counters, 64 bits each, in the order of the fields.
///
/// Later versions have more of them behind those of earlier ones. Who knows fewer ignores the rest, and
/// who knows more takes what is missing for 0.
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
    /// Payload bytes handed over to be sent.
    pub payload_out_bytes: u64,
    /// Cores that these counters are the sum of.
    pub cores: u64,
    /// Requests for objects that were answered, refusals included: not those about the node, nor what
    /// nodes tell each other.
    pub requests: u64,
    /// Those of them that were refused, for whatever reason.
    pub refused: u64,
    /// Writes that found no room at first.
    pub room_waits: u64,
    /// The epoch of the map that all its cores have, 0 without one.
    pub epoch: u64,
    /// How long its lease is sure to last, in milliseconds; 0 if it has none, or it is over.
    pub lease_left_ms: u64,
    /// The code of its [`NodeState`].
    pub state_code: u64,
    /// The newest version of the formats that it speaks, 0 if it does not say.
    pub newest_version: u64,
    /// Bytes that replicas behind writes may still use now: what is free, and less where a node has just
    /// begun.
    pub replica_room_bytes: u64,
    /// Bytes that replicas which are made again may still use now.
    pub repair_room_bytes: u64,
    /// How busy its cores are, in thousandths each.
    pub load_permille: u64,
    /// Bytes of objects that are pinned for ever.
    pub pinned_bytes: u64,
    /// Drives that its cores have.
    pub drives: u64,
    /// Those of them that have failed, or cannot be reached.
    pub drives_down: u64,
    /// Objects on its drives, whether or not they are in memory too.
    pub drive_entries: u64,
    /// What those take.
    pub drive_used_bytes: u64,
    /// What its drives have room for.
    pub drive_capacity_bytes: u64,
    /// Objects that were read from its drives.
    pub drive_reads: u64,
    /// Messages that it was sent in the next version.
    #[cfg(feature = "next-version")]
    pub next: u64,
}

const COUNTERS: usize = if cfg!(feature = "next-version") {
    39
} else {
    38
};
/// Counters of the first version.
const COUNTERS_MIN: usize = 20;

impl NodeStat {
    /// Length of the body in bytes.
    pub const ENCODED_BYTES: usize = COUNTERS * 8;

    /// What the node is doing.
    #[must_use]
    pub fn state(&self) -> NodeState {
        NodeState::from_code(self.state_code)
    }

    /// Bytes of its shards that are not used.
    #[must_use]
    pub const fn free_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.shards.used_bytes)
    }

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
    /// [`MessageFault`] if it holds fewer than those of the first version, or a part of one.
    pub fn decode(body: &[u8]) -> Result<Self, MessageFault> {
        let mut reader = Reader::new(body);
        let mut stat = Self::default();
        for (index, counter) in stat.counters().into_iter().enumerate() {
            if index >= COUNTERS_MIN && reader.is_empty() {
                break;
            }
            *counter = reader.u64()?;
        }
        match reader.rest().len() % 8 {
            0 => Ok(stat),
            trailing => Err(MessageFault::Trailing(trailing)),
        }
    }

    /// Adds what another core, or all cores of another node, have counted. Epoch, lease and
    /// version are those that all of them have, the state is the worst.
    pub fn add(&mut self, other: &Self) {
        if *self == Self::default() {
            *self = *other;
            return;
        }
        let (former, mut other) = (*self, *other);
        for (sum, counter) in self.counters().into_iter().zip(other.counters()) {
            *sum = sum.saturating_add(*counter);
        }
        self.epoch = former.epoch.min(other.epoch);
        self.lease_left_ms = former.lease_left_ms.min(other.lease_left_ms);
        self.state_code = former.state().max(other.state()).code();
        self.newest_version = former.newest_version.min(other.newest_version);
    }

    /// All counters, in the order in which they travel.
    const fn counters(&mut self) -> [&mut u64; COUNTERS] {
        let Self {
            shards,
            capacity_bytes,
            connections,
            payload_in_bytes,
            payload_out_bytes,
            cores,
            requests,
            refused,
            room_waits,
            epoch,
            lease_left_ms,
            state_code,
            newest_version,
            replica_room_bytes,
            repair_room_bytes,
            load_permille,
            pinned_bytes,
            drives,
            drives_down,
            drive_entries,
            drive_used_bytes,
            drive_capacity_bytes,
            drive_reads,
            #[cfg(feature = "next-version")]
            next,
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
            cores,
            requests,
            refused,
            room_waits,
            epoch,
            lease_left_ms,
            state_code,
            newest_version,
            replica_room_bytes,
            repair_room_bytes,
            load_permille,
            pinned_bytes,
            drives,
            drives_down,
            drive_entries,
            drive_used_bytes,
            drive_capacity_bytes,
            drive_reads,
            #[cfg(feature = "next-version")]
            next,
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
        let golden: Vec<u8> = (1..=COUNTERS as u64).flat_map(u64::to_le_bytes).collect();
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
    fn versions_with_fewer_and_with_more_counters_understand_each_other() {
        let mut body = Vec::new();
        numbered().encode(&mut body);
        let older = NodeStat::decode(&body[..COUNTERS_MIN * 8]).expect("the first version's");
        assert_eq!((older.payload_out_bytes, older.cores), (20, 0));
        assert_eq!(older.state(), NodeState::Unknown);
        body.extend_from_slice(&[7; 16]);
        assert_eq!(NodeStat::decode(&body), Ok(numbered()));
    }

    #[test]
    fn cores_add_up_and_the_worst_one_counts() {
        let one = |state: NodeState, epoch, lease_left_ms| NodeStat {
            cores: 1,
            epoch,
            lease_left_ms,
            state_code: state.code(),
            ..numbered()
        };
        let mut sum = NodeStat::default();
        sum.add(&one(NodeState::Serving, 7, 900));
        assert_eq!(sum, one(NodeState::Serving, 7, 900), "the first one");
        sum.add(&one(NodeState::Fenced, 8, 0));
        sum.add(&one(NodeState::Serving, 8, 800));
        assert_eq!(
            (sum.cores, sum.shards.removes, sum.connections),
            (3, 48, 54)
        );
        assert_eq!((sum.epoch, sum.lease_left_ms), (7, 0));
        assert_eq!(sum.state(), NodeState::Fenced);
    }

    #[test]
    fn codes_and_states_agree_both_ways() {
        for code in 0..20 {
            let state = NodeState::from_code(code);
            let expected = if state == NodeState::Unknown { 0 } else { code };
            assert_eq!(state.code(), expected);
        }
        assert_eq!(NodeState::from_code(u64::MAX), NodeState::Unknown);
        assert!(NodeState::ALL.is_sorted(), "the worst is last");
    }
}
