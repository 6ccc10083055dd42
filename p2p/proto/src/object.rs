//! What an object is: its name, its version, the buffers it is made of, and the chunks they are cut into.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;

/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 200;
/// Most buffers of an object.
pub const BUFFERS_MAX: usize = 16 * 1024;
/// Most chunks of an object.
pub const CHUNKS_MAX: u32 = 1 << 17;
/// Shortest chunk, in bytes. Chunks are powers of two.
pub const CHUNK_BYTES_MIN: u32 = 4 * 1024;
/// Longest chunk, in bytes.
pub const CHUNK_BYTES_MAX: u32 = 1 << 30;
/// Chunks whose checksums are in one record of the catalogue.
pub const GROUP_CHUNKS: u32 = 4096;

/// The name under which an object is found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName(String);

/// No name of an object: it has 1 to [`NAME_BYTES_MAX`] bytes of printable ASCII without a space.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("an object is named by 1 to {NAME_BYTES_MAX} printable ASCII characters without a space")]
pub struct NameFault;

impl ObjectName {
    /// The name itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ObjectName {
    type Err = NameFault;

    fn from_str(name: &str) -> Result<Self, NameFault> {
        let is_name = (1..=NAME_BYTES_MAX).contains(&name.len());
        if is_name && name.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(name.to_owned()))
        } else {
            Err(NameFault)
        }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One registration of an object, drawn by who registers it: bytes of one version never change, and no two
/// registrations have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Where a chunk lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which buffer.
    pub buffer: u32,
    /// Where in it, in bytes.
    pub offset_bytes: u64,
    /// How long it is: as a chunk of its object, or less at the end of its buffer.
    pub len_bytes: u32,
}

/// Why buffers make no object.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ShapeFault {
    /// There is not a byte in it.
    #[error("an object has at least one byte")]
    Empty,
    /// There are more than [`BUFFERS_MAX`].
    #[error("{count} buffers: an object has at most {BUFFERS_MAX}")]
    TooManyBuffers {
        /// How many.
        count: usize,
    },
    /// The chunk's length is none.
    #[error(
        "chunks of {chunk_bytes} bytes: they are powers of two from {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX}"
    )]
    ChunkBytes {
        /// What was asked.
        chunk_bytes: u32,
    },
    /// There are more than [`CHUNKS_MAX`]: longer chunks help.
    #[error("an object has at most {CHUNKS_MAX} chunks: make them longer")]
    TooManyChunks,
}

/// The buffers of an object, and how they are cut. No chunk crosses a buffer's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    chunk_bytes: u32,
    buffers: Vec<u64>,
    /// The first chunk of each buffer, and behind the last one the number of all.
    firsts: Vec<u32>,
    len_bytes: u64,
}

impl Shape {
    /// Cuts buffers of these lengths, in bytes, into chunks.
    ///
    /// # Errors
    /// [`ShapeFault`].
    pub fn new(chunk_bytes: u32, buffers: Vec<u64>) -> Result<Self, ShapeFault> {
        let is_length = (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&chunk_bytes);
        if !is_length || !chunk_bytes.is_power_of_two() {
            return Err(ShapeFault::ChunkBytes { chunk_bytes });
        }
        if buffers.len() > BUFFERS_MAX {
            let count = buffers.len();
            return Err(ShapeFault::TooManyBuffers { count });
        }
        let mut firsts = Vec::with_capacity(buffers.len() + 1);
        let (mut chunks, mut len_bytes) = (0, 0);
        firsts.push(chunks);
        for &buffer in &buffers {
            let more = buffer.div_ceil(u64::from(chunk_bytes));
            let all = u64::from(chunks).checked_add(more);
            let all = all.filter(|&all| all <= u64::from(CHUNKS_MAX));
            let all = all.ok_or(ShapeFault::TooManyChunks)?;
            chunks = u32::try_from(all).expect("chunks are bounded");
            firsts.push(chunks);
            len_bytes += buffer;
        }
        if chunks == 0 {
            return Err(ShapeFault::Empty);
        }
        Ok(Self {
            chunk_bytes,
            buffers,
            firsts,
            len_bytes,
        })
    }

