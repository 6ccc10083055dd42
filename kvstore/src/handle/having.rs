//! Whether the homes of keys have the objects themselves.
//!
//! Who is no member puts things at their homes; members put them at their own nodes first, and then a home knows where an object is,
//! and no more. A thread that asks a home for the object does so in vain there, and is better off with a core, which asks on.

use std::sync::atomic::{AtomicU32, Ordering};

/// So many answers without an object, one after the other, are taken for how it is.
const IN_VAIN_MAX: u32 = 4;
/// How often it is tried all the same.
const TRIED_EACH: u32 = 64;

/// What threads have learnt of that lately.
#[derive(Debug, Default)]
pub(super) struct Having {
    in_vain: AtomicU32,
}

impl Having {
    /// Whether it is worth asking a home.
    pub(super) fn is_likely(&self) -> bool {
        let in_vain = self.in_vain.load(Ordering::Relaxed);
        if in_vain < IN_VAIN_MAX {
            return true;
        }
        // Where two threads come at the same time, one of them is not counted.
        self.in_vain.store(in_vain + 1, Ordering::Relaxed);
        let is_tried = (in_vain - IN_VAIN_MAX + 1).is_multiple_of(TRIED_EACH);
        if is_tried {
            self.in_vain.store(IN_VAIN_MAX, Ordering::Relaxed);
        }
        is_tried
    }

    /// A home has answered: whether it had, or knew that there was none, of anything it was asked for.
    pub(super) fn learn(&self, had_any: bool) {
        if had_any {
            self.in_vain.store(0, Ordering::Relaxed);
        } else if self.in_vain.load(Ordering::Relaxed) < IN_VAIN_MAX {
            self.in_vain.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_that_have_nothing_are_asked_seldom_until_one_has_something() {
        let having = Having::default();
        for _ in 0..IN_VAIN_MAX {
            assert!(having.is_likely());
            having.learn(false);
        }
        let tried = |having: &Having| (0..640).filter(|_| having.is_likely()).count();
        assert_eq!(tried(&having), 10);
        having.learn(false);
        assert_eq!(tried(&having), 10);
        having.learn(true);
        assert_eq!(tried(&having), 640);
        // A few in between make no difference.
        for had_any in [false, false, false, true, false, false, false] {
            having.learn(had_any);
        }
        assert!(having.is_likely());
    }
}
