//! The bytes of one core: those that arrive, those of its copies, and room for more.
//!
//! An extent has room for a header, then the key, then the value, as a drive would have it; here
//! only the key and the value are written, since the owner knows the rest.
//!
//! | file | subject |
//! |---|---|
//! | `looked_at` | copies that others read by themselves |
//! | `moving` | copies make way for longer ones |

mod looked_at;
mod moving;

use std::collections::BTreeMap;

use lunette_kvstore_proto::credit::Credit;
use lunette_kvstore_proto::extent::ExtentLayout;
use lunette_kvstore_proto::key::{Fingerprint, Key};
use lunette_kvstore_proto::message::directory::{CopyPlace, OpId};
use lunette_kvstore_proto::owner::WriteAsk;
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::residence::{Arrival, NoRoom, Residence, ResidenceStats};
use lunette_kvstore_proto::retention::{Pin, Retention};
use lunette_kvstore_proto::shard::{EntryId, ShardLimits};
use lunette_kvstore_proto::striped::Manifest;
use lunette_kvstore_proto::tenant::TenantTag;
use lunette_kvstore_proto::version::Form;
use lunette_runtime::arena::{self, Arena, Exposed, Region, RegionMut};
use lunette_runtime::time;
use lunette_runtime_core::carve::GRANULE_BYTES;
use lunette_transfer::Room;

use super::catalogue::Catalogue;
use super::one_sided::Board;
use super::tenants::TenantNames;
use crate::counting::TenantReport;
use crate::drive::OnDrive;
use crate::moving::Moving;
use crate::value::carved_bytes;
pub(crate) use moving::Held;

/// The bytes of an object.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    region: Region,
    layout: ExtentLayout,
    key_len_bytes: u16,
    pub(crate) crc32c: u32,
}

impl Extent {
    pub(crate) fn key(&self) -> Key<'_> {
        let start = self.layout.key_offset_bytes as usize;
        let end = start + usize::from(self.key_len_bytes);
        Key::new(&self.region.as_slice()[start..end]).expect("it was a key when it came")
    }

    pub(crate) fn value(&self) -> Region {
        let start = self.layout.payload_offset_bytes as usize;
        self.region
            .slice(start, self.layout.total_bytes as usize - start)
    }

    /// Which chunk of its arena it is in, and where in that its key and its value begin.
    pub(super) fn places(&self) -> (u32, u64, u64) {
        let (chunk, start) = self.region.place();
        let at = |offset_bytes: u32| start as u64 + u64::from(offset_bytes);
        let (key, value) = (
            self.layout.key_offset_bytes,
            self.layout.payload_offset_bytes,
        );
        (chunk, at(key), at(value))
    }

    /// The manifest that its bytes are, if they are one.
    pub(crate) fn manifest(&self) -> Option<Manifest> {
        let manifest = Manifest::decode(self.value().as_slice());
        if let Err(fault) = manifest {
            tracing::warn!(%fault, "what was written as a manifest is none");
        }
        manifest.ok()
    }

    pub(crate) fn len_bytes(&self) -> u32 {
        self.layout.total_bytes - self.layout.payload_offset_bytes
    }

    /// What was read of a drive, where it has come to lie. Its key is one.
    pub(crate) fn on_drive(found: &OnDrive) -> Self {
        Self {
            region: found.window.clone(),
            layout: ExtentLayout {
                key_offset_bytes: found.key_at,
                payload_offset_bytes: found.payload_at,
                total_bytes: found.payload_at + found.record.len_bytes,
            },
            key_len_bytes: found.key_len,
            crc32c: found.record.crc32c,
        }
    }

    /// The same, with the checksum that has been computed of it.
    pub(crate) fn summed(self, crc32c: u32) -> Self {
        Self { crc32c, ..self }
    }
}

/// A copy that readers' adapters may read.
pub(crate) struct Reachable {
    pub(crate) value: Region,
    pub(crate) crc32c: u32,
    /// The board, and where on it the word is that says whose the memory is.
    pub(crate) word: (arena::Extent, usize),
    /// What it says as long as it is this copy's.
    pub(crate) number: u64,
}

