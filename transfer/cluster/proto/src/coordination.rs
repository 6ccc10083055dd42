//! What a cluster asks of a coordinator: the one interface of both back ends.
//!
//! It is the part of etcd's API (version 3) that membership needs: a map of keys in which each change
//! has a revision, transactions that compare revisions, leases that take their keys with them, and
//! watches from a revision on.

use thiserror::Error;

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 512;
/// Longest value, in bytes; below etcd's own bound on a request (1.5 MiB) once it is in base64.
pub const VALUE_BYTES_MAX: usize = 1024 * 1024;
/// Most comparisons, and most operations of each branch, of a transaction; etcd's own bound.
pub const TXN_OPS_MAX: usize = 128;
/// Most keys in an answer.
pub const RANGE_KEYS_MAX: usize = 16 * 1024;
/// Shortest and longest lease, in seconds.
pub const LEASE_TTL_S_MIN: u32 = 1;
/// See [`LEASE_TTL_S_MIN`].
pub const LEASE_TTL_S_MAX: u32 = 3600;

/// The number of a change. It only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// The one after it.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The name of a lease, chosen by who wants it: above 0, and of 63 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(u64);

impl LeaseId {
    /// The lease of this name, of whose bits one is left out; 0 becomes 1.
    #[must_use]
    pub const fn new(bits: u64) -> Self {
        let bits = bits & (u64::MAX >> 1);
        Self(if bits == 0 { 1 } else { bits })
    }

    /// Its number.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// When it came into being.
    pub created: Revision,
    /// When it was last changed.
    pub modified: Revision,
    /// What it ends with, if anything.
    pub lease: Option<LeaseId>,
}

/// Keys from `start` to before `end`, or `start` alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key.
    pub start: Vec<u8>,
    /// The key behind the last one.
    pub end: Option<Vec<u8>>,
}

impl KeyRange {
    /// One key.
    #[must_use]
    pub fn one(key: impl Into<Vec<u8>>) -> Self {
        Self {
            start: key.into(),
            end: None,
        }
    }

    /// Every key that begins with `prefix`.
    ///
    /// # Panics
    /// If no key can be behind them: the prefix is empty or of 0xff alone.
    #[must_use]
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> Self {
        let start = prefix.into();
        let mut end = start.clone();
        while end.last() == Some(&0xff) {
            end.pop();
        }
        let last = end.last_mut().expect("a prefix has a byte below 0xff");
        *last += 1;
        Self {
            start,
            end: Some(end),
        }
    }

    /// Whether `key` is among them.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        match &self.end {
            None => key == self.start,
            Some(end) => key >= self.start.as_slice() && key < end.as_slice(),
        }
    }
}

/// What a transaction compares, for one key. A key that is not there has revision 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// The key.
    pub key: Vec<u8>,
    /// What must be so.
    pub expected: Expected,
}

/// What a key must be for a transaction to succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It was last changed at this revision.
    Modified(Revision),
    /// It came into being at this revision.
    Created(Revision),
}

impl Compare {
    /// That there is no such key.
    #[must_use]
    pub fn absent(key: impl Into<Vec<u8>>) -> Self {
        let expected = Expected::Created(Revision(0));
        Self {
            key: key.into(),
            expected,
        }
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads keys.
    Range(KeyRange),
    /// Sets a key.
    Put {
        /// The key.
        key: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
        /// What it ends with, if anything.
        lease: Option<LeaseId>,
    },
    /// Removes keys.
    Delete(KeyRange),
}

/// Operations that are done together, or others instead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// What must all be so.
    pub compare: Vec<Compare>,
    /// What is done then.
    pub success: Vec<Op>,
    /// What is done else.
    pub failure: Vec<Op>,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// One operation.
    Op(Op),
    /// Several, on a condition.
    Txn(Txn),
    /// A lease of this name and so many seconds. One that is there already is refused.
    Grant {
        /// Its name.
        lease: LeaseId,
        /// Its length.
        ttl_s: u32,
    },
    /// The lease to begin anew.
    KeepAlive(LeaseId),
    /// The lease to end, and its keys with it.
    Revoke(LeaseId),
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The newest change when it was answered. Not told for leases.
    pub revision: Revision,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of an [`Ask`], of the kind that was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Of an operation.
    Op(OpOutcome),
    /// Of a transaction.
    Txn {
        /// Whether what was compared was so.
        succeeded: bool,
        /// What came of each operation that was done.
        outcomes: Vec<OpOutcome>,
    },
    /// The lease is granted, or was kept alive, for so many seconds.
    Leased {
        /// Its length: what was asked, or more.
        ttl_s: u32,
    },
    /// The lease is over.
    Revoked,
}

