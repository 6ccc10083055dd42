//! Memory from which bytes are sent or copied.

use lunette_runtime::arena::{Exposed, Region};
use lunette_runtime::net::Message;
use lunette_runtime_core::checksum::Crc32c;

/// Memory from which a write takes its bytes, without a copy. It is counted, and stays until the last
/// operation on it has been reaped, whatever becomes of the handle that was given.
#[derive(Clone, Debug)]
pub enum WriteSource {
    /// Memory that others may write meanwhile: what is written is what lies there when it is read.
    Exposed(Exposed),
    /// A piece of an arena that nobody writes. Several writes, and whoever else reads it, may have it at the
    /// same time; it cannot be taken back for writing ([`Region::try_unfreeze`]) before they have let it go.
    Region(Region),
}

impl From<Exposed> for WriteSource {
    fn from(memory: Exposed) -> Self {
        Self::Exposed(memory)
    }
}

impl From<Region> for WriteSource {
    fn from(region: Region) -> Self {
        Self::Region(region)
    }
}

impl WriteSource {
    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Exposed(memory) => memory.len(),
            Self::Region(region) => region.len(),
        }
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it begins, as a number.
    pub(crate) fn start(&self) -> usize {
        match self {
            Self::Exposed(memory) => memory.start(),
            Self::Region(region) => region.as_slice().as_ptr().addr(),
        }
    }

    /// The part `start..start + len`, which keeps the whole.
    #[must_use]
    pub fn slice(&self, start: usize, len: usize) -> Self {
        match self {
            Self::Exposed(memory) => Self::Exposed(memory.slice(start, len)),
            Self::Region(region) => Self::Region(region.slice(start, len)),
        }
    }

    /// Folds the bytes into a checksum.
    pub fn fold(&self, checksum: &mut Crc32c) {
        match self {
            Self::Exposed(memory) => memory.fold(checksum),
            Self::Region(region) => checksum.fold(region.as_slice()),
        }
    }

    /// Copies all of it over `to`, which is as long; the CRC32C of the copy.
    ///
    /// # Panics
    /// If it is not as long.
    pub fn copy_out_summed(&self, to: &mut [u8]) -> u32 {
        assert_eq!(to.len(), self.len(), "room for the bytes and no more");
        match self {
            Self::Exposed(memory) => memory.copy_out_summed(0, to),
            Self::Region(region) => region.copy_out_summed(to),
        }
    }

    /// Copies all of it over the beginning of `to`, which has at least its length.
    pub(crate) fn copy_to(&self, to: &Exposed) {
        match self {
            Self::Exposed(memory) => to.copy_from(0, memory),
            Self::Region(region) => to.copy_in(0, region.as_slice()),
        }
    }

    /// Appends it to a message, which keeps it until it has been sent.
    pub(crate) fn append(self, message: &mut Message) {
        match self {
            Self::Exposed(memory) => message.exposed(memory),
            Self::Region(region) => message.payload(region),
        }
    }
}
