//! The checksum of what is sent together, from those of its parts.

use lunette_runtime_core::checksum::{after_zeroes, crc32c, product};

/// A checksum of many parts, from theirs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joined {
    crc32c: u32,
    /// What so many bytes do to what came before them: most objects of a batch have one length.
    shift: (u32, u32),
}

impl Joined {
    /// Of no part.
    pub(crate) fn new() -> Self {
        Self {
            crc32c: crc32c(&[]),
            shift: (0, after_zeroes(0)),
        }
    }

    /// A part follows.
    pub(crate) fn push(&mut self, then: u32, len_bytes: u32) {
        if self.shift.0 != len_bytes {
            self.shift = (len_bytes, after_zeroes(len_bytes.into()));
        }
        self.crc32c = product(self.shift.1, self.crc32c) ^ then;
    }

    /// Of all parts, one behind the other.
    pub(crate) const fn crc32c(&self) -> u32 {
        self.crc32c
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_of_objects_join_to_that_of_all() {
        let parts: [&[u8]; 6] = [b"a", &[7; 4096], &[0; 4096], b"", &[9; 100], b"zz"];
        let mut joined = Joined::new();
        for part in parts {
            joined.push(crc32c(part), u32::try_from(part.len()).expect("short"));
        }
        assert_eq!(joined.crc32c(), crc32c(&parts.concat()));
    }
}
