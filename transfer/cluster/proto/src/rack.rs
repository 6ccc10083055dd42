//! What fails together: a label that operators give to nodes.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;

/// Longest label, in bytes.
pub const RACK_BYTES_MAX: usize = 16;

/// Nodes of one rack lose power, or their switch, together: copies of an object go to different ones, where
/// there are such. Nodes without a label count as one rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rack([u8; RACK_BYTES_MAX]);

/// No label of a rack: it has 1 to [`RACK_BYTES_MAX`] bytes of printable ASCII without a space.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a rack is named by 1 to {RACK_BYTES_MAX} printable ASCII characters without a space")]
pub struct RackFault;

impl Rack {
    /// The rack of nodes that have no label.
    pub const NONE: Self = Self([0; RACK_BYTES_MAX]);

    /// Whether it has a label.
    #[must_use]
    pub const fn is_named(self) -> bool {
        self.0[0] != 0
    }

    /// Its label; empty if it has none.
    #[must_use]
    pub fn label(&self) -> &str {
        let end = self.0.iter().position(|&byte| byte == 0);
        let bytes = &self.0[..end.unwrap_or(RACK_BYTES_MAX)];
        core::str::from_utf8(bytes).expect("it was checked when it was made")
    }

    /// Its label, padded with zeros.
    pub(crate) const fn bytes(&self) -> &[u8; RACK_BYTES_MAX] {
        &self.0
    }

    /// The rack whose padded label this is; none if there is only padding.
    pub(crate) fn from_bytes(bytes: &[u8; RACK_BYTES_MAX]) -> Result<Self, RackFault> {
        let end = bytes.iter().position(|&byte| byte == 0);
        let (label, padding) = bytes.split_at(end.unwrap_or(RACK_BYTES_MAX));
        let is_label = label.iter().all(u8::is_ascii_graphic);
        if is_label && padding.iter().all(|&byte| byte == 0) {
            Ok(Self(*bytes))
        } else {
            Err(RackFault)
        }
    }
}

impl FromStr for Rack {
    type Err = RackFault;

    fn from_str(label: &str) -> Result<Self, RackFault> {
        if label.is_empty() {
            return Err(RackFault);
        }
        let mut bytes = [0; RACK_BYTES_MAX];
        let place = bytes.get_mut(..label.len()).ok_or(RackFault)?;
        place.copy_from_slice(label.as_bytes());
        Self::from_bytes(&bytes)
    }
}

impl fmt::Display for Rack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_checked_from_both_sides() {
        for label in ["a", "dc1/r7:u12", "0123456789abcdef"] {
            let rack: Rack = label.parse().expect("a label");
            assert_eq!((rack.label(), rack.is_named()), (label, true));
            assert_eq!(Rack::from_bytes(rack.bytes()), Ok(rack));
        }
        for label in ["", "0123456789abcdefg", "a b", "a\0b", "r\u{e4}ck", "a\n"] {
            assert_eq!(label.parse::<Rack>(), Err(RackFault), "{label:?}");
        }
        assert_eq!((Rack::NONE.label(), Rack::NONE.is_named()), ("", false));
        assert_eq!(Rack::from_bytes(Rack::NONE.bytes()), Ok(Rack::NONE));
    }
}
