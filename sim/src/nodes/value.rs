//! Values that say who put them: any byte of another value, or of none, shows.

use lunette_runtime_core::random::mix;

/// Shortest value: with some bytes that only its put has.
pub(crate) const VALUE_BYTES_MIN: usize = 24;

/// The value of a put: its number, its key, its length, and bytes that only this put has.
pub(crate) fn fill(put: u64, key: u32, out: &mut [u8]) {
    assert!(out.len() >= VALUE_BYTES_MIN, "it says who it is");
    let len = u32::try_from(out.len()).expect("values are short");
    out[..8].copy_from_slice(&put.to_le_bytes());
    out[8..12].copy_from_slice(&key.to_le_bytes());
    out[12..16].copy_from_slice(&len.to_le_bytes());
    for (index, chunk) in out[16..].chunks_mut(8).enumerate() {
        let word = mix(put ^ (index as u64) << 40).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// Which put a value is of, if every byte of it is right.
pub(crate) fn put_of(key: u32, value: &[u8]) -> Option<u64> {
    let put = u64::from_le_bytes(*value.first_chunk()?);
    if value.len() < VALUE_BYTES_MIN {
        return None;
    }
    let mut expected = vec![0; value.len()];
    fill(put, key, &mut expected);
    (expected == value).then_some(put)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_byte_that_is_wrong_shows() {
        for len in [24, 25, 32, 100] {
            let mut value = vec![0; len];
            fill(7, 3, &mut value);
            assert_eq!(put_of(3, &value), Some(7));
            assert_eq!(put_of(4, &value), None, "of another key");
            assert_eq!(put_of(3, &value[..len - 1]), None, "cut short");
            for at in 0..len {
                value[at] ^= 1;
                assert_eq!(put_of(3, &value), None, "byte {at} of {len}");
                value[at] ^= 1;
            }
        }
        assert_eq!(put_of(3, &[]), None);
    }
}