/// Room for an object whose value is to come.
#[derive(Debug)]
pub(crate) struct Carved {
    pub(crate) id: EntryId,
    region: RegionMut,
    layout: ExtentLayout,
    key_len_bytes: u16,
}

impl Carved {
    /// Where the value goes, and what is to be known of it afterwards.
    pub(crate) fn into_room(self) -> (Frame, Room) {
        let value = self.layout.payload_offset_bytes as usize..self.layout.total_bytes as usize;
        let frame = Frame {
            id: self.id,
            layout: self.layout,
            key_len_bytes: self.key_len_bytes,
        };
        (frame, Room::of(self.region, value))
    }

    /// An object without a value.
    pub(crate) fn into_empty(self) -> (Frame, RegionMut) {
        let frame = Frame {
            id: self.id,
            layout: self.layout,
            key_len_bytes: self.key_len_bytes,
        };
        (frame, self.region)
    }

    /// An object whose value comes in ranges.
    pub(crate) fn into_exposed(self) -> (Frame, Exposed) {
        let (frame, region) = self.into_empty();
        (frame, region.expose())
    }
}

/// The extent that a value is coming into, without its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    id: EntryId,
    layout: ExtentLayout,
    key_len_bytes: u16,
}

impl Frame {
    /// Length of the value in bytes.
    pub(crate) const fn len_bytes(self) -> u32 {
        self.layout.total_bytes - self.layout.payload_offset_bytes
    }

    /// Where in the extent's memory the value begins.
    pub(crate) const fn value_at(self) -> usize {
        self.layout.payload_offset_bytes as usize
    }

    /// The part of the extent's memory where the value is.
    pub(crate) fn value_mut(self, region: &mut RegionMut) -> &mut [u8] {
        let start = self.layout.payload_offset_bytes as usize;
        &mut region.as_mut_slice()[start..self.layout.total_bytes as usize]
    }

    /// The part of the extent's memory where a range of the value is.
    pub(crate) fn part(self, memory: &Exposed, range: ByteRange) -> Exposed {
        let offset = usize::try_from(range.offset_bytes).expect("inside the value");
        let start = self.layout.payload_offset_bytes as usize + offset;
        memory.slice(start, range.len_bytes as usize)
    }

    pub(crate) fn filled(self, region: RegionMut, crc32c: u32) -> Extent {
        Extent {
            region: region.freeze(),
            layout: self.layout,
            key_len_bytes: self.key_len_bytes,
            crc32c,
        }
    }
}

#[derive(Debug)]
enum Arriving {
    /// A receive may be writing to it.
    Receiving,
    /// The write was given up meanwhile: nothing is left to do but to free it.
    GivenUp,
    /// Nothing came.
    Lost,
    Whole(Extent),
}

/// A write whose bytes are here, or on the way.
#[derive(Debug)]
struct Write {
    id: EntryId,
    retention: Retention,
    state: Arriving,
}

/// Where a copy comes from.
#[derive(Clone, Copy, Debug)]
enum Origin {
    /// A write, its own or another node's.
    Written { form: Form, retention: Retention },
    /// This core's drive.
    Drive,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Bytes {
    /// What readers of this host look at; dropped before any memory is given back.
    board: Option<Board>,
    /// What those look at besides who ask nobody, if there are any.
    catalogue: Option<Catalogue>,
    arena: Arena,
    residence: Residence,
    /// By slot of the entry.
    extents: Vec<Option<Extent>>,
    moving: Moving,
    tenants: TenantNames,
    arriving: BTreeMap<OpId, Write>,
}

impl Bytes {
    pub(crate) fn new(arena: Arena, limits: ShardLimits, board: Option<Board>) -> Self {
        Self {
            board,
            catalogue: None,
            arena,
            residence: Residence::new(limits),
            extents: Vec::new(),
            moving: Moving::default(),
            tenants: TenantNames::default(),
            arriving: BTreeMap::new(),
        }
    }

