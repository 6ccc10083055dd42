//! The drive of a host: files, what of them is durable, and what a power cut leaves.
//!
//! A write is in the system's cache when it completes and on the medium when the file has been
//! synced. A power cut keeps of what was not synced what an honest drive with a cache could have kept:
//! each sector is as one of the writes to it left it, or as it was at the last sync, whatever their
//! order. Dishonest drives lie about syncs, lose writes, or put them elsewhere; media rot.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use lunette_runtime_core::random::SplitMix64;
use rustix::io::Errno;

use super::options::{DiskOptions, FaultCounts};
use super::sectors::{SECTOR_BYTES, Sectors, touched};

/// A file, by the number that stands for its descriptor.
pub(super) type FileId = i32;

/// A write that is not durable.
#[derive(Debug)]
struct Unsynced {
    offset: usize,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Content {
    /// As the system has it.
    cached: Sectors,
    /// As of the last sync.
    durable: Sectors,
    /// Its name is durable.
    is_named: bool,
    unsynced: Vec<Unsynced>,
    /// How often it was changed.
    changes: u64,
}

/// The drive of one host.
#[derive(Debug, Default)]
pub(super) struct Disk {
    names: BTreeMap<PathBuf, FileId>,
    files: BTreeMap<FileId, Content>,
}

/// What a drive needs from its world.
pub(super) struct World<'a> {
    pub(super) random: &'a mut SplitMix64,
    pub(super) options: DiskOptions,
    pub(super) counts: &'a mut FaultCounts,
}

impl World<'_> {
    fn occurs(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.random.below(1_000_000) < per_million
    }

    fn below(&mut self, bound: usize) -> usize {
        let bound = u32::try_from(bound).expect("files of a world are small");
        self.random.below(bound) as usize
    }
}

impl Disk {
    /// Opens a file; makes it as `id` if it is not there.
    pub(super) fn open(&mut self, path: &Path, create: bool, id: FileId) -> io::Result<FileId> {
        if let Some(known) = self.names.get(path) {
            return Ok(*known);
        }
        if !create {
            return Err(Errno::NOENT.into());
        }
        self.names.insert(path.to_owned(), id);
        self.files.insert(id, Content::default());
        Ok(id)
    }

    pub(super) fn len_bytes(&self, id: FileId) -> Result<u64, Errno> {
        let content = self.files.get(&id).ok_or(Errno::STALE)?;
        Ok(content.cached.len() as u64)
    }

    /// How often a file was changed.
    pub(super) fn changes(&self, id: FileId) -> Result<u64, Errno> {
        let content = self.files.get(&id).ok_or(Errno::STALE)?;
        Ok(content.changes)
    }

    fn used_bytes(&self) -> usize {
        self.files
            .values()
            .map(|file| file.cached.used_bytes())
            .sum()
    }

    /// Reads at most `len` bytes.
    pub(super) fn read(
        &mut self,
        id: FileId,
        offset: u64,
        len: usize,
        world: &mut World<'_>,
    ) -> Result<Vec<u8>, Errno> {
        if world.occurs(world.options.io_errors_per_million) {
            world.counts.io_errors += 1;
            return Err(Errno::IO);
        }
        let rots = world.occurs(world.options.rots_per_million);
        let is_short = world.occurs(world.options.short_operations_per_million);
        let content = self.files.get_mut(&id).ok_or(Errno::STALE)?;
        let start = usize::try_from(offset).map_or(usize::MAX, |offset| offset);
        let start = start.min(content.cached.len());
        let mut count = len.min(content.cached.len() - start);
        if rots && count > 0 {
            let at = start + world.below(count);
            let bit = world.random.below(8);
            content.cached.flip(at, bit);
            content.durable.flip(at, bit);
            world.counts.rots += 1;
        }
        if is_short && count > SECTOR_BYTES {
            count = shorter(count, world);
            world.counts.short_operations += 1;
        }
        Ok(content.cached.read(start, count))
    }

