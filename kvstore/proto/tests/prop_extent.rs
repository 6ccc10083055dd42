//! Extent headers: round trip, and decoding of what nobody wrote.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use lunette_kvstore_proto::extent::{EXTENT_HEADER_BYTES, ExtentHeader};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_runtime_core::limits::{KEY_BYTES_MAX, PAYLOAD_BYTES_MAX};
use proptest::prelude::*;

fn header() -> impl Strategy<Value = ExtentHeader> {
    let lens = (1..=KEY_BYTES_MAX, 0..=PAYLOAD_BYTES_MAX);
    (lens, any::<u32>(), any::<u64>(), any::<u128>()).prop_map(
        |((key_len, payload_len), payload_crc32c, version, fingerprint)| ExtentHeader {
            key_len: u16::try_from(key_len).expect("within the limit"),
            payload_len: u32::try_from(payload_len).expect("within the limit"),
            payload_crc32c,
            version,
            fingerprint: Fingerprint(fingerprint),
        },
    )
}

proptest! {
    #[test]
    fn headers_come_back(header in header(), behind in prop::collection::vec(any::<u8>(), 0..80)) {
        let mut bytes = header.encode().to_vec();
        bytes.extend(behind);
        prop_assert_eq!(ExtentHeader::decode(&bytes), Ok(header));
    }

    /// A checksum of 32 bits finds any burst of up to 32 bits.
    #[test]
    fn any_burst_of_damage_is_found(
        header in header(),
        offset in 0..EXTENT_HEADER_BYTES - 3,
        damage in 1_u32..,
    ) {
        let mut bytes = header.encode();
        for (byte, flips) in bytes[offset..].iter_mut().zip(damage.to_le_bytes()) {
            *byte ^= flips;
        }
        let fault = ExtentHeader::decode(&bytes).expect_err("damage");
        prop_assert!(fault.is_corruption());
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        if let Ok(header) = ExtentHeader::decode(&bytes) {
            prop_assert_eq!(&header.encode()[..], &bytes[..EXTENT_HEADER_BYTES]);
        }
    }

    /// Random fields behind a right magic and a right checksum reach every later check.
    #[test]
    fn random_fields_never_panic(
        fields in prop::collection::vec(any::<u8>(), EXTENT_HEADER_BYTES - 8),
        key in prop::collection::vec(any::<u8>(), 0..100),
        known_format in any::<bool>(),
    ) {
        let mut bytes = b"LNEX".to_vec();
        bytes.extend(fields);
        if known_format {
            bytes[4..6].copy_from_slice(&[1, 0]);
            bytes[24..32].fill(0);
            bytes[48..60].fill(0);
        }
        bytes.extend(lunette_runtime_core::checksum::crc32c(&bytes).to_le_bytes());
        bytes.extend(key);
        if let Ok(header) = ExtentHeader::decode(&bytes) {
            prop_assert_eq!(&header.encode()[..], &bytes[..EXTENT_HEADER_BYTES]);
            prop_assert!(header.layout().total_bytes >= header.payload_len);
            prop_assert!(header.key(&bytes).is_err(), "a random key matched its fingerprint");
        }
    }
}
