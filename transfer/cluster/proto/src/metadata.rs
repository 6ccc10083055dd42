//! Metadata servers of others: small values by key, in redis or behind HTTP.
//!
//! Mooncake's transfer engines find each other by such a server. It is none for members: nothing there
//! has a revision, a lease or a watch. Both dialects are here at both ends, so that a model of a server
//! can stand in for it in worlds.
//!
//! | module | subject |
//! |---|---|
//! | `redis` | RESP 2: GET, SET and DEL |
//! | `http` | GET, PUT and DELETE of `/metadata?key=` |

mod http;
mod redis;

use std::collections::BTreeMap;

use thiserror::Error;

use crate::http::BODY_BYTES_MAX;

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 512;
/// Longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = BODY_BYTES_MAX;
/// Most keys that a model keeps.
pub const RECORDS_MAX: usize = 16 * 1024;
/// What is part of the names that an HTTP server lets be put once: who an engine is.
const PUT_ONCE: &str = "rpc_meta";

/// What a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// RESP 2.
    Redis,
    /// HTTP/1.1.
    Http,
}

/// What is asked of a server. Keys and values are not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The value of a key.
    Get {
        /// The key.
        key: String,
    },
    /// A key to have this value.
    Put {
        /// The key.
        key: String,
        /// Its value.
        value: Vec<u8>,
    },
    /// A key to be no more.
    Delete {
        /// The key.
        key: String,
    },
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The value of the key.
    Found(Vec<u8>),
    /// There is no such key; also to a delete, where the server tells.
    Absent,
    /// It is done.
    Done,
}

/// Why there is no answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MetadataFault {
    /// The server could not be asked, or the connection ended first. Whether it was done is unknown.
    #[error("the metadata server cannot be reached: {reason}")]
    Unreachable {
        /// Why.
        reason: String,
    },
    /// The deadline passed. Whether it was done is unknown.
    #[error("the metadata server did not answer in time")]
    TimedOut,
    /// It refused. What was asked is at fault, or the server is.
    #[error("the metadata server refused: {message}")]
    Refused {
        /// What it said, shortened.
        message: String,
    },
    /// A limit was met, or there is nothing where something must be.
    #[error("{what} is empty, or above its limit")]
    Limit {
        /// What is.
        what: &'static str,
    },
    /// What came is none of the dialect. The connection is of no further use.
    #[error("malformed: {what}")]
    Malformed {
        /// What is wrong.
        what: &'static str,
    },
}

impl MetadataFault {
    /// Whether asking again later may help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::TimedOut)
    }

    /// Whether a limit was met.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Limit { .. })
    }
}

impl Ask {
    /// The key that it is about.
    #[must_use]
    pub fn key(&self) -> &str {
        let (Self::Get { key } | Self::Put { key, .. } | Self::Delete { key }) = self;
        key
    }

    /// Checks the limits.
    ///
    /// # Errors
    /// [`MetadataFault::Limit`] says which is not kept.
    pub fn check(&self) -> Result<(), MetadataFault> {
        if !(1..=KEY_BYTES_MAX).contains(&self.key().len()) {
            return Err(MetadataFault::Limit { what: "the key" });
        }
        match self {
            Self::Put { value, .. } if !(1..=VALUE_BYTES_MAX).contains(&value.len()) => {
                Err(MetadataFault::Limit { what: "the value" })
            }
            _ => Ok(()),
        }
    }

    /// Appends it as a server of this dialect at `host` reads it.
    pub fn append(&self, dialect: Dialect, host: &str, out: &mut Vec<u8>) {
        match dialect {
            Dialect::Redis => redis::append_ask(self, out),
            Dialect::Http => http::append_ask(self, host, out),
        }
    }
}

/// What a server has said to one ask.
pub type Answered = Result<Answer, MetadataFault>;

/// Reads answers, at a client.
#[derive(Debug)]
pub struct AnswerReader {
    inner: Inner<redis::Frames, http::Responses>,
}

/// Reads asks, at a server.
#[derive(Debug)]
pub struct AskReader {
    inner: Inner<redis::Frames, http::Requests>,
}

#[derive(Debug)]
enum Inner<R, H> {
    Redis(R),
    Http(H),
}

