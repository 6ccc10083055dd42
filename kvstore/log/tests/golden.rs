//! The format stands still: each part has the bytes that are in `golden/`, and is read from them.
//!
//! A file is hexadecimal, sixteen bytes a line behind their offset; lines of zeros that repeat are left out.
//! Other bytes are right only for a new version of the format.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use std::fmt::Write as _;

use lunette_kvstore_log::format::batch::{
    ALIGNED_PAYLOAD_BYTES_MIN, BatchHeader, Encoded, Entry, Item, Piece, Removal, encode,
};
use lunette_kvstore_log::format::claim::{CLAIM_BYTES, ClaimRecord, HolderName};
use lunette_kvstore_log::format::segment::{Seal, SegmentHeader, SegmentState, SegmentTag};
use lunette_kvstore_log::format::superblock::{Identity, Superblock};
use lunette_kvstore_log::format::{BLOCK_BYTES, FormatFault, Geometry, Part};
use lunette_kvstore_log::record::{Fingerprint, Record, Version};
use lunette_runtime_core::checksum::crc32c;

const TAG: SegmentTag = SegmentTag {
    log_id: 0x1011_1213_1415_1617,
    mount: 3,
    sequence: 0x2021,
};

fn hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (index, line) in bytes.chunks(16).enumerate() {
        let is_last = (index + 1) * 16 >= bytes.len();
        if line.iter().all(|&byte| byte == 0) && !is_last {
            continue;
        }
        write!(out, "{:06x}:", index * 16).expect("a string takes it");
        for byte in line {
            write!(out, " {byte:02x}").expect("a string takes it");
        }
        out.push('\n');
    }
    out
}

