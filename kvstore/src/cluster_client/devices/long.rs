//! Objects in parts, whose parts are with the device and with the store in turn, so that no more of them is staged than
//! the client's bound.

use std::cell::RefCell;

use futures_util::future::join_all;
use lunette_kvstore_proto::message::directory::StripedReply;
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::striped::{Manifest, Part, part_len};
use lunette_runtime_core::limits::PAYLOAD_BYTES_MAX;
use lunette_transfer::{CallError, Room, Staged};

use super::piece::{Piece, download, len, part, upload};
use super::{DeviceClient, DeviceStoreError, Landed, Object};
use crate::cluster_client::striping::{PartSource, Stretch};
use crate::cluster_client::{PutOptions, Stored};
use crate::error::{StoreError, StoreErrorKind};
use crate::value::Value;

/// Of a long object, so many bytes travel together, unless a part of it alone is longer.
const STRETCH_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Stretches of one object at a time: one with the device and one with the store.
const STRETCHES_MAX: usize = 2;
/// How often an object is looked at anew that others replace meanwhile, or part of which is lost.
const ROUNDS_MAX: usize = 4;

const _: () = assert!(STRETCH_BYTES_MAX <= PAYLOAD_BYTES_MAX);

/// Whether so much memory may be filled by an object in parts that is long.
pub(super) fn may_be_long(object: &Object) -> bool {
    len(&object.pieces) > STRETCH_BYTES_MAX
}

/// The length of its parts, if it is to be written in parts and is long.
pub(super) fn part_len_of(object: &Object, options: PutOptions) -> Option<u32> {
    let len_bytes = len(&object.pieces);
    if len_bytes <= STRETCH_BYTES_MAX {
        return None;
    }
    part_len(len_bytes as u64, options.stripe_len)
        .ok()
        .flatten()
}

/// What parts are copied from.
struct Staging<'a> {
    devices: &'a DeviceClient,
    pieces: &'a [Piece],
}

impl PartSource for Staging<'_> {
    type Error = DeviceStoreError;
    type Kept = Staged;

    fn len_bytes(&self) -> u64 {
        len(self.pieces) as u64
    }

    fn check(&self, _manifest: &Manifest) -> Result<(), StoreErrorKind> {
        Ok(())
    }

    async fn part(
        &self,
        of: Part,
        may_wait: bool,
    ) -> Result<Option<(Value, Staged)>, DeviceStoreError> {
        let len_bytes = of.len_bytes as usize;
        let staged = if may_wait {
            self.devices.stage(len_bytes).await?
        } else {
            let Some(staged) = self.devices.staging.try_take(len_bytes) else {
                return Ok(None);
            };
            staged
        };
        let first = usize::try_from(of.offset_bytes).expect("it lies in memory");
        let pieces = part(self.pieces, first..first + len_bytes);
        let room = staged.memory().slice(0, len_bytes);
        let copied = download(&pieces, &room).end().await;
        copied.map_err(DeviceStoreError::Device)?;
        Ok(Some((Value::gathered(vec![room.into()]), staged)))
    }
}

impl DeviceClient {
    /// Puts an object in parts.
    pub(super) async fn put_long(
        &self,
        object: &Object,
        part_len: u32,
        options: PutOptions,
    ) -> Result<Stored, DeviceStoreError> {
        let source = Staging {
            devices: self,
            pieces: &object.pieces,
        };
        let options = PutOptions {
            group: object.among.group.or(options.group),
            behind: object.among.behind.or(options.behind),
            ..options
        };
        let put = self
            .client
            .put_from(&object.key, &source, part_len, options);
        Box::pin(put).await
    }

    /// Gets what may be an object in parts.
    pub(super) async fn get_long(&self, object: &Object) -> Result<Landed, DeviceStoreError> {
        let key = self.client.own(&object.key);
        let key = self.client.valid(&key)?;
        let room_bytes = len(&object.pieces);
        let mut ended = Ok(Landed::Miss { is_known: false });
        for _ in 0..ROUNDS_MAX {
            let manifest = self.client.manifest_of(key).await?;
            if let Some(reply) = manifest.filter(|reply| is_long(&reply.manifest)) {
                let len_bytes = reply.manifest.len_bytes();
                if len_bytes > room_bytes as u64 {
                    return Err(StoreError::local(too_long(len_bytes, room_bytes)).into());
                }
                match self.get_parts(object, &reply).await? {
                    Some(landed) => return Ok(landed),
                    None => continue,
                }
            }
            // As much as it has is staged.
            let size = self
                .client
                .sizes(std::slice::from_ref(&object.key))
                .await
                .pop();
            let size = size.expect("one each")?.unwrap_or(0).min(room_bytes);
            let short = [Object {
                key: object.key.clone(),
                pieces: part(&object.pieces, 0..size),
                among: object.among,
            }];
            ended = self.get_short(&short).await.pop().expect("one each");
            let is_replaced = matches!(
                ended,
                Err(DeviceStoreError::Store(StoreError {
                    kind: StoreErrorKind::Call(CallError::TooLong { .. }),
                    ..
                }))
            );
            if !is_replaced || size == room_bytes {
                return ended;
            }
        }
        ended
    }

