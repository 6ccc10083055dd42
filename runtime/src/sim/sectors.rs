//! The bytes of a simulated file: sectors that have been written, and zeros between them.

use std::collections::BTreeMap;

/// What a drive writes as a whole.
pub(super) const SECTOR_BYTES: usize = 512;

/// A file's bytes. Holes take no room.
#[derive(Clone, Debug, Default)]
pub(super) struct Sectors {
    len: usize,
    written: BTreeMap<usize, [u8; SECTOR_BYTES]>,
}

impl Sectors {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn used_bytes(&self) -> usize {
        self.written.len() * SECTOR_BYTES
    }

    /// How much more room it takes to write these bytes.
    pub(super) fn room_for(&self, start: usize, end: usize) -> usize {
        let holes = touched(start, end).filter(|sector| !self.written.contains_key(sector));
        holes.count() * SECTOR_BYTES
    }

    /// Up to `count` bytes.
    pub(super) fn read(&self, offset: usize, count: usize) -> Vec<u8> {
        let start = offset.min(self.len);
        let mut out = vec![0; count.min(self.len - start)];
        let end = start + out.len();
        let first = start / SECTOR_BYTES;
        for (sector, bytes) in self
            .written
            .range(first..end.div_ceil(SECTOR_BYTES).max(first))
        {
            let at = sector * SECTOR_BYTES;
            let (from, to) = (at.max(start), (at + SECTOR_BYTES).min(end));
            out[from - start..to - start].copy_from_slice(&bytes[from - at..to - at]);
        }
        out
    }

    /// The file grows as needed.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        for sector in touched(offset, end) {
            let at = sector * SECTOR_BYTES;
            let (from, to) = (at.max(offset), (at + SECTOR_BYTES).min(end));
            let own = self.written.entry(sector).or_insert([0; SECTOR_BYTES]);
            own[from - at..to - at].copy_from_slice(&bytes[from - offset..to - offset]);
        }
        self.grow(end);
    }

    /// At least this long.
    pub(super) fn grow(&mut self, len: usize) {
        self.len = self.len.max(len);
    }

    /// Room for everything up to `len`, of zeros where nothing was written.
    pub(super) fn allocate(&mut self, len: usize) {
        for sector in touched(0, len) {
            self.written.entry(sector).or_insert([0; SECTOR_BYTES]);
        }
        self.grow(len);
    }

    /// Changes a bit, unless it lies in a hole.
    pub(super) fn flip(&mut self, at: usize, bit: u32) {
        if let Some(sector) = self.written.get_mut(&(at / SECTOR_BYTES)) {
            sector[at % SECTOR_BYTES] ^= 1 << bit;
        }
    }
}

/// The sectors of these bytes.
pub(super) fn touched(start: usize, end: usize) -> std::ops::Range<usize> {
    if start == end {
        return 0..0;
    }
    start / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES)
}

#[cfg(test)]
mod tests {
    use lunette_runtime_core::random::SplitMix64;

    use super::*;

    #[test]
    fn it_holds_what_a_plain_buffer_would() {
        for seed in 0..100 {
            let mut random = SplitMix64::new(seed);
            let (mut sectors, mut model) = (Sectors::default(), Vec::<u8>::new());
            for _ in 0..20 {
                let (offset, len) = (random.below(3000) as usize, random.below(1500) as usize);
                let room = sectors.room_for(offset, offset + len);
                let before = sectors.used_bytes();
                if random.below(3) > 0 {
                    let bytes: Vec<u8> = (0..len).map(|_| random.next().to_le_bytes()[0]).collect();
                    sectors.write(offset, &bytes);
                    assert_eq!(sectors.used_bytes(), before + room);
                    model.resize(model.len().max(offset + len), 0);
                    model[offset..offset + len].copy_from_slice(&bytes);
                }
                let start = offset.min(model.len());
                let end = (offset + len).clamp(start, model.len());
                assert_eq!(sectors.read(offset, len), model[start..end], "seed {seed}");
                assert_eq!(sectors.len(), model.len());
            }
        }
    }

    #[test]
    fn holes_take_no_room_until_it_is_made() {
        let mut sectors = Sectors::default();
        sectors.write(16 << 20, &[7]);
        assert_eq!((sectors.len(), sectors.used_bytes()), ((16 << 20) + 1, 512));
        sectors.allocate(1025);
        assert_eq!(sectors.used_bytes(), 4 * 512);
        sectors.flip(16 << 20, 3);
        sectors.flip(1 << 20, 3);
        assert_eq!(sectors.read(16 << 20, 9), [15]);
    }
}
