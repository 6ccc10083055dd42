//! Peers that read each other's process: memory that is no mapping of its own is copied once, by who wants
//! it, from where it lies.
//!
//! Both sides have to want it ([`EngineOptions::same_host_trust`](super::super::EngineOptions)), since who
//! may read one piece of a process may read all of it. And it has to work: each side is told where the other
//! has a value that nobody can guess, and reads it. Where the system forbids that, or where the number of a
//! process means another one here, nothing else is tried.

use std::io;
use std::ptr;
use std::rc::Rc;

use lunette_runtime::arena::{Exposed, HugePages, ProcessMemory, View};
use lunette_runtime::net::LocalChannel;
use lunette_transfer_proto::engine::same_host::packet::Packet;
use rustix::io::Errno;

use super::{draw, nonsense, understand};

/// A value that only this process has at that address, as long as this lives.
#[derive(Debug)]
pub(super) struct Proof(Box<u128>);

impl Proof {
    pub(super) fn new() -> Self {
        Self(Box::new(draw().to_le()))
    }

    /// What the other side is told.
    pub(super) fn packet(&self, reads: bool) -> Packet {
        Packet::Trust {
            address: ptr::from_ref(&*self.0).addr() as u64,
            value: u128::from_le(*self.0),
            reads,
        }
    }
}

/// What a side says that trusts nobody.
pub(super) const DISTRUST: Packet = Packet::Trust {
    address: 0,
    value: 0,
    reads: false,
};

/// The process at the other end of a channel, if it has that value there and can be read.
pub(super) fn try_out(channel: &LocalChannel, address: u64, value: u128) -> Option<ProcessMemory> {
    let process = channel.process();
    let process = process.inspect_err(|error| tracing::debug!(%error, "a process"));
    let process = process.ok()?;
    let room = Exposed::map(size_of_val(&value), HugePages::Never, &mut Vec::new()).ok()?;
    if let Err(error) = process.copy_out(address, &room) {
        tracing::debug!(%error, "a process of this host is not read");
        return None;
    }
    let mut found = [0; size_of::<u128>()];
    room.copy_out(0, &mut found);
    (u128::from_le_bytes(found) == value).then_some(process)
}

/// What an asker and its peer have come to.
#[derive(Debug)]
pub(super) struct Trust {
    _proof: Proof,
    /// The peer's, if it can be read.
    pub(super) process: Option<Rc<ProcessMemory>>,
    /// Whether the peer reads this process.
    pub(super) is_read: bool,
}

impl Trust {
    /// Asks a peer that has just let us in.
    pub(super) async fn agree(channel: &LocalChannel) -> io::Result<Self> {
        let proof = Proof::new();
        channel.send(&proof.packet(false).encode(), &[])?;
        let received = channel.recv().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let understood = understand(received).map(|(packet, _)| packet);
        let Some(Packet::Trust {
            address,
            value,
            reads,
        }) = understood
        else {
            return Err(nonsense());
        };
        let is_willing = address != 0;
        let process = is_willing.then(|| try_out(channel, address, value));
        let process = process.flatten().map(Rc::new);
        if process.is_some() {
            channel.send(&Packet::Trusted.encode(), &[])?;
        }
        Ok(Self {
            _proof: proof,
            process,
            is_read: reads,
        })
    }
}

/// Memory of the other side that may be read.
#[derive(Debug)]
pub(super) enum Sight {
    /// It is mapped here.
    Mapped(View),
    /// It lies at this address there.
    At {
        process: Rc<ProcessMemory>,
        address: u64,
        len_bytes: u64,
    },
}

impl Sight {
    /// What lies at an address of a process; `None` for a range that is none.
    pub(super) fn at(process: &Rc<ProcessMemory>, address: u64, len_bytes: u64) -> Option<Self> {
        address.checked_add(len_bytes)?;
        Some(Self::At {
            process: Rc::clone(process),
            address,
            len_bytes,
        })
    }

    pub(super) fn len_bytes(&self) -> u64 {
        match self {
            Self::Mapped(view) => view.len() as u64,
            Self::At { len_bytes, .. } => *len_bytes,
        }
    }

    /// Copies from `offset_bytes` on over all of `to`, both of which lie in it. What is mapped is always
    /// there; a process can end, or take its memory away, and then some of it may have been copied.
    pub(super) fn copy_out(&self, offset_bytes: u64, to: &Exposed) -> Result<(), Errno> {
        let end = offset_bytes.checked_add(to.len() as u64);
        assert!(end.is_some_and(|end| end <= self.len_bytes()), "in sight");
        match self {
            Self::Mapped(view) => {
                let start = usize::try_from(offset_bytes).expect("it lies in the view");
                view.copy_out(start, to);
                Ok(())
            }
            Self::At {
                process, address, ..
            } => process.copy_out(address + offset_bytes, to),
        }
    }
}
