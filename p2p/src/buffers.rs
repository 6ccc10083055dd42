//! Memory that a program gives for an object or an update: all of it of the host's, or all of it of devices'.

use lunette_runtime::arena::Exposed;
use lunette_transfer::engine::DeviceSegment;

/// Buffers of the program. Clones are handles to the same memory.
#[derive(Clone, Debug)]
pub enum Buffers {
    /// Memory of the host.
    Host(Vec<Exposed>),
    /// Memory of devices.
    Devices(Vec<DeviceSegment>),
}

impl From<Vec<Exposed>> for Buffers {
    fn from(buffers: Vec<Exposed>) -> Self {
        Self::Host(buffers)
    }
}

impl From<&Vec<Exposed>> for Buffers {
    fn from(buffers: &Vec<Exposed>) -> Self {
        Self::Host(buffers.clone())
    }
}

impl From<Vec<DeviceSegment>> for Buffers {
    fn from(buffers: Vec<DeviceSegment>) -> Self {
        Self::Devices(buffers)
    }
}

impl Buffers {
    /// How long each is, in bytes.
    #[must_use]
    pub fn lens(&self) -> Vec<u64> {
        match self {
            Self::Host(buffers) => buffers.iter().map(|buffer| buffer.len() as u64).collect(),
            Self::Devices(buffers) => buffers.iter().map(DeviceSegment::len_bytes).collect(),
        }
    }

    /// Parts of them, each of a buffer, from an offset on and so many bytes long.
    ///
    /// # Panics
    /// If one does not lie inside.
    pub(crate) fn parts(&self, parts: impl Iterator<Item = (usize, u64, u64)>) -> Self {
        match self {
            Self::Host(buffers) => {
                let part = |(buffer, offset, len): (usize, u64, u64)| {
                    let in_memory = |bytes| usize::try_from(bytes).expect("it is in memory");
                    buffers[buffer].slice(in_memory(offset), in_memory(len))
                };
                Self::Host(parts.map(part).collect())
            }
            Self::Devices(buffers) => {
                let part = |(buffer, offset, len): (usize, u64, u64)| {
                    buffers[buffer].slice(offset..offset + len)
                };
                Self::Devices(parts.map(part).collect())
            }
        }
    }
}
