//! What the log knows of an object.

/// The hash by which the store finds a key: its 128-bit fingerprint. Who reads a record compares the key, which
/// is in front of the payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub u128);

/// The store's version of an object, as its home issued it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The epoch of the home that issued it.
    pub epoch: u64,
    /// Its place among those of this home and epoch.
    pub sequence: u64,
}

/// An object as the log keeps it: all but key and payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The key's.
    pub fingerprint: Fingerprint,
    /// Which write it is of.
    pub version: Version,
    /// The generation ("remove all") in which it was written: those before the log's are dead.
    pub generation: u64,
    /// What the owner wants to find again, such as kind, form and copies wanted. The log does not look at it.
    pub notes: u32,
    /// Length of the payload.
    pub len_bytes: u32,
    /// CRC32C of the payload, as the store keeps it. The log never computes it for what is appended.
    pub crc32c: u32,
}