impl AnswerReader {
    /// Of the answers of a server of this dialect.
    #[must_use]
    pub fn new(dialect: Dialect) -> Self {
        let inner = match dialect {
            Dialect::Redis => Inner::Redis(redis::Frames::default()),
            Dialect::Http => Inner::Http(http::Responses::default()),
        };
        Self { inner }
    }

    /// Takes bytes from the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        match &mut self.inner {
            Inner::Redis(frames) => frames.push(bytes),
            Inner::Http(responses) => responses.push(bytes),
        }
    }

    /// The next answer, if it is here whole: to `ask`, the oldest that was not answered.
    ///
    /// # Errors
    /// [`MetadataFault::Malformed`]; what follows is not understood either. What the server says itself is
    /// inside.
    pub fn next_answer(&mut self, ask: &Ask) -> Result<Option<Answered>, MetadataFault> {
        match &mut self.inner {
            Inner::Redis(frames) => redis::next_answer(frames, ask),
            Inner::Http(responses) => responses.next_answer(ask),
        }
    }
}

impl AskReader {
    /// Of the asks to a server of this dialect.
    #[must_use]
    pub fn new(dialect: Dialect) -> Self {
        let inner = match dialect {
            Dialect::Redis => Inner::Redis(redis::Frames::default()),
            Dialect::Http => Inner::Http(http::Requests::default()),
        };
        Self { inner }
    }

    /// Takes bytes from the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        match &mut self.inner {
            Inner::Redis(frames) => frames.push(bytes),
            Inner::Http(requests) => requests.push(bytes),
        }
    }

    /// The next ask, if it is here whole; or why it is refused.
    ///
    /// # Errors
    /// [`MetadataFault::Malformed`]; what follows is not understood either.
    pub fn next_ask(&mut self) -> Result<Option<Result<Ask, MetadataFault>>, MetadataFault> {
        match &mut self.inner {
            Inner::Redis(frames) => redis::next_ask(frames),
            Inner::Http(requests) => requests.next_ask(),
        }
    }
}

/// Appends what a server of this dialect answers. `ask` is `None` where it was not understood.
pub fn append_answer(dialect: Dialect, ask: Option<&Ask>, answered: &Answered, out: &mut Vec<u8>) {
    match dialect {
        Dialect::Redis => redis::append_answer(ask, answered, out),
        Dialect::Http => http::append_answer(answered, out),
    }
}

/// What a model of a server keeps: in memory, and lost with it, as the real ones by default.
#[derive(Debug)]
pub struct Records {
    dialect: Dialect,
    values: BTreeMap<String, Vec<u8>>,
}

impl Records {
    /// A server of this dialect that holds nothing.
    #[must_use]
    pub const fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            values: BTreeMap::new(),
        }
    }

    /// What it speaks.
    #[must_use]
    pub const fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Answers.
    ///
    /// # Errors
    /// [`MetadataFault::Limit`] and [`MetadataFault::Refused`], as the server refuses.
    pub fn handle(&mut self, ask: Ask) -> Answered {
        ask.check()?;
        match ask {
            Ask::Get { key } => Ok(self
                .values
                .get(&key)
                .cloned()
                .map_or(Answer::Absent, Answer::Found)),
            Ask::Put { key, value } => {
                let is_there = self.values.contains_key(&key);
                if is_there && self.dialect == Dialect::Http && key.contains(PUT_ONCE) {
                    let message = "Duplicate rpc_meta key not allowed".to_owned();
                    return Err(MetadataFault::Refused { message });
                }
                if !is_there && self.values.len() >= RECORDS_MAX {
                    return Err(MetadataFault::Limit {
                        what: "the number of keys",
                    });
                }
                self.values.insert(key, value);
                Ok(Answer::Done)
            }
            Ask::Delete { key } => {
                let was_there = self.values.remove(&key).is_some();
                Ok(if was_there {
                    Answer::Done
                } else {
                    Answer::Absent
                })
            }
        }
    }
}

/// What a server said, short enough for a log.
fn shortened(said: &[u8]) -> String {
    const SAID_CHARS_MAX: usize = 200;
    let text = String::from_utf8_lossy(said);
    text.chars().take(SAID_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests;
