//! How a request ended.

/// How a request ended; its code is the frame's `status`. Codes that this version does not know
/// survive as [`Status::Other`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Done; the answer carries the result.
    Ok,
    /// The key is not resident.
    NotFound,
    /// The key was resident already: the put kept the old value and marked it as used.
    Touched,
    /// Another put of the key is under way.
    Busy,
    /// There is no room that eviction could make now.
    Full,
    /// The object never fits this node.
    TooLarge,
    /// The key's home is another core or node: the sides have different maps.
    WrongHome,
    /// The request breaks the protocol.
    BadRequest,
    /// The payload does not match its checksum.
    Corrupt,
    /// The node is shutting down.
    Draining,
    /// The node does not know the operation.
    Unsupported,
    /// The node is at fault.
    Internal,
    /// The node is cut off from its cluster, or no member of one, and may not serve this.
    Unavailable,
    /// The request is for another life of the node, or for a core that it has not.
    WrongSeat,
    /// A range does not lie inside the object, whose length the answer tells.
    OutOfRange,
    /// Not all bytes of a reserved object have been written.
    Unfinished,
    /// The answer tells where the bytes lie, and has none.
    Described,
    /// The object is in parts: the answer tells which.
    Striped,
    /// The bytes have been written to where the asker wants them.
    Pushed,
    /// Bytes were being written, and an adapter has failed. The queue pair is to be given up: until then what is
    /// on its way may land.
    PushFailed,
    /// It was to be pinned for ever, and too much is: of that something has to be removed first.
    PinnedFull,
    /// The answer does not go in a message: the same is to be asked over the connection.
    OverConnection,
    /// The tenant has pinned so much for ever that what it may have leaves too little: of that something has to be removed first.
    OverQuota,
    /// As many tenants as may have quotas have one.
    TooManyQuotas,
    /// No other member takes objects: this one cannot be emptied.
    LastMember,
    /// A status of a later version, by its code.
    Other(u16),
}

impl Status {
    /// All statuses that this version knows; the code of each is its index.
    pub const KNOWN: [Self; 25] = [
        Self::Ok,
        Self::NotFound,
        Self::Touched,
        Self::Busy,
        Self::Full,
        Self::TooLarge,
        Self::WrongHome,
        Self::BadRequest,
        Self::Corrupt,
        Self::Draining,
        Self::Unsupported,
        Self::Internal,
        Self::Unavailable,
        Self::WrongSeat,
        Self::OutOfRange,
        Self::Unfinished,
        Self::Described,
        Self::Striped,
        Self::Pushed,
        Self::PushFailed,
        Self::PinnedFull,
        Self::OverConnection,
        Self::OverQuota,
        Self::TooManyQuotas,
        Self::LastMember,
    ];

    /// Its code on the wire.
    #[must_use]
    pub const fn code(self) -> u16 {
        match self {
            Self::Ok => 0,
            Self::NotFound => 1,
            Self::Touched => 2,
            Self::Busy => 3,
            Self::Full => 4,
            Self::TooLarge => 5,
            Self::WrongHome => 6,
            Self::BadRequest => 7,
            Self::Corrupt => 8,
            Self::Draining => 9,
            Self::Unsupported => 10,
            Self::Internal => 11,
            Self::Unavailable => 12,
            Self::WrongSeat => 13,
            Self::OutOfRange => 14,
            Self::Unfinished => 15,
            Self::Described => 16,
            Self::Striped => 17,
            Self::Pushed => 18,
            Self::PushFailed => 19,
            Self::PinnedFull => 20,
            Self::OverConnection => 21,
            Self::OverQuota => 22,
            Self::TooManyQuotas => 23,
            Self::LastMember => 24,
            Self::Other(code) => code,
        }
    }

    /// The status of a code on the wire.
    #[must_use]
    pub fn from_code(code: u16) -> Self {
        Self::KNOWN
            .get(usize::from(code))
            .copied()
            .unwrap_or(Self::Other(code))
    }

    /// Whether the same request to the same core may succeed later. A damaged payload may be sent
    /// again at once; a wrong home asks for a newer map first.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::Busy
            | Self::Full
            | Self::Corrupt
            | Self::Draining
            | Self::Unavailable
            | Self::PushFailed => true,
            Self::Ok
            | Self::NotFound
            | Self::Touched
            | Self::TooLarge
            | Self::WrongHome
            | Self::BadRequest
            | Self::Unsupported
            | Self::Internal
            | Self::WrongSeat
            | Self::OutOfRange
            | Self::Unfinished
            | Self::Described
            | Self::Striped
            | Self::Pushed
            | Self::PinnedFull
            | Self::OverConnection
            | Self::OverQuota
            | Self::TooManyQuotas
            | Self::LastMember
            | Self::Other(_) => false,
        }
    }

    /// Whether the node asks its clients to send less for a while.
    #[must_use]
    pub const fn is_backpressure(self) -> bool {
        matches!(self, Self::Busy | Self::Full)
    }

    /// Whether bytes were damaged on their way.
    #[must_use]
    pub const fn is_corruption(self) -> bool {
        matches!(self, Self::Corrupt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_statuses_agree_both_ways() {
        for code in 0..=u16::MAX {
            let status = Status::from_code(code);
            assert_eq!(status.code(), code);
            assert_eq!(
                matches!(status, Status::Other(_)),
                usize::from(code) >= Status::KNOWN.len()
            );
        }
    }

    #[test]
    fn back_pressure_is_retryable() {
        let statuses = || (0..=23).map(Status::from_code);
        assert!(
            statuses()
                .filter(|status| status.is_backpressure())
                .all(Status::is_retryable)
        );
        assert_eq!(statuses().filter(|status| status.is_retryable()).count(), 6);
    }
}
