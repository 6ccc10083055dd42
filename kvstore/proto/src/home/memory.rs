//! What a home knew of removals when its node left, for the life after it.
//!
//! A home that begins knows nothing of what was removed before, and is told by those who do. So a home that leaves in order
//! says what it knew, which its driver keeps until the next life begins and the home is told of it ([`Home::recall`]). Where
//! others have been there all the time, that gives back what they lack (`losses`). Where nobody has, since all members have ended,
//! what those have who come back could have been removed, and nobody could tell; what they recall is believed together, if nothing
//! can have been removed since:
//!
//! - It was complete under the map that is directly before the first one of the new life: under that one it has ended, and no
//!   other map was in between.
//! - All homes of that map recall the same, or all but one of several: each tombstone is at two of them. What one that has
//!   not ended might have removed since it would have had to tell another.
//!
//! Who crashes says nothing. So what a home knows is kept beforehand as well, when nothing has been removed for a while
//! ([`Home::keep`]), and counts until something is: the first removal or upsert after that ends when what was kept is durably
//! forgotten ([`Home::is_outdated`]), and the next ones wait for nothing.
//!
//! ```text
//!   Nothing --- all known, nothing removed for a while: keep ---> Kept
//!      ^ ^                                                         | |
//!      | +------------------- another map -------------------------+ |
//!      +--- forgotten, another map --- Outdated <--- a tombstone ----+
//! ```
//!
//! In bytes these are pieces of a bounded size each, as they fit into records of a drive:
//!
//! ```text
//!  | LNKM | 1 | node (8) | what it knew (40 and more) | piece (2) | pieces (2) | n (4) |
//!  | n tombstones: key (16), epoch (8), sequence (8), generation (8) | CRC32C of all before (4) |
//!
//!  what it knew: incarnation (8), epoch (8), homes (4), cores (2), horizon (8), whole 1 | final 2 (1), open group, past groups (1), each
//!  a group: n (1), n lives: 0 | 1, node (8), incarnation (8); the last map it was in (8)
//! ```

use core::time::Duration;
use std::collections::BTreeMap;

use lunette_cluster_proto::framing::{Frame, FrameFault};
use lunette_cluster_proto::map::Epoch;
use lunette_runtime_core::codec::{Reader, Truncated, Writer};
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::mutant::{self, Mutant};
use lunette_runtime_core::time::Time;
use thiserror::Error;

use super::losses::LossBook;
use super::{Home, Out};
use crate::key::Fingerprint;
use crate::message::directory::Recalled;
use crate::placement::Seat;
use crate::version::{Generation, Tombstone, Version};

/// Most tombstones of one piece: 640 KiB.
const PIECE_TOMBSTONES_MAX: usize = 16 << 10;
/// How much longer nothing has been removed before what a home knows is kept, for each tombstone: so that what is written again
/// and again is not much.
const KEEP_AFTER_EACH: Duration = Duration::from_micros(20);
/// Most pieces.
pub const MEMORY_PIECES_MAX: usize = 1 << 10;

const FRAME: Frame = Frame {
    magic: *b"LNKM",
    version: 1,
};

/// What a home that has left knew of removals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HomeMemory {
    /// When that was, and how far it goes back.
    pub known: Recalled,
    /// Removals and upserts, in the order of their keys.
    pub tombstones: Vec<(Fingerprint, Tombstone)>,
}

/// Whether what a home knows is kept, for the case that its node crashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kept {
    #[default]
    Nothing,
    /// All of it, from when its driver has made it durable.
    All,
    /// More has been removed since, which is told to nobody before that is forgotten.
    Outdated,
}

/// Why pieces are not what a home has known.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum MemoryFault {
    /// One ends too early.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// One is something else, or of another version.
    #[error("something else, or of another version")]
    Unknown,
    /// The bytes of one are damaged.
    #[error("a piece is damaged")]
    Damaged,
    /// A field is out of its bounds, or there is something behind the last.
    #[error("a piece makes no sense: {what}")]
    Nonsense {
        /// Which field.
        what: &'static str,
    },
    /// Pieces are of several nodes or times, or some are missing.
    #[error("these are not all pieces of one")]
    Incomplete,
    /// It is what another node has known.
    #[error("it is of {0}")]
    OtherNode(NodeId),
}

impl From<FrameFault> for MemoryFault {
    fn from(fault: FrameFault) -> Self {
        match fault {
            FrameFault::Truncated(fault) => Self::Truncated(fault),
            FrameFault::Unknown => Self::Unknown,
            FrameFault::Damaged => Self::Damaged,
        }
    }
}

/// Tombstones and their keys.
type Buried = Vec<(Fingerprint, Tombstone)>;

