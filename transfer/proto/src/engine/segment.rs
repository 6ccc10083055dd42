//! What an engine has registered.
//!
//! A segment is a range of memory under an id that is never used again: the id names a slot and the
//! slot's generation, so an id that a peer kept from before is refused and cannot reach what came to
//! lie there later. A segment may have a name, by which peers open it, and an address, by which peers
//! of the older kind name a place in it. Looking one up by id or by address is one look into memory, however
//! many there are.

mod address_index;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

use address_index::AddressIndex;

/// Segments of one engine.
pub const SEGMENTS_MAX: usize = 1 << 20;
/// Longest name of a segment, in bytes.
pub const SEGMENT_NAME_BYTES_MAX: usize = 255;

/// Names a segment of one engine, for as long as it is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId {
    index: u32,
    generation: u32,
}

impl SegmentId {
    /// The id of no segment, ever.
    pub const NONE: Self = Self {
        index: 0,
        generation: 0,
    };

    /// Its place in the table of its engine's segments, less than [`SEGMENTS_MAX`].
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }

    /// How many segments had that place before it, and one. Never 0 for a segment that is registered.
    #[must_use]
    pub const fn generation(self) -> u32 {
        self.generation
    }

    /// As it stands on the wire.
    #[must_use]
    pub const fn to_wire(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// From the wire. Any number is an id; whether it names something is the table's to say.
    #[must_use]
    pub fn from_wire(found: u64) -> Self {
        let half = |value: u64| u32::try_from(value & u64::from(u32::MAX)).expect("masked");
        Self {
            index: half(found),
            generation: half(found >> 32),
        }
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {}.{}", self.index, self.generation)
    }
}

/// What peers may do with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read it.
    Read,
    /// Write it.
    Write,
    /// Both.
    ReadWrite,
}

impl Access {
    /// Whether it allows what is asked.
    #[must_use]
    pub const fn allows(self, asked: Way) -> bool {
        matches!(
            (self, asked),
            (Self::ReadWrite, _) | (Self::Read, Way::Read) | (Self::Write, Way::Write)
        )
    }

    /// What both this and `other` allow, if anything.
    #[must_use]
    pub const fn and(self, other: Self) -> Option<Self> {
        Self::from_wire(self.to_wire() & other.to_wire())
    }

    pub(super) const fn to_wire(self) -> u8 {
        match self {
            Self::Read => 1,
            Self::Write => 2,
            Self::ReadWrite => 3,
        }
    }

    pub(super) const fn from_wire(found: u8) -> Option<Self> {
        match found {
            1 => Some(Self::Read),
            2 => Some(Self::Write),
            3 => Some(Self::ReadWrite),
            _ => None,
        }
    }
}

/// What a segment is made of, as far as who reaches it has to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Memory.
    #[default]
    Memory,
    /// A file: it is read and written by its owner's system alone, over connections.
    File,
    /// Memory of a device, a GPU say: adapters may reach it, and its owner does, over connections.
    Device,
    /// A namespace of an NVMe controller: its owner reaches it, over connections, in whole blocks.
    Namespace,
}

impl Kind {
    pub(super) const fn to_wire(self) -> u8 {
        match self {
            Self::Memory => 0,
            Self::File => 1,
            Self::Device => 2,
            Self::Namespace => 3,
        }
    }

    pub(super) const fn from_wire(found: u8) -> Option<Self> {
        match found {
            0 => Some(Self::Memory),
            1 => Some(Self::File),
            2 => Some(Self::Device),
            3 => Some(Self::Namespace),
            _ => None,
        }
    }
}

/// Which way bytes go, seen from who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// From the peer's memory to ours.
    Read,
    /// From ours to the peer's.
    Write,
}

/// Why a segment was not registered.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RegisterRefusal {
    /// [`SEGMENTS_MAX`] are registered: unregister one first.
    #[error("{SEGMENTS_MAX} segments are registered")]
    Full,
    /// Another segment has this name.
    #[error("the name is taken by {holder}")]
    NameTaken {
        /// Which.
        holder: SegmentId,
    },
    /// Empty, or longer than [`SEGMENT_NAME_BYTES_MAX`].
    #[error("a name of {len_bytes} bytes is outside 1..={SEGMENT_NAME_BYTES_MAX}")]
    BadName {
        /// Its length.
        len_bytes: usize,
    },
    /// Memory of no bytes, or that wraps round the end of the address space.
    #[error("memory of {len_bytes} bytes at {start:#x}")]
    BadRange {
        /// Its first address, 0 without one.
        start: u64,
        /// Its length.
        len_bytes: u64,
    },
    /// A segment that is known by address has bytes in common with it.
    #[error("its addresses overlap those of {holder}")]
    Overlaps {
        /// Which.
        holder: SegmentId,
    },
    /// The engine has several cores, and this is reached by one of them alone: share it with all.
    #[error("it belongs to one core of an engine of several: share it with all of them")]
    OfOneCore,
}

