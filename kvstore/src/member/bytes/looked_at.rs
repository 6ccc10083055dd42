//! Copies that others read by themselves, where they lie: readers of this host, adapters, and those who look on.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{CopyPlace, Descriptor};
use lunette_runtime::arena::Share;

use super::{Bytes, Reachable};
use crate::member::catalogue::Catalogue;
use crate::member::one_sided::Board;
use crate::member::shown::ShownPart;
use crate::member::told::Told;

/// Nobody is to read the memory of this entry by itself any more.
pub(super) fn hide(board: Option<&Board>, catalogue: Option<&Catalogue>, slot_index: u32) {
    if let Some(board) = board {
        board.hide(slot_index);
    }
    if let Some(catalogue) = catalogue {
        catalogue.unlist(slot_index);
    }
}

impl Bytes {
    /// See [`hide`].
    pub(super) fn hide(&self, slot_index: u32) {
        hide(self.board.as_ref(), self.catalogue.as_ref(), slot_index);
    }

    /// Whether anybody looks for copies.
    pub(in crate::member) const fn is_looked_at(&self) -> bool {
        self.catalogue.is_some()
    }

    /// Whether a copy is to be listed and is not.
    pub(in crate::member) fn is_to_list(&self, entry: u32) -> bool {
        (self.catalogue.as_ref()).is_some_and(|list| !list.is_listed(entry))
    }

    /// A copy may be read by those who look on.
    pub(in crate::member) fn list(&mut self, place: CopyPlace) {
        let (Some(catalogue), Some(id)) = (&mut self.catalogue, self.residence.find(place)) else {
            return;
        };
        let extent = self.extents[id.slot_index as usize].as_ref();
        let extent = extent.expect("a copy has its extent");
        catalogue.list(id.slot_index, place, extent);
    }

    /// What those look at who read copies by themselves; `None` where nobody may.
    ///
    /// # Errors
    /// The system's.
    pub(in crate::member) fn show_catalogue(&mut self) -> io::Result<Option<ShownPart>> {
        if !self.is_readable() {
            return Ok(None);
        }
        if self.catalogue.is_none() {
            self.catalogue = Some(Catalogue::new(self.limits().entries_max())?);
        }
        let catalogue = self.catalogue.as_ref().expect("there is one now");
        catalogue.share().map(Some)
    }

    /// Who looks tells of reads there; see [`Catalogue::listen_to`].
    pub(in crate::member) fn listen_to(&mut self, told: Told) -> Option<Arc<()>> {
        Some(self.catalogue.as_mut()?.listen_to(told))
    }

    /// Takes in what was read by who looks on: each counts as a use. How many reads, and of how many bytes, that were.
    pub(in crate::member) fn hear_reads(&mut self) -> (u64, u64) {
        let (mut reads, mut read_bytes) = (0, 0);
        let Some(catalogue) = &mut self.catalogue else {
            return (0, 0);
        };
        let (residence, extents) = (&mut self.residence, &self.extents);
        catalogue.hear(|entry| {
            residence.used(entry);
            let extent = extents[entry as usize].as_ref();
            reads += 1;
            read_bytes += extent.map_or(0, |extent| u64::from(extent.len_bytes()));
        });
        if !catalogue.is_looked_at() {
            self.catalogue = None;
        }
        (reads, read_bytes)
    }

    /// Where a copy of this key lies, for readers of this host, if they can read it: not held, so far.
    pub(in crate::member) fn describe(
        &mut self,
        place: CopyPlace,
        key: Key<'_>,
    ) -> Option<Descriptor> {
        self.board.as_ref()?;
        let (id, extent) = self.pin(place, key)?;
        self.unpin(id);
        let board = self.board.as_mut()?;
        let (chunk, _, offset_bytes) = extent.places();
        Some(Descriptor {
            slot: id.slot_index,
            number: board.show(id.slot_index)?,
            chunk,
            offset_bytes,
            len_bytes: extent.len_bytes(),
            crc32c: extent.crc32c,
            held_ms: 0,
        })
    }

    /// Whether readers may read this memory, which holds nothing but copies then.
    pub(in crate::member) const fn is_readable(&self) -> bool {
        self.board.is_some()
    }

    /// Where a copy of this key lies, for readers by an adapter, if they may read it.
    pub(in crate::member) fn reach(&mut self, place: CopyPlace, key: Key<'_>) -> Option<Reachable> {
        self.board.as_ref()?;
        let (id, extent) = self.pin(place, key)?;
        self.unpin(id);
        let board = self.board.as_mut()?;
        let number = board.show(id.slot_index)?;
        Some(Reachable {
            word: board.word(id.slot_index),
            number,
            crc32c: extent.crc32c,
            value: extent.value(),
        })
    }

    /// No copy is anybody's to read by itself any more, until it is described anew.
    pub(in crate::member) fn hide_all(&self) {
        if let Some(board) = &self.board {
            board.hide_all();
        }
        if let Some(catalogue) = &self.catalogue {
            catalogue.unlist_all();
        }
    }

    /// What a reader of this host looks at.
    pub(in crate::member) fn board_file(&self) -> io::Result<OwnedFd> {
        let board = self.board.as_ref();
        board.map_or_else(|| Err(io::ErrorKind::Unsupported.into()), Board::file)
    }

    /// A chunk of the memory, for a reader of this host; none if there is no such chunk yet.
    pub(in crate::member) fn share(&self, chunk: u32) -> io::Result<Option<Share>> {
        Ok(self.arena.share(chunk)?)
    }
}
