//! How long a value is likely to be of which nobody says: what is got into room for it needs no question about its length
//! first, which over a network is half of the time that a short one takes.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Longest that is guessed: what is longer takes so long that a question does not count, and would be sent in vain where the
/// room is too short for it.
const GUESSED_BYTES_MAX: usize = 1 << 20;
/// Share of the guess by which each value that is shorter makes it shorter: 1 / 2^SHIFT.
const LESS_SHIFT: u32 = 3;

/// The length of the longest values of late, of cores and threads that share this.
#[derive(Debug, Default)]
pub(super) struct Lengths(AtomicUsize);

impl Lengths {
    /// Room in bytes that the next value is likely to fit; `None` if it is better asked how long it is.
    pub(super) fn guess(&self) -> Option<usize> {
        let bytes = self.0.load(Ordering::Relaxed);
        (1..=GUESSED_BYTES_MAX).contains(&bytes).then_some(bytes)
    }

    /// A value was so long.
    pub(super) fn learn(&self, len_bytes: usize) {
        let bytes = self.0.load(Ordering::Relaxed);
        // Where two learn at the same time, one of them is not learnt from.
        (self.0).store(
            len_bytes.max(bytes - (bytes >> LESS_SHIFT)),
            Ordering::Relaxed,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_is_as_long_as_the_longest_of_late() {
        let lengths = Lengths::default();
        assert_eq!(lengths.guess(), None, "nothing is known");
        for len_bytes in [100, 4096, 4000, 3900] {
            lengths.learn(len_bytes);
        }
        let guess = lengths.guess().expect("known");
        assert!((3900..=4096).contains(&guess), "{guess}");
        for _ in 0..100 {
            lengths.learn(100);
        }
        let guess = lengths.guess().expect("known");
        assert!((100..=107).contains(&guess), "it forgets: {guess}");
        lengths.learn(GUESSED_BYTES_MAX);
        assert_eq!(lengths.guess(), Some(GUESSED_BYTES_MAX));
        lengths.learn(GUESSED_BYTES_MAX + 1);
        assert_eq!(lengths.guess(), None, "that takes its time anyway");
    }
}
