//! Pages from one layout to another, by a kernel.
//!
//! The kernel is PTX text, which every driver compiles for its device when it is loaded. It is
//! written once (`kernel.ptx`) and made for vectors of 16, 8, 4 and 1 bytes. What it computes is told
//! by [`Job::copies`], which the tests hold against the text, run instruction by instruction, and
//! against the layouts' own formula.

use crate::transfer::{LOOPS_MAX, Loop, PagePair, PageTransfer};

/// Bytes of a [`Job`] as the kernel reads it.
pub const JOB_BYTES: usize = 128;
/// Threads of a block.
pub const BLOCK_THREADS: u32 = 256;
/// Threads that move one piece.
pub const WARP_THREADS: u32 = 32;
/// Most pieces of one launch, so that their number, and the sum of it and all warps, fits.
pub const PIECES_MAX: u32 = 1 << 30;
/// Most blocks of one launch.
pub const BLOCKS_MAX: u32 = 4096;
/// A run longer than this is moved by several warps, if it can be cut.
const PIECE_BYTES_AIM: u64 = 4096;

const TEMPLATE: &str = include_str!("kernel.ptx");

/// How much a lane moves at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 16 bytes.
    Sixteen,
    /// 8 bytes.
    Eight,
    /// 4 bytes.
    Four,
    /// 1 byte.
    One,
}

impl Width {
    /// All of them, the widest first.
    pub const ALL: [Self; 4] = [Self::Sixteen, Self::Eight, Self::Four, Self::One];

    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Sixteen => 16,
            Self::Eight => 8,
            Self::Four => 4,
            Self::One => 1,
        }
    }

    /// The kernel's name in its module.
    #[must_use]
    pub const fn entry(self) -> &'static str {
        match self {
            Self::Sixteen => "lunette_copy_pages_16",
            Self::Eight => "lunette_copy_pages_8",
            Self::Four => "lunette_copy_pages_4",
            Self::One => "lunette_copy_pages_1",
        }
    }

    /// The module with the kernel of this width, as text.
    #[must_use]
    pub fn ptx(self) -> String {
        let words = match self {
            Self::Sixteen => 4,
            Self::Eight => 2,
            Self::Four | Self::One => 1,
        };
        let of = match self {
            Self::Sixteen => "v4.u32",
            Self::Eight => "v2.u32",
            Self::Four => "u32",
            Self::One => "u8",
        };
        let mut text = TEMPLATE
            .replace("@NAME@", self.entry())
            .replace("@WIDTH@", &self.bytes().to_string())
            .replace("@TYPE@", of);
        for index in 0..4 {
            let names: Vec<String> = (0..words)
                .map(|word| format!("%v{}", index * 4 + word))
                .collect();
            let vector = match names.as_slice() {
                [one] => one.clone(),
                several => format!("{{{}}}", several.join(", ")),
            };
            let step = (index + 1) * WARP_THREADS * self.bytes();
            text = text
                .replace(&format!("@V{index}@"), &vector)
                .replace(&format!("@STEP{}@", index + 1), &step.to_string());
        }
        text
    }
}

/// What a launch does, in addresses of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    width: Width,
    from: u64,
    to: u64,
    pairs_at: u64,
    from_page: u64,
    to_page: u64,
    loops: [Loop; LOOPS_MAX],
    pairs: u32,
    pieces_per_page: u32,
    vectors: u32,
}

