//! What the table of calls answers to its driver.

use lunette_runtime_core::ids::RequestId;
use thiserror::Error;

#[cfg(doc)]
use super::Calls;

/// Every slot is taken: wait until a call ends. An abandoned call holds its slot until the peer has
/// answered it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("as many requests are in flight as the connection allows")]
pub struct InFlightFull<T> {
    /// What was handed to [`Calls::start`], given back.
    pub token: T,
}

impl<T> InFlightFull<T> {
    /// Whether the same call may succeed later: always.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        true
    }

    /// Whether a limit was met: always.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        true
    }
}

/// A response that answers nothing. The peer is faulty: close the connection.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum CallFault {
    /// No request ever had this id.
    #[error("response to {id}, which was never sent")]
    NeverIssued {
        /// The id in the response.
        id: RequestId,
    },
    /// The request has been answered before.
    #[error("second response to {id}")]
    AlreadyAnswered {
        /// The id in the response.
        id: RequestId,
    },
}

/// Where the payload of a response goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseSink {
    /// Into the caller's memory, which is lent until [`Calls::on_response_end`] or
    /// [`Calls::on_fenced`].
    Place,
    /// Nowhere: the call is over, or has less room than the payload needs.
    Discard,
}

/// How a call ended when its response was complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallEnd<T> {
    /// The response is whole, its payload in place. The call may be past its deadline or abandoned,
    /// if that happened while the last bytes arrived.
    Done {
        /// What was handed to [`Calls::start`].
        token: T,
    },
    /// The payload was damaged underway. The caller's memory holds garbage; asking again may help.
    Corrupt {
        /// What was handed to [`Calls::start`].
        token: T,
        /// The CRC32C in the response's header.
        expected: u32,
        /// The CRC32C of the bytes that arrived.
        computed: u32,
    },
    /// The payload did not fit and was discarded; the caller's memory is untouched.
    TooLong {
        /// What was handed to [`Calls::start`].
        token: T,
        /// Length of the payload, in bytes.
        payload_len_bytes: u32,
        /// Room that the caller had, in bytes.
        room_bytes: u32,
    },
    /// The call was over long ago; its slot is free again now.
    Discarded,
}

/// Why a call ended without its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// Its deadline passed.
    DeadlineExceeded,
    /// Its caller gave it up.
    Abandoned,
}

/// A call whose deadline has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expired<T> {
    /// The call is over: `DeadlineExceeded`. None of its memory is lent to a receive.
    Ended {
        /// The call's id.
        id: RequestId,
        /// What was handed to [`Calls::start`].
        token: T,
    },
    /// The call's payload is arriving: stop the receive into its memory, reap it, then call
    /// [`Calls::on_fenced`]. Asked once for each call.
    MustFence {
        /// The call's id.
        id: RequestId,
    },
}

/// What giving up a call came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abandon<T> {
    /// The call is over. None of its memory is lent to a receive.
    Ended {
        /// What was handed to [`Calls::start`].
        token: T,
    },
    /// The call's payload is arriving: stop the receive into its memory, reap it, then call
    /// [`Calls::on_fenced`].
    MustFence,
    /// Nothing to do: the call has ended, or is being fenced already.
    Over,
}

/// A call that ended when its memory was no longer lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fenced<T> {
    /// What was handed to [`Calls::start`].
    pub token: T,
    /// Why the call ended.
    pub cause: EndCause,
}
