//! Memory that a command has: what is filled, and what is sent.

use lunette_runtime::arena::{Exposed, Region, RegionMut};
use lunette_runtime::net::Message;
use lunette_runtime_core::checksum::crc32c;

use super::Data;

/// What is filled.
#[derive(Debug)]
pub(in crate::host) enum Incoming {
    Region(RegionMut),
    Exposed(Exposed),
}

impl Incoming {
    pub(super) fn place(&mut self, offset: usize, bytes: &[u8]) {
        match self {
            Self::Region(region) => {
                region.as_mut_slice()[offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            Self::Exposed(memory) => memory.copy_in(offset, bytes),
        }
    }

    /// The region, if it is one. Exposed memory is counted, and needs no giving back.
    pub(super) fn into_region(self) -> Option<RegionMut> {
        match self {
            Self::Region(region) => Some(region),
            Self::Exposed(_) => None,
        }
    }
}

/// What is sent.
#[derive(Clone, Debug)]
pub(super) enum Outgoing {
    Region(Region),
    Exposed(Exposed),
}

impl Outgoing {
    pub(super) fn slice(&self, start: usize, len: usize) -> Self {
        match self {
            Self::Region(region) => Self::Region(region.slice(start, len)),
            Self::Exposed(memory) => Self::Exposed(memory.slice(start, len)),
        }
    }

    pub(super) fn append(self, message: &mut Message) {
        match self {
            Self::Region(region) => message.payload(region),
            Self::Exposed(memory) => message.exposed(memory),
        }
    }

    pub(super) fn crc32c(&self) -> u32 {
        match self {
            Self::Region(region) => crc32c(region.as_slice()),
            Self::Exposed(memory) => memory.crc32c(),
        }
    }
}

impl Data {
    /// What is filled, and what is sent.
    pub(super) fn lent(self) -> (Option<Incoming>, Option<Outgoing>) {
        match self {
            Self::None => (None, None),
            Self::Out(region) => (None, Some(Outgoing::Region(region))),
            Self::OutExposed(memory) => (None, Some(Outgoing::Exposed(memory))),
            Self::In(region) => (Some(Incoming::Region(region)), None),
            Self::InExposed(memory) => (Some(Incoming::Exposed(memory)), None),
        }
    }
}