    pub(crate) const fn limits(&self) -> &ShardLimits {
        self.residence.limits()
    }

    pub(crate) const fn stats(&self) -> ResidenceStats {
        self.residence.stats()
    }

    pub(crate) fn tenants(&self) -> Vec<(TenantTag, TenantReport)> {
        self.tenants.reports(&self.residence)
    }

    /// Room for an object that is to be pinned so. Copies may move for it, those not that [are held](Held).
    pub(crate) fn carve(
        &mut self,
        key: Key<'_>,
        len_bytes: u32,
        pin: Pin,
        is_held: Held<'_>,
    ) -> Result<Carved, NoRoom> {
        let layout = ExtentLayout::for_object(key.len_bytes(), len_bytes);
        let extent_bytes = carved_bytes(layout);
        let tenant = TenantTag::of(key);
        let id = self.residence.admit(extent_bytes, pin, tenant)?;
        self.tenants.learn(tenant, key, &self.residence);
        match self.alloc(layout.total_bytes as usize, is_held) {
            Ok(mut region) => {
                let start = layout.key_offset_bytes as usize;
                let end = start + key.bytes().len();
                region.as_mut_slice()[start..end].copy_from_slice(key.bytes());
                let key_len_bytes = key.len_bytes();
                Ok(Carved {
                    id,
                    region,
                    layout,
                    key_len_bytes,
                })
            }
            Err(error) => {
                tracing::debug!(%error, "memory is fragmented");
                self.residence.discard(id);
                self.residence.want(extent_bytes);
                let needed_bytes = u64::from(extent_bytes);
                Err(NoRoom::Full { needed_bytes })
            }
        }
    }

    /// The value of a write is being received.
    pub(crate) fn receive(&mut self, op: OpId, frame: Frame, retention: Retention) {
        let write = Write {
            id: frame.id,
            retention,
            state: Arriving::Receiving,
        };
        let former = self.arriving.insert(op, write);
        assert!(former.is_none(), "a write has its bytes once");
    }

    /// The value is here. Whether anybody wants it still.
    pub(crate) fn received(&mut self, op: OpId, extent: Extent) -> bool {
        self.end_receive(op, Arriving::Whole(extent))
    }

    /// The value will not come. Whether anybody waits for it still.
    pub(crate) fn lost(&mut self, op: OpId) -> bool {
        self.end_receive(op, Arriving::Lost)
    }

    fn end_receive(&mut self, op: OpId, state: Arriving) -> bool {
        let write = self.arriving.get_mut(&op).expect("it is being received");
        match write.state {
            Arriving::Receiving => {
                write.state = state;
                true
            }
            Arriving::GivenUp => {
                let id = write.id;
                self.arriving.remove(&op);
                self.residence.discard(id);
                false
            }
            Arriving::Lost | Arriving::Whole(_) => unreachable!("a receive ends once"),
        }
    }

    /// The owner has given a write up.
    pub(crate) fn discard(&mut self, op: OpId) {
        let Some(write) = self.arriving.get_mut(&op) else {
            // It was given up before there was room for its value.
            return;
        };
        if let Arriving::Receiving = write.state {
            write.state = Arriving::GivenUp;
            return;
        }
        let id = write.id;
        self.arriving.remove(&op);
        self.residence.discard(id);
    }

    /// The bytes of a write that is given up, which stay where they are.
    pub(crate) fn withdraw(&mut self, op: OpId) -> Extent {
        let write = self.arriving.remove(&op).expect("a write has its bytes");
        let Arriving::Whole(extent) = write.state else {
            unreachable!("only what is whole is withdrawn");
        };
        extent
    }

    /// A write has become a copy, of this form. How it is to be kept.
    pub(crate) fn name(&mut self, op: OpId, place: CopyPlace, form: Form) -> Retention {
        let write = self.arriving.remove(&op).expect("a write has its bytes");
        let Arriving::Whole(extent) = write.state else {
            unreachable!("only what is whole is recorded");
        };
        let retention = write.retention;
        let origin = Origin::Written { form, retention };
        self.keep(write.id, place, extent, origin);
        retention
    }