impl Job {
    /// The pages of `pairs` pairs, which lie at `pairs_at` (two 32-bit numbers each, source and
    /// destination), between caches that begin at `from` and `to`. None if it is more than one launch
    /// can do, or nothing.
    #[must_use]
    pub fn new(
        transfer: &PageTransfer,
        (from, to): (u64, u64),
        pairs_at: u64,
        pairs: usize,
    ) -> Option<Self> {
        let pairs = u32::try_from(pairs).ok().filter(|pairs| *pairs > 0)?;
        let [(from_base, from_page), (to_base, to_page)] = transfer.pages();
        let (from, to) = (from.checked_add(from_base)?, to.checked_add(to_base)?);
        let mut loops = *transfer.loops();
        let mut piece = transfer.run_bytes();
        cut(&mut loops, &mut piece);
        let strides = loops.iter().flat_map(|one| [one.from_bytes, one.to_bytes]);
        let bits = strides.fold(from | to | from_page | to_page | piece, |all, one| {
            all | one
        });
        let fits = |width: &Width| bits.is_multiple_of(u64::from(width.bytes()));
        let width = Width::ALL.into_iter().find(fits)?;
        let vectors = u32::try_from(piece / u64::from(width.bytes())).ok()?;
        let pieces: u64 = loops.iter().map(|one| u64::from(one.extent)).product();
        let pieces_per_page = u32::try_from(pieces).ok()?;
        let all = pieces_per_page.checked_mul(pairs)?;
        // Lanes look four vectors ahead.
        let is_small = all <= PIECES_MAX && vectors <= PIECES_MAX;
        is_small.then_some(Self {
            width,
            from,
            to,
            pairs_at,
            from_page,
            to_page,
            loops,
            pairs,
            pieces_per_page,
            vectors,
        })
    }

    /// The same with its list of pages elsewhere.
    #[must_use]
    pub const fn with_pairs_at(self, pairs_at: u64) -> Self {
        Self { pairs_at, ..self }
    }

    /// Which kernel does it.
    #[must_use]
    pub const fn width(&self) -> Width {
        self.width
    }

    /// Where its list of pages lies, and how long that is.
    #[must_use]
    pub const fn pairs(&self) -> (u64, u32) {
        (self.pairs_at, self.pairs)
    }

    /// Blocks of the launch: as many as there is work for, and at most `blocks_max`.
    #[must_use]
    pub fn blocks(&self, blocks_max: u32) -> u32 {
        let warps_per_block = BLOCK_THREADS / WARP_THREADS;
        let pieces = self.pairs * self.pieces_per_page;
        let most = blocks_max.clamp(1, BLOCKS_MAX);
        pieces.div_ceil(warps_per_block).clamp(1, most)
    }

    /// As the kernel reads it.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; JOB_BYTES] {
        let mut bytes = [0; JOB_BYTES];
        let longs = [
            self.from,
            self.to,
            self.pairs_at,
            self.from_page,
            self.to_page,
        ];
        let sources = self.loops.iter().map(|one| one.from_bytes);
        let destinations = self.loops.iter().map(|one| one.to_bytes);
        let longs = longs.into_iter().chain(sources).chain(destinations);
        for (place, long) in bytes.chunks_exact_mut(8).zip(longs) {
            place.copy_from_slice(&long.to_le_bytes());
        }
        let [_, extents @ ..] = self.loops.map(|one| one.extent);
        let counts = [self.pairs, self.pieces_per_page];
        let words = counts.into_iter().chain(extents).chain([self.vectors]);
        for (place, word) in bytes[104..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// What the kernel does for these pairs: source, destination and length of each piece, in
    /// addresses of the device.
    pub fn copies<'a>(
        &'a self,
        pairs: &'a [PagePair],
    ) -> impl Iterator<Item = (u64, u64, u64)> + 'a {
        let len = u64::from(self.vectors) * u64::from(self.width.bytes());
        let moved = pairs.iter().filter(|pair| pair.from != u32::MAX);
        moved.flat_map(move |pair| {
            (0..self.pieces_per_page).map(move |piece| {
                let mut rest = piece;
                let mut from = self.from + u64::from(pair.from) * self.from_page;
                let mut to = self.to + u64::from(pair.to) * self.to_page;
                for one in self.loops.iter().rev() {
                    from += u64::from(rest % one.extent) * one.from_bytes;
                    to += u64::from(rest % one.extent) * one.to_bytes;
                    rest /= one.extent;
                }
                (from, to, len)
            })
        })
    }
}

