//! Where choices come from.

use lunette_runtime_core::random::SplitMix64;

/// Something that makes choices.
pub trait Source {
    /// Any byte.
    fn u8(&mut self) -> u8;

    /// Whether nothing is left but zeros: a script ends there.
    fn is_spent(&self) -> bool;

    /// Below `bound`, which is above 0.
    fn below(&mut self, bound: u8) -> u8 {
        self.u8() % bound
    }

    /// Yes or no.
    fn flag(&mut self) -> bool {
        self.u8() & 1 != 0
    }

    /// So many bytes.
    fn array<const N: usize>(&mut self) -> [u8; N] {
        core::array::from_fn(|_| self.u8())
    }
}

/// Bytes with no end: what is missing reads as 0.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// All of these, in order.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next bytes as they are, fewer where they end.
    pub fn take(&mut self, len_max: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len_max.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

impl Source for Bytes<'_> {
    fn u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    fn is_spent(&self) -> bool {
        self.0.is_empty()
    }
}

/// A seed never runs dry.
impl Source for SplitMix64 {
    fn u8(&mut self) -> u8 {
        let [.., high] = self.next().to_le_bytes();
        high
    }

    fn is_spent(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_in_order_and_end_in_zeros() {
        let mut bytes = Bytes::new(&[7, 1, 2, 3]);
        assert_eq!((bytes.below(4), bytes.flag()), (3, true));
        assert_eq!((bytes.take(1), bytes.is_spent()), (&[2][..], false));
        assert_eq!(bytes.array(), [3, 0, 0]);
        assert!(bytes.is_spent() && bytes.take(5).is_empty());
    }

    #[test]
    fn a_seed_fixes_what_it_draws() {
        let draw = |seed| SplitMix64::new(seed).array::<8>();
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!(!SplitMix64::new(1).is_spent());
    }
}