/// One piece, but for its tombstones.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Head {
    node: NodeId,
    known: Recalled,
    pieces: u16,
}

impl HomeMemory {
    /// The pieces of what a home of this node has known, each made when it is asked for; `None` if it is too long, which no
    /// home's is.
    #[must_use]
    pub fn encode(
        &self,
        node: NodeId,
    ) -> Option<impl DoubleEndedIterator<Item = Vec<u8>> + ExactSizeIterator + '_> {
        let count = self.tombstones.len().div_ceil(PIECE_TOMBSTONES_MAX).max(1);
        let pieces = u16::try_from(count).ok();
        let pieces = pieces.filter(|_| count <= MEMORY_PIECES_MAX)?;
        let known = self.known.clone();
        let head = Head {
            node,
            known,
            pieces,
        };
        Some((0..pieces).map(move |at| {
            let mut parts = self.tombstones.chunks(PIECE_TOMBSTONES_MAX);
            head.seal(at, parts.nth(at.into()).unwrap_or_default())
        }))
    }

    /// What a home of this node has known, of its pieces in any order.
    ///
    /// # Errors
    /// [`MemoryFault`].
    pub fn decode(
        node: NodeId,
        pieces: impl IntoIterator<Item = impl AsRef<[u8]>>,
    ) -> Result<Self, MemoryFault> {
        let mut head = None;
        let mut parts = BTreeMap::new();
        for piece in pieces {
            let (its, at, tombstones) = Head::open(piece.as_ref())?;
            if *head.get_or_insert_with(|| its.clone()) != its
                || parts.insert(at, tombstones).is_some()
            {
                return Err(MemoryFault::Incomplete);
            }
        }
        let head = head.filter(|head| parts.len() == usize::from(head.pieces));
        let head = head.ok_or(MemoryFault::Incomplete)?;
        if head.node != node {
            return Err(MemoryFault::OtherNode(head.node));
        }
        Ok(Self {
            known: head.known,
            tombstones: parts.into_values().flatten().collect(),
        })
    }
}

impl Head {
    fn seal(&self, at: u16, tombstones: &[(Fingerprint, Tombstone)]) -> Vec<u8> {
        FRAME.seal(|out| {
            let mut out = Writer::new(out);
            out.u64(self.node.0);
            self.known.write(&mut out);
            let count = u32::try_from(tombstones.len()).expect("a piece is bounded");
            out.u16(at).u16(self.pieces).u32(count);
            for (
                key,
                Tombstone {
                    version,
                    generation,
                },
            ) in tombstones
            {
                out.u128(key.0).u64(version.epoch.0);
                out.u64(version.sequence).u64(generation.0);
            }
        })
    }

    /// With its place among the pieces, and what is in it.
    fn open(bytes: &[u8]) -> Result<(Self, u16, Buried), MemoryFault> {
        let mut reader = FRAME.open(bytes)?;
        let node = NodeId(reader.u64()?);
        let known = Recalled::read(&mut reader)?;
        let what = "what it knew";
        let known = known.ok_or(MemoryFault::Nonsense { what })?;
        let (at, pieces, count) = (reader.u16()?, reader.u16()?, reader.u32()? as usize);
        if at >= pieces || usize::from(pieces) > MEMORY_PIECES_MAX {
            return Err(MemoryFault::Nonsense { what: "piece" });
        }
        if count > PIECE_TOMBSTONES_MAX {
            return Err(MemoryFault::Nonsense { what: "tombstones" });
        }
        let tombstones = (0..count).map(|_| read_tombstone(&mut reader));
        let tombstones = tombstones.collect::<Result<_, _>>()?;
        if !reader.is_empty() {
            return Err(MemoryFault::Nonsense { what: "length" });
        }
        let head = Self {
            node,
            known,
            pieces,
        };
        Ok((head, at, tombstones))
    }
}

fn read_tombstone(reader: &mut Reader<'_>) -> Result<(Fingerprint, Tombstone), Truncated> {
    let key = Fingerprint(reader.u128()?);
    let (epoch, sequence) = (Epoch(reader.u64()?), reader.u64()?);
    let tombstone = Tombstone {
        version: Version { epoch, sequence },
        generation: Generation(reader.u64()?),
    };
    Ok((key, tombstone))
}

impl Home {
    /// What it knew of removals when it [left](Self::leave), and whether that was all; `None` if it has not, or was none's home.
    #[must_use]
    pub fn memory(&self) -> Option<HomeMemory> {
        let known = self.recalled.as_ref().filter(|_| self.has_left)?;
        Some(self.memory_of(known.clone()))
    }

