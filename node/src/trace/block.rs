//! The key of a block in a replay, and the bytes stored under it.
//!
//! The bytes follow from the key alone, so a reader can tell right bytes from wrong ones without
//! having kept them, and a block that comes back under another key is found out.

use lunette_runtime_core::random::{SplitMix64, mix};

/// The key of the block with this hash.
#[must_use]
pub fn key(hash_id: u64) -> Vec<u8> {
    format!("lunette-replay/{hash_id}").into_bytes()
}

/// Fills `bytes` with what is stored under `key`.
pub fn fill(key: &[u8], bytes: &mut [u8]) {
    let mut stream = stream(key);
    let mut words = bytes.chunks_exact_mut(8);
    for word in &mut words {
        word.copy_from_slice(&stream.next().to_le_bytes());
    }
    let rest = words.into_remainder();
    rest.copy_from_slice(&stream.next().to_le_bytes()[..rest.len()]);
}

/// Whether `bytes` are what [`fill`] makes for `key`.
#[must_use]
pub fn is_filled(key: &[u8], bytes: &[u8]) -> bool {
    let mut stream = stream(key);
    let mut words = bytes.chunks_exact(8);
    let whole = words
        .by_ref()
        .all(|word| word == stream.next().to_le_bytes());
    let rest = words.remainder();
    whole && rest == &stream.next().to_le_bytes()[..rest.len()]
}

fn stream(key: &[u8]) -> SplitMix64 {
    let seed = key.chunks(8).fold(0, |seed, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(seed ^ u64::from_le_bytes(word)).wrapping_add(1)
    });
    SplitMix64::new(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_length_verifies_under_its_own_key_only() {
        for len in [0, 1, 7, 8, 9, 64, 511] {
            let mut bytes = vec![0; len];
            fill(&key(7), &mut bytes);
            assert!(is_filled(&key(7), &bytes), "{len} bytes");
            assert!(len == 0 || !is_filled(&key(8), &bytes), "{len} bytes");
        }
    }

    #[test]
    fn one_wrong_bit_anywhere_is_noticed() {
        let mut bytes = vec![0; 21];
        fill(&key(3), &mut bytes);
        for index in 0..bytes.len() {
            bytes[index] ^= 0x10;
            assert!(!is_filled(&key(3), &bytes), "byte {index}");
            bytes[index] ^= 0x10;
        }
    }

    #[test]
    fn keys_of_one_prefix_get_different_bytes() {
        let (mut left, mut right) = ([0; 8], [0; 8]);
        fill(b"lunette-replay/1", &mut left);
        fill(b"lunette-replay/12", &mut right);
        assert_ne!(left, right);
    }
}