    /// The copy that lies in this frame is recorded, as it was asked for.
    pub(crate) fn keep_recorded(
        &mut self,
        frame: Frame,
        place: CopyPlace,
        extent: Extent,
        WriteAsk {
            form, retention, ..
        }: WriteAsk,
    ) {
        self.keep(frame.id, place, extent, Origin::Written { form, retention });
    }

    /// A replica of this form is here. `false` if there is such a copy already, and the extent is dropped.
    pub(crate) fn keep_replica(
        &mut self,
        frame: Frame,
        place: CopyPlace,
        extent: Extent,
        form: Form,
    ) -> bool {
        if self.residence.find(place).is_some() {
            self.residence.discard(frame.id);
            return false;
        }
        let retention = Retention::default();
        self.keep(frame.id, place, extent, Origin::Written { form, retention });
        true
    }

    /// What was read of a drive is this copy's from now on, where it lies. Whether there is room for it.
    pub(crate) fn adopt(&mut self, place: CopyPlace, extent: Extent) -> bool {
        let taken_bytes = extent.region.len().next_multiple_of(GRANULE_BYTES as usize);
        let taken_bytes = u32::try_from(taken_bytes).expect("a segment is at most 1 GiB");
        let tenant = TenantTag::of(extent.key());
        let admitted = self.residence.admit(taken_bytes, Pin::None, tenant);
        self.tenants.learn(tenant, extent.key(), &self.residence);
        if let Ok(id) = admitted {
            self.keep(id, place, extent, Origin::Drive);
        }
        admitted.is_ok()
    }

    /// What was read of a drive is copied, and is this copy's from now on. Whether there is room for it.
    pub(crate) fn keep_copied(
        &mut self,
        place: CopyPlace,
        extent: &Extent,
        is_held: Held<'_>,
    ) -> bool {
        let carved = self.carve(extent.key(), extent.len_bytes(), Pin::None, is_held);
        let Ok(carved) = carved else {
            return false;
        };
        let (frame, mut region) = carved.into_empty();
        let value = frame.value_mut(&mut region);
        value.copy_from_slice(extent.value().as_slice());
        let copied = frame.filled(region, extent.crc32c);
        self.keep(frame.id, place, copied, Origin::Drive);
        true
    }

    /// What was carved is not used.
    pub(crate) fn drop_unused(&mut self, frame: Frame) {
        self.residence.discard(frame.id);
    }

    fn keep(&mut self, id: EntryId, place: CopyPlace, extent: Extent, origin: Origin) {
        let slot = id.slot_index as usize;
        if self.extents.len() <= slot {
            self.extents.resize_with(slot + 1, || None);
        }
        assert!(
            self.extents[slot].is_none(),
            "a slot is reused when it is free"
        );
        let arrival = match origin {
            Origin::Written { form, retention } => Arrival {
                stands_by: form == Form::Striped || extent.key().is_of_part(),
                retention,
            },
            Origin::Drive => Arrival::default(),
        };
        self.moving.lies(&extent.region, id.slot_index);
        self.extents[slot] = Some(extent);
        self.residence.reside(time::now(), id, place, arrival);
    }

    /// How a copy is pinned from now on.
    pub(crate) fn pin_of(&self, place: CopyPlace) -> Pin {
        self.residence.pin_of(time::now(), place)
    }

    /// A copy is no more; its memory is freed when nobody reads it. Whoever reads it by itself, without asking, sees
    /// that at once, and not only when nobody else does: those who have it removed are told next.
    pub(crate) fn free(&mut self, place: CopyPlace) {
        if self.is_readable()
            && let Some(id) = self.residence.find(place)
        {
            self.hide(id.slot_index);
        }
        if let Some(id) = self.residence.free(place) {
            self.give_up(id);
        }
    }

    /// The memory of an entry that is released is given back, and nobody is to read it any more.
    fn give_up(&mut self, id: EntryId) {
        self.hide(id.slot_index);
        self.extents[id.slot_index as usize] = None;
    }

