//! Objects that are written in ranges: room is reserved first, and becomes the key's value when all of it
//! has been written.
//!
//! | file | subject |
//! |---|---|
//! | `slot` | room for one copy, at one node |
//! | `parts` | room for an object in parts |
//! | here | which of them it is |

mod parts;
mod slot;

use std::fmt;
use std::time::Duration;

use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::version::Version;
use thiserror::Error;

use self::parts::{PartSlots, PartsFailure};
use self::slot::{Slot, SlotFailure, Slotted, is_there};
use super::striping::{Former, drawn_manifest};
use super::{ClusterClient, PutOptions, Stored};
use crate::cluster_client::objects::parts_of;
use crate::error::{StoreError, StoreErrorKind};
use crate::value::Value;

/// What came of a wish to reserve.
#[derive(Debug)]
pub enum Reserved {
    /// Room for the object.
    Room(Reservation),
    /// A put would find the key taken: there is nothing to write.
    Exists {
        /// What is there.
        version: Version,
    },
}

/// Room for an object, at one node, or for each of its parts where it is in parts. It is seen by nobody before it is
/// [committed](Self::commit).
///
/// Dropping it gives the room back, as [`revoke`](Self::revoke) does, without waiting for that. If the
/// program ends first, nodes give the room back when nothing has been written for as long as was agreed.
pub struct Reservation {
    key: Vec<u8>,
    len_bytes: usize,
    room: ReservedRoom,
}

enum ReservedRoom {
    Whole(Slot),
    Parts(Box<PartSlots>),
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("len_bytes", &self.len_bytes)
            .finish_non_exhaustive()
    }
}

/// A commit has failed.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct CommitFailure {
    /// Why.
    #[source]
    pub error: StoreError,
    /// The reservation, if it may still be there: where nothing was done, or not all bytes are written. Where something
    /// was done for some parts of an object, these take no more writes (`ReservationLost`), but a commit.
    pub reservation: Option<Reservation>,
}

impl ClusterClient {
    /// Reserves room for an object of `len_bytes` at the key's home, or of an object in parts (as [`put`](Self::put)
    /// would write it) at the home of each. Nodes keep it until nothing has
    /// been written to it for `keep`, at most [`KEEP_MS_MAX`](lunette_kvstore_proto::message::directory::KEEP_MS_MAX).
    /// It claims nothing: others may write the key until it is committed.
    ///
    /// # Errors
    /// [`StoreError`]: `Refused(Full)` if the deadline passed while there was no room, for the object or among
    /// reservations; `Refused(TooLarge)` if it never fits; `ValueTooLong` if it is longer than
    /// [`OBJECT_LEN_MAX`](lunette_kvstore_proto::striped::OBJECT_LEN_MAX). What was reserved of an object in parts is
    /// given back then.
    pub async fn reserve(
        &self,
        key: &[u8],
        len_bytes: usize,
        options: PutOptions,
        keep: Duration,
    ) -> Result<Reserved, StoreError> {
        let key = self.own(key);
        let valid_key = self.valid(&key)?;
        options.check()?;
        let room = match parts_of(len_bytes, options)? {
            None => {
                let len_bytes = u32::try_from(len_bytes).expect("one copy is no longer");
                match Slot::reserve(self, valid_key, len_bytes, options, keep).await? {
                    Slotted::Slot(slot) => ReservedRoom::Whole(slot),
                    Slotted::Exists { version } => return Ok(Reserved::Exists { version }),
                }
            }
            Some(part_len) => {
                if let Former::Taken { version } = self.former(valid_key, options.kind).await? {
                    return Ok(Reserved::Exists { version });
                }
                let manifest = drawn_manifest(len_bytes as u64, part_len);
                let parts = PartSlots::reserve(self, valid_key, manifest, options, keep);
                ReservedRoom::Parts(Box::new(Box::pin(parts).await?))
            }
        };
        Ok(Reserved::Room(Reservation {
            key: key.into_owned(),
            len_bytes,
            room,
        }))
    }
}

impl Reservation {
    /// Length of the object in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len_bytes
    }

    /// Whether it is an object without bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Writes `value` at `offset_bytes`, in the place of what was there. Several may be under way, where they
    /// do not overlap, in any order.
    ///
    /// The value's bytes are pinned until they have been sent, also if the future is dropped; they may be
    /// written all the same then.
    ///
    /// # Errors
    /// [`StoreError`]: `OutOfRange`; `ReservationLost`. After any error the range may hold anything, and the
    /// object can be committed once it has been written again.
    pub async fn write(&self, offset_bytes: usize, value: Value) -> Result<(), StoreError> {
        let object_len_bytes = self.len_bytes;
        let end = offset_bytes.checked_add(value.len());
        if end.is_none_or(|end| end > object_len_bytes) {
            let kind = StoreErrorKind::OutOfRange { object_len_bytes };
            return Err(StoreError::local(kind));
        }
        match &self.room {
            ReservedRoom::Whole(slot) => {
                value.check().map_err(StoreError::local)?;
                let offset_bytes = u32::try_from(offset_bytes).expect("within one copy");
                slot.write(offset_bytes, &value).await
            }
            ReservedRoom::Parts(parts) => Box::pin(parts.write(offset_bytes, &value)).await,
        }
    }

    /// Makes what was written the key's value, as [`ClusterClient::put`] would.
    ///
    /// # Errors
    /// [`CommitFailure`]: `Refused(Unfinished)` if not every byte has been written; `Interrupted` if it is
    /// not known whether it was done; `Refused(Full)` if parts had to leave before all others were there.
    pub async fn commit(self) -> Result<Stored, CommitFailure> {
        let Self {
            key,
            len_bytes,
            room,
        } = self;
        let (error, room) = match room {
            ReservedRoom::Whole(slot) => match slot.commit(None).await {
                Ok(stored) => return Ok(stored),
                Err(SlotFailure { error, slot }) => {
                    let slot = slot.filter(|_| is_there(&error));
                    (error, slot.map(ReservedRoom::Whole))
                }
            },
            ReservedRoom::Parts(parts) => {
                let valid_key = Key::new(&key).expect("it was one when it was reserved");
                match Box::pin(parts.commit(valid_key)).await {
                    Ok(stored) => return Ok(stored),
                    Err(PartsFailure { error, parts }) => (
                        error,
                        parts.map(|parts| ReservedRoom::Parts(Box::new(parts))),
                    ),
                }
            }
        };
        let reservation = room.map(|room| Self {
            key,
            len_bytes,
            room,
        });
        Err(CommitFailure { error, reservation })
    }

    /// Gives the room back.
    ///
    /// # Errors
    /// [`StoreError`]: nodes do so themselves after a while.
    pub async fn revoke(self) -> Result<(), StoreError> {
        match self.room {
            ReservedRoom::Whole(slot) => slot.revoke().await,
            ReservedRoom::Parts(parts) => parts.revoke().await,
        }
    }
}
