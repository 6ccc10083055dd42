//! How the messages of the directory are spelt: little-endian, each choice behind a byte.

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_cluster_proto::map::Epoch;
use lunette_runtime_core::codec::{Reader, Writer};
use lunette_runtime_core::ids::{CoreIndex, NodeId, RequestId};

use super::{AskerId, CopyPlace, HoldWish, OpId, ReservationId};
use crate::key::Fingerprint;
use crate::message::MessageFault;
use crate::placement::Seat;
use crate::version::{COPIES_WANTED_MAX, CopyInfo, Generation, Tombstone, Version, WriteKind};

/// What can be written and read back.
pub(super) trait Wire: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(reader: &mut Reader<'_>) -> Result<Self, MessageFault>;
}

/// A byte that stands for nothing.
pub(super) const fn unknown<T>(what: &'static str, code: u8) -> Result<T, MessageFault> {
    Err(MessageFault::UnknownCode { what, code })
}

/// Numbers that are wrapped in a type of their own.
macro_rules! numbers {
    ($($name:ident as $number:ident),* $(,)?) => {
        $(impl Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                Writer::new(out).$number(self.0);
            }

            fn take(reader: &mut Reader<'_>) -> Result<Self, MessageFault> {
                Ok(Self(reader.$number()?))
            }
        })*
    };
}

numbers!(
    Epoch as u64,
    NodeId as u64,
    CoreIndex as u16,
    RequestId as u64,
    Fingerprint as u128,
    Generation as u64,
    AskerId as u64,
    OpId as u64,
    ReservationId as u64,
);

/// Fields one behind the other.
macro_rules! fields {
    ($name:ident { $($field:ident),* $(,)? }) => {
        impl $crate::message::directory::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::message::directory::wire::Wire::put(&self.$field, out);)*
            }

            fn take(
                reader: &mut lunette_runtime_core::codec::Reader<'_>,
            ) -> Result<Self, $crate::message::MessageFault> {
                $(let $field = $crate::message::directory::wire::Wire::take(reader)?;)*
                Ok(Self { $($field),* })
            }
        }
    };
}
pub(super) use fields;

/// Variants with fields, each behind its code.
macro_rules! variants {
    ($name:ident { $($code:literal => $variant:ident { $($field:ident),* $(,)? }),* $(,)? }) => {
        impl $crate::message::directory::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant { $($field),* } => {
                        out.push($code);
                        $($crate::message::directory::wire::Wire::put($field, out);)*
                    })*
                }
            }

            fn take(
                reader: &mut lunette_runtime_core::codec::Reader<'_>,
            ) -> Result<Self, $crate::message::MessageFault> {
                match reader.u8()? {
                    $($code => {
                        $(let $field = $crate::message::directory::wire::Wire::take(reader)?;)*
                        Ok(Self::$variant { $($field),* })
                    })*
                    code => {
                        $crate::message::directory::wire::unknown(stringify!($name), code)
                    }
                }
            }
        }
    };
}
pub(super) use variants;

/// Requests that name a key: the version of the formats, fields, and the key at the end, which what is
/// decoded borrows.
macro_rules! keyed {
    ($name:ident { $($field:ident),* $(,)? }) => {
        impl<'a> $name<'a> {
            /// Appends the message to `out`.
            pub fn encode(&self, out: &mut Vec<u8>) {
                out.push($crate::message::directory::DIRECTORY_VERSION);
                $($crate::message::directory::wire::Wire::put(&self.$field, out);)*
                lunette_runtime_core::codec::Writer::new(out).short_bytes(self.key.bytes());
            }

            /// The message in `body`, whose key it borrows.
            ///
            /// # Errors
            /// [`MessageFault`](crate::message::MessageFault) if it holds anything else than one message.
            pub fn decode(body: &'a [u8]) -> Result<Self, $crate::message::MessageFault> {
                let mut reader = lunette_runtime_core::codec::Reader::new(body);
                $crate::message::directory::envelope::check_version(&mut reader)?;
                $(let $field = $crate::message::directory::wire::Wire::take(&mut reader)?;)*
                let key = $crate::key::Key::new(reader.short_bytes()?)?;
                $crate::message::end_of(&reader)?;
                Ok(Self { $($field,)* key })
            }
        }
    };
}
pub(super) use keyed;

