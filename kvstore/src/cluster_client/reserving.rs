//! Objects that are written in ranges: room is reserved first, and becomes the key's value when all of it
//! has been written.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{
    FillMessage, KEEP_MS_MAX, ReservationId, ReserveMessage, ReserveReply, RevokeMessage,
};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::placement::{Seat, home_of};
use lunette_kvstore_proto::version::Version;
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::time;
use lunette_runtime_core::limits::PAYLOAD_BYTES_MAX;
use thiserror::Error;

use super::objects::stored;
use super::running::Brought;
use super::{ClusterClient, PutOptions, Stored, calls, valid};
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

/// Room for an object, at one node. It is seen by nobody before it is [committed](Self::commit).
///
/// Dropping it gives the room back, as [`revoke`](Self::revoke) does, without waiting for that. If the
/// program ends first, the node gives the room back when nothing has been written for as long as was agreed.
pub struct Reservation {
    client: ClusterClient,
    seat: Seat,
    id: ReservationId,
    key: Vec<u8>,
    len_bytes: usize,
    kind: WriteKind,
    copies: u8,
    is_over: Cell<bool>,
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("seat", &self.seat)
            .field("id", &self.id)
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
    /// The reservation, if it may still be there: where nothing was done, or not all bytes are written.
    pub reservation: Option<Reservation>,
}

impl ClusterClient {
    /// Reserves room for an object of `len_bytes` at the key's home. The node keeps it until nothing has
    /// been written to it for `keep`, at most [`KEEP_MS_MAX`]. It claims nothing: others may write the key
    /// until it is committed.
    ///
    /// # Errors
    /// [`StoreError`]: `Refused(Full)` if the deadline passed while there was no room, for the object or among
    /// reservations; `Refused(TooLarge)` if it never fits.
    pub async fn reserve(
        &self,
        key: &[u8],
        len_bytes: usize,
        options: PutOptions,
        keep: Duration,
    ) -> Result<Reserved, StoreError> {
        let valid_key = valid(key)?;
        options.check()?;
        let too_long = || {
            StoreError::local(StoreErrorKind::ValueTooLong {
                len_bytes,
                len_max_bytes: PAYLOAD_BYTES_MAX as u64,
            })
        };
        let len = u32::try_from(len_bytes).map_err(|_above| too_long())?;
        if len_bytes > PAYLOAD_BYTES_MAX {
            return Err(too_long());
        }
        let until = time::now() + self.timeout;
        let id = self.asking.next_reservation();
        let keep_ms = u32::try_from(keep.as_millis()).unwrap_or(KEEP_MS_MAX);
        loop {
            let Some(seat) = home_of(&self.asking.map(), valid_key.fingerprint()) else {
                self.wait_for_map(until).await?;
                continue;
            };
            let message = ReserveMessage {
                asker: self.asking.id(),
                reservation: id,
                to: seat,
                kind: options.kind,
                namespace: self.asking.namespace(),
                wanted: options.copies,
                len_bytes: len,
                keep_ms: keep_ms.min(KEEP_MS_MAX),
                key: valid_key,
            };
            let body = |version, out: &mut Vec<u8>| message.encode(version, out);
            let asked = calls::ask_owner(&self.asking, seat, Op::Reserve, body, None, until).await;
            let (version, reply) = match asked {
                Ok(answer) if Status::from_code(answer.1.status) != Status::WrongSeat => answer,
                Ok(_) | Err(StoreErrorKind::Refused(Status::WrongSeat)) => {
                    self.wait_for_map(until).await?;
                    continue;
                }
                Err(kind) => return Err(StoreError::local(kind)),
            };
            let reservation = || Reservation {
                client: self.clone(),
                seat,
                id,
                key: key.to_vec(),
                len_bytes,
                kind: options.kind,
                copies: options.copies,
                is_over: Cell::new(false),
            };
            return match Status::from_code(reply.status) {
                Status::Ok => match ReserveReply::decode(version, &reply.body) {
                    Ok(ReserveReply::Reserved) => Ok(Reserved::Room(reservation())),
                    Ok(ReserveReply::Exists { version }) => Ok(Reserved::Exists { version }),
                    Err(fault) => Err(StoreError::local(fault.into())),
                },
                status => Err(StoreError::local(StoreErrorKind::Refused(status))),
            };
        }
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
        value.check().map_err(StoreError::local)?;
        let object_len_bytes = self.len_bytes;
        let end = offset_bytes.checked_add(value.len());
        if end.is_none_or(|end| end > object_len_bytes) {
            let kind = StoreErrorKind::OutOfRange { object_len_bytes };
            return Err(StoreError::local(kind));
        }
        let message = FillMessage {
            asker: self.client.asking.id(),
            reservation: self.id,
            to: self.seat,
            offset_bytes: u32::try_from(offset_bytes).expect("within an object"),
            key: self.key(),
        };
        let body = |version, out: &mut Vec<u8>| message.encode(version, out);
        self.ask(Op::Fill, body, Some(&value)).await
    }

