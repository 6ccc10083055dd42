//! What elements of tensors are, as safetensors names them.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;

/// What the elements of a tensor are. Nothing here converts one to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "they are named as safetensors names them")]
pub enum Dtype {
    Bool,
    U8,
    I8,
    F4,
    F6E2M3,
    F6E3M2,
    F8E4M3,
    F8E5M2,
    F8E8M0,
    U16,
    I16,
    F16,
    Bf16,
    U32,
    I32,
    F32,
    U64,
    I64,
    F64,
    C64,
}

/// No type of elements that is known.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("no type of elements that is known")]
pub struct DtypeFault;

/// Each with its number on the wire, its bits, and its name.
const ALL: [(Dtype, u8, u64, &str); 20] = [
    (Dtype::Bool, 1, 8, "BOOL"),
    (Dtype::U8, 2, 8, "U8"),
    (Dtype::I8, 3, 8, "I8"),
    (Dtype::F4, 4, 4, "F4"),
    (Dtype::F6E2M3, 5, 6, "F6_E2M3"),
    (Dtype::F6E3M2, 6, 6, "F6_E3M2"),
    (Dtype::F8E4M3, 7, 8, "F8_E4M3"),
    (Dtype::F8E5M2, 8, 8, "F8_E5M2"),
    (Dtype::F8E8M0, 9, 8, "F8_E8M0"),
    (Dtype::U16, 10, 16, "U16"),
    (Dtype::I16, 11, 16, "I16"),
    (Dtype::F16, 12, 16, "F16"),
    (Dtype::Bf16, 13, 16, "BF16"),
    (Dtype::U32, 14, 32, "U32"),
    (Dtype::I32, 15, 32, "I32"),
    (Dtype::F32, 16, 32, "F32"),
    (Dtype::U64, 17, 64, "U64"),
    (Dtype::I64, 18, 64, "I64"),
    (Dtype::F64, 19, 64, "F64"),
    (Dtype::C64, 20, 64, "C64"),
];

impl Dtype {
    fn row(self) -> &'static (Self, u8, u64, &'static str) {
        let row = ALL.iter().find(|row| row.0 == self);
        row.expect("the table has each")
    }

    /// How many bits an element has.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.row().2
    }

    /// How many bytes so many elements have; `None` if that is no number of bytes.
    #[must_use]
    pub fn bytes_of(self, elements: u64) -> Option<u64> {
        let bits = elements.checked_mul(self.bits())?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    pub(super) fn to_wire(self) -> u8 {
        self.row().1
    }

    pub(super) fn from_wire(code: u8) -> Option<Self> {
        ALL.iter().find(|row| row.1 == code).map(|row| row.0)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().3)
    }
}

impl FromStr for Dtype {
    type Err = DtypeFault;

    fn from_str(name: &str) -> Result<Self, DtypeFault> {
        let row = ALL.iter().find(|row| row.3 == name);
        row.map(|row| row.0).ok_or(DtypeFault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_comes_back_by_name_and_number() {
        for (dtype, code, bits, name) in ALL {
            assert_eq!(name.parse(), Ok(dtype));
            assert_eq!(dtype.to_string(), name);
            assert_eq!((dtype.to_wire(), dtype.bits()), (code, bits));
            assert_eq!(Dtype::from_wire(code), Some(dtype));
        }
        assert_eq!(Dtype::from_wire(0), None);
        assert_eq!("f32".parse::<Dtype>(), Err(DtypeFault));
    }

    #[test]
    fn elements_are_whole_bytes_together() {
        assert_eq!(Dtype::Bf16.bytes_of(3), Some(6));
        assert_eq!(Dtype::F4.bytes_of(3), None);
        assert_eq!(Dtype::F6E2M3.bytes_of(4), Some(3));
        assert_eq!(Dtype::F64.bytes_of(u64::MAX), None);
    }
}
