//! Statuses of completions.

use core::fmt;

/// How a work request ended. Codes are those of libibverbs; one that is not known here survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It succeeded.
    Success,
    /// A message was longer than its receive, or than the port allows.
    LocalLength,
    /// The queue pair is in disorder on this side.
    LocalOperation,
    /// A local key does not cover what the request names.
    LocalProtection,
    /// The queue pair failed before this request's turn, or was made to.
    Flushed,
    /// The peer's answer makes no sense.
    BadResponse,
    /// The peer finds the request malformed.
    RemoteInvalid,
    /// The peer's key does not allow it.
    RemoteAccess,
    /// The peer could not do it.
    RemoteOperation,
    /// The peer did not answer.
    RetryExceeded,
    /// The peer had no receive posted.
    ReceiverNotReady,
    /// The adapter failed.
    Fatal,
    /// Any other code.
    Other(u32),
}

/// Codes and statuses, each once.
const CODES: [(u32, Status); 12] = [
    (0, Status::Success),
    (1, Status::LocalLength),
    (2, Status::LocalOperation),
    (4, Status::LocalProtection),
    (5, Status::Flushed),
    (7, Status::BadResponse),
    (9, Status::RemoteInvalid),
    (10, Status::RemoteAccess),
    (11, Status::RemoteOperation),
    (12, Status::RetryExceeded),
    (13, Status::ReceiverNotReady),
    (19, Status::Fatal),
];

impl Status {
    /// The status of a code.
    #[must_use]
    pub fn from_code(code: u32) -> Self {
        CODES
            .iter()
            .find(|row| row.0 == code)
            .map_or(Self::Other(code), |row| row.1)
    }

    /// The code of a status.
    #[must_use]
    pub fn code(self) -> u32 {
        if let Self::Other(code) = self {
            return code;
        }
        let row = CODES.iter().find(|row| row.1 == self);
        row.expect("every other status has its row").0
    }

    /// Whether the same request may succeed on a new queue pair: the path failed, not the request.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Flushed | Self::RetryExceeded | Self::ReceiverNotReady | Self::Fatal
        )
    }

    /// Whether the peer was slower than this side.
    #[must_use]
    pub const fn is_backpressure(self) -> bool {
        matches!(self, Self::ReceiverNotReady)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocalLength => "the message is longer than its receive",
            Self::LocalOperation => "the local queue pair is in disorder",
            Self::LocalProtection => "the local key does not cover the memory",
            Self::Flushed => "flushed: the queue pair failed before",
            Self::BadResponse => "the peer's answer makes no sense",
            Self::RemoteInvalid => "the peer finds the request malformed",
            Self::RemoteAccess => "the peer's key does not allow it",
            Self::RemoteOperation => "the peer could not do it",
            Self::RetryExceeded => "the peer does not answer",
            Self::ReceiverNotReady => "the peer has no receive posted",
            Self::Fatal => "the adapter failed",
            Self::Other(code) => return write!(f, "status {code}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives() {
        for code in (0..64).chain([u32::MAX]) {
            assert_eq!(Status::from_code(code).code(), code);
        }
        assert_eq!(Status::from_code(3), Status::Other(3));
    }
}
