//! Which keys there are: asked of all owners, since homes know fingerprints alone.

use std::collections::BTreeMap;

use lunette_cluster::proto::map::Epoch;
use lunette_kvstore_proto::key::{Fingerprint, Key, KeyFault};
use lunette_kvstore_proto::message::directory::{LISTED_MAX, ListMessage, ListReply};
use lunette_kvstore_proto::message::{Op, Status};
use lunette_kvstore_proto::placement::seats;
use lunette_runtime::time;
use lunette_runtime_core::limits::KEY_BYTES_MAX;
use lunette_runtime_core::time::Time;

use super::{ClusterClient, calls};
use crate::error::{StoreError, StoreErrorKind};

/// About how many keys one page has.
const PAGE_KEYS: usize = 4096;
/// Fewest that one owner is asked for at a time.
const OWNER_KEYS_MIN: usize = 16;

/// Where a listing goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListCursor(Fingerprint);

impl ListCursor {
    /// As a number, for those who keep it elsewhere.
    #[must_use]
    pub const fn to_bits(self) -> u128 {
        let Self(Fingerprint(bits)) = self;
        bits
    }

    /// That of a number.
    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self(Fingerprint(bits))
    }
}

/// Some of the keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// As their callers chose them, each once, in no order that means anything. There may be none although there are more.
    pub keys: Vec<Vec<u8>>,
    /// Where to go on; `None`: these were the last.
    pub next: Option<ListCursor>,
}

impl ClusterClient {
    /// Some of the keys that this client's tenant has objects under and that begin with `prefix`, from the beginning or from
    /// where an earlier page ended. Whoever asks page by page is told each key once that has an object all the
    /// while, in memory or on a drive of one member; what comes, goes or moves to another member meanwhile may
    /// be among them or not. An object that is told of may be gone by the time it is asked for.
    ///
    /// Each core of each member is asked, and looks through what it has, some at a time: it is meant for people and for
    /// tidying up, not for finding objects.
    ///
    /// # Errors
    /// `Key`: no key of this tenant's begins so. `TimedOut`, or what was last answered: a member could not be
    /// asked before the deadline. `Refused(Unsupported)`: one is of a version that names no keys.
    pub async fn list(
        &self,
        prefix: &[u8],
        after: Option<ListCursor>,
    ) -> Result<Listed, StoreError> {
        let prefix = self.tenant.prefix(prefix);
        self.check_prefix(&prefix)?;
        let until = time::now() + self.timeout;
        let after = after.map(|ListCursor(after)| after);
        let count = seats(&self.asking.map()).count();
        let each = (PAGE_KEYS / count.max(1)).clamp(OWNER_KEYS_MIN, LISTED_MAX);
        let keys = u16::try_from(each).expect("few");
        let told = self.ask_everywhere(until, async |to| {
            let message = ListMessage {
                to,
                after,
                keys,
                prefix: &prefix,
            };
            self.list_of(message, until).await
        });
        Ok(self.merged(told.await?))
    }

    /// Removes the objects of this client's tenant whose keys begin with `prefix`, those that there are all the while, and
    /// counts them. What is put meanwhile may stay. Of an empty prefix that is all that the tenant has.
    ///
    /// # Errors
    /// As [`list`](Self::list) and [`remove`](Self::remove): some may have been removed by then.
    pub async fn remove_listed(&self, prefix: &[u8]) -> Result<u64, StoreError> {
        let (mut removed, mut after) = (0, None);
        loop {
            let listed = self.list(prefix, after).await?;
            for one in self.remove(&listed.keys).await {
                removed += u64::from(one?);
            }
            after = listed.next;
            if after.is_none() {
                return Ok(removed);
            }
        }
    }

    fn check_prefix(&self, prefix: &[u8]) -> Result<(), StoreError> {
        let len_bytes = prefix.len();
        if len_bytes > KEY_BYTES_MAX {
            let fault = KeyFault::TooLong { len_bytes };
            return Err(StoreError::local(fault.into()));
        }
        if self.tenant.prefix(b"") == prefix {
            return Ok(());
        }
        self.valid(prefix).map(drop)
    }

    /// What one owner names, and the map that it knows.
    async fn list_of(
        &self,
        message: ListMessage<'_>,
        until: Time,
    ) -> Result<(Epoch, ListReply), StoreErrorKind> {
        let body = |version, out: &mut Vec<u8>| message.encode(version, out);
        let asked = calls::ask_owner(&self.asking, message.to, Op::List, body, None, until);
        let (version, reply) = asked.await?;
        match Status::from_code(reply.status) {
            Status::Ok => {
                let told = ListReply::decode(version, message.after, &reply.body)?;
                Ok((told.epoch, told))
            }
            status => Err(StoreErrorKind::Refused(status)),
        }
    }

    /// Of what owners have named that up to which all of them have, without what several have named.
    fn merged(&self, told: Vec<ListReply>) -> Listed {
        let next = told.iter().filter_map(|reply| reply.next).min();
        let is_covered = |key: Fingerprint| next.is_none_or(|next| key <= next);
        let keys = told.into_iter().flat_map(ListReply::into_keys);
        let keys = keys.filter_map(|key| {
            let fingerprint = Key::new(&key).ok()?.fingerprint();
            let chosen = self.tenant.chosen(&key)?;
            is_covered(fingerprint).then(|| (fingerprint, chosen.to_vec()))
        });
        let keys: BTreeMap<Fingerprint, Vec<u8>> = keys.collect();
        Listed {
            keys: keys.into_values().collect(),
            next: next.map(ListCursor),
        }
    }
}
