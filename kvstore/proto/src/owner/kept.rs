//! The copies of one core, by key and version.

use slab::Slab;
use smallvec::{SmallVec, smallvec};

use super::copies::Held;
use crate::key::Fingerprint;
use crate::message::directory::CopyPlace;
use crate::sorted::Sorted;
use crate::version::Version;

/// The copies of a key, the earliest version first. Nearly all keys have one.
type Versions = SmallVec<[Held; 1]>;

#[derive(Debug, Default)]
pub(super) struct Kept {
    keys: Sorted<Fingerprint, u32>,
    versions: Slab<Versions>,
    copies: usize,
}

impl Kept {
    pub(super) const fn len(&self) -> usize {
        self.copies
    }

    pub(super) fn touch(&self, key: Fingerprint) {
        self.keys.touch(key);
    }

    pub(super) fn versions(&self, key: Fingerprint) -> &[Held] {
        let index = self.keys.get(key);
        let versions = index.map(|index| &self.versions[index as usize]);
        versions.map_or(&[], SmallVec::as_slice)
    }

    pub(super) fn get(&self, place: CopyPlace) -> Option<&Held> {
        let mut versions = self.versions(place.key).iter();
        versions.find(|held| held.info.version == place.version)
    }

    pub(super) fn get_mut(&mut self, place: CopyPlace) -> Option<&mut Held> {
        let index = self.keys.get(place.key)?;
        let mut versions = self.versions[index as usize].iter_mut();
        versions.find(|held| held.info.version == place.version)
    }

    pub(super) fn contains(&self, place: CopyPlace) -> bool {
        self.get(place).is_some()
    }

    /// Keeps a copy of a key, of which there is none of its version.
    pub(super) fn insert(&mut self, key: Fingerprint, held: Held) {
        let version = held.info.version;
        if let Some(index) = self.keys.get(key) {
            let versions = &mut self.versions[index as usize];
            let at = versions.partition_point(|other| other.info.version < version);
            let next = versions.get(at).map(|other| other.info.version);
            assert!(next != Some(version), "{key:?} {version:?} is here twice");
            versions.insert(at, held);
        } else {
            let index = self.versions.insert(smallvec![held]);
            let index = u32::try_from(index).expect("copies are bounded");
            self.keys.insert(key, index);
        }
        self.copies += 1;
    }

    pub(super) fn remove(&mut self, place: CopyPlace) -> Option<Held> {
        let index = self.keys.get(place.key)?;
        let versions = &mut self.versions[index as usize];
        let is_it = |held: &Held| held.info.version == place.version;
        let held = versions.remove(versions.iter().position(is_it)?);
        if versions.is_empty() {
            self.versions.remove(index as usize);
            self.keys.remove(place.key);
        }
        self.copies -= 1;
        Some(held)
    }

    /// The latest version of a key that is published.
    pub(super) fn latest(&self, key: Fingerprint) -> Option<Version> {
        let mut latest_first = self.versions(key).iter().rev();
        let latest = latest_first.find(|held| held.is_published());
        latest.map(|held| held.info.version)
    }

    /// For each key after one, in order, its latest version that is published.
    pub(super) fn published_after(
        &self,
        after: Option<Fingerprint>,
    ) -> impl Iterator<Item = (Fingerprint, Option<&Held>)> {
        self.keys.after(after).map(|(key, index)| {
            let mut latest_first = self.versions[index as usize].iter().rev();
            (key, latest_first.find(|held| held.is_published()))
        })
    }

    /// All copies, in the order of keys and versions.
    pub(super) fn iter(&self) -> impl Iterator<Item = (CopyPlace, &Held)> {
        self.keys.iter().flat_map(|(key, index)| {
            let versions = self.versions[index as usize].iter();
            versions.map(move |held| {
                let version = held.info.version;
                (CopyPlace { key, version }, held)
            })
        })
    }
}
