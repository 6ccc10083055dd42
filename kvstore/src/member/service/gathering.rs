//! Gets in batches: what this core has of many keys goes back in one answer, from where it lies.

use std::rc::Rc;

use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{GatherMessage, Gathered, Peek};
use lunette_kvstore_proto::message::{Op, Status};
use lunette_kvstore_proto::owner::{Read, Sought};
use lunette_kvstore_proto::shard::EntryId;
use lunette_kvstore_proto::version::Form;
use lunette_runtime::net::Pin;
use lunette_transfer::{Payload, Response, WriteSource};

use super::{MemberService, version_of};
use crate::counting::Outcome;
use crate::joined::Joined;
use crate::member::bytes::Extent;
use crate::member::core::MemberCore;
use crate::refusals::bad_request;

/// Reads of copies, over when all of their bytes have been sent.
struct CopyPins {
    core: Rc<MemberCore>,
    ids: Vec<EntryId>,
}

impl Drop for CopyPins {
    fn drop(&mut self) {
        let mut bytes = self.core.bytes().borrow_mut();
        self.ids.iter().for_each(|id| bytes.unpin(*id));
    }
}

/// Objects one behind the other.
struct Gathering {
    pins: CopyPins,
    pieces: Vec<WriteSource>,
    checksum: Joined,
}

impl Gathering {
    fn push(&mut self, id: EntryId, extent: &Extent) {
        self.pins.ids.push(id);
        if extent.len_bytes() > 0 {
            self.pieces.push(WriteSource::Region(extent.value()));
            self.checksum.push(extent.crc32c, extent.len_bytes());
        }
    }

    fn into_payload(self) -> Option<Payload> {
        if self.pieces.is_empty() {
            return None;
        }
        let payload = Payload::pieces(self.pieces, self.checksum.crc32c());
        Some(payload.pinned(Pin::new(self.pins)))
    }
}

impl MemberService {
    /// The bytes of those objects that this very core has, and which keys are known to have none.
    pub(super) fn gather(&self, body: &[u8]) -> Result<Response, Status> {
        let message = GatherMessage::decode(body).map_err(bad_request)?;
        let version = version_of(body)?;
        self.check(message.to)?;
        for (_, key) in &message.wanted {
            self.core.touch(key.fingerprint());
        }
        let mut gathering = Gathering {
            pins: CopyPins {
                core: Rc::clone(&self.core),
                ids: Vec::with_capacity(message.wanted.len()),
            },
            pieces: Vec::with_capacity(message.wanted.len()),
            checksum: Joined::new(),
        };
        let gathered = message.wanted.iter().map(|&(room_bytes, key)| {
            let gathered = self.gather_one(&message, (room_bytes, key), &mut gathering);
            let outcome = match gathered {
                Gathered::Here { .. } => Outcome::Ok,
                Gathered::Absent {} => Outcome::NotFound,
                // It is counted when it is asked for.
                Gathered::Unsure {} => return gathered,
            };
            self.core.counts.begin(Op::Find.code()).end(outcome);
            gathered
        });
        let gathered: Vec<Gathered> = gathered.collect();
        let mut body = Vec::new();
        Gathered::encode(&gathered, version, &mut body);
        let payload = gathering.into_payload();
        self.core
            .counts
            .sending(payload.as_ref().map_or(0, Payload::len));
        Ok(Response {
            status: Status::Ok.code(),
            body,
            payload,
        })
    }

    fn gather_one(
        &self,
        message: &GatherMessage<'_>,
        (room_bytes, key): (u32, Key<'_>),
        gathering: &mut Gathering,
    ) -> Gathered {
        match self
            .core
            .read(key, Sought::Latest(message.epoch), message.namespace)
        {
            Read::Served {
                place,
                info,
                is_cut_off,
            } => {
                let pinned = self.core.bytes().borrow_mut().pin(place, key);
                let Some((id, extent)) = pinned else {
                    return Gathered::Unsure {};
                };
                if info.form == Form::Striped || extent.len_bytes() > room_bytes {
                    self.core.bytes().borrow_mut().unpin(id);
                    return Gathered::Unsure {};
                }
                gathering.push(id, &extent);
                self.core.list_read(place, id.slot_index);
                Gathered::Here {
                    version: place.version,
                    is_cut_off,
                    len_bytes: extent.len_bytes(),
                }
            }
            Read::Unavailable => Gathered::Unsure {},
            Read::Absent => {
                let mut peeked = Peek::Unsure;
                if message.epoch == self.core.map().epoch() {
                    let keys = [key.fingerprint()];
                    (self.core).peek(&keys, message.namespace, |peek| peeked = peek);
                }
                match peeked {
                    Peek::Absent => Gathered::Absent {},
                    Peek::Present | Peek::Unsure => Gathered::Unsure {},
                }
            }
        }
    }
}