    /// The copy, which is read from now on, if it is of this key.
    pub(crate) fn pin(&mut self, place: CopyPlace, key: Key<'_>) -> Option<(EntryId, Extent)> {
        let (id, extent) = self.pin_any(place)?;
        if extent.key() != key {
            let fingerprint_high = key.fingerprint().high();
            tracing::warn!(
                fingerprint_high,
                "two keys with one fingerprint: the later one is a miss"
            );
            drop(extent);
            self.unpin(id);
            return None;
        }
        Some((id, extent))
    }

    /// The copy, which is read from now on, of whichever key it is.
    pub(crate) fn pin_any(&mut self, place: CopyPlace) -> Option<(EntryId, Extent)> {
        let id = self.residence.pin(place)?;
        let extent = self.extents[id.slot_index as usize].clone();
        Some((id, extent.expect("a copy has its extent")))
    }

    /// Whether the bytes of a copy are here.
    pub(crate) fn has(&self, place: CopyPlace) -> bool {
        self.residence.find(place).is_some()
    }

    /// See [`Residence::touch`].
    pub(crate) fn touch(&self, key: Fingerprint) {
        self.residence.touch(key);
    }

    /// How much of the memory a copy takes.
    pub(crate) fn extent_bytes(&self, place: CopyPlace) -> u64 {
        let extent = self.extent_of(place);
        extent.map_or(0, |extent| carved_bytes(extent.layout).into())
    }

    /// The length of a copy of the key's value.
    pub(crate) fn len_of(&self, place: CopyPlace, key: Key<'_>) -> Option<u32> {
        let extent = self.extent_of(place).filter(|extent| extent.key() == key)?;
        Some(extent.len_bytes())
    }

    fn extent_of(&self, place: CopyPlace) -> Option<&Extent> {
        let id = self.residence.find(place)?;
        self.extents[id.slot_index as usize].as_ref()
    }

    /// The copy, as it is.
    pub(crate) fn extent(&self, place: CopyPlace) -> Option<Extent> {
        self.extent_of(place).cloned()
    }

    pub(crate) fn unpin(&mut self, id: EntryId) {
        if self.residence.unpin(id) {
            self.give_up(id);
        }
    }

    pub(crate) fn is_tight(&self) -> bool {
        self.residence.is_tight()
    }

    /// See [`Residence::is_tight_for`].
    pub(crate) fn is_tight_for(&self, id: EntryId) -> bool {
        self.residence.is_tight_for(id)
    }

    /// See [`Residence::set_credit`].
    pub(crate) fn set_credit(&mut self, tenant: TenantTag, credit: Option<Credit>) {
        self.residence.set_credit(tenant, credit);
    }

    /// See [`Residence::charged_bytes`].
    pub(crate) fn charged_bytes(&self, tenant: TenantTag) -> u64 {
        self.residence.charged_bytes(tenant)
    }

    pub(crate) fn victims(&mut self, asks_again: bool) -> Vec<CopyPlace> {
        self.residence.victims(time::now(), asks_again)
    }

    pub(crate) fn leave(&mut self, place: CopyPlace) {
        self.residence.leave(place);
    }

    /// How often a copy was used after the first time, as far as is known.
    pub(crate) fn reuses(&self, place: CopyPlace) -> u8 {
        self.residence.reuses(place)
    }

    /// The key of a copy had been used elsewhere, so often after the first time.
    pub(crate) fn was_used(&mut self, place: CopyPlace, reuses: u8) {
        self.residence.was_used(place, reuses);
    }

    /// A key that left was written elsewhere.
    pub(crate) fn came_back(&mut self, key: Fingerprint) {
        self.residence.came_back(key);
    }

    pub(crate) fn stay(&mut self, place: CopyPlace) {
        self.residence.stay(place);
    }

    /// The copy is to leave before others. Whether it does.
    pub(crate) fn abandon(&mut self, place: CopyPlace) -> bool {
        self.residence.abandon(time::now(), place)
    }

    pub(crate) fn spare(&mut self, place: CopyPlace) {
        self.residence.spare(place);
    }
}
