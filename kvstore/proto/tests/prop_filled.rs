//! What has been written of a reserved object, against a model that knows each byte.
#![forbid(unsafe_code)]

use lunette_kvstore_proto::filled::{FillRefusal, Filled};
use lunette_kvstore_proto::range::ByteRange;
use lunette_runtime_core::checksum::crc32c;
use proptest::collection::vec;
use proptest::prelude::*;

const LEN: usize = 48;

fn range(start: usize, end: usize) -> ByteRange {
    ByteRange {
        offset_bytes: u64::try_from(start).expect("small"),
        len_bytes: u32::try_from(end - start).expect("small"),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Byte {
    Missing,
    UnderWay,
    Written,
}

proptest! {
    #[test]
    fn an_object_is_whole_when_each_byte_is_there(
        steps in vec((0..LEN, 1..=LEN, 0..3_u8, any::<prop::sample::Index>()), 0..120),
        bytes in vec(any::<u8>(), LEN),
    ) {
        let mut filled = Filled::default();
        let mut model = [Byte::Missing; LEN];
        let mut under_way: Vec<(usize, usize)> = Vec::new();
        for (start, len, what, which) in steps {
            if what > 0 && !under_way.is_empty() {
                let (start, end) = under_way.swap_remove(which.index(under_way.len()));
                let is_right = what == 1;
                filled.end(range(start, end), is_right.then(|| crc32c(&bytes[start..end])));
                model[start..end].fill(if is_right { Byte::Written } else { Byte::Missing });
            } else {
                let end = (start + len).min(LEN);
                let is_busy = model[start..end].contains(&Byte::UnderWay);
                let begun = filled.begin(range(start, end));
                prop_assert_eq!(begun, if is_busy { Err(FillRefusal::Overlaps) } else { Ok(()) });
                if !is_busy {
                    under_way.push((start, end));
                    model[start..end].fill(Byte::UnderWay);
                }
            }
            let is_whole = model.iter().all(|&byte| byte == Byte::Written);
            let len = u32::try_from(LEN).expect("small");
            prop_assert_eq!(filled.is_whole(len), is_whole);
            prop_assert_eq!(filled.is_quiet(), under_way.is_empty());
            if let Some(crc) = filled.crc32c(len) {
                prop_assert_eq!((crc, is_whole), (crc32c(&bytes), true));
            }
        }
    }

    #[test]
    fn ranges_that_tile_an_object_give_its_checksum_in_any_order(
        cuts in vec(0..=LEN, 0..10),
        order in any::<u64>(),
        bytes in vec(any::<u8>(), LEN),
    ) {
        let mut cuts = cuts;
        cuts.extend([0, LEN]);
        cuts.sort_unstable();
        let mut tiles: Vec<_> = cuts.windows(2).map(|pair| (pair[0], pair[1])).collect();
        tiles.sort_by_key(|&(start, _)| (start as u64).wrapping_mul(order | 1) >> 7);
        let mut filled = Filled::default();
        for (start, end) in tiles {
            filled.begin(range(start, end)).expect("few pieces");
            filled.end(range(start, end), Some(crc32c(&bytes[start..end])));
        }
        prop_assert_eq!(filled.crc32c(u32::try_from(LEN).expect("small")), Some(crc32c(&bytes)));
    }
}