    /// Writes as much of `bytes` as the drive takes at once.
    pub(super) fn write(
        &mut self,
        id: FileId,
        offset: u64,
        mut bytes: Vec<u8>,
        world: &mut World<'_>,
    ) -> Result<usize, Errno> {
        if world.occurs(world.options.io_errors_per_million) {
            world.counts.io_errors += 1;
            return Err(Errno::IO);
        }
        let start = usize::try_from(offset).map_err(|_| Errno::FBIG)?;
        if world.occurs(world.options.short_operations_per_million) && bytes.len() > SECTOR_BYTES {
            bytes.truncate(shorter(bytes.len(), world));
            world.counts.short_operations += 1;
        }
        let used = self.used_bytes();
        let content = self.files.get_mut(&id).ok_or(Errno::STALE)?;
        let end = start.checked_add(bytes.len()).ok_or(Errno::FBIG)?;
        let grows = content.cached.room_for(start, end);
        if used + grows > world.options.capacity_bytes {
            world.counts.full_disks += 1;
            return Err(Errno::NOSPC);
        }
        let count = bytes.len();
        content.changes += 1;
        if world.occurs(world.options.lost_writes_per_million) {
            world.counts.lost_writes += 1;
            return Ok(count);
        }
        let mut at = start;
        if world.occurs(world.options.misdirected_writes_per_million) {
            let room = content.cached.len().saturating_sub(count) / SECTOR_BYTES;
            at = world.below(room + 1) * SECTOR_BYTES;
            world.counts.misdirected_writes += 1;
        }
        content.put(at, bytes);
        Ok(count)
    }

    /// Makes room for the file's first bytes, which are zero where they were not written.
    pub(super) fn allocate(
        &mut self,
        id: FileId,
        len_bytes: u64,
        world: &mut World<'_>,
    ) -> Result<(), Errno> {
        let len = usize::try_from(len_bytes).map_err(|_| Errno::FBIG)?;
        let used = self.used_bytes();
        let content = self.files.get_mut(&id).ok_or(Errno::STALE)?;
        let grows = content.cached.room_for(0, len);
        if used + grows > world.options.capacity_bytes {
            world.counts.full_disks += 1;
            return Err(Errno::NOSPC);
        }
        content.cached.allocate(len);
        content.changes += 1;
        Ok(())
    }

    /// Makes what was written durable, unless the drive lies. If it fails, what was written is on the
    /// medium or not, and no later sync tries again, as systems do that take failed pages for clean.
    pub(super) fn sync(&mut self, id: FileId, world: &mut World<'_>) -> Result<(), Errno> {
        let content = self.files.get_mut(&id).ok_or(Errno::STALE)?;
        if world.occurs(world.options.io_errors_per_million) {
            world.counts.failed_syncs += 1;
            content.keep_some(world);
            return Err(Errno::IO);
        }
        if world.occurs(world.options.lying_syncs_per_million) {
            world.counts.lying_syncs += 1;
            return Ok(());
        }
        for Unsynced { offset, bytes } in content.unsynced.drain(..) {
            content.durable.write(offset, &bytes);
        }
        content.durable.grow(content.cached.len());
        content.is_named = true;
        Ok(())
    }

    /// The power is lost: what was not durable is kept or not, sector by sector.
    pub(super) fn lose_power(&mut self, world: &mut World<'_>) {
        for content in self.files.values_mut() {
            content.lose_power(world);
        }
        // A name that was not synced may be gone, and the file with it.
        let mut gone = Vec::new();
        for (id, content) in &self.files {
            if !content.is_named && world.random.below(2) == 0 {
                gone.push(*id);
            }
        }
        self.files.retain(|id, _| !gone.contains(id));
        self.names.retain(|_, id| !gone.contains(id));
    }
}

/// A part of so many bytes, of whole sectors.
fn shorter(count: usize, world: &mut World<'_>) -> usize {
    let sectors = (count - 1) / SECTOR_BYTES;
    SECTOR_BYTES * (1 + world.below(sectors))
}

impl Content {
    fn put(&mut self, offset: usize, bytes: Vec<u8>) {
        self.cached.write(offset, &bytes);
        self.unsynced.push(Unsynced { offset, bytes });
    }

    fn lose_power(&mut self, world: &mut World<'_>) {
        world.counts.lost_sectors += self.keep_some(world);
        self.cached.clone_from(&self.durable);
    }

