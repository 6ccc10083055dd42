//! Objects that are written in ranges, for threads.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lunette_kvstore_proto::version::Version;
use lunette_runtime::Pending;
use thiserror::Error;

use super::StoreHandle;
use super::cores::{Cores, failed};
use super::devices::are_of_device;
use super::hosted::Hosted;
use super::lent::Lent;
use crate::cluster_client::{PutOptions, Reservation, Reserved, Stored};
use crate::error::{StoreError, StoreErrorKind};

/// What came of a wish to reserve.
#[derive(Debug)]
pub enum ReservedHandle {
    /// Room for the object.
    Room(ReservationHandle),
    /// A put would find the key taken: there is nothing to write.
    Exists {
        /// What is there.
        version: Version,
    },
}

/// A [`Reservation`], for threads. Dropping it gives the room back.
pub struct ReservationHandle {
    cores: Arc<Cores>,
    core: usize,
    index: usize,
    len_bytes: usize,
    is_taken: bool,
}

impl fmt::Debug for ReservationHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReservationHandle")
            .field("len_bytes", &self.len_bytes)
            .finish_non_exhaustive()
    }
}

/// A commit has failed.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct CommitHandleFailure {
    /// Why: `TooManyOperations` also while a write of it is under way.
    #[source]
    pub error: StoreError,
    /// The reservation, if it may still be there: where nothing was done, or not all bytes are written.
    pub reservation: Option<ReservationHandle>,
}

impl StoreHandle {
    /// Reserves room for an object. See [`ClusterClient::reserve`](crate::ClusterClient::reserve).
    ///
    /// # Errors
    /// [`StoreError`], as there.
    pub fn reserve(
        &self,
        key: Vec<u8>,
        len_bytes: usize,
        options: PutOptions,
        keep: Duration,
    ) -> Pending<Result<ReservedHandle, StoreError>> {
        let core = self.cores.core_of(&key);
        let cores = Arc::clone(&self.cores);
        self.cores.ask(core, failed, move |hosted| async move {
            let reserved = hosted.client.reserve(&key, len_bytes, options, keep).await;
            Ok(match reserved? {
                Reserved::Room(reservation) => ReservedHandle::Room(ReservationHandle {
                    index: hosted
                        .reservations
                        .borrow_mut()
                        .insert(Rc::new(reservation)),
                    cores,
                    core,
                    len_bytes,
                    is_taken: false,
                }),
                Reserved::Exists { version } => ReservedHandle::Exists { version },
            })
        })
    }
}

impl ReservationHandle {
    /// Length of the object in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len_bytes
    }

    /// Whether it is of no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Writes what lies in `value`, one piece after the other, to `offset_bytes`. See
    /// [`Reservation::write`].
    ///
    /// # Errors
    /// [`StoreError`], as there.
    pub fn write(&self, offset_bytes: usize, value: Vec<Lent>) -> Pending<Result<(), StoreError>> {
        let index = self.index;
        self.cores.ask(self.core, failed, move |hosted| async move {
            let reservation = hosted.reservations.borrow().get(index).map(Rc::clone);
            // It is there for as long as the handle, but for what ended with its core.
            let lost = StoreError::local(StoreErrorKind::ReservationLost);
            let reservation = reservation.ok_or(lost)?;
            if are_of_device(&value) {
                let (value, staged) = hosted.value_of_devices(&value).await?;
                let written = reservation.write(offset_bytes, value).await;
                drop(staged);
                return written;
            }
            reservation.write(offset_bytes, hosted.value(&value)).await
        })
    }

    /// Makes what was written the key's value. See [`Reservation::commit`].
    ///
    /// # Errors
    /// [`CommitHandleFailure`]; the room is given back if [`QUESTIONS_MAX`](super::QUESTIONS_MAX) wait.
    pub fn commit(self) -> Pending<Result<Stored, CommitHandleFailure>> {
        let (core, index) = (self.core, self.index);
        let cores = Arc::clone(&self.cores);
        let refused = |kind| {
            let error = StoreError::local(kind);
            let reservation = None;
            Err(CommitHandleFailure { error, reservation })
        };
        cores.ask(core, refused, move |hosted| async move {
            // A question that is not put gives the room back, as this handle does that goes with it.
            let mut handle = self;
            handle.is_taken = true;
            let (error, reservation) = match hosted.take(index) {
                Taken::Whole(reservation) => match reservation.commit().await {
                    Ok(stored) => return Ok(stored),
                    Err(failure) => (failure.error, failure.reservation.map(Rc::new)),
                },
                Taken::Written(reservation) => {
                    let kind = StoreErrorKind::TooManyOperations;
                    (StoreError::local(kind), Some(reservation))
                }
                Taken::Gone => (StoreError::local(StoreErrorKind::ReservationLost), None),
            };
            let reservation = reservation.map(|reservation| {
                handle.index = hosted.reservations.borrow_mut().insert(reservation);
                handle.is_taken = false;
                handle
            });
            Err(CommitHandleFailure { error, reservation })
        })
    }

    /// Gives the room back. See [`Reservation::revoke`].
    ///
    /// # Errors
    /// [`StoreError`]: the node does so itself after a while.
    pub fn revoke(self) -> Pending<Result<(), StoreError>> {
        let (core, index) = (self.core, self.index);
        let cores = Arc::clone(&self.cores);
        cores.ask(core, failed, move |hosted| async move {
            let mut handle = self;
            handle.is_taken = true;
            match hosted.take(index) {
                Taken::Whole(reservation) => reservation.revoke().await,
                // It goes when the write has ended.
                Taken::Written(_) => Ok(()),
                Taken::Gone => failed(StoreErrorKind::ReservationLost),
            }
        })
    }
}

impl Drop for ReservationHandle {
    fn drop(&mut self) {
        if !self.is_taken {
            self.cores.drop_reservation(self.core, self.index);
        }
    }
}

/// What is there of a reservation.
enum Taken {
    Whole(Reservation),
    /// A write of it is under way.
    Written(Rc<Reservation>),
    Gone,
}

impl Hosted {
    fn take(&self, index: usize) -> Taken {
        let Some(reservation) = self.reservations.borrow_mut().try_remove(index) else {
            return Taken::Gone;
        };
        match Rc::try_unwrap(reservation) {
            Ok(reservation) => Taken::Whole(reservation),
            Err(reservation) => Taken::Written(reservation),
        }
    }
}
