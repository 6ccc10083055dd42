//! What is known of a block when it is used, in a few classes: how often it was used, and what the
//! request that used it looked like.

/// Uses after the first that are told apart; more of them count as this many.
pub const REUSES_MAX: u8 = 7;
const REUSES: usize = REUSES_MAX as usize + 1;
/// How many classes there are.
pub const CLASSES: usize = REUSES * 2 * Found::ALL.len();

/// How much of a request was found when it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Found {
    /// Nothing beyond its first block, or nobody knows: it opens something.
    #[default]
    Nothing,
    /// Less than half of its blocks.
    Some,
    /// At least half, and less than seven blocks out of eight.
    Most,
    /// At least seven blocks out of eight: a small step further, or a repetition.
    Nearly,
}

impl Found {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [Self::Nothing, Self::Some, Self::Most, Self::Nearly];

    /// Of a request of `blocks`, of which `leading_blocks` were known.
    #[must_use]
    pub const fn of(leading_blocks: usize, blocks: usize) -> Self {
        if leading_blocks <= 1 {
            Self::Nothing
        } else if leading_blocks * 2 < blocks {
            Self::Some
        } else if leading_blocks * 8 < blocks * 7 {
            Self::Most
        } else {
            Self::Nearly
        }
    }
}

/// What a caller knows of one use of a block. The default stands for "nothing".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Whether it is the last block of its request. The last block of a prompt is rarely full, so a
    /// prompt that goes on has another block in its place.
    pub is_last: bool,
    /// How much of its request was found.
    pub found: Found,
}

/// A class of blocks: below [`CLASSES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(u8);

impl Class {
    pub(crate) const ZERO: Self = Self(0);

    pub(crate) fn new(reuses: u8, used: Use) -> Self {
        let reuses = reuses.min(REUSES_MAX);
        let found = used.found as u8;
        Self((found * 2 + u8::from(used.is_last)) * (REUSES_MAX + 1) + reuses)
    }

    pub(crate) fn with_reuses(self, reuses: u8) -> Self {
        let reuses_max = REUSES_MAX + 1;
        Self(self.0 / reuses_max * reuses_max + reuses.min(REUSES_MAX))
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// One of the properties that make up a class, each with values from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Factor {
    Reuses,
    Last,
    Found,
}

impl Factor {
    pub(crate) const ALL: [Self; 3] = [Self::Reuses, Self::Last, Self::Found];
    pub(crate) const VALUES_MAX: usize = REUSES;

    pub(crate) const fn value(self, class: usize) -> usize {
        match self {
            Self::Reuses => class % REUSES,
            Self::Last => class / REUSES % 2,
            Self::Found => class / REUSES / 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_combination_has_a_class_of_its_own() {
        let mut seen = [false; CLASSES];
        for found in Found::ALL {
            for is_last in [false, true] {
                for reuses in 0..=REUSES_MAX {
                    let class = Class::new(reuses, Use { is_last, found }).index();
                    assert_eq!(Factor::Reuses.value(class), usize::from(reuses));
                    assert_eq!(Factor::Last.value(class), usize::from(is_last));
                    assert_eq!(Factor::Found.value(class), found as usize);
                    assert!(!seen[class], "{class} is there twice");
                    seen[class] = true;
                }
            }
        }
        assert_eq!(
            Class::new(200, Use::default()),
            Class::new(7, Use::default())
        );
    }

    #[test]
    fn what_was_found_is_told_by_the_leading_blocks() {
        let found = [(0, 9), (1, 1), (2, 9), (4, 8), (7, 8), (2, 2)].map(|(a, b)| Found::of(a, b));
        let expected = [
            Found::Nothing,
            Found::Nothing,
            Found::Some,
            Found::Most,
            Found::Nearly,
        ];
        assert_eq!(found[..5], expected);
        assert_eq!(found[5], Found::Nearly);
    }
}
