//! Puts in batches: small objects that come one behind the other in one request, each straight to where it stays.
//!
//! Each of them is a write by itself, as if it had come alone: one that is refused, or has been done before, leaves the
//! others as they are, and what comes of its bytes goes nowhere.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use lunette_kvstore_proto::message::directory::{OpId, ScatterMessage, ScatterWrite, Scattered};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::owner::WriteAnswer;
use lunette_runtime::arena::SharedMemory;
use lunette_transfer::{
    Answer, Intake, Later, PayloadOutcome, RequestHead, Response, Room, SplitRoom,
};

use super::writing::status_of;
use super::{MemberService, Pending, WAITERS_MAX, damaged, version_of};
use crate::counting::{Counting, Outcome};
use crate::joined::Joined;
use crate::member::bytes::Frame;
use crate::member::core::MemberCore;
use crate::member::local::NotCarved;
use crate::member::waiters::Waiting;
use crate::refusals::bad_request;

/// Writes whose bytes arrive together.
pub(crate) struct PendingScatter {
    writes: Vec<Begun>,
    version: FormatVersion,
    counting: Counting,
}

/// One of them.
enum Begun {
    /// What came of it is known; no bytes of it are wanted.
    Over(Scattered),
    /// It has come before; no bytes of it are wanted.
    Waits(Waiting<WriteAnswer>),
    Arrives(Arriving),
}

/// A write whose bytes are wanted.
struct Arriving {
    op: OpId,
    frame: Frame,
    crc32c: u32,
    room: SplitRoom,
    waiting: Waiting<WriteAnswer>,
}

/// What came of a write, now or later.
enum Ends {
    Now(Scattered),
    Later(Waiting<WriteAnswer>),
}

impl MemberService {
    pub(super) fn scatter(
        &self,
        request: &RequestHead<'_>,
        counting: &mut Counting,
    ) -> Result<Intake<Pending>, Status> {
        let message = ScatterMessage::decode(request.body).map_err(bad_request)?;
        let version = version_of(request.body)?;
        self.check_begin(message.head.to)?;
        check_payload(&message.writes, request)?;
        if self.core.writes.len() + message.writes.len() > WAITERS_MAX {
            return Err(Status::Busy);
        }
        let head = &message.head;
        self.core.over(head.asker, head.over_below);
        let begun = message
            .writes
            .iter()
            .map(|write| self.begin(&message, write));
        let begun: Vec<Begun> = begun.collect();
        self.core.settle();
        let Some(room) = room_of(&message.writes, &begun) else {
            let ends = begun.into_iter().map(|begun| match begun {
                Begun::Over(scattered) => Ends::Now(scattered),
                Begun::Waits(waiting) => Ends::Later(waiting),
                Begun::Arrives(_) => unreachable!("there would be room for it"),
            });
            let answer = answer(&self.core, version, counting.waits(), ends.collect());
            return Ok(match answer {
                Answer::Now(response) => Intake::Answer(response),
                Answer::Later(later) => Intake::Later(later),
            });
        };
        let pending = Pending::Scatter(PendingScatter {
            writes: begun,
            version,
            counting: counting.waits(),
        });
        Ok(Intake::Receive { pending, room })
    }

    fn begin(&self, message: &ScatterMessage<'_>, write: &ScatterWrite<'_>) -> Begun {
        let ask = write.ask(&message.head);
        let begun = self.core.write(message.head.asker, write.request, ask);
        let (Some(op), mut waiting) = begun else {
            return Begun::Waits(begun.1);
        };
        let (len_bytes, pin) = (write.len_bytes, write.retention.pin);
        match (self.core).carve_for(op, &mut waiting, write.key, len_bytes, pin) {
            Ok(carved) => {
                let (frame, room) = carved.into_room();
                let mut bytes = self.core.bytes().borrow_mut();
                bytes.receive(op, frame, write.retention);
                Begun::Arrives(Arriving {
                    op,
                    frame,
                    crc32c: write.crc32c,
                    room: room.split(),
                    waiting,
                })
            }
            Err(NotCarved::Over(answer)) => Begun::Over(Scattered::Done { answer }),
            Err(NotCarved::NoRoom(no_room)) => {
                let status = status_of(no_room);
                Begun::Over(Scattered::Refused { status })
            }
        }
    }
}

