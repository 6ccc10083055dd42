//! NVMe qualified names.

use core::fmt;

use thiserror::Error;

/// Longest name, in bytes (NVMe Base 2.0, "NVMe Qualified Names").
pub const NQN_BYTES_MAX: usize = 223;
/// Length of the field that holds a name, in bytes.
pub const NQN_FIELD_BYTES: usize = 256;
/// The name of every discovery subsystem.
pub const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

const PREFIX: &str = "nqn.";

/// Why something is no name.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NqnFault {
    /// Longer than [`NQN_BYTES_MAX`], or its field has no end.
    #[error("a qualified name has at most {NQN_BYTES_MAX} bytes")]
    TooLong,
    /// It does not begin with `nqn.`, or holds what is no graphic character.
    #[error("a qualified name begins with `nqn.` and has no blanks")]
    Malformed,
}

/// The name of a host or a subsystem.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn(Box<str>);

impl Nqn {
    /// Checks a name.
    ///
    /// # Errors
    /// [`NqnFault`].
    pub fn new(name: &str) -> Result<Self, NqnFault> {
        if name.len() > NQN_BYTES_MAX {
            return Err(NqnFault::TooLong);
        }
        let is_graphic = name.bytes().all(|byte| byte.is_ascii_graphic());
        if !name.starts_with(PREFIX) || name.len() == PREFIX.len() || !is_graphic {
            return Err(NqnFault::Malformed);
        }
        Ok(Self(name.into()))
    }

    /// The name of discovery subsystems.
    #[must_use]
    pub fn discovery() -> Self {
        Self(DISCOVERY.into())
    }

    /// Reads a field: the name, and zeroes.
    ///
    /// # Errors
    /// [`NqnFault`].
    pub fn decode(field: &[u8; NQN_FIELD_BYTES]) -> Result<Self, NqnFault> {
        let end = field.iter().position(|&byte| byte == 0);
        let name = &field[..end.ok_or(NqnFault::TooLong)?];
        Self::new(core::str::from_utf8(name).map_err(|_| NqnFault::Malformed)?)
    }

    /// The name as a field.
    #[must_use]
    pub fn encode(&self) -> [u8; NQN_FIELD_BYTES] {
        let mut field = [0; NQN_FIELD_BYTES];
        field[..self.0.len()].copy_from_slice(self.0.as_bytes());
        field
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the name of discovery subsystems.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        &*self.0 == DISCOVERY
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nqn({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_through_fields() {
        let longest = format!("nqn.{}", "x".repeat(NQN_BYTES_MAX - 4));
        for name in [DISCOVERY, "nqn.x", &longest] {
            let name = Nqn::new(name).expect("a name");
            assert_eq!(Nqn::decode(&name.encode()), Ok(name));
        }
        assert!(Nqn::discovery().is_discovery());
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let too_long = format!("nqn.{}", "x".repeat(NQN_BYTES_MAX - 3));
        assert_eq!(Nqn::new(&too_long), Err(NqnFault::TooLong));
        for name in ["", "nqn.", "iqn.x", "nqn.a b", "nqn.\u{e4}"] {
            assert_eq!(Nqn::new(name), Err(NqnFault::Malformed), "{name}");
        }
        assert_eq!(Nqn::decode(&[b'n'; 256]), Err(NqnFault::TooLong));
        assert_eq!(Nqn::decode(&[0; 256]), Err(NqnFault::Malformed));
        let mut field = Nqn::discovery().encode();
        field[4] = 0xff;
        assert_eq!(Nqn::decode(&field), Err(NqnFault::Malformed));
    }
}
