//! Room for one copy, at one node.

use std::cell::Cell;
use std::time::Duration;

use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{
    FillMessage, KEEP_MS_MAX, ReservationId, ReserveMessage, ReserveReply, RevokeMessage,
};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::placement::{Seat, home_of};
use lunette_kvstore_proto::version::{Version, WriteKind};
use lunette_runtime::time;

use crate::cluster_client::objects::stored;
use crate::cluster_client::running::Brought;
use crate::cluster_client::{ClusterClient, PutOptions, Stored, calls};
use crate::error::{StoreError, StoreErrorKind};
use crate::value::Value;

/// Room at the home of a key. Dropping it gives it back.
pub(super) struct Slot {
    client: ClusterClient,
    seat: Seat,
    id: ReservationId,
    key: Vec<u8>,
    kind: WriteKind,
    copies: u8,
    is_over: Cell<bool>,
}

/// What came of a wish for one.
pub(super) enum Slotted {
    Slot(Slot),
    /// A put would find the key taken.
    Exists {
        version: Version,
    },
}

/// A commit has failed.
pub(super) struct SlotFailure {
    pub(super) error: StoreError,
    /// Where nothing was done, or not all bytes are written.
    pub(super) slot: Option<Slot>,
}

impl Slot {
    /// Asks for room for `len_bytes`, at most what one message carries, within the time of an operation.
    pub(super) async fn reserve(
        client: &ClusterClient,
        key: Key<'_>,
        len_bytes: u32,
        options: PutOptions,
        keep: Duration,
    ) -> Result<Slotted, StoreError> {
        let until = time::now() + client.timeout;
        let asking = &client.asking;
        let id = asking.next_reservation();
        let keep_ms = u32::try_from(keep.as_millis()).unwrap_or(KEEP_MS_MAX);
        loop {
            let Some(seat) = home_of(&asking.map(), key.fingerprint()) else {
                client.wait_for_map(until).await?;
                continue;
            };
            let message = ReserveMessage {
                asker: asking.id(),
                reservation: id,
                to: seat,
                kind: options.kind,
                namespace: asking.namespace(),
                wanted: options.copies,
                len_bytes,
                keep_ms: keep_ms.min(KEEP_MS_MAX),
                retention: client.retention(&options, false),
                key,
            };
            let body = |version, out: &mut Vec<u8>| message.encode(version, out);
            let asked = calls::ask_owner(asking, seat, Op::Reserve, body, None, until).await;
            let (version, reply) = match asked {
                Ok(answer) if Status::from_code(answer.1.status) != Status::WrongSeat => answer,
                Ok(_) | Err(StoreErrorKind::Refused(Status::WrongSeat)) => {
                    client.wait_for_map(until).await?;
                    continue;
                }
                Err(kind) => return Err(StoreError::local(kind)),
            };
            let slot = || Self {
                client: client.clone(),
                seat,
                id,
                key: key.bytes().to_vec(),
                kind: options.kind,
                copies: options.copies,
                is_over: Cell::new(false),
            };
            return match Status::from_code(reply.status) {
                Status::Ok => match ReserveReply::decode(version, &reply.body) {
                    Ok(ReserveReply::Reserved) => Ok(Slotted::Slot(slot())),
                    Ok(ReserveReply::Exists { version }) => Ok(Slotted::Exists { version }),
                    Err(fault) => Err(StoreError::local(fault.into())),
                },
                status => Err(StoreError::local(StoreErrorKind::Refused(status))),
            };
        }
    }

    /// Writes to a range of it. A value of no bytes keeps it for another while.
    pub(super) async fn write(&self, offset_bytes: u32, value: &Value) -> Result<(), StoreError> {
        let message = FillMessage {
            asker: self.client.asking.id(),
            reservation: self.id,
            to: self.seat,
            offset_bytes,
            key: self.key(),
        };
        let body = |version, out: &mut Vec<u8>| message.encode(version, out);
        self.ask(Op::Fill, body, Some(value)).await
    }

    /// Makes what was written the key's value.
    pub(super) async fn commit(self) -> Result<Stored, SlotFailure> {
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
        let error = match stored(ended) {
            Ok(Some(stored)) => {
                self.is_over.set(true);
                return Ok(stored);
            }
            Ok(None) => lost(),
            Err(error) => error,
        };
        if is_there(&error) {
            let slot = Some(self);
            return Err(SlotFailure { error, slot });
        }
        self.is_over.set(error == lost());
        Err(SlotFailure { error, slot: None })
    }

    /// Gives it back.
    pub(super) async fn revoke(self) -> Result<(), StoreError> {
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
                Err(lost())
            }
            status => Err(StoreError::local(StoreErrorKind::Refused(status))),
        }
    }
}

impl Drop for Slot {
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

/// Whether it may be committed again: nothing was done, or not all bytes are written.
pub(super) const fn is_there(error: &StoreError) -> bool {
    matches!(
        error.kind,
        StoreErrorKind::TimedOut
            | StoreErrorKind::TooManyOperations
            | StoreErrorKind::Refused(Status::Unfinished | Status::Full)
    )
}

pub(super) const fn lost() -> StoreError {
    StoreError::local(StoreErrorKind::ReservationLost)
}