/// What came of an [`Op`], of the kind that was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpOutcome {
    /// The keys that are there, in order.
    Range(Vec<KeyValue>),
    /// It is set.
    Put,
    /// They are gone.
    Delete {
        /// How many were there.
        deleted: u64,
    },
}

/// A change that a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key was set.
    Put(KeyValue),
    /// The key is gone: removed, or its lease ended.
    Delete {
        /// The key.
        key: Vec<u8>,
        /// When.
        revision: Revision,
    },
}

impl Change {
    /// The key that changed.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Put(pair) => &pair.key,
            Self::Delete { key, .. } => key,
        }
    }

    /// When it changed.
    #[must_use]
    pub const fn revision(&self) -> Revision {
        match self {
            Self::Put(pair) => pair.modified,
            Self::Delete { revision, .. } => *revision,
        }
    }
}

/// What is to be watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchFrom {
    /// Which keys.
    pub range: KeyRange,
    /// From which change on, itself included.
    pub revision: Revision,
}

/// Why there is no answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CoordinationFault {
    /// Nobody could be asked, or the connection ended first. Whether it was done is unknown.
    #[error("the coordinator cannot be reached: {reason}")]
    Unreachable {
        /// Why.
        reason: String,
    },
    /// The deadline passed. Whether it was done is unknown.
    #[error("the coordinator did not answer in time")]
    TimedOut,
    /// It was reached and cannot answer now: it has no leader, say. Nothing was done.
    #[error("the coordinator cannot answer now: {message}")]
    Unavailable {
        /// What it said, shortened.
        message: String,
    },
    /// There is no such lease, or no more.
    #[error("there is no such lease")]
    LeaseNotFound,
    /// There is a lease of this name already.
    #[error("there is a lease of this name already")]
    LeaseExists,
    /// Changes as old as this are not kept. Read the keys, and watch from there.
    #[error("changes before revision {} are not kept", .oldest.0)]
    Compacted {
        /// The oldest that is; 0 if it was not told.
        oldest: Revision,
    },
    /// A limit was met: of the key's, the value's or the answer's length, or of their number.
    #[error("{what} is above its limit")]
    TooLarge {
        /// What is.
        what: &'static str,
    },
    /// What came is no answer.
    #[error("malformed answer: {reason}")]
    Malformed {
        /// What is wrong with it.
        reason: String,
    },
    /// Another refusal. What was asked is at fault.
    #[error("refused with code {code}: {message}")]
    Refused {
        /// The code, of gRPC's.
        code: u32,
        /// What it said, shortened.
        message: String,
    },
}

impl CoordinationFault {
    /// Whether asking again later, here or at another endpoint, may help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::TimedOut
                | Self::Unavailable { .. }
                | Self::Malformed { .. }
        )
    }

    /// Whether a limit was met.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::TooLarge { .. })
    }
}

impl Ask {
    /// Whether it may be done twice without harm, and with the same answer: it reads, or renews.
    #[must_use]
    pub const fn is_repeatable(&self) -> bool {
        matches!(self, Self::Op(Op::Range(_)) | Self::KeepAlive(_))
    }

