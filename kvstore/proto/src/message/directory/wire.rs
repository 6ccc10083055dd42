//! How the messages of the directory are spelt: little-endian, each choice behind a byte.

use core::ops::{Deref, DerefMut};

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_cluster_proto::map::Epoch;
use lunette_runtime_core::codec::{Reader, Writer};
use lunette_runtime_core::ids::{CoreIndex, NodeId, RequestId};

use super::{AskerId, CopyPlace, HoldWish, OpId, ReservationId};
use crate::key::Fingerprint;
use crate::message::{FormatVersion, FormatVersions, MessageFault, end_of};
use crate::placement::Seat;
use crate::retention::{GroupId, Parent};
use crate::tenant::TenantTag;
use crate::version::{
    COPIES_WANTED_MAX, CopyInfo, Form, Generation, Tombstone, Version, WriteKind,
};

/// Where a message is written to, and in which version.
pub(super) struct Encoder<'a> {
    pub(super) version: FormatVersion,
    bytes: &'a mut Vec<u8>,
}

impl<'a> Encoder<'a> {
    /// Of a message that begins with its version.
    pub(super) fn begin(version: FormatVersion, bytes: &'a mut Vec<u8>) -> Self {
        bytes.push(version.0);
        Self::within(version, bytes)
    }

    /// Of an answer, which is in the version of what was asked.
    pub(super) fn within(version: FormatVersion, bytes: &'a mut Vec<u8>) -> Self {
        assert!(FormatVersions::OURS.contains(version), "nobody speaks it");
        Self { version, bytes }
    }
}

impl Deref for Encoder<'_> {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        self.bytes
    }
}

impl DerefMut for Encoder<'_> {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        self.bytes
    }
}

/// Where a message is read from, and in which version.
pub(super) struct Decoder<'a> {
    pub(super) version: FormatVersion,
    reader: Reader<'a>,
}

impl<'a> Decoder<'a> {
    /// Of a message that begins with its version.
    pub(super) fn begin(body: &'a [u8]) -> Result<Self, MessageFault> {
        let mut reader = Reader::new(body);
        let version = FormatVersion::take(&mut reader)?;
        Ok(Self { version, reader })
    }

    /// Of an answer, which is in the version of what was asked.
    pub(super) const fn within(version: FormatVersion, body: &'a [u8]) -> Self {
        let reader = Reader::new(body);
        Self { version, reader }
    }

    /// Refuses what follows the last field.
    pub(super) fn end(&self) -> Result<(), MessageFault> {
        end_of(&self.reader)
    }
}

impl<'a> Deref for Decoder<'a> {
    type Target = Reader<'a>;

    fn deref(&self) -> &Reader<'a> {
        &self.reader
    }
}

impl<'a> DerefMut for Decoder<'a> {
    fn deref_mut(&mut self) -> &mut Reader<'a> {
        &mut self.reader
    }
}