/// Cuts long runs into pieces, where a loop is free for that, so that more warps share the work.
fn cut(loops: &mut [Loop; LOOPS_MAX], piece: &mut u64) {
    let parts = *piece / PIECE_BYTES_AIM;
    let is_even = piece.is_multiple_of(PIECE_BYTES_AIM);
    let Ok(parts) = u32::try_from(parts) else {
        return;
    };
    if parts < 2 || !is_even || loops[0] != Loop::ONCE {
        return;
    }
    *piece = PIECE_BYTES_AIM;
    loops.rotate_left(1);
    loops[LOOPS_MAX - 1] = Loop {
        extent: parts,
        from_bytes: PIECE_BYTES_AIM,
        to_bytes: PIECE_BYTES_AIM,
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{LAYER_FIRST, Layout, PAGE_FIRST, Shape};

    fn transfer(row_bytes: u32, pages: u32) -> PageTransfer {
        let layout = |order| Layout::new(Shape::multi_head(4, 16, 8, row_bytes), pages, order);
        PageTransfer::new(&layout(LAYER_FIRST).unwrap(), &layout(PAGE_FIRST).unwrap()).unwrap()
    }

    #[test]
    fn the_text_has_no_hole_left() {
        for width in Width::ALL {
            let text = width.ptx();
            assert!(!text.contains('@') || !text.replace("@%p", "").contains('@'));
            assert!(text.contains(width.entry()));
            assert!(text.is_ascii());
        }
    }

    #[test]
    fn lanes_are_as_wide_as_everything_is_aligned() {
        let width = |row_bytes, at| {
            let job = Job::new(&transfer(row_bytes, 3), (at, 1 << 20), 0, 1);
            job.map(|job| job.width())
        };
        assert_eq!(width(256, 0), Some(Width::Sixteen));
        assert_eq!(width(256, 8), Some(Width::Eight));
        assert_eq!(width(256, 4), Some(Width::Four));
        assert_eq!(width(256, 2), Some(Width::One));
        // 16 tokens of 8 heads are a multiple of 16 bytes whatever a row is.
        assert_eq!(width(3, 0), Some(Width::Sixteen));
    }

    #[test]
    fn blocks_are_as_many_as_there_is_work_for_and_bounded() {
        // 8 runs of 16 KiB, each 4 pieces: 32 warps, of which 8 are a block.
        let job = Job::new(&transfer(128, 64), (0, 0), 0, 1).unwrap();
        assert_eq!(job.blocks(1000), 4);
        assert_eq!(job.blocks(3), 3);
        assert_eq!(job.blocks(0), 1);
        let job = Job::new(&transfer(128, 64), (0, 0), 0, 1 << 20).unwrap();
        assert_eq!(job.blocks(u32::MAX), BLOCKS_MAX);
    }

    #[test]
    fn what_a_launch_cannot_do_is_refused() {
        let transfer = transfer(128, 64);
        let most = (PIECES_MAX / 32) as usize;
        assert!(Job::new(&transfer, (0, 0), 0, most).is_some());
        assert!(Job::new(&transfer, (0, 0), 0, most + 1).is_none());
        assert!(Job::new(&transfer, (0, 0), 0, 0).is_none());
    }

    #[test]
    fn the_struct_is_laid_out_as_the_text_reads_it() {
        let job = Job::new(&transfer(128, 64), (16, 32), 48, 5).unwrap();
        let bytes = job.to_bytes();
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!([0, 8, 16].map(long), [16, 32, 48]);
        // Pages of one layer and part, and whole blocks.
        assert_eq!([24, 32].map(long), [16 << 10, 128 << 10]);
        assert_eq!([64, 96].map(long), [4096, 4096]);
        assert_eq!([104, 108, 120, 124].map(word), [5, 32, 4, 256]);
    }
}
