//! Objects in parts: what is read of the parts is what would be read of the whole.

use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::range::{ByteRange, RANGES_MAX, total_bytes};
use lunette_kvstore_proto::striped::{Manifest, PARTS_MAX, PartsOf, WriteId, part_len};
use proptest::collection::vec;
use proptest::prelude::*;

const LEN_MAX: usize = 5000;

fn object() -> impl Strategy<Value = (usize, u32, u128)> {
    (1..LEN_MAX, any::<u32>(), any::<u128>()).prop_map(|(len, part, write)| {
        let least = len.div_ceil(PARTS_MAX as usize);
        let part = least + part as usize % (len + 10);
        (len, u32::try_from(part).expect("small"), write)
    })
}

proptest! {
    #[test]
    fn parts_make_up_the_object((len, part, write) in object()) {
        let manifest = Manifest::new(len as u64, part, WriteId(write)).expect("within the limits");
        prop_assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
        let of = PartsOf::from(Key::new(b"key").expect("a key"));
        let mut end = 0;
        let mut keys = Vec::new();
        for (place, part) in manifest.parts().enumerate() {
            prop_assert_eq!((part.place as usize, part.offset_bytes), (place, end));
            prop_assert!(part.len_bytes > 0);
            end += u64::from(part.len_bytes);
            let key = manifest.part_key(of, part.place);
            prop_assert!(Key::of_caller(key.key().bytes()).is_err());
            keys.push(key);
        }
        prop_assert_eq!(end, manifest.len_bytes());
        keys.dedup();
        prop_assert_eq!(keys.len(), manifest.count() as usize);
    }

    #[test]
    fn ranges_of_parts_are_ranges_of_the_whole(
        (len, part, write) in object(),
        drawn in vec((any::<u64>(), any::<u32>()), 0..20),
    ) {
        let manifest = Manifest::new(len as u64, part, WriteId(write)).expect("within the limits");
        let bytes: Vec<u8> = (0..len).map(|at| u8::try_from(at % 251).expect("small")).collect();
        let ranges: Vec<ByteRange> = drawn
            .into_iter()
            .map(|(offset, count)| {
                let offset_bytes = offset % (len as u64 + 1);
                let rest = u32::try_from(len as u64 - offset_bytes).expect("small");
                ByteRange { offset_bytes, len_bytes: count % (rest + 1) }
            })
            .collect();
        let whole = [ByteRange { offset_bytes: 0, len_bytes: u32::try_from(len).expect("small") }];
        let wanted = if ranges.is_empty() { &whole[..] } else { &ranges };
        let mut expected = Vec::new();
        for range in wanted {
            let start = usize::try_from(range.offset_bytes).expect("small");
            expected.extend_from_slice(&bytes[start..start + range.len_bytes as usize]);
        }
        let mut found = vec![None; expected.len()];
        for read in manifest.reads(&ranges).expect("all lie inside") {
            prop_assert!(!read.ranges.is_empty() && read.ranges.len() <= RANGES_MAX);
            prop_assert_eq!(read.ranges.len(), read.to.len());
            prop_assert_eq!(read.len_bytes(), total_bytes(&read.ranges));
            for (range, to) in read.ranges.iter().zip(&read.to) {
                prop_assert!(range.is_within(read.part.len_bytes.into()));
                for at in 0..u64::from(range.len_bytes) {
                    let from = read.part.offset_bytes + range.offset_bytes + at;
                    let byte = bytes[usize::try_from(from).expect("small")];
                    let to = usize::try_from(to + at).expect("small");
                    prop_assert_eq!(found[to].replace(byte), None, "read once");
                }
            }
        }
        let found: Option<Vec<u8>> = found.into_iter().collect();
        prop_assert_eq!(found, Some(expected));
    }

    #[test]
    fn parts_are_as_long_as_is_wished_and_not_too_many(len in any::<u64>(), wish in any::<Option<u32>>()) {
        if let Ok(Some(part)) = part_len(len, wish) {
            let manifest = Manifest::new(len, part, WriteId(1)).expect("within the limits");
            prop_assert!(manifest.count() <= PARTS_MAX);
        }
        let len = len % (20 << 30);
        if let Ok(Some(part)) = part_len(len, wish) {
            prop_assert!(Manifest::new(len, part, WriteId(1)).is_ok());
        }
    }

    #[test]
    fn no_bytes_make_it_panic(mut bytes in vec(any::<u8>(), 0..60), is_near in any::<bool>()) {
        if is_near && bytes.len() >= 4 {
            bytes[..4].copy_from_slice(b"LNST");
        }
        if let Ok(manifest) = Manifest::decode(&bytes) {
            prop_assert_eq!(manifest.encode().to_vec(), bytes);
        }
    }
}