    /// Gets all parts that there are under a manifest; `None` if one was lost, so that the object is looked at anew.
    async fn get_parts(
        &self,
        object: &Object,
        reply: &StripedReply,
    ) -> Result<Option<Landed>, DeviceStoreError> {
        let manifest = &reply.manifest;
        let mut stretches = stretches(manifest).into_iter();
        let stretches = RefCell::new(&mut stretches);
        let next = || stretches.borrow_mut().next();
        let walk = async || {
            let mut is_cut_off = false;
            while let Some(stretch) = next() {
                match self.get_stretch(object, reply, stretch).await {
                    Ok(Stretch::Hit { is_cut_off: is_off }) => is_cut_off |= is_off,
                    // Nobody goes on.
                    ended => {
                        while next().is_some() {}
                        return ended;
                    }
                }
            }
            Ok(Stretch::Hit { is_cut_off })
        };
        let walks = (0..STRETCHES_MAX).map(|_| Box::pin(walk()));
        let mut is_cut_off = reply.is_cut_off;
        let mut is_lost = false;
        for ended in join_all(walks).await {
            match ended? {
                Stretch::Hit { is_cut_off: is_off } => is_cut_off |= is_off,
                Stretch::Miss { is_known } => return Ok(Some(Landed::Miss { is_known })),
                Stretch::Lost => is_lost = true,
            }
        }
        let len_bytes = usize::try_from(manifest.len_bytes()).expect("it lies in memory");
        Ok((!is_lost).then_some(Landed::Hit {
            len_bytes,
            object_len_bytes: len_bytes,
            version: reply.version,
            is_cut_off,
        }))
    }

    async fn get_stretch(
        &self,
        object: &Object,
        reply: &StripedReply,
        stretch: ByteRange,
    ) -> Result<Stretch, DeviceStoreError> {
        let len_bytes = stretch.len_bytes as usize;
        let staged = self.stage(len_bytes).await?;
        let room = staged.memory().slice(0, len_bytes);
        let into = Room::exposed(vec![room.clone()]);
        let key = self.client.own(&object.key);
        let key = self.client.valid(&key)?;
        let read = self.client.read_stretch(key, stretch, into, reply).await?;
        if let Stretch::Hit { .. } = read {
            let first = usize::try_from(stretch.offset_bytes).expect("it lies in memory");
            let pieces = part(&object.pieces, first..first + len_bytes);
            let copied = upload(&pieces, &room).end().await;
            copied.map_err(DeviceStoreError::Device)?;
        }
        Ok(read)
    }
}

fn is_long(manifest: &Manifest) -> bool {
    manifest.len_bytes() > STRETCH_BYTES_MAX as u64
}

fn too_long(len_bytes: u64, room_bytes: usize) -> StoreErrorKind {
    StoreErrorKind::Call(CallError::TooLong {
        payload_len_bytes: u32::try_from(len_bytes).unwrap_or(u32::MAX),
        room_bytes: u32::try_from(room_bytes).unwrap_or(u32::MAX),
    })
}

/// Whole parts that travel together.
fn stretches(manifest: &Manifest) -> Vec<ByteRange> {
    let mut stretches: Vec<ByteRange> = Vec::new();
    for part in manifest.parts() {
        match stretches.last_mut() {
            Some(last) if (last.len_bytes + part.len_bytes) as usize <= STRETCH_BYTES_MAX => {
                last.len_bytes += part.len_bytes;
            }
            _ => stretches.push(ByteRange {
                offset_bytes: part.offset_bytes,
                len_bytes: part.len_bytes,
            }),
        }
    }
    stretches
}

#[cfg(test)]
mod tests {
    use lunette_kvstore_proto::striped::WriteId;

    use super::*;

    #[test]
    fn stretches_are_of_whole_parts_and_of_each_once() {
        const MIB: u32 = 1 << 20;
        for (len, part_len, expected) in [
            (100, 16, &[32, 32, 32, 4][..]),
            (100, 64, &[64, 36]),
            (41, 40, &[40, 1]),
            (66, 20, &[20, 20, 26]),
            (32, 32, &[32]),
        ] {
            let manifest = Manifest::new(u64::from(len * MIB), part_len * MIB, WriteId(1));
            let found = stretches(&manifest.expect("within limits"));
            let lens: Vec<u32> = found.iter().map(|range| range.len_bytes / MIB).collect();
            assert_eq!(lens, expected, "{len} in parts of {part_len}");
            let mut at = 0;
            for range in found {
                assert_eq!(range.offset_bytes, at);
                at += u64::from(range.len_bytes);
            }
            assert_eq!(at, u64::from(len * MIB));
        }
    }
}
