//! What two adapters can do together.

use thiserror::Error;

/// Largest path MTU, in bytes.
pub const MTU_BYTES_MAX: u16 = 4096;
/// Smallest path MTU, in bytes.
pub const MTU_BYTES_MIN: u16 = 256;

/// What one side's adapter and port can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The port's active MTU, in bytes: a power of two.
    pub mtu_bytes: u16,
    /// Reads and atomics that this side may have in flight at the peer.
    pub reads_out_max: u8,
    /// Reads and atomics of the peer that this side can serve at a time.
    pub reads_in_max: u8,
    /// Whether it does atomics.
    pub has_atomics: bool,
}

/// What a connection uses, seen from one side. A pure function of both sides' capabilities, so that
/// both sides come to the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Path MTU, in bytes.
    pub mtu_bytes: u16,
    /// Reads and atomics that this side may have in flight; none if 0.
    pub reads_out: u8,
    /// Reads and atomics that the peer may have in flight.
    pub reads_in: u8,
    /// Whether atomics may be posted.
    pub has_atomics: bool,
}

/// A side's capabilities make no sense.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("an MTU of {mtu_bytes} bytes does not exist")]
pub struct BadMtu {
    /// The MTU.
    pub mtu_bytes: u16,
}

impl Capabilities {
    /// Whether they can be met at all.
    ///
    /// # Errors
    /// [`BadMtu`]: the peer is not to be trusted with a connection.
    pub const fn check(&self) -> Result<(), BadMtu> {
        let mtu_bytes = self.mtu_bytes;
        if mtu_bytes.is_power_of_two() && MTU_BYTES_MIN <= mtu_bytes && mtu_bytes <= MTU_BYTES_MAX {
            Ok(())
        } else {
            Err(BadMtu { mtu_bytes })
        }
    }

    /// What this side and `peer` use together.
    #[must_use]
    pub fn agree(&self, peer: &Self) -> Agreement {
        Agreement {
            mtu_bytes: self.mtu_bytes.min(peer.mtu_bytes),
            reads_out: self.reads_out_max.min(peer.reads_in_max),
            reads_in: self.reads_in_max.min(peer.reads_out_max),
            has_atomics: self.has_atomics && peer.has_atomics,
        }
    }
}

/// An MTU as adapters code it: 1 is 256 bytes, and each one more doubles.
#[must_use]
pub fn mtu_from_code(code: u32) -> Option<u16> {
    let doublings = code.checked_sub(1)?;
    let mtu_bytes = MTU_BYTES_MIN
        .checked_shl(doublings)
        .filter(|_| doublings <= 4)?;
    Some(mtu_bytes)
}

/// The code of an MTU.
///
/// # Panics
/// If it is none.
#[must_use]
pub fn mtu_code(mtu_bytes: u16) -> u32 {
    let code = (1..=5).find(|code| mtu_from_code(*code) == Some(mtu_bytes));
    code.expect("an MTU is a power of two of 256 to 4096 bytes")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn capabilities() -> impl Strategy<Value = Capabilities> {
        (0..5_u32, any::<u8>(), any::<u8>(), any::<bool>()).prop_map(|(mtu, out, into, atomics)| {
            Capabilities {
                mtu_bytes: 256 << mtu,
                reads_out_max: out,
                reads_in_max: into,
                has_atomics: atomics,
            }
        })
    }

    proptest! {
        #[test]
        fn both_sides_agree_and_nobody_is_asked_for_more_than_it_can(
            (a, b) in (capabilities(), capabilities())
        ) {
            let (of_a, of_b) = (a.agree(&b), b.agree(&a));
            prop_assert_eq!(of_a.mtu_bytes, of_b.mtu_bytes);
            prop_assert_eq!(of_a.reads_out, of_b.reads_in);
            prop_assert_eq!(of_a.reads_in, of_b.reads_out);
            prop_assert_eq!(of_a.has_atomics, of_b.has_atomics);
            prop_assert!(of_a.mtu_bytes <= a.mtu_bytes && of_a.mtu_bytes <= b.mtu_bytes);
            prop_assert!(of_a.reads_out <= a.reads_out_max && of_a.reads_out <= b.reads_in_max);
        }
    }

    #[test]
    fn mtus_are_coded_and_others_refused() {
        for (code, mtu_bytes) in [(1, 256), (3, 1024), (5, 4096)] {
            assert_eq!(mtu_from_code(code), Some(mtu_bytes));
            assert_eq!(mtu_code(mtu_bytes), code);
        }
        assert_eq!(mtu_from_code(0), None);
        assert_eq!(mtu_from_code(6), None);
        let of = |mtu_bytes| Capabilities {
            mtu_bytes,
            reads_out_max: 1,
            reads_in_max: 1,
            has_atomics: false,
        };
        assert!(of(256).check().is_ok() && of(4096).check().is_ok());
        for mtu_bytes in [0, 128, 1500, 8192] {
            assert_eq!(of(mtu_bytes).check(), Err(BadMtu { mtu_bytes }));
        }
    }
}
