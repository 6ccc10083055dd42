//! What an asker wants of a home, and what it is told.

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_cluster_proto::map::Epoch;
use lunette_runtime_core::ids::RequestId;

use super::wire::{Decoder, Encoder, Wire, put_all, take_all, unknown, variants};
use crate::key::Fingerprint;
use crate::message::MessageFault;
use crate::placement::Seat;
use crate::version::COPIES_WANTED_MAX;
use crate::version::{CopyInfo, Form, Version};

/// Longest that a removal or a claim may wait at its home, in milliseconds.
pub const WAIT_MS_MAX: u32 = 10_000;

/// Who asks: a session, whose requests have ids of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskerId(pub u64);

/// That the object found is to be held for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldWish {
    /// For whom: a session, or a whole tenant. Limits count per holder.
    pub holder: u64,
    /// How long, in milliseconds.
    pub ttl_ms: u32,
}

/// A question to the home of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Where the object is.
    Lookup {
        /// The request, which its answer names.
        request: RequestId,
        /// The key.
        key: Fingerprint,
        /// What the key's namespace wants of nodes that are cut off.
        namespace: NamespaceKind,
        /// With it, an owner answers, and keeps the object that long.
        hold: Option<HoldWish>,
    },
    /// That there be no object.
    Remove {
        /// The request, which its answer names.
        request: RequestId,
        /// The key.
        key: Fingerprint,
        /// What the key's namespace wants of nodes that are cut off.
        namespace: NamespaceKind,
        /// How long the asker waits, in milliseconds; at most [`WAIT_MS_MAX`] count.
        wait_ms: u32,
        /// What is removed; where something else is there, that is the answer.
        only: Only,
    },
}

/// What a removal is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    /// Whatever is there.
    Any,
    /// An object that is in one piece: the manifest of a striped one is read before it is removed.
    Whole,
    /// This very write.
    Version {
        /// The write.
        version: Version,
    },
}

impl Only {
    /// Whether this object is removed.
    #[must_use]
    pub fn takes(self, info: &CopyInfo) -> bool {
        match self {
            Self::Any => true,
            Self::Whole => info.form == Form::Whole,
            Self::Version { version } => info.version == version,
        }
    }
}

impl Ask {
    /// The request.
    #[must_use]
    pub const fn request(&self) -> RequestId {
        match self {
            Self::Lookup { request, .. } | Self::Remove { request, .. } => *request,
        }
    }

    /// Whether it changes nothing.
    #[must_use]
    pub const fn is_read(&self) -> bool {
        matches!(self, Self::Lookup { .. })
    }

    /// The key.
    #[must_use]
    pub const fn key(&self) -> Fingerprint {
        match self {
            Self::Lookup { key, .. } | Self::Remove { key, .. } => *key,
        }
    }
}

/// Where an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its version: what to ask an owner for.
    pub version: Version,
    /// What its bytes are. Length and checksum are theirs: of a manifest, where it is one.
    pub form: Form,
    /// Length of its bytes.
    pub len_bytes: u32,
    /// CRC32C of its bytes.
    pub crc32c: u32,
    /// For how long it is held, in milliseconds; 0 if it is not.
    pub held_ms: u32,
    /// Who has a copy, the best first: 1 to
    /// [`COPIES_WANTED_MAX`](crate::version::COPIES_WANTED_MAX).
    pub owners: Vec<Seat>,
}

/// What became of an [`Ask`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The object is there.
    Found(Found),
    /// There is none, for sure.
    Miss,
    /// Not everybody has told yet what it holds, or the home is cut off: the object may be there.
    Unknown,
    /// There is none any more.
    Removed {
        /// Whether there was one that the home knew.
        found: bool,
        /// The removal's place among the writes of the key.
        version: Version,
    },
    /// The home is cut off and may not answer. Nothing was done.
    Unavailable,
    /// The home has another map, of this epoch, or is no home of the key. Nothing was done.
    Stale(Epoch),
    /// What was before in line, or the map, took too long. Nothing was done.
    Busy,
    /// A table is full. Nothing was done.
    Full,
    /// It was begun, and is not known to have ended: it may be done, now or later.
    Interrupted,
}

impl Answer {
    /// Whether nothing was done, so that asking again, also elsewhere, repeats nothing.
    #[must_use]
    pub const fn is_undone(&self) -> bool {
        matches!(
            self,
            Self::Unavailable | Self::Stale(_) | Self::Busy | Self::Full
        )
    }
}

variants!(Ask {
    0 => Lookup { request, key, namespace, hold },
    1 => Remove { request, key, namespace, wait_ms, only },
});
variants!(Only { 0 => Any {}, 1 => Whole {}, 2 => Version { version } });

impl Wire for Found {
    fn put(&self, out: &mut Encoder<'_>) {
        self.version.put(out);
        self.form.put(out);
        self.len_bytes.put(out);
        self.crc32c.put(out);
        self.held_ms.put(out);
        put_all(&self.owners, COPIES_WANTED_MAX.into(), out);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        Ok(Self {
            version: Wire::take(reader)?,
            form: Wire::take(reader)?,
            len_bytes: Wire::take(reader)?,
            crc32c: Wire::take(reader)?,
            held_ms: Wire::take(reader)?,
            owners: take_all(reader, COPIES_WANTED_MAX.into())?,
        })
    }
}

impl Wire for Answer {
    fn put(&self, out: &mut Encoder<'_>) {
        match self {
            Self::Found(found) => {
                out.push(0);
                found.put(out);
            }
            Self::Miss => out.push(1),
            Self::Unknown => out.push(2),
            Self::Removed { found, version } => {
                out.push(3);
                found.put(out);
                version.put(out);
            }
            Self::Unavailable => out.push(4),
            Self::Stale(epoch) => {
                out.push(5);
                epoch.put(out);
            }
            Self::Busy => out.push(6),
            Self::Full => out.push(7),
            Self::Interrupted => out.push(8),
        }
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        Ok(match reader.u8()? {
            0 => Self::Found(Wire::take(reader)?),
            1 => Self::Miss,
            2 => Self::Unknown,
            3 => Self::Removed {
                found: Wire::take(reader)?,
                version: Wire::take(reader)?,
            },
            4 => Self::Unavailable,
            5 => Self::Stale(Wire::take(reader)?),
            6 => Self::Busy,
            7 => Self::Full,
            8 => Self::Interrupted,
            code => return unknown("answer", code),
        })
    }
}
