//! What tells the copies of a key apart: which write they are of, and whether they are still alive.
//!
//! The home of a key issues versions `(epoch, sequence)` in the order in which it takes writes and
//! removals. Later epochs are later versions, whoever was the home, since a home issues none before
//! every member has told it what it holds.
//!
//! What survives where two copies meet, which had not known each other (a node comes back, a map
//! changes), is decided by versions alone, so that every home comes to the same answer in whatever
//! order the copies are reported:
//!
//! 1. The *floor* is the latest removal or upsert that is known. What is older is dead.
//! 2. Of what is left the lowest version lives. It is the upsert itself, or else the first of the
//!    puts: a later put would have found the key taken, had it known.
//!
//! The rule is only right once everything is known. Of put 3, removal 4 and put 5, put 5 lives; who
//! judges before the removal was reported would keep 3 and drop 5 for ever.

use lunette_cluster_proto::map::Epoch;

/// The place of a write or a removal among all of its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The epoch of the home that issued it.
    pub epoch: Epoch,
    /// Its place among those that this home issued in this epoch, from 1.
    pub sequence: u64,
}

/// What a write does where the key is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WriteKind {
    /// It leaves what is there, and has succeeded.
    Put,
    /// It replaces what is there.
    Upsert,
}

/// What the bytes of an object are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// The value.
    #[default]
    Whole,
    /// A [manifest](crate::striped::Manifest): the value is in parts, which are objects of their own.
    Striped,
}

/// The number of a "remove all", as the map has it: what was written under an earlier one is dead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Generation(pub u64);

/// What a home knows of an object, and each copy carries, so that a home's table can be rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyInfo {
    /// The write that it is of.
    pub version: Version,
    /// What kind of write that was.
    pub kind: WriteKind,
    /// What its bytes are.
    pub form: Form,
    /// The generation in which it was claimed.
    pub generation: Generation,
    /// How many copies there are to be: 1 to [`COPIES_WANTED_MAX`].
    pub wanted: u8,
    /// Length of the value, in bytes.
    pub len_bytes: u32,
    /// CRC32C of the value.
    pub crc32c: u32,
}

/// Most copies of an object that a writer may ask for.
pub const COPIES_WANTED_MAX: u8 = 8;

/// A removal, or an upsert, as it outlives what it made obsolete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tombstone {
    /// Copies of earlier versions are dead; one of this very version is the upsert's own.
    pub version: Version,
    /// The generation in which it was made: copies of older ones are dead anyway.
    pub generation: Generation,
}

/// The version that lives among copies of one key, given the tombstone that is known.
#[must_use]
pub fn survivor(
    tombstone: Option<Version>,
    copies: impl Iterator<Item = (Version, WriteKind)> + Clone,
) -> Option<Version> {
    let upserts = copies.clone().filter(|copy| copy.1 == WriteKind::Upsert);
    let floor = upserts.map(|copy| copy.0).chain(tombstone).max();
    let alive = copies.map(|copy| copy.0);
    alive.filter(|version| Some(*version) >= floor).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sequence: u64) -> Version {
        let epoch = Epoch(1);
        Version { epoch, sequence }
    }

    #[test]
    fn whoever_meets_the_same_one_survives() {
        use WriteKind::{Put, Upsert};
        type Case<'a> = (Option<u64>, &'a [(u64, WriteKind)], Option<u64>);
        let cases: [Case<'_>; 10] = [
            (None, &[], None),
            (None, &[(3, Put)], Some(3)),
            (None, &[(5, Put), (3, Put)], Some(3)),
            (None, &[(3, Put), (5, Upsert)], Some(5)),
            (None, &[(3, Upsert), (5, Put)], Some(3)),
            (None, &[(3, Upsert), (5, Upsert)], Some(5)),
            (Some(4), &[(3, Put)], None),
            (Some(4), &[(3, Put), (5, Put)], Some(5)),
            (Some(4), &[(3, Upsert), (5, Put), (6, Put)], Some(5)),
            (Some(5), &[(3, Put), (5, Upsert), (6, Put)], Some(5)),
        ];
        for (tombstone, copies, expected) in cases {
            let copies = copies.iter().map(|&(version, kind)| (at(version), kind));
            let (tombstone, expected) = (tombstone.map(at), expected.map(at));
            assert_eq!(survivor(tombstone, copies.clone()), expected);
            assert_eq!(survivor(tombstone, copies.rev()), expected);
        }
    }

    #[test]
    fn a_later_epoch_is_later_whatever_its_sequence() {
        let next = Version {
            epoch: Epoch(2),
            sequence: 1,
        };
        assert!(next > at(u64::MAX) && at(2) > at(1));
    }
}
