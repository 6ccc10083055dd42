//! Keys of what this core has, page by page.
//!
//! What is in memory is told at once. Of what is on the drive the key is there too, and is read.

use std::rc::Rc;

use futures_util::future::join_all;
use lunette_cluster::proto::map::Epoch;
use lunette_kvstore_proto::key::{Fingerprint, Key};
use lunette_kvstore_proto::message::directory::{
    CopyPlace, LISTED_MAX, ListMessage, ListReply, is_meant,
};
use lunette_kvstore_proto::message::{FormatVersion, Status};
use lunette_transfer::{Intake, Later, Response};

use super::{MemberService, Pending, version_of};
use crate::counting::{Counting, Outcome};
use crate::member::bytes::Extent;
use crate::member::core::MemberCore;
use crate::refusals::bad_request;

/// Most keys that are looked at for one page, in one turn of the core.
const LOOKED_AT_MAX: usize = 512;
/// Most of them that are read from the drive, all at once.
const FROM_DRIVE_MAX: usize = 64;

/// Copies that a page may name.
#[derive(Default)]
struct Looked {
    epoch: Epoch,
    copies: Vec<(CopyPlace, Bytes)>,
    on_drive: usize,
    /// The last key that was looked at, if there are more behind it.
    next: Option<Fingerprint>,
}

/// Where a copy's bytes are, and its key.
enum Bytes {
    Here(Extent),
    OnDrive,
}

impl MemberService {
    pub(super) fn list(
        &self,
        body: &[u8],
        counting: &mut Counting,
    ) -> Result<Intake<Pending>, Status> {
        let message = ListMessage::decode(body).map_err(bad_request)?;
        let version = version_of(body)?;
        self.check(message.to)?;
        let looked = looked_at(&self.core, &message);
        if looked.on_drive == 0 {
            let reply = looked.named(Vec::new(), message.prefix);
            return Ok(Intake::Answer(listed(version, &reply)));
        }
        self.check_waiters()?;
        let (core, mut counting) = (Rc::clone(&self.core), counting.waits());
        let prefix = message.prefix.to_vec();
        Ok(Intake::Later(Later::new(async move {
            let on_drive = looked.copies.iter();
            let on_drive = on_drive.filter(|(_, bytes)| matches!(bytes, Bytes::OnDrive));
            let read = join_all(on_drive.map(|(place, _)| core.key_on_drive(*place))).await;
            counting.end(Outcome::Ok);
            listed(version, &looked.named(read, &prefix))
        })))
    }
}

fn looked_at(core: &MemberCore, message: &ListMessage<'_>) -> Looked {
    let machines = core.machines().borrow();
    let looked = Looked {
        epoch: core.map().epoch(),
        ..Looked::default()
    };
    let (mut looked, mut count) = (looked, 0);
    let copies_max = LISTED_MAX.min(message.keys.into()).max(1);
    for (key, latest) in machines.owner.keys_after(message.after) {
        let is_full = looked.copies.len() == copies_max || looked.on_drive == FROM_DRIVE_MAX;
        if is_full || count == LOOKED_AT_MAX {
            return looked;
        }
        count += 1;
        looked.next = Some(key);
        let Some((place, info)) = latest else {
            continue;
        };
        match core.bytes().borrow().extent(place) {
            Some(extent) if is_meant(extent.key(), message.prefix) => {
                looked.copies.push((place, Bytes::Here(extent)));
            }
            None if core.is_on_drive(place, &info) => {
                looked.on_drive += 1;
                looked.copies.push((place, Bytes::OnDrive));
            }
            // Another one's, or on its way.
            Some(_) | None => {}
        }
    }
    looked.next = None;
    looked
}

impl Looked {
    /// As many of the keys as one page has room for, in order; `read` are those that were on the drive.
    fn named(self, read: Vec<Option<Box<[u8]>>>, prefix: &[u8]) -> ListReply {
        let (mut reply, mut read) = (ListReply::of(self.epoch), read.into_iter());
        let mut last = None;
        for (place, bytes) in &self.copies {
            let from_drive;
            let key = match bytes {
                Bytes::Here(extent) => Some(extent.key()),
                Bytes::OnDrive => {
                    from_drive = read.next().flatten();
                    let key = from_drive.as_deref().and_then(|key| Key::new(key).ok());
                    key.filter(|key| is_meant(*key, prefix))
                }
            };
            if key.is_some_and(|key| !reply.push(key)) {
                reply.next = last;
                return reply;
            }
            last = Some(place.key);
        }
        reply.next = self.next;
        reply
    }
}

fn listed(version: FormatVersion, reply: &ListReply) -> Response {
    let mut response = Response::default();
    reply.encode(version, &mut response.body);
    response
}
