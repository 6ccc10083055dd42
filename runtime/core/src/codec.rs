//! Bounded reading and writing of little-endian fields.
//!
//! A [`Reader`] never panics and never reads past its end: every short read is a [`Truncated`].

use thiserror::Error;

/// The bytes ended before the field did.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("truncated: a field needs {needed_bytes} bytes and {left_bytes} are left")]
pub struct Truncated {
    /// Bytes that the field needs.
    pub needed_bytes: usize,
    /// Bytes that were left.
    pub left_bytes: usize,
}

/// Reads fields from the front of a slice.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader of all of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read yet.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether everything has been read.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// [`Truncated`] if fewer are left; nothing is consumed then.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Truncated> {
        let Some((head, rest)) = self.rest.split_at_checked(len) else {
            return Err(Truncated {
                needed_bytes: len,
                left_bytes: self.rest.len(),
            });
        };
        self.rest = rest;
        Ok(head)
    }

    /// The next `N` bytes as an array.
    ///
    /// # Errors
    /// [`Truncated`] if fewer are left; nothing is consumed then.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let Some((head, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(Truncated {
                needed_bytes: N,
                left_bytes: self.rest.len(),
            });
        };
        self.rest = rest;
        Ok(*head)
    }

    /// The next byte.
    ///
    /// # Errors
    /// [`Truncated`] at the end.
    pub fn u8(&mut self) -> Result<u8, Truncated> {
        self.array().map(u8::from_le_bytes)
    }

    /// The next 16-bit field.
    ///
    /// # Errors
    /// [`Truncated`] if fewer than 2 bytes are left.
    pub fn u16(&mut self) -> Result<u16, Truncated> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next 32-bit field.
    ///
    /// # Errors
    /// [`Truncated`] if fewer than 4 bytes are left.
    pub fn u32(&mut self) -> Result<u32, Truncated> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next 64-bit field.
    ///
    /// # Errors
    /// [`Truncated`] if fewer than 8 bytes are left.
    pub fn u64(&mut self) -> Result<u64, Truncated> {
        self.array().map(u64::from_le_bytes)
    }

    /// The next 128-bit field.
    ///
    /// # Errors
    /// [`Truncated`] if fewer than 16 bytes are left.
    pub fn u128(&mut self) -> Result<u128, Truncated> {
        self.array().map(u128::from_le_bytes)
    }

    /// Bytes behind their 16-bit length, as [`Writer::short_bytes`] writes them.
    ///
    /// # Errors
    /// [`Truncated`] if the length or the bytes are cut off.
    pub fn short_bytes(&mut self) -> Result<&'a [u8], Truncated> {
        let len = self.u16()?;
        self.bytes(usize::from(len))
    }
}

/// Appends fields to a vector.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    /// A writer that appends to `out`.
    pub const fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out }
    }

    /// Appends raw bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.out.extend_from_slice(bytes);
        self
    }

    /// Appends one byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    /// Appends a 16-bit field.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends a 32-bit field.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends a 64-bit field.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends a 128-bit field.
    pub fn u128(&mut self, value: u128) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends `bytes` behind their 16-bit length.
    ///
    /// # Panics
    /// If `bytes` is longer than 65,535: callers bound their fields before they encode them.
    pub fn short_bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let len = u16::try_from(bytes.len()).expect("short bytes are bounded by the caller");
        self.u16(len).bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_in_order() {
        let mut out = Vec::new();
        Writer::new(&mut out)
            .u8(1)
            .u16(2)
            .u32(3)
            .u64(4)
            .u128(5)
            .short_bytes(b"key")
            .bytes(b"!");
        let mut reader = Reader::new(&out);
        assert_eq!(reader.u8(), Ok(1));
        assert_eq!(reader.u16(), Ok(2));
        assert_eq!(reader.u32(), Ok(3));
        assert_eq!(reader.u64(), Ok(4));
        assert_eq!(reader.u128(), Ok(5));
        assert_eq!(reader.short_bytes(), Ok(&b"key"[..]));
        assert_eq!(reader.rest(), b"!");
        assert!(!reader.is_empty());
    }

    #[test]
    fn a_short_read_is_an_error_and_consumes_nothing() {
        let mut reader = Reader::new(&[1, 2, 3]);
        assert_eq!(
            reader.u32(),
            Err(Truncated {
                needed_bytes: 4,
                left_bytes: 3
            })
        );
        assert_eq!(
            reader.bytes(4),
            Err(Truncated {
                needed_bytes: 4,
                left_bytes: 3
            })
        );
        assert_eq!(reader.bytes(3), Ok(&[1, 2, 3][..]));
        assert!(reader.is_empty());
    }

    #[test]
    fn a_length_beyond_the_end_is_truncated() {
        let mut reader = Reader::new(&[9, 0, 1]);
        assert_eq!(
            reader.short_bytes(),
            Err(Truncated {
                needed_bytes: 9,
                left_bytes: 1
            })
        );
    }
}