fn unhex(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for line in text.lines() {
        let (offset, bytes) = line.split_once(':').expect("an offset");
        out.resize(usize::from_str_radix(offset, 16).expect("hexadecimal"), 0);
        let bytes = bytes.split_whitespace();
        out.extend(bytes.map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal")));
    }
    out
}

/// The bytes of a golden file, which are what was encoded.
fn golden(name: &str, encoded: &[u8]) -> Vec<u8> {
    let text = match name {
        "superblock" => include_str!("golden/superblock.hex"),
        "claim" => include_str!("golden/claim.hex"),
        "segment_used" => include_str!("golden/segment_used.hex"),
        "segment_freed" => include_str!("golden/segment_freed.hex"),
        "seal" => include_str!("golden/seal.hex"),
        "batch" => include_str!("golden/batch.hex"),
        _ => unreachable!("no golden file {name}"),
    };
    assert_eq!(hex(encoded), text, "{name}");
    unhex(text)
}

#[test]
fn a_superblock() {
    let superblock = Superblock {
        mount: 0x0304,
        identity: Identity {
            cluster: 0xc1 << 120 | 0x1c,
            device: 0xd1 << 120 | 0x1d,
        },
        log_id: TAG.log_id,
        generation: 7,
        geometry: Geometry {
            capacity_bytes: 1 << 40,
            segment_bytes: 64 << 20,
        },
    };
    let bytes = golden("superblock", &superblock.encode());
    assert_eq!(Superblock::decode(&bytes), Ok(superblock));
}

#[test]
fn a_claim() {
    let claim = ClaimRecord {
        holder: 0xa1 << 120 | 0x1a,
        taken: 0x0506,
        beat: 0x0708,
        lapse_ms: 8000,
        is_held: true,
        name: HolderName::new("node-7/4711"),
    };
    let bytes = golden("claim", &claim.encode());
    assert_eq!(ClaimRecord::decode(&bytes), Ok(claim));
    let released = ClaimRecord {
        is_held: false,
        name: HolderName::new(&"x".repeat(100)),
        ..claim
    };
    assert_eq!(ClaimRecord::decode(&released.encode()), Ok(released));
    for at in 0..CLAIM_BYTES {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        ClaimRecord::decode(&changed).expect_err("a flipped bit");
        ClaimRecord::decode(&bytes[..at]).expect_err("cut");
    }
}

#[test]
fn a_segment_header() {
    for (name, state) in [
        ("segment_used", SegmentState::Used),
        ("segment_freed", SegmentState::Freed),
    ] {
        let header = SegmentHeader {
            tag: TAG,
            state,
            first_batch: 0x0a0b,
            generation: 7,
            segment_index: 0x0102,
        };
        let bytes = golden(name, &header.encode());
        assert_eq!(SegmentHeader::decode(&bytes), Ok(header));
    }
}

#[test]
fn a_seal() {
    let seal = Seal {
        tag: TAG,
        next_batch: 0x0b0c,
        end_blocks: 16_000,
        segment_index: 0x0102,
    };
    let bytes = golden("seal", &seal.encode());
    assert_eq!(Seal::decode(&bytes), Ok(seal));
}

fn payload(len_bytes: u32, seed: u8) -> Vec<u8> {
    (0..len_bytes)
        .map(|at| seed.wrapping_add(at.to_le_bytes()[0]))
        .collect()
}

fn record(name: u128, payload: &[u8]) -> Record {
    Record {
        fingerprint: Fingerprint(name << 112 | name),
        version: Version {
            epoch: 0xe1,
            sequence: 0x51,
        },
        generation: 7,
        notes: 0x0201,
        len_bytes: u32::try_from(payload.len()).expect("short"),
        crc32c: crc32c(payload),
    }
}

fn whole(encoded: &Encoded, payloads: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in &encoded.pieces {
        match piece {
            Piece::Own(range) => out.extend_from_slice(&encoded.own[range.clone()]),
            Piece::Payload(index) => out.extend_from_slice(payloads[*index]),
        }
    }
    out
}

#[test]
fn a_batch_of_two_objects_and_a_removal() {
    let (first, second) = (payload(100, 1), payload(64, 2));
    let removal = Removal {
        fingerprint: Fingerprint(0xf3),
        version: Version {
            epoch: 0xe1,
            sequence: 0x50,
        },
        covers: 0x0a0a,
    };
    let items = [
        Item::Object {
            record: record(0xf1, &first),
            key: b"block/1",
        },
        Item::Removal(removal),
        Item::Object {
            record: record(0xf2, &second),
            key: &[b'k'; 70],
        },
    ];
    let encoded = encode(TAG, 0x0a0c, 9, &items);
    let bytes = whole(&encoded, &[&first, &[], &second]);
    let bytes = golden("batch", &bytes);
    assert_eq!(bytes.len(), BLOCK_BYTES as usize);
    let header = BatchHeader::decode(&bytes).expect("a header");
    assert_eq!(header, encoded.header);
    assert_eq!(header.table(&bytes), Ok(encoded.entries.clone()));
    assert_eq!(header.check_place(TAG, 9, 10), Ok(()));
    let offsets = encoded.entries.iter().filter_map(|entry| match entry {
        Entry::Object(object) => Some(object.payload_offset_bytes),
        Entry::Removal(_) => None,
    });
    // Header and table have 256 bytes, the first key 64, its payload 128, the second key 128.
    assert_eq!(
        offsets.collect::<Vec<u32>>(),
        [256 + 64, 256 + 64 + 128 + 128]
    );
}

#[test]
fn a_key_or_a_payload_that_is_not_what_it_was_is_seen() {
    for (key_or_payload, len_bytes) in [("key", 0), ("payload", 100)] {
        let bytes = payload(len_bytes, 1);
        let item = Item::Object {
            record: record(0xf1, &bytes),
            key: b"block/1",
        };
        let encoded = encode(TAG, 1, 2, &[item]);
        let mut batch = whole(&encoded, &[&bytes]);
        let Entry::Object(object) = encoded.entries[0] else {
            panic!("an object");
        };
        assert!(object.is_whole(&batch));
        assert!(!object.is_whole(&batch[..128]), "it is cut off");
        let at = if len_bytes == 0 {
            object.body().start
        } else {
            object.payload_offset_bytes
        };
        batch[at as usize] ^= 1;
        assert!(!object.is_whole(&batch), "{key_or_payload}");
    }
}

#[test]
fn long_payloads_begin_at_blocks_and_their_keys_end_there() {
    let long = payload(ALIGNED_PAYLOAD_BYTES_MIN, 3);
    let item = Item::Object {
        record: record(0xf1, &long),
        key: b"block/1",
    };
    let encoded = encode(TAG, 1, 2, &[item, item]);
    let bytes = whole(&encoded, &[&long, &long]);
    assert_eq!(
        bytes.len(),
        encoded.header.len_blocks as usize * BLOCK_BYTES as usize
    );
    let mut begins = Vec::new();
    for entry in encoded.header.table(&bytes).expect("a table") {
        let Entry::Object(object) = entry else {
            panic!("an object");
        };
        let body = object.body();
        let body = &bytes[body.start as usize..body.end as usize];
        assert_eq!(
            (&body[..7], &body[64..]),
            (b"block/1".as_slice(), long.as_slice())
        );
        begins.push(object.payload_offset_bytes / BLOCK_BYTES);
    }
    assert_eq!(begins, [1, 34]);
}

#[test]
fn what_is_of_another_place_is_stale() {
    let item = Item::Object {
        record: record(0xf1, &[]),
        key: b"k",
    };
    let header = encode(TAG, 1, 5, &[item]).header;
    let stale = Err(FormatFault::Stale {
        part: Part::BatchHeader,
    });
    assert_eq!(header.check_place(TAG, 5, 6), Ok(()));
    assert_eq!(header.check_place(TAG, 4, 6), stale);
    assert_eq!(header.check_place(TAG, 5, 5), stale);
    for other in [
        SegmentTag {
            sequence: TAG.sequence + 1,
            ..TAG
        },
        SegmentTag {
            mount: TAG.mount + 1,
            ..TAG
        },
        SegmentTag {
            log_id: TAG.log_id + 1,
            ..TAG
        },
    ] {
        assert_eq!(header.check_place(other, 5, 6), stale);
    }
}

/// Of every part: any bit that flips is found, and so is any cut.
#[test]
fn flipped_bits_and_cuts_are_found() {
    let item = Item::Object {
        record: record(0xf1, &[]),
        key: b"k",
    };
    let encoded = encode(TAG, 1, 5, &[item, item]);
    let table_end = encoded.header.table_end_bytes();
    let batch_is_read = |bytes: &[u8]| {
        let header = BatchHeader::decode(bytes);
        header.is_ok_and(|header| header.table(bytes).is_ok())
    };
    assert!(batch_is_read(&encoded.own));
    for bit in 0..table_end * 8 {
        let mut damaged = encoded.own.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(!batch_is_read(&damaged), "bit {bit}");
    }
    for len in 0..table_end {
        assert!(!batch_is_read(&encoded.own[..len]), "cut at {len}");
    }
    let seal = Seal {
        tag: TAG,
        next_batch: 1,
        end_blocks: 2,
        segment_index: 0,
    }
    .encode();
    for bit in 0..64 * 8 {
        let mut damaged = seal;
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Seal::decode(&damaged).is_err(), "bit {bit}");
    }
}
