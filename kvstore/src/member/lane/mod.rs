//! Lanes: threads of other processes of this host put objects at a core by words and memory that both share, past their
//! own cores and every socket.
//!
//! ```text
//!   thread                                                 core
//!     takes a slot, and as much of the window as it needs
//!     writes the request and the value into the window
//!     says in the slot where they are
//!     sets the slot's bit; wakes the core if that sleeps     -->
//!                                                            looks at the request once, copies the value to where it
//!                                                            stays, and sums it up as it does
//!     looks for a while, then sleeps on the slot           <--  the answer in the slot; wakes the thread if that sleeps
//! ```
//!
//! Words, of which the core hands the file out when it is asked for over the [local channel](super::one_sided):
//!
//! ```text
//!   0        one more than the number of the processor on which the core has fallen asleep, or 0; who clears it sends it a packet
//!   1        one more than that of the processor on which the thread ran that has asked or woken the core last, or 0
//!   8        a bit for each slot in which something has been asked and was not looked at yet
//!   16 ..    64 slots of 16 words each
//!     0      its state, on whose lower half the thread sleeps
//!     1      where in the window the request begins, and its length in the upper half
//!     2      where the value begins, and its length
//!     3      how much of the value is there
//!     4      the answer's status, and in the upper half how many bytes of an answer follow
//!     5 ..   they
//! ```
//!
//! What is longer than a piece is asked before it is there: thread and core copy at the same time, a piece after the other.
//!
//! A slot, and what goes with it of the window, are the core's from when its bit is set until its state is `ANSWERED`, also if
//! nobody waits any more. The window is the client's memory, which it may write at any time: so the core checks what it has
//! copied, never what lies there. What it does not understand ends the channel, and with it the lane.
//!
//! | file | subject |
//! |---|---|
//! | `asker` | [`Lane`], for threads |
//! | `owner` | [`Lanes`], at the core |

mod asker;
mod owner;

use std::ops::Range;

use lunette_runtime::this_processor;

pub(crate) use asker::{HandedOver, Lane, Outcome};
pub(super) use owner::{Lanes, Taken};

/// Requests of one lane at a time.
pub(crate) const SLOTS_MAX: u32 = 64;
/// Length of the window in bytes: memory is taken as far as it has been used.
pub(crate) const LANE_WINDOW_BYTES: u32 = 16 << 20;
/// Longest value that is put so: what is longer would keep the core from others for too long.
pub(crate) const HANDED_BYTES_MAX: usize = 4 << 20;

/// Bytes that are copied before they are told of, and before others on the core have their turn.
const PIECE_BYTES: usize = 256 << 10;

const OWNER_SLEEPS: usize = 0;
const ASKED_FROM: usize = 1;
const SUBMITTED: usize = 8;
const SLOTS: usize = 16;
const SLOT_WORDS: usize = 16;
/// How many words a lane has.
pub(crate) const LANE_WORDS: usize = SLOTS + SLOTS_MAX as usize * SLOT_WORDS;

const STATE: usize = 0;
const REQUEST: usize = 1;
const VALUE: usize = 2;
const READY: usize = 3;
const STATUS: usize = 4;
const ANSWER: usize = 5;
/// Longest answer, in bytes.
const ANSWER_BYTES_MAX: usize = (SLOT_WORDS - ANSWER) * 8;

/// States of a slot that was asked in.
const ASKED: u64 = 1;
/// As [`ASKED`], and its thread sleeps.
const ASLEEP: u64 = 2;
const ANSWERED: u64 = 3;
/// The thread is woken as there is no lane any more.
const ENDED: u64 = 4;

/// What tells on which processor this thread runs.
fn processor_word() -> u64 {
    this_processor() as u64 + 1
}

/// Where a word of a slot is.
const fn at(slot: u32, word: usize) -> usize {
    SLOTS + slot as usize * SLOT_WORDS + word
}

/// A part of the window, as a word.
fn to_word(part: &Range<u32>) -> u64 {
    u64::from(part.start) | u64::from(part.end - part.start) << 32
}

/// The part of the window that a word names; `None` if it does not lie inside.
fn from_word(word: u64) -> Option<Range<u32>> {
    let lower = |word: u64| u32::try_from(word & u64::from(u32::MAX)).expect("a half");
    let (start, len) = (lower(word), lower(word >> 32));
    let end = start.checked_add(len)?;
    (end <= LANE_WINDOW_BYTES).then_some(start..end)
}

/// The set bits of a word, from the lowest on.
fn bits_of(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let lowest = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(lowest)
    })
}

#[cfg(test)]
mod tests {
    use lunette_runtime::topology;
    use proptest::prelude::*;

    use super::*;

    /// This thread stays on its processor.
    pub(super) fn stay_here() {
        topology::pin_current_thread(this_processor()).expect("it runs there");
    }

    #[test]
    fn slots_do_not_meet_and_end_with_the_words() {
        assert_eq!(
            at(SLOTS_MAX - 1, ANSWER) * 8 + ANSWER_BYTES_MAX,
            LANE_WORDS * 8
        );
        assert_eq!(at(1, STATE), at(0, ANSWER) + ANSWER_BYTES_MAX / 8);
        assert_eq!(bits_of(1 << 63 | 0b101).collect::<Vec<_>>(), [0, 2, 63]);
    }

    proptest! {
        #[test]
        fn no_word_names_what_is_outside(word: u64) {
            if let Some(part) = from_word(word) {
                prop_assert!(part.start <= part.end && part.end <= LANE_WINDOW_BYTES);
                prop_assert_eq!(to_word(&part), word);
            }
        }

        #[test]
        fn parts_are_named_by_their_words(start in 0..=LANE_WINDOW_BYTES, len in 0..=LANE_WINDOW_BYTES) {
            let part = start..start + len;
            let is_inside = part.end <= LANE_WINDOW_BYTES;
            prop_assert_eq!(from_word(to_word(&part)), is_inside.then_some(part));
        }
    }
}