impl RegisterRefusal {
    /// Whether unregistering something helps.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Full)
    }
}

/// Why memory was not reached.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum AccessRefusal {
    /// The id names nothing, or something that is not registered any more.
    #[error("no such segment: it was unregistered, or never was")]
    Stale,
    /// The segment does not allow it.
    #[error("the segment does not allow it")]
    Forbidden,
    /// Not all of the range lies in the segment.
    #[error("the range does not lie in the segment")]
    OutOfRange,
}

/// What a segment is to be.
#[derive(Clone, Debug)]
pub struct Registration<'a> {
    /// The name by which peers open it.
    pub name: Option<&'a [u8]>,
    /// The address by which peers may name places in it.
    pub start: Option<u64>,
    /// Its length.
    pub len_bytes: u64,
    /// What peers may do.
    pub access: Access,
}

/// A registered segment.
#[derive(Debug)]
pub struct Segment<M> {
    /// Its length.
    pub len_bytes: u64,
    /// What peers may do.
    pub access: Access,
    /// What leads to its memory.
    pub memory: M,
    start: Option<u64>,
    name: Option<Box<[u8]>>,
}

impl<M> Segment<M> {
    /// The address by which it is known.
    #[must_use]
    pub const fn start(&self) -> Option<u64> {
        self.start
    }

    /// The name by which it is opened.
    #[must_use]
    pub fn name(&self) -> Option<&[u8]> {
        self.name.as_deref()
    }
}

#[derive(Debug)]
struct Slot<M> {
    generation: u32,
    segment: Option<Segment<M>>,
}

impl<M> Default for Slot<M> {
    fn default() -> Self {
        Self {
            generation: 1,
            segment: None,
        }
    }
}

/// The segments of one engine, each with an `M` that leads the driver to its memory.
#[derive(Debug)]
pub struct Segments<M> {
    slots: Vec<Slot<M>>,
    count: usize,
    /// Slots to be used again, by a table that gives ids itself.
    free: Vec<u32>,
    is_led: bool,
    names: BTreeMap<Box<[u8]>, u32>,
    /// By first address: how long it is, and which. For who registers.
    starts: BTreeMap<u64, (u64, SegmentId)>,
    /// The same, for who looks one up.
    addresses: AddressIndex,
}

impl<M> Default for Segments<M> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            count: 0,
            free: Vec::new(),
            is_led: false,
            names: BTreeMap::new(),
            starts: BTreeMap::new(),
            addresses: AddressIndex::default(),
        }
    }
}