    fn memory_of(&self, known: Recalled) -> HomeMemory {
        let tombstones = self.tombstones.after(None).collect();
        HomeMemory { known, tombstones }
    }

    /// It is told what a former life of it knew when it left.
    ///
    /// # Panics
    /// If there has been a map already.
    pub fn recall(&mut self, now: Time, memory: HomeMemory) {
        assert!(self.map.members().is_empty(), "before the first map");
        for (key, tombstone) in memory.tombstones {
            let max = self.limits.tombstones_max;
            self.tombstones.insert(now, key, tombstone, max);
        }
        self.recalled = Some(memory.known);
    }

    /// What it recalls, without what it has had no room for.
    pub(super) fn recalled_now(&self) -> Option<Recalled> {
        let recalled = self.recalled.clone();
        recalled.map(|known| Recalled {
            horizon: known.horizon.max(self.tombstones.forgotten),
            ..known
        })
    }

    /// What it knows of removals, if that is all there is to know, none is under way, and none was for a while. It counts for
    /// its next life from when it is durable, until it is [outdated](Self::is_outdated) or the map is another one; it is not told
    /// again until then.
    pub fn keep(&mut self, now: Time) -> Option<HomeMemory> {
        let count = u32::try_from(self.tombstones.len()).expect("they are bounded");
        let after = self.limits.keep_after + KEEP_AFTER_EACH.saturating_mul(count);
        let is_quiet = self.changes.is_empty() && now >= self.tombstoned + after;
        if !is_quiet || !self.is_complete() || self.kept != Kept::Nothing {
            return None;
        }
        let known = self.known_now(false).filter(|known| known.is_whole)?;
        self.kept = Kept::All;
        Some(self.memory_of(known))
    }