/// What can be written and read back, in each version that is spoken.
pub(super) trait Wire: Sized {
    fn put(&self, out: &mut Encoder<'_>);
    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault>;
}

/// A byte that stands for nothing.
pub(super) const fn unknown<T>(what: &'static str, code: u8) -> Result<T, MessageFault> {
    Err(MessageFault::UnknownCode { what, code })
}

/// Numbers that are wrapped in a type of their own.
macro_rules! numbers {
    ($($name:ident as $number:ident),* $(,)?) => {
        $(impl Wire for $name {
            fn put(&self, out: &mut Encoder<'_>) {
                Writer::new(out).$number(self.0);
            }

            fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
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
    TenantTag as u64,
);

/// Fields one behind the other; behind a semicolon those that later versions have, each behind the first
/// of them.
macro_rules! fields {
    ($name:ident {
        $($field:ident),* $(,)?
        $(; $($(#[$built:meta])* $since:literal => $later:ident),+ $(,)?)?
    }) => {
        impl $crate::message::directory::wire::Wire for $name {
            fn put(&self, out: &mut $crate::message::directory::wire::Encoder<'_>) {
                $($crate::message::directory::wire::Wire::put(&self.$field, out);)*
                $($($(#[$built])* {
                    $crate::message::directory::wire::put_since($since, &self.$later, out);
                })+)?
            }

            fn take(
                reader: &mut $crate::message::directory::wire::Decoder<'_>,
            ) -> Result<Self, $crate::message::MessageFault> {
                $(let $field = $crate::message::directory::wire::Wire::take(reader)?;)*
                $($($(#[$built])*
                let $later = $crate::message::directory::wire::take_since($since, reader)?;)+)?
                Ok(Self { $($field,)* $($($(#[$built])* $later,)+)? })
            }
        }
    };
}
pub(super) use fields;

/// A field that versions before `since` lack.
#[cfg_attr(
    not(feature = "next-version"),
    expect(dead_code, reason = "there is no later version yet")
)]
pub(super) fn put_since<T: Wire>(since: u8, field: &T, out: &mut Encoder<'_>) {
    if out.version.0 >= since {
        field.put(out);
    }
}

/// A field that versions before `since` lack.
#[cfg_attr(
    not(feature = "next-version"),
    expect(dead_code, reason = "there is no later version yet")
)]
pub(super) fn take_since<T: Wire + Default>(
    since: u8,
    reader: &mut Decoder<'_>,
) -> Result<T, MessageFault> {
    if reader.version.0 >= since {
        T::take(reader)
    } else {
        Ok(T::default())
    }
}

/// Variants with fields, each behind its code.
macro_rules! variants {
    ($name:ident { $($code:literal => $variant:ident { $($field:ident),* $(,)? }),* $(,)? }) => {
        impl $crate::message::directory::wire::Wire for $name {
            fn put(&self, out: &mut $crate::message::directory::wire::Encoder<'_>) {
                match self {
                    $(Self::$variant { $($field),* } => {
                        out.push($code);
                        $($crate::message::directory::wire::Wire::put($field, out);)*
                    })*
                }
            }

            fn take(
                reader: &mut $crate::message::directory::wire::Decoder<'_>,
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

/// Requests that name a key: the version of the formats, fields, those of later versions as in [`fields`], and
/// the key at the end, which what is decoded borrows.
macro_rules! keyed {
    ($name:ident {
        $($field:ident),* $(,)?
        $(; $($(#[$built:meta])* $since:literal => $later:ident),+ $(,)?)?
    }) => {
        impl<'a> $name<'a> {
            /// Appends the message to `out`, in a version that is spoken here.
            pub fn encode(&self, version: $crate::message::FormatVersion, out: &mut Vec<u8>) {
                let out = &mut $crate::message::directory::wire::Encoder::begin(version, out);
                $($crate::message::directory::wire::Wire::put(&self.$field, out);)*
                $($($(#[$built])* {
                    $crate::message::directory::wire::put_since($since, &self.$later, out);
                })+)?
                lunette_runtime_core::codec::Writer::new(out).short_bytes(self.key.bytes());
            }

            /// The message in `body`, whose key it borrows.
            ///
            /// # Errors
            /// [`MessageFault`](crate::message::MessageFault) if it holds anything else than one message.
            pub fn decode(body: &'a [u8]) -> Result<Self, $crate::message::MessageFault> {
                let mut decoder = $crate::message::directory::wire::Decoder::begin(body)?;
                let reader = &mut decoder;
                $(let $field = $crate::message::directory::wire::Wire::take(reader)?;)*
                $($($(#[$built])*
                let $later = $crate::message::directory::wire::take_since($since, reader)?;)+)?
                let key = $crate::key::Key::new(reader.short_bytes()?)?;
                reader.end()?;
                Ok(Self { $($field,)* $($($(#[$built])* $later,)+)? key })
            }
        }
    };
}
pub(super) use keyed;

/// What is a whole body, without a version of its own: it is in that of what was asked.
macro_rules! body {
    ($name:ident) => {
        impl $name {
            /// Appends the body to `out`, in the version of what was asked.
            pub fn encode(&self, version: $crate::message::FormatVersion, out: &mut Vec<u8>) {
                let out = &mut $crate::message::directory::wire::Encoder::within(version, out);
                $crate::message::directory::wire::Wire::put(self, out);
            }

            /// What is in `body`, the answer to what was asked in that version.
            ///
            /// # Errors
            /// [`MessageFault`](crate::message::MessageFault) if it holds anything else.
            pub fn decode(
                version: $crate::message::FormatVersion,
                body: &[u8],
            ) -> Result<Self, $crate::message::MessageFault> {
                let reader = &mut $crate::message::directory::wire::Decoder::within(version, body);
                let it = $crate::message::directory::wire::Wire::take(reader)?;
                reader.end()?;
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
variants!(Form { 0 => Whole {}, 1 => Striped {} });

#[cfg(feature = "next-version")]
impl Wire for crate::message::Next {
    fn put(&self, out: &mut Encoder<'_>) {
        Self::MARK.put(out);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        match u32::take(reader)? {
            Self::MARK => Ok(Self),
            other => unknown("field of the next version", other.to_le_bytes()[0]),
        }
    }
}

impl Wire for u8 {
    fn put(&self, out: &mut Encoder<'_>) {
        out.push(*self);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        Ok(reader.u8()?)
    }
}

impl Wire for u16 {
    fn put(&self, out: &mut Encoder<'_>) {
        Writer::new(out).u16(*self);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        Ok(reader.u16()?)
    }
}

impl Wire for u32 {
    fn put(&self, out: &mut Encoder<'_>) {
        Writer::new(out).u32(*self);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        Ok(reader.u32()?)
    }
}

impl Wire for u64 {
    fn put(&self, out: &mut Encoder<'_>) {
        Writer::new(out).u64(*self);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        Ok(reader.u64()?)
    }
}

impl Wire for u128 {
    fn put(&self, out: &mut Encoder<'_>) {
        Writer::new(out).u128(*self);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        Ok(reader.u128()?)
    }
}

impl Wire for GroupId {
    fn put(&self, out: &mut Encoder<'_>) {
        self.kind().put(out);
        self.hash().put(out);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        let kind = Wire::take(reader)?;
        Ok(Self::new(kind, Wire::take(reader)?))
    }
}

impl Wire for Parent {
    fn put(&self, out: &mut Encoder<'_>) {
        self.0.put(out);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        Ok(Self(Wire::take(reader)?))
    }
}

impl Wire for bool {
    fn put(&self, out: &mut Encoder<'_>) {
        out.push((*self).into());
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        match reader.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            code => unknown("bool", code),
        }
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Encoder<'_>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        let is_some = bool::take(reader)?;
        is_some.then(|| T::take(reader)).transpose()
    }
}

impl<T: Wire, U: Wire> Wire for (T, U) {
    fn put(&self, out: &mut Encoder<'_>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        Ok((T::take(reader)?, U::take(reader)?))
    }
}

impl Wire for CopyInfo {
    fn put(&self, out: &mut Encoder<'_>) {
        self.version.put(out);
        self.kind.put(out);
        self.form.put(out);
        self.generation.put(out);
        out.push(self.wanted);
        self.len_bytes.put(out);
        self.crc32c.put(out);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        let info = Self {
            version: Wire::take(reader)?,
            kind: Wire::take(reader)?,
            form: Wire::take(reader)?,
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
pub(super) fn put_all<T: Wire>(items: &[T], items_max: usize, out: &mut Encoder<'_>) {
    assert!(items.len() <= items_max, "{} items", items.len());
    let count = u16::try_from(items.len()).expect("limits of messages fit 16 bits");
    Writer::new(out).u16(count);
    for item in items {
        item.put(out);
    }
}

/// Reads items behind their count, which is bounded before anything is allocated for them.
pub(super) fn take_all<T: Wire>(
    reader: &mut Decoder<'_>,
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
