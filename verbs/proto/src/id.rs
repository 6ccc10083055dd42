//! Ids of work requests: which queue pair, which of its lives, which request.
//!
//! A completion carries the id of its request and nothing else that can be trusted: numbers of
//! queue pairs are used again, and a failed completion's other fields are undefined. So every
//! request has an id, signalled or not, and the id finds its way alone:
//!
//! ```text
//!   63          48 47          33 32 31                           0
//!   | slot         | generation  | R | sequence                   |     R: a receive
//! ```

/// Queues that ids of one completion queue can tell apart.
pub const SLOTS_MAX: usize = 1 << 16;
const GENERATION_BITS: u32 = 15;

/// The id of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WrId {
    /// The queue's place in the table of its completion queue.
    pub slot: u16,
    /// Which of the queues that had this place; 15 bits.
    pub generation: u16,
    /// Whether it is a receive.
    pub is_receive: bool,
    /// Which request of the queue.
    pub sequence: u32,
}

impl WrId {
    /// As the adapter carries it.
    ///
    /// # Panics
    /// If the generation has more than 15 bits.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        assert!(u32::from(self.generation) < 1 << GENERATION_BITS, "15 bits");
        u64::from(self.slot) << 48
            | u64::from(self.generation) << 33
            | u64::from(self.is_receive) << 32
            | u64::from(self.sequence)
    }

    /// Back from the adapter. Every number is an id; whether of a live queue, its table knows.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        let field = |shift: u32, width: u32| bits >> shift & ((1 << width) - 1);
        let narrow = |value: u64| u16::try_from(value).expect("masked to its width");
        Self {
            slot: narrow(field(48, 16)),
            generation: narrow(field(33, GENERATION_BITS)),
            is_receive: field(32, 1) == 1,
            sequence: u32::try_from(field(0, 32)).expect("masked to its width"),
        }
    }
}

/// The generation after this one.
#[must_use]
pub const fn next_generation(generation: u16) -> u16 {
    generation.wrapping_add(1) & ((1 << GENERATION_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_number_is_an_id_and_comes_back(bits: u64) {
            prop_assert_eq!(WrId::from_bits(bits).to_bits(), bits);
        }
    }

    #[test]
    fn generations_wrap_within_their_bits() {
        assert_eq!(next_generation(0), 1);
        assert_eq!(next_generation((1 << GENERATION_BITS) - 1), 0);
    }

    #[test]
    #[should_panic(expected = "15 bits")]
    fn a_generation_beyond_its_bits_is_refused() {
        let id = WrId {
            slot: 0,
            generation: 1 << GENERATION_BITS,
            is_receive: false,
            sequence: 0,
        };
        let _bits = id.to_bits();
    }
}
