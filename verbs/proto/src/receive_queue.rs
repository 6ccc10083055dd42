//! Accounting of receives, of a queue pair's own queue or of one that several share.
//!
//! Receives of a shared queue end in any order, so each has a place and a generation; the driver
//! keeps what belongs to a receive at its place. After an error every posted receive yields a
//! completion too.

use thiserror::Error;

use crate::status::Status;

/// Deepest receive queue.
pub const DEPTH_MAX: u32 = 1 << 15;

/// The queue holds as many receives as it can.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("receive queue full")]
pub struct ReceiveQueueFull;

/// A completion that belongs to no posted receive. The adapter or its driver is at fault.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a completion of receive {sequence:#x}, which is not posted")]
pub struct UnknownReceive {
    /// The number that it named.
    pub sequence: u32,
}

/// A receive that is over. Its memory is the program's again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its place.
    pub place: u16,
    /// How it ended.
    pub status: Status,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: u16,
    is_posted: bool,
}

/// The accounting of one receive queue.
#[derive(Debug)]
pub struct ReceiveQueue {
    slots: Box<[Slot]>,
    free: Vec<u16>,
}

impl ReceiveQueue {
    /// An empty queue.
    ///
    /// # Panics
    /// If the depth is not within 1 to [`DEPTH_MAX`].
    #[must_use]
    pub fn new(depth: u32) -> Self {
        assert!((1..=DEPTH_MAX).contains(&depth), "depth {depth}");
        let places = u16::try_from(depth).expect("bounded by DEPTH_MAX");
        let empty = Slot {
            generation: 0,
            is_posted: false,
        };
        Self {
            slots: vec![empty; depth as usize].into(),
            free: (0..places).rev().collect(),
        }
    }

    /// Receives that may be posted now.
    #[must_use]
    pub fn credits(&self) -> u32 {
        u32::try_from(self.free.len()).expect("bounded by DEPTH_MAX")
    }

    /// Receives that are with the adapter.
    #[must_use]
    pub fn posted(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("bounded by DEPTH_MAX") - self.credits()
    }

    /// Takes a place for a receive: its number, for the id, whose low half is the place.
    ///
    /// # Errors
    /// [`ReceiveQueueFull`]: wait for one to end.
    pub fn stage(&mut self) -> Result<u32, ReceiveQueueFull> {
        let place = self.free.pop().ok_or(ReceiveQueueFull)?;
        let slot = &mut self.slots[usize::from(place)];
        slot.is_posted = true;
        Ok(u32::from(slot.generation) << 16 | u32::from(place))
    }

    /// The adapter did not take it.
    ///
    /// # Panics
    /// If it is not posted.
    pub fn refused(&mut self, sequence: u32) {
        let ended = self.complete(sequence, Status::Flushed);
        assert!(ended.is_ok(), "a refused receive was staged");
    }

    /// The adapter completed a receive.
    ///
    /// # Errors
    /// [`UnknownReceive`]; nothing has changed then.
    pub fn complete(&mut self, sequence: u32, status: Status) -> Result<Received, UnknownReceive> {
        let place = place_of(sequence);
        let unknown = UnknownReceive { sequence };
        let slot = self.slots.get_mut(usize::from(place)).ok_or(unknown)?;
        if !slot.is_posted || u32::from(slot.generation) != sequence >> 16 {
            return Err(unknown);
        }
        slot.is_posted = false;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(place);
        Ok(Received { place, status })
    }

    /// The queue is gone: what was posted comes out, as flushed.
    pub fn destroyed(&mut self, out: &mut Vec<Received>) {
        for place in 0..self.slots.len() {
            let slot = self.slots[place];
            if slot.is_posted {
                let place = u32::try_from(place).expect("bounded by DEPTH_MAX");
                let ended =
                    self.complete(u32::from(slot.generation) << 16 | place, Status::Flushed);
                out.extend(ended);
            }
        }
    }
}

/// The place in a receive's number.
#[must_use]
pub fn place_of(sequence: u32) -> u16 {
    u16::try_from(sequence & 0xffff).expect("masked to its width")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_receive_ends_once_and_places_are_never_shared(
            ops in prop::collection::vec((0..3_u8, any::<prop::sample::Index>()), 0..200)
        ) {
            let mut queue = ReceiveQueue::new(5);
            let mut posted: Vec<u32> = Vec::new();
            let mut over: Vec<u32> = Vec::new();
            for (op, which) in ops {
                match op {
                    0 => match queue.stage() {
                        Ok(sequence) => posted.push(sequence),
                        Err(ReceiveQueueFull) => prop_assert_eq!(posted.len(), 5),
                    },
                    1 if !posted.is_empty() => {
                        let sequence = posted.remove(which.index(posted.len()));
                        let ended = queue.complete(sequence, Status::Success);
                        prop_assert_eq!(ended.map(|r| r.place), Ok(place_of(sequence)));
                        over.push(sequence);
                    }
                    _ if !over.is_empty() => {
                        let sequence = over[which.index(over.len())];
                        let again = queue.complete(sequence, Status::Success);
                        prop_assert_eq!(again, Err(UnknownReceive { sequence }));
                    }
                    _ => {}
                }
                let places: BTreeSet<u16> = posted.iter().copied().map(place_of).collect();
                prop_assert_eq!(places.len(), posted.len());
                prop_assert_eq!(queue.posted() as usize, posted.len());
            }
            let mut left = Vec::new();
            queue.destroyed(&mut left);
            prop_assert_eq!(left.len(), posted.len());
            prop_assert_eq!(queue.credits(), 5);
        }
    }

    #[test]
    fn a_refused_receive_gives_its_place_back() {
        let mut queue = ReceiveQueue::new(1);
        let first = queue.stage().unwrap();
        assert_eq!(queue.stage(), Err(ReceiveQueueFull));
        queue.refused(first);
        assert_ne!(queue.stage().unwrap(), first, "another generation");
    }
}