    /// Length of a chunk, in bytes, but for the last one of each buffer.
    #[must_use]
    pub const fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes
    }

    /// The lengths of its buffers, in bytes.
    #[must_use]
    pub fn buffers(&self) -> &[u64] {
        &self.buffers
    }

    /// How long it is in all.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// How many chunks it has: at least 1.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        *self.firsts.last().expect("there is always one")
    }

    /// How many records its checksums take.
    #[must_use]
    pub fn groups(&self) -> u32 {
        self.chunks().div_ceil(GROUP_CHUNKS)
    }

    /// How many chunks a group has; 0 if there is no such group.
    #[must_use]
    pub fn group_len(&self, group: u32) -> u32 {
        let start = group.saturating_mul(GROUP_CHUNKS);
        self.chunks().saturating_sub(start).min(GROUP_CHUNKS)
    }

    /// The chunks of a buffer, by their numbers; `None` if there is no such buffer.
    #[must_use]
    pub fn chunks_of(&self, buffer: u32) -> Option<core::ops::Range<u32>> {
        let first = *self.firsts.get(buffer as usize)?;
        Some(first..*self.firsts.get(buffer as usize + 1)?)
    }

    /// Where a chunk lies; `None` if there is no such chunk.
    #[must_use]
    pub fn place(&self, chunk: u32) -> Option<Place> {
        if chunk >= self.chunks() {
            return None;
        }
        // Buffers without a byte share their first chunk with the next: the last of them that begins here is it.
        let buffer = self.firsts.partition_point(|&first| first <= chunk) - 1;
        let offset_bytes = u64::from(chunk - self.firsts[buffer]) * u64::from(self.chunk_bytes);
        let rest = self.buffers[buffer] - offset_bytes;
        Some(Place {
            buffer: u32::try_from(buffer).expect("buffers are bounded"),
            offset_bytes,
            len_bytes: u32::try_from(rest.min(u64::from(self.chunk_bytes))).expect("a chunk's"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_bounds() {
        for name in ["a", "llama-3/70b@v2", &"n".repeat(NAME_BYTES_MAX)] {
            assert_eq!(name.parse::<ObjectName>().unwrap().as_str(), name);
        }
        let long = "n".repeat(NAME_BYTES_MAX + 1);
        for name in ["", "a b", "a\n", "\u{e9}", long.as_str()] {
            assert_eq!(name.parse::<ObjectName>(), Err(NameFault), "{name:?}");
        }
    }

    #[test]
    fn no_chunk_crosses_a_buffers_end() {
        let shape = Shape::new(4096, vec![0, 4096, 0, 4097, 10, 0]).unwrap();
        assert_eq!((shape.chunks(), shape.len_bytes()), (4, 8203));
        let places: Vec<_> = (0..4).map(|chunk| shape.place(chunk).unwrap()).collect();
        let expected = [(1, 0, 4096), (3, 0, 4096), (3, 4096, 1), (4, 0, 10)];
        for (place, (buffer, offset_bytes, len_bytes)) in places.iter().zip(expected) {
            let expected = Place {
                buffer,
                offset_bytes,
                len_bytes,
            };
            assert_eq!(*place, expected);
        }
        assert_eq!(shape.place(4), None);
        assert_eq!(shape.chunks_of(3), Some(1..3));
        assert_eq!(shape.chunks_of(5), Some(4..4));
        assert_eq!(shape.chunks_of(6), None);
    }

    #[test]
    fn shapes_have_bounds_on_both_sides() {
        let chunk_bytes = |chunk_bytes| Err(ShapeFault::ChunkBytes { chunk_bytes });
        for bad in [0, 1, CHUNK_BYTES_MIN / 2, CHUNK_BYTES_MIN + 1, 1 << 31] {
            assert_eq!(Shape::new(bad, vec![1]), chunk_bytes(bad));
        }
        assert!(Shape::new(CHUNK_BYTES_MIN, vec![1]).is_ok());
        assert!(Shape::new(CHUNK_BYTES_MAX, vec![1]).is_ok());
        assert_eq!(Shape::new(4096, vec![]), Err(ShapeFault::Empty));
        assert_eq!(Shape::new(4096, vec![0, 0]), Err(ShapeFault::Empty));
        assert!(Shape::new(4096, vec![1; BUFFERS_MAX]).is_ok());
        let count = BUFFERS_MAX + 1;
        let many = Shape::new(4096, vec![1; count]);
        assert_eq!(many, Err(ShapeFault::TooManyBuffers { count }));
        let most = u64::from(CHUNKS_MAX) * 4096;
        let shape = Shape::new(4096, vec![most]).unwrap();
        assert_eq!(shape.chunks(), CHUNKS_MAX);
        assert_eq!(shape.groups(), CHUNKS_MAX / GROUP_CHUNKS);
        for buffers in [vec![most + 1], vec![most, 1], vec![u64::MAX, u64::MAX]] {
            assert_eq!(Shape::new(4096, buffers), Err(ShapeFault::TooManyChunks));
        }
    }

    #[test]
    fn groups_end_with_the_object() {
        let chunks = u64::from(GROUP_CHUNKS) + 1;
        let shape = Shape::new(4096, vec![chunks * 4096]).unwrap();
        assert_eq!(shape.groups(), 2);
        let lens = [0, 1, 2, u32::MAX].map(|group| shape.group_len(group));
        assert_eq!(lens, [GROUP_CHUNKS, 1, 0, 0]);
    }
}