    /// Makes what was written the key's value, as [`ClusterClient::put`] would.
    ///
    /// # Errors
    /// [`CommitFailure`]: `Refused(Unfinished)` if not every byte has been written; `Interrupted` if it is
    /// not known whether it was done.
    pub async fn commit(self) -> Result<Stored, CommitFailure> {
        let until = time::now() + self.client.timeout;
        let key = self.key();
        let options = PutOptions {
            kind: self.kind,
            copies: self.copies,
            ..PutOptions::default()
        };
        let wish = self.client.write_at(self.seat, key, options, until);
        let brought = Brought::Reserved(self.id);
        let ended = self.client.asking.begin(key, wish, brought, until).await;
        let lost = StoreError::local(StoreErrorKind::ReservationLost);
        let error = match stored(ended) {
            Ok(Some(stored)) => {
                self.is_over.set(true);
                return Ok(stored);
            }
            Ok(None) => lost,
            Err(error) => error,
        };
        let is_there = matches!(
            error.kind,
            StoreErrorKind::TimedOut
                | StoreErrorKind::TooManyOperations
                | StoreErrorKind::Refused(Status::Unfinished)
        );
        if !is_there {
            self.is_over.set(error == lost);
            return Err(CommitFailure {
                error,
                reservation: None,
            });
        }
        Err(CommitFailure {
            error,
            reservation: Some(self),
        })
    }

    /// Gives the room back.
    ///
    /// # Errors
    /// [`StoreError`]: the node does so itself after a while.
    pub async fn revoke(self) -> Result<(), StoreError> {
        self.is_over.set(true);
        let message = RevokeMessage {
            asker: self.client.asking.id(),
            reservation: self.id,
            to: self.seat,
            key: self.key(),
        };
        let body = |version, out: &mut Vec<u8>| message.encode(version, out);
        self.ask(Op::Revoke, body, None).await
    }

    fn key(&self) -> Key<'_> {
        Key::new(&self.key).expect("it was one when it was reserved")
    }

    async fn ask(
        &self,
        op: Op,
        body: impl Fn(FormatVersion, &mut Vec<u8>),
        value: Option<&Value>,
    ) -> Result<(), StoreError> {
        let until = time::now() + self.client.timeout;
        let asked = calls::ask_owner(&self.client.asking, self.seat, op, body, value, until);
        let status = match asked.await {
            Ok((_, reply)) => Status::from_code(reply.status),
            Err(StoreErrorKind::Refused(status @ Status::WrongSeat)) => status,
            Err(kind) => return Err(StoreError::local(kind)),
        };
        match status {
            Status::Ok => Ok(()),
            Status::NotFound | Status::WrongSeat => {
                self.is_over.set(true);
                Err(StoreError::local(StoreErrorKind::ReservationLost))
            }
            status => Err(StoreError::local(StoreErrorKind::Refused(status))),
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.is_over.get() {
            return;
        }
        let (asking, seat, id) = (self.client.asking.clone(), self.seat, self.id);
        let key = std::mem::take(&mut self.key);
        let until = time::now() + self.client.timeout;
        self.client.asking.spawn(async move {
            let message = RevokeMessage {
                asker: asking.id(),
                reservation: id,
                to: seat,
                key: Key::new(&key).expect("it was one when it was reserved"),
            };
            let write = |version, out: &mut Vec<u8>| message.encode(version, out);
            let revoked = calls::ask_owner(&asking, seat, Op::Revoke, write, None, until).await;
            tracing::debug!(?revoked, "a reservation was dropped");
        });
    }
}
