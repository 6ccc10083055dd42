//! How requests end.

use lunette_kvstore_proto::message::Status;
use lunette_kvstore_proto::message::directory::Answer;
use lunette_kvstore_proto::owner::WriteAnswer;

/// How a request ended, as a core counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Done.
    Ok,
    /// A put found its key taken, and has succeeded.
    Exists,
    /// There is no such object.
    NotFound,
    /// The object is elsewhere, or goes another way: the asker was told which.
    Elsewhere,
    /// Not everybody has told its home yet whether the object is there.
    Unknown,
    /// Another write of the key is under way, or too many requests wait.
    Busy,
    /// There is no room now, or a table is full.
    Full,
    /// It never fits.
    TooLarge,
    /// This core is not the key's home, or has another map.
    WrongHome,
    /// It was for another core, or for another life of this one.
    WrongSeat,
    /// It breaks the protocol.
    BadRequest,
    /// The payload does not match its checksum.
    Corrupt,
    /// No such operation.
    Unsupported,
    /// The node is cut off from its cluster, is no member of it, or is shutting down.
    Unavailable,
    /// The writer gave it up.
    Aborted,
    /// It is not known whether it was done.
    Interrupted,
    /// The node is at fault.
    Internal,
    /// The connection ended first, so there was nobody to be answered.
    Lost,
}

impl Outcome {
    /// All outcomes, in the order in which they are counted.
    pub const ALL: [Self; 18] = [
        Self::Ok,
        Self::Exists,
        Self::NotFound,
        Self::Elsewhere,
        Self::Unknown,
        Self::Busy,
        Self::Full,
        Self::TooLarge,
        Self::WrongHome,
        Self::WrongSeat,
        Self::BadRequest,
        Self::Corrupt,
        Self::Unsupported,
        Self::Unavailable,
        Self::Aborted,
        Self::Interrupted,
        Self::Internal,
        Self::Lost,
    ];

    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Exists => "exists",
            Self::NotFound => "not_found",
            Self::Elsewhere => "elsewhere",
            Self::Unknown => "unknown",
            Self::Busy => "busy",
            Self::Full => "full",
            Self::TooLarge => "too_large",
            Self::WrongHome => "wrong_home",
            Self::WrongSeat => "wrong_seat",
            Self::BadRequest => "bad_request",
            Self::Corrupt => "corrupt",
            Self::Unsupported => "unsupported",
            Self::Unavailable => "unavailable",
            Self::Aborted => "aborted",
            Self::Interrupted => "interrupted",
            Self::Internal => "internal",
            Self::Lost => "lost",
        }
    }

    /// Whether the asker was told no.
    #[must_use]
    pub const fn is_refusal(self) -> bool {
        !matches!(
            self,
            Self::Ok | Self::Exists | Self::NotFound | Self::Elsewhere | Self::Lost
        )
    }

    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

impl From<Status> for Outcome {
    fn from(status: Status) -> Self {
        match status {
            Status::Ok | Status::Described | Status::Striped | Status::Pushed => Self::Ok,
            Status::OverConnection => Self::Elsewhere,
            Status::PushFailed => Self::Interrupted,
            Status::NotFound => Self::NotFound,
            Status::Touched => Self::Exists,
            Status::Busy => Self::Busy,
            Status::Full | Status::PinnedFull | Status::OverQuota | Status::TooManyQuotas => {
                Self::Full
            }
            Status::TooLarge => Self::TooLarge,
            Status::WrongHome => Self::WrongHome,
            Status::WrongSeat => Self::WrongSeat,
            Status::BadRequest | Status::OutOfRange | Status::Unfinished => Self::BadRequest,
            Status::Corrupt => Self::Corrupt,
            Status::Unsupported => Self::Unsupported,
            Status::Draining | Status::Unavailable | Status::LastMember => Self::Unavailable,
            Status::Internal | Status::Other(_) => Self::Internal,
        }
    }
}

impl From<&WriteAnswer> for Outcome {
    fn from(answer: &WriteAnswer) -> Self {
        match answer {
            WriteAnswer::Written { .. } => Self::Ok,
            WriteAnswer::Exists { .. } => Self::Exists,
            WriteAnswer::Busy => Self::Busy,
            WriteAnswer::Full => Self::Full,
            WriteAnswer::Unavailable => Self::Unavailable,
            WriteAnswer::Aborted => Self::Aborted,
            WriteAnswer::Interrupted => Self::Interrupted,
        }
    }
}

impl From<&Answer> for Outcome {
    fn from(answer: &Answer) -> Self {
        match answer {
            Answer::Found(_) => Self::Elsewhere,
            Answer::Miss => Self::NotFound,
            Answer::Unknown => Self::Unknown,
            Answer::Removed { .. } => Self::Ok,
            Answer::Unavailable => Self::Unavailable,
            Answer::Stale(_) => Self::WrongHome,
            Answer::Busy => Self::Busy,
            Answer::Full => Self::Full,
            Answer::Interrupted => Self::Interrupted,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_outcome_has_a_place_and_a_word_of_its_own() {
        for (index, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome.index(), index);
        }
        let words: BTreeSet<_> = Outcome::ALL.map(Outcome::word).into();
        assert_eq!(words.len(), Outcome::ALL.len());
    }

    #[test]
    fn a_status_is_a_refusal_as_its_outcome_is() {
        for status in Status::KNOWN {
            let is_answer = matches!(
                status,
                Status::Ok
                    | Status::NotFound
                    | Status::Touched
                    | Status::Described
                    | Status::Striped
                    | Status::Pushed
                    | Status::OverConnection
            );
            assert_eq!(Outcome::from(status).is_refusal(), !is_answer, "{status:?}");
        }
    }
}
