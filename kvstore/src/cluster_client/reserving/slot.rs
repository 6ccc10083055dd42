//! Room for one copy, at one node.

use std::cell::Cell;
use std::time::Duration;

use lunette_kvstore_proto::asker::PAUSE;
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{
    FillMessage, KEEP_MS_MAX, ReservationId, ReserveMessage, ReserveReply, RevokeMessage,
};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::placement::{Seat, home_of};
use lunette_kvstore_proto::version::{Version, WriteKind};
use lunette_runtime::time;
use lunette_runtime_core::time::Time;

use crate::cluster_client::calls::Said;
use crate::cluster_client::placing::ROOM_PATIENCE;
use crate::cluster_client::running::{Brought, Committed};
use crate::cluster_client::trying::{is_of_memory, stored};
use crate::cluster_client::{ClusterClient, PutOptions, Stored, calls};
use crate::error::{StoreError, StoreErrorKind};
use crate::value::Value;

/// Room at the home of a key, or elsewhere if there was none. Dropping it gives it back.
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

/// What is wished for.
struct SlotWish<'a> {
    client: &'a ClusterClient,
    key: Key<'a>,
    len_bytes: u32,
    options: PutOptions,
    keep_ms: u32,
    id: ReservationId,
    until: Time,
}

/// What came of it at one seat.
enum Asked {
    Slotted(Slotted),
    NoRoom(Status),
    WrongSeat,
    /// It may be asked again, whether it has refused or was not reached.
    Later(Option<Status>),
}

/// A commit has failed.
pub(super) struct SlotFailure {
    pub(super) error: StoreError,
    /// Where nothing was done, nobody knows whether that is so, or not all bytes are written.
    pub(super) slot: Option<Slot>,
}

impl SlotWish<'_> {
    /// Asks a seat, once.
    async fn ask(&self, seat: Seat) -> Result<Asked, StoreError> {
        let (client, options) = (self.client, &self.options);
        let message = ReserveMessage {
            asker: client.asking.id(),
            reservation: self.id,
            to: seat,
            kind: options.kind,
            namespace: client.asking.namespace(),
            wanted: options.copies,
            len_bytes: self.len_bytes,
            keep_ms: self.keep_ms.min(KEEP_MS_MAX),
            retention: client.retention(options, false),
            key: self.key,
        };
        let body = |version, out: &mut Vec<u8>| message.encode(version, out);
        let (asking, until) = (&client.asking, self.until);
        let said = calls::ask_owner_once(asking, seat, Op::Reserve, body, None, until).await;
        let (version, reply) = match said {
            Ok(Said::Answer(version, reply)) => (version, reply),
            Ok(Said::Refusal(Status::Full)) => return Ok(Asked::NoRoom(Status::Full)),
            Ok(Said::Refusal(status)) => return Ok(Asked::Later(Some(status))),
            Ok(Said::Nothing) => return Ok(Asked::Later(None)),
            Err(StoreErrorKind::Refused(Status::WrongSeat)) => return Ok(Asked::WrongSeat),
            Err(kind) => return Err(StoreError::local(kind)),
        };
        match Status::from_code(reply.status) {
            Status::Ok => match ReserveReply::decode(version, &reply.body) {
                Ok(ReserveReply::Reserved) => Ok(Asked::Slotted(Slotted::Slot(self.slot(seat)))),
                Ok(ReserveReply::Exists { version }) => {
                    Ok(Asked::Slotted(Slotted::Exists { version }))
                }
                Err(fault) => Err(StoreError::local(fault.into())),
            },
            Status::WrongSeat => Ok(Asked::WrongSeat),
            status if is_of_memory(StoreErrorKind::Refused(status)) => Ok(Asked::NoRoom(status)),
            status => Err(StoreError::local(StoreErrorKind::Refused(status))),
        }
    }

    /// Asks where there is room, if there are other nodes.
    async fn ask_elsewhere(&self) -> Result<Option<Slotted>, StoreError> {
        let drawn = self.client.draw_seat(self.key, self.len_bytes as usize);
        let Some(seat) = drawn.await else {
            return Ok(None);
        };
        Ok(match self.ask(seat).await? {
            Asked::Slotted(slotted) => Some(slotted),
            Asked::NoRoom(_) | Asked::WrongSeat | Asked::Later(_) => None,
        })
    }

    fn slot(&self, seat: Seat) -> Slot {
        Slot {
            client: self.client.clone(),
            seat,
            id: self.id,
            key: self.key.bytes().to_vec(),
            kind: self.options.kind,
            copies: self.options.copies,
            is_over: Cell::new(false),
        }
    }
}

impl Slot {
    /// Asks for room for `len_bytes`, at most what one message carries, within the time of an operation: at the key's home,
    /// and where there is none for [`ROOM_PATIENCE`], also at nodes that are [drawn](ClusterClient::draw_seat).
    pub(super) async fn reserve(
        client: &ClusterClient,
        key: Key<'_>,
        len_bytes: u32,
        options: PutOptions,
        keep: Duration,
    ) -> Result<Slotted, StoreError> {
        let until = time::now() + client.timeout;
        let wish = SlotWish {
            client,
            key,
            len_bytes,
            options,
            keep_ms: u32::try_from(keep.as_millis()).unwrap_or(KEEP_MS_MAX),
            id: client.asking.next_reservation(),
            until,
        };
        let mut why = StoreErrorKind::TimedOut;
        let mut patience = None;
        while time::now() < until {
            let Some(home) = home_of(&client.asking.map(), key.fingerprint()) else {
                client.wait_for_map(until).await?;
                continue;
            };
            match wish.ask(home).await? {
                Asked::Slotted(slotted) => return Ok(slotted),
                Asked::NoRoom(status) => {
                    let now = time::now();
                    let over = *patience.get_or_insert(now + ROOM_PATIENCE);
                    let may_come = status.is_retryable();
                    if !(may_come && now < over)
                        && let Some(slotted) = wish.ask_elsewhere().await?
                    {
                        return Ok(slotted);
                    }
                    why = StoreErrorKind::Refused(status);
                    if !may_come {
                        break;
                    }
                    time::sleep(PAUSE).await;
                }
                Asked::WrongSeat => client.wait_for_map(until).await?,
                Asked::Later(refused) => {
                    why = refused.map_or(why, StoreErrorKind::Refused);
                    time::sleep(PAUSE).await;
                }
            }
        }
        Err(StoreError::local(why))
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

    /// Makes what was written the key's value, which is held for so long, if there is more to be written before it is of use.
    pub(super) async fn commit(self, hold: Option<Duration>) -> Result<Stored, SlotFailure> {
        let until = time::now() + self.client.timeout;
        let key = self.key();
        let options = PutOptions {
            kind: self.kind,
            copies: self.copies,
            ..PutOptions::default()
        };
        let wish = self.client.write_at(self.seat, key, options, until);
        let brought = Brought::Reserved(Committed {
            id: self.id,
            hold_ms: hold.map_or(0, |hold| u32::try_from(hold.as_millis()).expect("seconds")),
        });
        let ended = self.client.asking.begin(key, wish, brought, until).await;
        let error = match stored(ended) {
            Ok(Some(stored)) => {
                self.is_over.set(true);
                return Ok(stored);
            }
            Ok(None) => lost(),
            Err(error) => error,
        };
        if is_there(&error) || error.kind == StoreErrorKind::Interrupted {
            let slot = Some(self);
            return Err(SlotFailure { error, slot });
        }
        self.is_over.set(error == lost());
        Err(SlotFailure { error, slot: None })
    }

    /// It was committed.
    pub(super) fn end(self) {
        self.is_over.set(true);
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