/// What is a whole body, without a version of its own.
macro_rules! body {
    ($name:ident) => {
        impl $name {
            /// Appends the body to `out`.
            pub fn encode(&self, out: &mut Vec<u8>) {
                $crate::message::directory::wire::Wire::put(self, out);
            }

            /// What is in `body`.
            ///
            /// # Errors
            /// [`MessageFault`](crate::message::MessageFault) if it holds anything else.
            pub fn decode(body: &[u8]) -> Result<Self, $crate::message::MessageFault> {
                let mut reader = lunette_runtime_core::codec::Reader::new(body);
                let it = $crate::message::directory::wire::Wire::take(&mut reader)?;
                $crate::message::end_of(&reader)?;
                Ok(it)
            }
        }
    };
}
pub(super) use body;

fields!(Version { epoch, sequence });
fields!(Seat {
    node,
    incarnation,
    core
});
fields!(Tombstone {
    version,
    generation
});
fields!(CopyPlace { key, version });
fields!(HoldWish { holder, ttl_ms });
variants!(NamespaceKind { 0 => Cache {}, 1 => Strict {} });
variants!(WriteKind { 0 => Put {}, 1 => Upsert {} });

impl Wire for u8 {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, MessageFault> {
        Ok(reader.u8()?)
    }
}

impl Wire for u32 {
    fn put(&self, out: &mut Vec<u8>) {
        Writer::new(out).u32(*self);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, MessageFault> {
        Ok(reader.u32()?)
    }
}

impl Wire for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        Writer::new(out).u64(*self);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, MessageFault> {
        Ok(reader.u64()?)
    }
}

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push((*self).into());
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, MessageFault> {
        match reader.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            code => unknown("bool", code),
        }
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, MessageFault> {
        let is_some = bool::take(reader)?;
        is_some.then(|| T::take(reader)).transpose()
    }
}

impl<T: Wire, U: Wire> Wire for (T, U) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, MessageFault> {
        Ok((T::take(reader)?, U::take(reader)?))
    }
}

impl Wire for CopyInfo {
    fn put(&self, out: &mut Vec<u8>) {
        self.version.put(out);
        self.kind.put(out);
        self.generation.put(out);
        out.push(self.wanted);
        self.len_bytes.put(out);
        self.crc32c.put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, MessageFault> {
        let info = Self {
            version: Wire::take(reader)?,
            kind: Wire::take(reader)?,
            generation: Wire::take(reader)?,
            wanted: reader.u8()?,
            len_bytes: Wire::take(reader)?,
            crc32c: Wire::take(reader)?,
        };
        if info.wanted == 0 || info.wanted > COPIES_WANTED_MAX {
            return unknown("number of copies", info.wanted);
        }
        Ok(info)
    }
}

/// Appends items behind their 16-bit count.
///
/// # Panics
/// If there are more than `items_max`: who makes a message bounds it.
pub(super) fn put_all<T: Wire>(items: &[T], items_max: usize, out: &mut Vec<u8>) {
    assert!(items.len() <= items_max, "{} items", items.len());
    let count = u16::try_from(items.len()).expect("limits of messages fit 16 bits");
    Writer::new(out).u16(count);
    for item in items {
        item.put(out);
    }
}

/// Reads items behind their count, which is bounded before anything is allocated for them.
pub(super) fn take_all<T: Wire>(
    reader: &mut Reader<'_>,
    items_max: usize,
) -> Result<Vec<T>, MessageFault> {
    let found = usize::from(reader.u16()?);
    if found > items_max {
        return Err(MessageFault::TooManyItems { found, items_max });
    }
    let mut items = Vec::with_capacity(found.min(reader.rest().len()));
    for _ in 0..found {
        items.push(T::take(reader)?);
    }
    Ok(items)
}