    /// Checks the limits that both back ends keep.
    ///
    /// # Errors
    /// [`CoordinationFault::TooLarge`] says which is not kept.
    pub fn check(&self) -> Result<(), CoordinationFault> {
        match self {
            Self::Op(op) => op.check(),
            Self::Txn(txn) => {
                let lens = [&txn.success, &txn.failure].map(Vec::len);
                let most = lens.into_iter().max().unwrap_or(0).max(txn.compare.len());
                within("the number of operations", most, TXN_OPS_MAX)?;
                for compare in &txn.compare {
                    within("a key", compare.key.len(), KEY_BYTES_MAX)?;
                }
                let mut ops = txn.success.iter().chain(&txn.failure);
                ops.try_for_each(Op::check)
            }
            Self::Grant { ttl_s, .. } => {
                let is_kept = (LEASE_TTL_S_MIN..=LEASE_TTL_S_MAX).contains(ttl_s);
                let what = "the lease's length";
                is_kept
                    .then_some(())
                    .ok_or(CoordinationFault::TooLarge { what })
            }
            Self::KeepAlive(_) | Self::Revoke(_) => Ok(()),
        }
    }
}

impl Op {
    fn check(&self) -> Result<(), CoordinationFault> {
        match self {
            Self::Range(range) | Self::Delete(range) => {
                within("a key", range.start.len(), KEY_BYTES_MAX)?;
                let end = range.end.as_ref().map_or(0, Vec::len);
                within("a key", end, KEY_BYTES_MAX)
            }
            Self::Put { key, value, .. } => {
                within("a key", key.len(), KEY_BYTES_MAX)?;
                within("a value", value.len(), VALUE_BYTES_MAX)
            }
        }
    }
}

fn within(what: &'static str, len: usize, max: usize) -> Result<(), CoordinationFault> {
    if len <= max {
        Ok(())
    } else {
        Err(CoordinationFault::TooLarge { what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_holds_what_begins_with_it() {
        let range = KeyRange::prefix("a/");
        for (key, is_in) in [
            ("a/", true),
            ("a/b", true),
            ("a/\u{7f}", true),
            ("a", false),
            ("a0", false),
        ] {
            assert_eq!(range.contains(key.as_bytes()), is_in, "{key}");
        }
        let high = KeyRange::prefix([b'a', 0xff]);
        assert_eq!(high.end, Some(b"b".to_vec()));
        assert!(high.contains(&[b'a', 0xff, 0xff]) && !high.contains(b"b"));
        assert!(KeyRange::one("k").contains(b"k") && !KeyRange::one("k").contains(b"kk"));
    }

    #[test]
    fn limits_hold_from_both_sides() {
        let put = |key, value| {
            let (key, value) = (vec![b'k'; key], vec![0; value]);
            Ask::Op(Op::Put {
                key,
                value,
                lease: None,
            })
            .check()
            .is_ok()
        };
        assert!(put(KEY_BYTES_MAX, VALUE_BYTES_MAX));
        assert!(!put(KEY_BYTES_MAX + 1, 0) && !put(1, VALUE_BYTES_MAX + 1));
        let txn = |count| {
            let compare = vec![Compare::absent("k"); count];
            Ask::Txn(Txn {
                compare,
                ..Txn::default()
            })
            .check()
            .is_ok()
        };
        assert!(txn(TXN_OPS_MAX) && !txn(TXN_OPS_MAX + 1));
        let lease = LeaseId::new(1);
        let grant = |ttl_s| Ask::Grant { lease, ttl_s }.check().is_ok();
        assert!(grant(LEASE_TTL_S_MIN) && grant(LEASE_TTL_S_MAX));
        assert!(!grant(0) && !grant(LEASE_TTL_S_MAX + 1));
    }

    #[test]
    fn lease_names_fit_etcd() {
        assert_eq!(LeaseId::new(0).as_u64(), 1);
        assert_eq!(LeaseId::new(u64::MAX).as_u64(), u64::MAX >> 1);
    }
}
