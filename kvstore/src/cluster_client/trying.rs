//! A write of one object, at one place after another until it is done.

use lunette_kvstore_proto::asker::{Outcome, PAUSE, Wish};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::Status;
use lunette_kvstore_proto::message::directory::WAIT_MS_MAX;
use lunette_kvstore_proto::owner::{WriteAnswer, WriteAsk};
use lunette_kvstore_proto::placement::{Seat, home_of};
use lunette_kvstore_proto::version::Form;
use lunette_runtime::time;
use lunette_runtime_core::time::Time;

use super::placing::{Place, Places, ROOM_PATIENCE};
use super::running::{Brought, Ended};
use super::{ClusterClient, PutOptions, Stored, local};
use crate::error::{StoreError, StoreErrorKind};
use crate::member::Placed;
use crate::value::Value;

/// An object on its way to where it stays.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writing<'a> {
    pub(super) key: Key<'a>,
    pub(super) value: &'a Value,
    /// The same bytes, if they lie already where they are to stay.
    pub(super) placed: Option<&'a Placed>,
    pub(super) options: PutOptions,
    pub(super) form: Form,
    pub(super) is_last: bool,
}

impl<'a> Writing<'a> {
    /// In one piece, and put with no other.
    pub(super) const fn alone(key: Key<'a>, value: &'a Value, options: PutOptions) -> Self {
        Self {
            key,
            value,
            placed: None,
            options,
            form: Form::Whole,
            is_last: false,
        }
    }
}

/// A write that was begun: on this core, or with somebody else.
pub(super) enum Begun<'a, F> {
    Here(local::Begun<'a>),
    There(F),
}

/// What came of a write at the place that was tried last.
enum Tried {
    Stored(Stored),
    /// Nothing was done, since there was no room. `may_come`: something may leave.
    NoRoom {
        may_come: bool,
    },
    /// Nothing was done.
    Nothing,
}

impl Tried {
    fn of(answer: WriteAnswer) -> Result<Self, StoreError> {
        let is_full = answer == WriteAnswer::Full;
        Ok(match stored_as(answer)? {
            Some(stored) => Self::Stored(stored),
            None if is_full => Self::NoRoom { may_come: true },
            None => Self::Nothing,
        })
    }
}

/// Waits for a write that was begun at the place that was tried last.
async fn end<F: Future<Output = Ended>>(
    begun: Option<Begun<'_, F>>,
    places: &Places,
) -> Result<Tried, StoreError> {
    let tried = match begun {
        None => Tried::Nothing,
        Some(Begun::Here(begun)) => Tried::of(begun.end().await)?,
        Some(Begun::There(begun)) => match begun.await.outcome {
            Ok(Outcome::Written(answer)) => Tried::of(answer)?,
            // Nodes have different memories.
            Err(kind) if is_of_memory(kind) && !places.is_last() => {
                Tried::NoRoom { may_come: false }
            }
            // The tenant's quota is lent by one for all.
            Err(kind) if is_of_quota(kind) && !places.is_at_home() => {
                Tried::NoRoom { may_come: false }
            }
            outcome => match stored_of(outcome)? {
                Some(stored) => Tried::Stored(stored),
                None => Tried::Nothing,
            },
        },
    };
    Ok(match tried {
        Tried::Stored(Stored::Written {
            version,
            is_cut_off,
            ..
        }) => Tried::Stored(Stored::Written {
            version,
            is_cut_off,
            is_elsewhere: places.is_elsewhere(),
        }),
        tried => tried,
    })
}

/// Whether another node, whose memory is another, may take it.
pub(super) const fn is_of_memory(kind: StoreErrorKind) -> bool {
    matches!(
        kind,
        StoreErrorKind::Refused(Status::TooLarge | Status::PinnedFull)
    )
}

const fn is_of_quota(kind: StoreErrorKind) -> bool {
    matches!(kind, StoreErrorKind::Refused(Status::OverQuota))
}

/// What came of a write; `None` if nothing was done.
pub(super) fn stored(ended: Ended) -> Result<Option<Stored>, StoreError> {
    stored_of(ended.outcome)
}

fn stored_of(outcome: Result<Outcome, StoreErrorKind>) -> Result<Option<Stored>, StoreError> {
    match outcome.map_err(StoreError::local)? {
        Outcome::Written(answer) => stored_as(answer),
        Outcome::TimedOut => Err(StoreError::local(StoreErrorKind::TimedOut)),
        Outcome::NoRoom => Err(StoreError::local(StoreErrorKind::Refused(Status::Full))),
        _ => Err(StoreError::local(StoreErrorKind::Interrupted)),
    }
}