impl<M> Segments<M> {
    /// How many are registered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether none is registered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Registers a segment.
    ///
    /// # Errors
    /// [`RegisterRefusal`], with the memory.
    pub fn register(
        &mut self,
        what: &Registration<'_>,
        memory: M,
    ) -> Result<SegmentId, (RegisterRefusal, M)> {
        if let Err(refusal) = self.check(what) {
            return Err((refusal, memory));
        }
        let index = self.free.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.slots.len()).expect("segments are bounded");
            self.slots.push(Slot::default());
            index
        });
        let generation = self.slots[index as usize].generation;
        let id = SegmentId { index, generation };
        self.put(id, what, memory);
        Ok(id)
    }

    /// Takes in a segment under the id that another table has given it, which knows of everything that is
    /// registered here and has let it in. A table either gives ids itself or takes them from one other.
    ///
    /// # Panics
    /// If something is registered under that index, or an earlier generation is asked for.
    pub fn adopt(&mut self, id: SegmentId, what: &Registration<'_>, memory: M) {
        let index = id.index as usize;
        assert!(index < SEGMENTS_MAX, "ids are bounded");
        self.is_led = true;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, Slot::default);
        }
        let slot = &mut self.slots[index];
        assert!(slot.generation <= id.generation, "ids are not used again");
        slot.generation = id.generation;
        self.put(id, what, memory);
    }

    fn put(&mut self, id: SegmentId, what: &Registration<'_>, memory: M) {
        let slot = &mut self.slots[id.index as usize];
        assert!(slot.segment.is_none(), "a free slot holds no segment");
        slot.segment = Some(Segment {
            len_bytes: what.len_bytes,
            access: what.access,
            memory,
            start: what.start,
            name: what.name.map(Into::into),
        });
        self.count += 1;
        if let Some(name) = what.name {
            self.names.insert(name.into(), id.index);
        }
        if let Some(start) = what.start {
            self.starts.insert(start, (what.len_bytes, id));
            self.addresses.insert(start, what.len_bytes, id);
        }
    }

    /// Takes a segment away. No later access reaches it; those under way are the driver's to wait
    /// for.
    pub fn unregister(&mut self, id: SegmentId) -> Option<Segment<M>> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        let segment = slot.segment.take()?;
        self.count -= 1;
        // A slot whose generations are used up is never used again.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            if !self.is_led {
                self.free.push(id.index);
            }
        }
        if let Some(name) = &segment.name {
            self.names.remove(name);
        }
        if let Some(start) = segment.start {
            self.starts.remove(&start);
            self.addresses.remove(start, segment.len_bytes);
        }
        Some(segment)
    }

    /// A segment.
    #[must_use]
    pub fn get(&self, id: SegmentId) -> Option<&Segment<M>> {
        let slot = self.slots.get(id.index as usize)?;
        if slot.generation == id.generation {
            slot.segment.as_ref()
        } else {
            None
        }
    }

    /// The segment of a name.
    #[must_use]
    pub fn by_name(&self, name: &[u8]) -> Option<(SegmentId, &Segment<M>)> {
        self.at(*self.names.get(name)?)
    }

    /// The segment in which a range of addresses lies wholly, and at which offset. A range of no bytes lies
    /// where its address does.
    #[must_use]
    pub fn by_address(&self, start: u64, len_bytes: u64) -> Option<(SegmentId, u64)> {
        let (first, held_bytes, id) = self.addresses.find(start)?;
        let offset = start - first;
        let end = offset.checked_add(len_bytes)?;
        (end <= held_bytes).then_some((id, offset))
    }

    /// The segment that an access reaches, if it may.
    ///
    /// # Errors
    /// [`AccessRefusal`].
    pub fn reach(
        &self,
        id: SegmentId,
        way: Way,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<&Segment<M>, AccessRefusal> {
        let segment = self.get(id).ok_or(AccessRefusal::Stale)?;
        if !segment.access.allows(way) {
            return Err(AccessRefusal::Forbidden);
        }
        match offset_bytes.checked_add(len_bytes) {
            Some(end) if end <= segment.len_bytes => Ok(segment),
            _ => Err(AccessRefusal::OutOfRange),
        }
    }

    fn at(&self, index: u32) -> Option<(SegmentId, &Segment<M>)> {
        let Slot {
            generation,
            segment,
        } = &self.slots[index as usize];
        let id = SegmentId {
            index,
            generation: *generation,
        };
        Some((id, segment.as_ref()?))
    }

    fn check(&self, what: &Registration<'_>) -> Result<(), RegisterRefusal> {
        if self.free.is_empty() && self.slots.len() >= SEGMENTS_MAX {
            return Err(RegisterRefusal::Full);
        }
        if let Some(name) = what.name {
            let len_bytes = name.len();
            if !(1..=SEGMENT_NAME_BYTES_MAX).contains(&len_bytes) {
                return Err(RegisterRefusal::BadName { len_bytes });
            }
            if let Some((holder, _)) = self.by_name(name) {
                return Err(RegisterRefusal::NameTaken { holder });
            }
        }
        let len_bytes = what.len_bytes;
        let start = what.start.unwrap_or(0);
        let Some(end) = start.checked_add(len_bytes).filter(|_| len_bytes > 0) else {
            return Err(RegisterRefusal::BadRange { start, len_bytes });
        };
        if what.start.is_some()
            && let Some((&first, &(held_bytes, holder))) = self.starts.range(..end).next_back()
            && first + held_bytes > start
        {
            return Err(RegisterRefusal::Overlaps { holder });
        }
        Ok(())
    }
}