    /// Of what is not durable some becomes so, sector by sector, and the rest never will. How many
    /// sectors are not as they were written last.
    fn keep_some(&mut self, world: &mut World<'_>) -> u64 {
        let unsynced = std::mem::take(&mut self.unsynced);
        let end_of = |write: &Unsynced| write.offset + write.bytes.len();
        let sectors = unsynced
            .iter()
            .flat_map(|write| touched(write.offset, end_of(write)));
        let mut lost = 0;
        for sector in sectors.collect::<BTreeSet<usize>>() {
            let (from, to) = (sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES);
            let touching = |write: &&Unsynced| write.offset < to && end_of(write) > from;
            let writes: Vec<&Unsynced> = unsynced.iter().filter(touching).collect();
            // The sector as it was after so many of the writes to it.
            let survived = world.below(writes.len() + 1);
            lost += u64::from(survived < writes.len());
            for write in &writes[..survived] {
                let (start, stop) = (write.offset.max(from), end_of(write).min(to));
                let part = &write.bytes[start - write.offset..stop - write.offset];
                self.durable.write(start, part);
            }
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = 3;

    /// Runs a scenario on a drive with a file.
    fn with_disk<T>(
        seed: u64,
        options: DiskOptions,
        then: impl FnOnce(&mut Disk, &mut World<'_>) -> T,
    ) -> (T, FaultCounts) {
        let mut random = SplitMix64::new(seed);
        let mut counts = FaultCounts::default();
        let mut world = World {
            random: &mut random,
            options,
            counts: &mut counts,
        };
        let mut disk = Disk::default();
        disk.open(Path::new("f"), true, FILE).expect("made");
        let done = then(&mut disk, &mut world);
        (done, counts)
    }

    fn sectors(byte: u8, count: usize) -> Vec<u8> {
        vec![byte; count * SECTOR_BYTES]
    }

    /// The bytes of each sector, which are the same within one.
    fn seen(disk: &mut Disk, world: &mut World<'_>) -> Vec<u8> {
        let all = disk.read(FILE, 0, usize::MAX, world).expect("read");
        all.chunks(SECTOR_BYTES)
            .map(|sector| {
                assert!(
                    sector.iter().all(|byte| *byte == sector[0]),
                    "a torn sector"
                );
                sector[0]
            })
            .collect()
    }

    #[test]
    fn what_was_synced_outlives_a_power_cut_and_what_was_not_is_old_or_new_by_sector() {
        let (mut old, mut new, mut torn) = (0, 0, 0);
        for seed in 0..200 {
            with_disk(seed, DiskOptions::default(), |disk, world| {
                disk.write(FILE, 0, sectors(1, 8), world).expect("room");
                disk.sync(FILE, world).expect("synced");
                disk.write(FILE, 1024, sectors(2, 4), world).expect("room");
                assert_eq!(seen(disk, world), [1, 1, 2, 2, 2, 2, 1, 1]);
                disk.lose_power(world);
                let after = seen(disk, world);
                assert_eq!(
                    [after[0], after[1], after[6], after[7]],
                    [1; 4],
                    "seed {seed}"
                );
                assert!(after[2..6].iter().all(|byte| [1, 2].contains(byte)));
                match after[2..6].iter().filter(|byte| **byte == 2).count() {
                    0 => old += 1,
                    4 => new += 1,
                    _ => torn += 1,
                }
            });
        }
        assert!(old > 0 && new > 0 && torn > 100, "{old} {new} {torn}");
    }

    #[test]
    fn of_two_writes_to_a_sector_either_may_survive_or_none() {
        let mut survived = [0; 3];
        for seed in 0..100 {
            with_disk(seed, DiskOptions::default(), |disk, world| {
                disk.allocate(FILE, 512, world).expect("room");
                disk.sync(FILE, world).expect("synced");
                disk.write(FILE, 0, sectors(1, 1), world).expect("room");
                disk.write(FILE, 0, sectors(2, 1), world).expect("room");
                disk.lose_power(world);
                survived[usize::from(seen(disk, world)[0])] += 1;
            });
        }
        assert!(survived.iter().all(|count| *count > 10), "{survived:?}");
    }

    #[test]
    fn a_name_that_was_not_synced_may_be_gone_and_one_that_was_is_not() {
        let mut gone = 0;
        for seed in 0..100 {
            with_disk(seed, DiskOptions::default(), |disk, world| {
                disk.open(Path::new("kept"), true, 9).expect("made");
                disk.sync(9, world).expect("synced");
                disk.lose_power(world);
                gone += u32::from(disk.open(Path::new("f"), false, 10).is_err());
                assert!(disk.open(Path::new("kept"), false, 11).is_ok());
            });
        }
        assert!((20..80).contains(&gone), "{gone} of 100");
    }

    #[test]
    fn faults_occur_as_often_as_asked_and_are_counted() {
        let always = 1_000_000;
        let (refused, counts) = with_disk(
            1,
            DiskOptions {
                io_errors_per_million: always,
                ..DiskOptions::default()
            },
            |disk, world| {
                let write = disk.write(FILE, 0, sectors(1, 1), world);
                (write, disk.read(FILE, 0, 1, world))
            },
        );
        assert_eq!(refused, (Err(Errno::IO), Err(Errno::IO)));
        assert_eq!(counts.io_errors, 2);

        let lying = DiskOptions {
            lying_syncs_per_million: always,
            ..DiskOptions::default()
        };
        let lost = (0..50).filter(|seed| {
            let (seen, counts) = with_disk(*seed, lying, |disk, world| {
                disk.write(FILE, 0, sectors(1, 1), world).expect("room");
                disk.sync(FILE, world).expect("it says");
                disk.lose_power(world);
                disk.read(FILE, 0, 512, world)
                    .ok()
                    .filter(|bytes| !bytes.is_empty())
            });
            assert_eq!(counts.lying_syncs, 1);
            seen.is_none()
        });
        assert!(lost.count() > 10);

        let options = DiskOptions {
            lost_writes_per_million: always,
            ..DiskOptions::default()
        };
        let (read, counts) = with_disk(2, options, |disk, world| {
            assert_eq!(disk.write(FILE, 0, sectors(1, 2), world), Ok(1024));
            disk.read(FILE, 0, 1024, world)
        });
        assert_eq!((read, counts.lost_writes), (Ok(Vec::new()), 1));

        let options = DiskOptions {
            rots_per_million: always,
            ..DiskOptions::default()
        };
        let (read, counts) = with_disk(3, options, |disk, world| {
            disk.write(FILE, 0, sectors(0, 2), world).expect("room");
            disk.read(FILE, 0, 1024, world).expect("read")
        });
        let bits: u32 = read.iter().map(|byte| byte.count_ones()).sum();
        assert_eq!((bits, counts.rots), (1, 1));
    }

    /// What a failed sync has lost stays readable, and no later sync saves it.
    #[test]
    fn a_sync_that_fails_loses_what_no_later_one_brings_back() {
        let failing = DiskOptions {
            io_errors_per_million: 1_000_000,
            ..DiskOptions::default()
        };
        let lost = (0..100).filter(|seed| {
            let (after, counts) = with_disk(*seed, DiskOptions::default(), |disk, world| {
                disk.write(FILE, 0, sectors(1, 1), world).expect("room");
                disk.sync(FILE, world).expect("synced");
                disk.write(FILE, 0, sectors(2, 1), world).expect("room");
                world.options = failing;
                assert_eq!(disk.sync(FILE, world), Err(Errno::IO));
                world.options = DiskOptions::default();
                assert_eq!(seen(disk, world), [2]);
                disk.sync(FILE, world).expect("it says");
                disk.lose_power(world);
                seen(disk, world)
            });
            assert_eq!((counts.failed_syncs, counts.io_errors), (1, 0));
            after == [1]
        });
        assert!((20..80).contains(&lost.count()));
    }

    #[test]
    fn a_full_disk_takes_no_more_and_loses_nothing() {
        let options = DiskOptions {
            capacity_bytes: 2048,
            ..DiskOptions::default()
        };
        let (_, counts) = with_disk(4, options, |disk, world| {
            disk.write(FILE, 0, sectors(1, 4), world).expect("room");
            let full = disk.write(FILE, 2048, sectors(2, 1), world);
            assert_eq!(full, Err(Errno::NOSPC));
            assert_eq!(disk.allocate(FILE, 2049, world), Err(Errno::NOSPC));
            disk.write(FILE, 0, sectors(3, 1), world)
                .expect("over what is there");
            assert_eq!(seen(disk, world), [3, 1, 1, 1]);
        });
        assert_eq!(counts.full_disks, 2);
    }
}
