//! What an operation owns while it is in flight.
//!
//! Memory named in a submitted operation belongs to the device until its completion has been
//! reaped. So the driver's table, not the future, holds it: a [`Lease`] moves in at submission and
//! comes back with the outcome. The set of lendable things is closed, so that a dropped operation
//! parks its lease in the table without allocating.

use std::ptr::NonNull;

use rustix::net::SocketAddrAny;

use crate::arena::{Exposed, Region, RegionMut};
use crate::pool::BufferPool;
use crate::vectored::{Message, Scatter};

/// Something that an operation owns until its completion.
#[derive(Debug)]
pub enum Lease {
    /// Nothing: the operation names no memory.
    Nothing,
    /// Memory that the device may write.
    RegionMut(RegionMut),
    /// Memory that the device may read.
    Region(Region),
    /// Memory that anybody may read and write.
    Exposed(Exposed),
    /// Heap memory.
    Bytes(Vec<u8>),
    /// A gather list.
    Message(Box<Message>),
    /// A peer's address.
    Address(Box<SocketAddrAny>),
    /// A counter, as eventfd writes it.
    Word(Box<u64>),
    /// A scatter list.
    Scatter(Box<Scatter>),
    /// A pool, from which the device takes its memory.
    Pool(BufferPool),
}

impl Lease {
    /// The bytes that the device may read: address and length.
    pub(crate) fn readable(&self) -> (NonNull<u8>, usize) {
        let bytes = match self {
            Self::RegionMut(region) => region.as_slice(),
            Self::Region(region) => region.as_slice(),
            Self::Bytes(bytes) => bytes.as_slice(),
            Self::Exposed(memory) => return (memory.address(), memory.len()),
            other => unreachable!("only plain memory is lent for reading by range: {other:?}"),
        };
        (NonNull::from(bytes).cast::<u8>(), bytes.len())
    }

    /// The bytes that the device may write: address and length.
    pub(crate) fn writable(&mut self) -> (NonNull<u8>, usize) {
        match self {
            Self::RegionMut(region) => (region.address(), region.len()),
            Self::Bytes(bytes) => (
                NonNull::from(bytes.as_mut_slice()).cast::<u8>(),
                bytes.len(),
            ),
            Self::Exposed(memory) => (memory.address(), memory.len()),
            Self::Word(word) => (NonNull::from(word.as_mut()).cast::<u8>(), size_of::<u64>()),
            other => unreachable!("only memory that may be written is lent for writing: {other:?}"),
        }
    }
}

/// A type that can be lent to an operation and comes back with its outcome.
///
/// Closed: implemented for `()`, [`RegionMut`], [`Region`], [`Exposed`], `Vec<u8>` (its initialised length),
/// `Box<Message>`, `Box<Scatter>` and [`BufferPool`].
pub trait Lend: sealed::Sealed + Sized + 'static {
    #[doc(hidden)]
    fn into_lease(self) -> Lease;
    #[doc(hidden)]
    fn from_lease(lease: Lease) -> Self;
}

/// A lendable type that the device may read by range.
pub trait LendRead: Lend {}

/// A lendable type that the device may write by range.
pub trait LendWrite: Lend {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! lend {
    ($type:ty, $variant:ident) => {
        impl sealed::Sealed for $type {}
        impl Lend for $type {
            fn into_lease(self) -> Lease {
                Lease::$variant(self)
            }
            fn from_lease(lease: Lease) -> Self {
                match lease {
                    Lease::$variant(value) => value,
                    _ => unreachable!("an operation returns the lease that it was given"),
                }
            }
        }
    };
}

lend!(RegionMut, RegionMut);
lend!(Region, Region);
lend!(Exposed, Exposed);
lend!(Vec<u8>, Bytes);
lend!(Box<Message>, Message);
lend!(Box<SocketAddrAny>, Address);
lend!(Box<u64>, Word);
lend!(Box<Scatter>, Scatter);
lend!(BufferPool, Pool);

impl sealed::Sealed for () {}

impl Lend for () {
    fn into_lease(self) -> Lease {
        Lease::Nothing
    }

    fn from_lease(lease: Lease) -> Self {
        assert!(
            matches!(lease, Lease::Nothing),
            "an operation returns the lease it was given"
        );
    }
}

impl LendRead for RegionMut {}
impl LendRead for Region {}
impl LendRead for Exposed {}
impl LendRead for Vec<u8> {}
impl LendWrite for RegionMut {}
impl LendWrite for Exposed {}
impl LendWrite for Vec<u8> {}