pub(crate) fn stored_as(answer: WriteAnswer) -> Result<Option<Stored>, StoreError> {
    match answer {
        WriteAnswer::Written {
            version,
            is_cut_off,
        } => Ok(Some(Stored::Written {
            version,
            is_cut_off,
            is_elsewhere: false,
        })),
        WriteAnswer::Exists { version } => Ok(Some(Stored::Exists { version })),
        WriteAnswer::Interrupted => Err(StoreError::local(StoreErrorKind::Interrupted)),
        WriteAnswer::Aborted | WriteAnswer::Busy | WriteAnswer::Full | WriteAnswer::Unavailable => {
            Ok(None)
        }
    }
}

impl ClusterClient {
    /// Writes an object as it is, at the first of these places that takes it.
    pub(super) async fn put_at(
        &self,
        object: Writing<'_>,
        mut places: Places,
        until: Time,
    ) -> Result<Stored, StoreError> {
        let begun = self.begin_next(&mut places, object, until);
        self.put_begun(object, places, begun, until).await
    }

    /// Begins a write at the next place that there is; `None`: nobody is the key's home.
    pub(super) fn begin_next(
        &self,
        places: &mut Places,
        object: Writing<'_>,
        until: Time,
    ) -> Option<Begun<'_, impl Future<Output = Ended> + use<>>> {
        let Writing {
            key, value, placed, ..
        } = object;
        let ask = WriteAsk {
            form: object.form,
            retention: self.retention(&object.options, object.is_last),
            ..self.write_ask(key, object.options, until)
        };
        let (seat, is_last) = loop {
            match places.next() {
                Place::Here { is_wished } => {
                    let local = self.inside();
                    let begun =
                        local.and_then(|local| local.begin(key, (value, placed), ask, is_wished));
                    if let Some(begun) = begun {
                        return Some(Begun::Here(begun));
                    }
                }
                Place::At(seat) => break (seat, false),
                Place::Home => {
                    let home = home_of(&self.asking.map(), key.fingerprint())?;
                    break (home, places.is_last());
                }
            }
        };
        let wish = if is_last {
            Wish::Write(seat, ask)
        } else {
            Wish::WriteOnce(seat, ask)
        };
        // Summed once, also if it is written again.
        let _crc32c = value.crc32c();
        let brought = Brought::Value(value.clone());
        Some(Begun::There(self.asking.begin(key, wish, brought, until)))
    }

    /// Goes on from one place to the next until a write that was begun is done, or its time is over.
    pub(super) async fn put_begun<F: Future<Output = Ended>>(
        &self,
        object: Writing<'_>,
        mut places: Places,
        begun: Option<Begun<'_, F>>,
        until: Time,
    ) -> Result<Stored, StoreError> {
        let mut tried = end(begun, &places).await?;
        let mut patience = None;
        loop {
            match tried {
                Tried::Stored(stored) => return Ok(stored),
                // Perhaps the home is another node by now.
                Tried::NoRoom { .. } | Tried::Nothing if places.is_last() => {
                    self.wait_for_map(until).await?;
                }
                Tried::NoRoom { may_come } if places.is_at_home() => {
                    let now = time::now();
                    if now + PAUSE >= until {
                        return Err(StoreError::local(StoreErrorKind::Refused(Status::Full)));
                    }
                    let over = *patience.get_or_insert(now + ROOM_PATIENCE);
                    if may_come && now < over {
                        time::sleep(PAUSE).await;
                    } else {
                        let len_bytes = object.value.len();
                        places.settle(self.draw_seat(object.key, len_bytes).await);
                    }
                }
                Tried::Nothing if places.is_at_home() => places.settle(None),
                Tried::NoRoom { .. } | Tried::Nothing => {}
            }
            let begun = self.begin_next(&mut places, object, until);
            tried = end(begun, &places).await?;
        }
    }

    /// A write at an owner, for as long as there is time.
    pub(super) fn write_at(
        &self,
        seat: Seat,
        key: Key<'_>,
        options: PutOptions,
        until: Time,
    ) -> Wish {
        Wish::Write(seat, self.write_ask(key, options, until))
    }

    /// A write of an object that is in one piece and by itself.
    fn write_ask(&self, key: Key<'_>, options: PutOptions, until: Time) -> WriteAsk {
        let wait_ms = until.since(time::now()).as_millis();
        WriteAsk {
            key: key.fingerprint(),
            kind: options.kind,
            form: Form::Whole,
            namespace: self.asking.namespace(),
            wanted: options.copies,
            wait_ms: u32::try_from(wait_ms).map_or(WAIT_MS_MAX, |ms| ms.min(WAIT_MS_MAX)),
            retention: self.retention(&options, false),
        }
    }
}
