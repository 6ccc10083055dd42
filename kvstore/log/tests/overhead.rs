//! What the format costs, as the README says.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use lunette_kvstore_log::INDEX_ENTRY_BYTES;
use lunette_kvstore_log::format::BLOCK_BYTES;
use lunette_kvstore_log::format::batch::{Item, encode, footprint_bytes};
use lunette_kvstore_log::format::segment::SegmentTag;
use lunette_kvstore_log::record::Record;

const TAG: SegmentTag = SegmentTag {
    log_id: 1,
    mount: 1,
    sequence: 1,
};

/// Bytes of a batch of so many objects of this length.
fn batch_bytes(count: usize, len_bytes: u32) -> u64 {
    let record = Record {
        len_bytes,
        ..Record::default()
    };
    let items = vec![
        Item::Object {
            record,
            key: &[b'k'; 64]
        };
        count
    ];
    let blocks = encode(TAG, 1, 2, &items).header.len_blocks;
    u64::from(blocks) * u64::from(BLOCK_BYTES)
}

#[test]
fn objects_cost_what_the_readme_says() {
    assert_eq!(INDEX_ENTRY_BYTES, 64);
    assert_eq!(footprint_bytes(64, 4096), 4224);
    assert_eq!(footprint_bytes(64, 65_536), 65_664);
    // In batches of about 4 MiB, headers and zeros included.
    assert!(batch_bytes(990, 4096) <= 990 * 4224 + 4096 + 64);
    assert!(batch_bytes(63, 65_536) <= 63 * 65_664 + 4096 + 64);
    assert_eq!(batch_bytes(4, 1 << 20), 4 * 1_052_672);
    // Each alone, as after a pause.
    assert_eq!(batch_bytes(1, 4096), 2 * 4096);
    assert_eq!(batch_bytes(1, 1 << 20), 1_052_672);
}