    /// Whether what was [kept](Self::keep) is all that it knows.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.kept == Kept::All
    }

    /// Whether what was [kept](Self::keep) is to be forgotten, for which removals and upserts wait.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        self.kept == Kept::Outdated
    }

    /// What was kept is not there any more, whatever happens to the node.
    pub fn has_forgotten(&mut self, now: Time, out: Out<'_>) {
        if self.is_outdated() {
            self.kept = Kept::Nothing;
            self.end_changes(now, out);
        }
    }

    /// There is a tombstone more.
    pub(super) fn outdate(&mut self, now: Time) {
        self.tombstoned = now;
        if self.kept == Kept::All && !mutant::is_on(Mutant::MemoryOutdated) {
            self.kept = Kept::Outdated;
        }
    }

    /// What is known when it leaves: what it has been told before, if there was no map.
    pub(super) fn known_at_the_end(&self) -> Option<Recalled> {
        self.known_now(true).or_else(|| self.recalled_now())
    }

    /// If it has been in the map.
    fn known_now(&self, is_final: bool) -> Option<Recalled> {
        let me = self.map.member(self.seat.node);
        // What others have told since is in the horizon of one that is complete.
        let recalled = self.recalled.as_ref().filter(|_| !self.is_complete());
        let recalled = recalled.map_or(Epoch(0), |known| known.horizon);
        let homes = self.map.members().iter();
        let homes = homes.filter(|member| member.weight() > 0).count();
        let is_home = me.is_some_and(|me| me.weight() > 0);
        (!self.map.members().is_empty()).then(|| Recalled {
            incarnation: self.seat.incarnation,
            epoch: self.map.epoch(),
            homes: u32::try_from(homes).expect("members are bounded"),
            cores: self.cores,
            horizon: self.tombstones.forgotten.max(recalled),
            is_whole: self.is_complete() && is_home,
            is_final,
            losses: self.losses.told(),
        })
    }

    /// What former lives knew, where nobody else knows: up to which epoch removals may be forgotten, and whose knowledge is missing.
    /// `None` if that is not all that there is to know.
    pub(super) fn recalled_by_all(
        &self,
        others: &BTreeMap<Seat, Recalled>,
    ) -> Option<(Epoch, LossBook)> {
        let own = self.recalled_now();
        let own = own.iter().map(|known| (&self.seat, known));
        let before = Epoch(self.map.epoch().0 - 1);
        let all = others.iter().chain(own);
        let all = all.filter(|(_, known)| known.is_whole && known.epoch == before);
        let all: Vec<_> = all.collect();
        let homes = all.iter().map(|(_, known)| known.homes as usize).max()?;
        let mut cores: BTreeMap<NodeId, (u16, u16)> = BTreeMap::new();
        for (seat, known) in &all {
            let (count, of) = cores.entry(seat.node).or_default();
            (*count, *of) = (*count + 1, known.cores);
        }
        let whole = cores.values().filter(|(count, of)| count >= of).count();
        let is_known = whole >= homes || (whole + 1 >= homes && homes > 1);
        let is_believed = is_known || mutant::is_on(Mutant::MemoryOverrated);
        let mut losses = LossBook::default();
        for (_, known) in &all {
            losses.take_in(known.losses.clone());
        }
        if whole < homes {
            losses.lack_one(before);
        }
        let horizon = all.iter().map(|(_, known)| known.horizon).max();
        let horizon = horizon.filter(|_| is_believed)?;
        Some((horizon, losses))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::directory::{Gone, Losses};

    fn memory(tombstones: usize) -> HomeMemory {
        let tombstones = (0..tombstones as u64).map(|number| {
            let version = Version {
                epoch: Epoch(number % 7),
                sequence: number,
            };
            let generation = Generation(number % 3);
            let tombstone = Tombstone {
                version,
                generation,
            };
            (Fingerprint(u128::from(number) << 64 | 5), tombstone)
        });
        HomeMemory {
            known: Recalled {
                incarnation: 6,
                epoch: Epoch(9),
                homes: 3,
                cores: 2,
                horizon: Epoch(4),
                is_whole: true,
                is_final: false,
                losses: Losses {
                    open: vec![Gone {
                        life: None,
                        last: Epoch(8),
                    }],
                    past: vec![vec![Gone {
                        life: Some((NodeId(2), 5)),
                        last: Epoch(3),
                    }]],
                },
            },
            tombstones: tombstones.collect(),
        }
    }

    fn decoded(pieces: &[Vec<u8>]) -> Result<HomeMemory, MemoryFault> {
        HomeMemory::decode(NodeId(7), pieces)
    }

    #[test]
    fn it_comes_back_whole_or_not_at_all() {
        for count in [0, 1, PIECE_TOMBSTONES_MAX, PIECE_TOMBSTONES_MAX * 2 + 1] {
            let memory = memory(count);
            let pieces = memory.encode(NodeId(7)).expect("it is short");
            let mut pieces: Vec<_> = pieces.collect();
            assert_eq!(pieces.len(), count.div_ceil(PIECE_TOMBSTONES_MAX).max(1));
            pieces.reverse();
            assert_eq!(decoded(&pieces), Ok(memory), "{count}");
            let other = HomeMemory::decode(NodeId(8), &pieces);
            assert_eq!(other, Err(MemoryFault::OtherNode(NodeId(7))));
            let twice: Vec<_> = pieces.iter().chain(&pieces[..1]).cloned().collect();
            assert_eq!(decoded(&twice), Err(MemoryFault::Incomplete));
            pieces.pop();
            assert_eq!(decoded(&pieces), Err(MemoryFault::Incomplete), "{count}");
        }
    }

    #[test]
    fn pieces_of_several_times_are_not_mixed() {
        let earlier = memory(PIECE_TOMBSTONES_MAX + 1);
        let mut pieces: Vec<_> = earlier.encode(NodeId(7)).unwrap().collect();
        let mut later = memory(PIECE_TOMBSTONES_MAX + 1);
        later.known.epoch = Epoch(10);
        pieces[1] = later.encode(NodeId(7)).unwrap().nth(1).unwrap();
        assert_eq!(decoded(&pieces), Err(MemoryFault::Incomplete));
    }

    #[test]
    fn damage_is_seen_and_nothing_panics() {
        let piece = memory(3).encode(NodeId(7)).unwrap().next().unwrap();
        for at in 0..piece.len() {
            let mut damaged = piece.clone();
            damaged[at] ^= 1;
            assert!(decoded(&[damaged]).is_err(), "byte {at}");
            assert!(decoded(&[piece[..at].to_vec()]).is_err(), "{at} bytes");
        }
    }

    #[test]
    fn fields_out_of_bounds_are_refused() {
        let (at, pieces, nothing) = (3, 4, Vec::new());
        let head = Head {
            node: NodeId(7),
            known: memory(0).known,
            pieces,
        };
        assert_eq!(
            Head::open(&head.seal(at, &nothing)),
            Ok((head.clone(), at, nothing.clone()))
        );
        for (head, at) in [
            (head.clone(), pieces),
            (
                Head {
                    pieces: u16::MAX,
                    ..head.clone()
                },
                0,
            ),
        ] {
            let what = "piece";
            let opened = Head::open(&head.seal(at, &nothing));
            assert_eq!(opened, Err(MemoryFault::Nonsense { what }));
        }
        let many = memory(PIECE_TOMBSTONES_MAX + 1).tombstones;
        let what = "tombstones";
        assert_eq!(
            Head::open(&head.seal(0, &many)),
            Err(MemoryFault::Nonsense { what })
        );
    }
}
