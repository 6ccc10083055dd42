//! The words in which an asker commands copies and an owner answers them.
//!
//! ```text
//!   word 0    commands submitted, ever      written by the asker
//!   word 8    1 while the asker may sleep
//!   word 16   commands carried out, ever    written by the owner
//!   word 24   1 while the owner may sleep
//!   words 64 + 8 i ..                       command i modulo COMMANDS_MAX, the asker's
//!   words 64 + 8 COMMANDS_MAX + i           its answer, the owner's
//! ```
//!
//! Commands are carried out in order. A slot is the owner's from the moment on in which its command is
//! counted as submitted until it is counted as carried out, and the asker's otherwise; so there are never
//! more than [`COMMANDS_MAX`] between the two counts, and whoever finds more knows that the other side
//! does not keep to the rules.

use super::super::message::Refusal;
use super::super::segment::SegmentId;

/// Commands that are with the owner.
pub const COMMANDS_MAX: usize = 64;
/// Most that one command copies: the owner's core does nothing else meanwhile.
pub const COMMAND_BYTES_MAX: u64 = 1024 * 1024;
/// Words of the whole.
pub const WORDS: usize = COMMANDS + 9 * COMMANDS_MAX;
/// Where the asker counts what it submitted.
pub const SUBMITTED: usize = 0;
/// Where the asker says that it may sleep.
pub const ASKER_SLEEPS: usize = 8;
/// Where the owner counts what it has carried out.
pub const CARRIED_OUT: usize = 16;
/// Where the owner says that it may sleep.
pub const OWNER_SLEEPS: usize = 24;
/// Words of one command.
pub const COMMAND_WORDS: usize = 5;

const COMMANDS: usize = 64;
const COMMAND_STRIDE: usize = 8;

/// The window of the session, where a command names a segment otherwise. No segment has this id.
pub const WINDOW: SegmentId = SegmentId::NONE;
/// Longest window: what a peer has this process map.
pub const WINDOW_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Copy from the asker's memory, which it lent, to the owner's; or between the window and the owner's
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Where from: a segment that the asker lent, or the window. With the window as its goal: a segment
    /// of the owner.
    pub from: SegmentId,
    /// Where in it.
    pub from_offset_bytes: u64,
    /// Where to: a segment of the owner, or the window.
    pub to: SegmentId,
    /// Where in it.
    pub to_offset_bytes: u64,
    /// How much.
    pub len_bytes: u64,
}

impl Command {
    /// As words.
    #[must_use]
    pub const fn to_words(self) -> [u64; COMMAND_WORDS] {
        [
            self.from.to_wire(),
            self.from_offset_bytes,
            self.to.to_wire(),
            self.to_offset_bytes,
            self.len_bytes,
        ]
    }

    /// From words; any are a command, and whether it can be carried out is the owner's to say.
    #[must_use]
    pub fn from_words(words: [u64; COMMAND_WORDS]) -> Self {
        let [from, from_offset_bytes, to, to_offset_bytes, len_bytes] = words;
        Self {
            from: SegmentId::from_wire(from),
            from_offset_bytes,
            to: SegmentId::from_wire(to),
            to_offset_bytes,
            len_bytes,
        }
    }
}

/// The first word of a command.
#[must_use]
pub fn command_at(number: u64) -> usize {
    COMMANDS + COMMAND_STRIDE * slot(number)
}

/// The word of its answer.
#[must_use]
pub fn answer_at(number: u64) -> usize {
    COMMANDS + COMMAND_STRIDE * COMMANDS_MAX + slot(number)
}

fn slot(number: u64) -> usize {
    usize::try_from(number % COMMANDS_MAX as u64).expect("less than the bound")
}

/// How many commands lie between two counts; `None` if there cannot be so many.
#[must_use]
pub fn between(carried_out: u64, submitted: u64) -> Option<usize> {
    let count = usize::try_from(submitted.wrapping_sub(carried_out)).ok()?;
    (count <= COMMANDS_MAX).then_some(count)
}

/// An answer as a word.
#[must_use]
pub fn answer_to_word(answer: Result<(), Refusal>) -> u64 {
    answer.map_or_else(|refusal| u64::from(refusal.to_wire()), |()| 0)
}

/// What an answer says. What no owner of this version would answer is [`Refusal::Malformed`].
///
/// # Errors
/// [`Refusal`]: nothing was copied.
pub fn answer_from_word(word: u64) -> Result<(), Refusal> {
    let status = u16::try_from(word).map_err(|_| Refusal::Malformed)?;
    Refusal::from_wire(status).map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_words_are_one() {
        let counts = [SUBMITTED, ASKER_SLEEPS, CARRIED_OUT, OWNER_SLEEPS];
        let mut words: BTreeSet<usize> = counts.into_iter().collect();
        for number in 0..COMMANDS_MAX as u64 {
            let command = command_at(number);
            assert!((command..command + COMMAND_WORDS).all(|word| words.insert(word)));
            assert!(words.insert(answer_at(number)));
            assert_eq!(command_at(number + COMMANDS_MAX as u64), command);
        }
        assert_eq!(words.last(), Some(&(WORDS - 1)));
    }

    #[test]
    fn counts_are_believed_within_the_bound_and_round_the_end() {
        assert_eq!(between(7, 7), Some(0));
        assert_eq!(between(u64::MAX, 63), Some(64));
        assert_eq!(between(u64::MAX, 64), None);
        assert_eq!(between(8, 7), None);
    }

    #[test]
    fn commands_and_answers_come_back() {
        let command = Command::from_words([u64::MAX, 1, 2, 3, 4]);
        assert_eq!(Command::from_words(command.to_words()), command);
        let refusals = (1..9).filter_map(Refusal::from_wire).map(Err);
        assert_eq!(WINDOW.to_wire(), 0);
        for answer in [Ok(())].into_iter().chain(refusals) {
            assert_eq!(answer_from_word(answer_to_word(answer)), answer);
        }
        assert_eq!(answer_from_word(1 << 40), Err(Refusal::Malformed));
    }
}