/// That the payload is what the writes say, and none of them is of nothing: that takes no payload.
fn check_payload(writes: &[ScatterWrite<'_>], request: &RequestHead<'_>) -> Result<(), Status> {
    let mut joined = Joined::new();
    let mut len_bytes = 0;
    for write in writes {
        if write.len_bytes == 0 {
            return Err(Status::BadRequest);
        }
        joined.push(write.crc32c, write.len_bytes);
        len_bytes += write.len_bytes;
    }
    let payload = (request.payload_len_bytes, request.payload_crc32c);
    if writes.is_empty() || payload != (len_bytes, joined.crc32c()) {
        return Err(Status::BadRequest);
    }
    Ok(())
}

/// Room for all of the payload; `None` if none of it is wanted. What is not wanted of it goes to memory of its own,
/// wherever in that.
fn room_of(writes: &[ScatterWrite<'_>], begun: &[Begun]) -> Option<Room> {
    let lens = || writes.iter().map(|write| write.len_bytes as usize);
    let is_wanted = |begun: &Begun| matches!(begun, Begun::Arrives(_));
    if !begun.iter().any(is_wanted) {
        return None;
    }
    let unwanted = lens().zip(begun).filter(|(_, begun)| !is_wanted(begun));
    let longest = unwanted.map(|(len, _)| len).max().unwrap_or(0);
    let waste = SharedMemory::owned(vec![0; longest]).here(Arc::new(()));
    let waste = Room::exposed(vec![waste]).split();
    let parts = lens()
        .zip(begun)
        .map(|(len, begun)| -> (&SplitRoom, Range<usize>) {
            match begun {
                Begun::Arrives(arriving) => (&arriving.room, 0..len),
                Begun::Over(_) | Begun::Waits(_) => (&waste, 0..len),
            }
        });
    Some(Room::of_parts(parts))
}

/// The bytes have come, or will not.
pub(super) fn on_scattered(
    core: &Rc<MemberCore>,
    pending: PendingScatter,
    room: Room,
    outcome: PayloadOutcome,
) -> Answer {
    // Each part of it is of a room that is here.
    drop(room);
    let is_intact = outcome == PayloadOutcome::Intact;
    let ends = pending.writes.into_iter().map(|begun| match begun {
        Begun::Over(scattered) => Ends::Now(scattered),
        Begun::Waits(waiting) => Ends::Later(waiting),
        Begun::Arrives(arriving) if is_intact => Ends::Later(arriving.has_come(core)),
        Begun::Arrives(arriving) => {
            drop(arriving.room);
            core.on_lost(arriving.op);
            Ends::Later(arriving.waiting)
        }
    });
    let ends: Vec<Ends> = ends.collect();
    if is_intact {
        answer(core, pending.version, pending.counting, ends)
    } else {
        damaged(pending.counting, outcome)
    }
}

impl Arriving {
    fn has_come(self, core: &MemberCore) -> Waiting<WriteAnswer> {
        let room = self.room.join();
        let room = room.expect("nothing is received into it any more");
        let extent = self.frame.filled(room.into_region(), self.crc32c);
        core.counts.received(extent.len_bytes());
        core.on_whole(self.op, extent);
        self.waiting
    }
}

/// Answers when all of them have ended.
fn answer(
    core: &Rc<MemberCore>,
    version: FormatVersion,
    counting: Counting,
    mut ends: Vec<Ends>,
) -> Answer {
    for end in &mut ends {
        if let Ends::Later(waiting) = end
            && let Some(answer) = waiting.try_take()
        {
            *end = Ends::Now(Scattered::Done { answer });
        }
    }
    if ends.iter().all(|end| matches!(end, Ends::Now(_))) {
        let known = ends.into_iter().filter_map(|end| match end {
            Ends::Now(scattered) => Some(scattered),
            Ends::Later(_) => None,
        });
        return Answer::Now(response(
            core,
            version,
            counting,
            &known.collect::<Vec<_>>(),
        ));
    }
    let core = Rc::clone(core);
    Answer::Later(Later::new(async move {
        let mut scattered = Vec::with_capacity(ends.len());
        for end in ends {
            scattered.push(match end {
                Ends::Now(scattered) => scattered,
                Ends::Later(waiting) => Scattered::Done {
                    answer: waiting.await.unwrap_or(WriteAnswer::Interrupted),
                },
            });
        }
        response(&core, version, counting, &scattered)
    }))
}

fn response(
    core: &MemberCore,
    version: FormatVersion,
    mut counting: Counting,
    scattered: &[Scattered],
) -> Response {
    for scattered in scattered {
        let outcome = match scattered {
            Scattered::Done { answer } => Outcome::from(answer),
            Scattered::Refused { status } => Outcome::from(*status),
        };
        core.counts.begin(Op::Write.code()).end(outcome);
    }
    counting.end(Outcome::Ok);
    let mut response = Response::default();
    Scattered::encode(scattered, version, &mut response.body);
    response
}
