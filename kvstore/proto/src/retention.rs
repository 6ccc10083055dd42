//! What a writer knows and wishes of how an object is kept in memory.

use core::time::Duration;

use xxhash_rust::xxh3::xxh3_128;

use crate::key::Fingerprint;
use crate::tenant::TenantTag;

/// Longest time that something is pinned for without being pinned for ever: longer wishes count as this.
pub const PIN_TTL_MAX: Duration = Duration::from_secs(24 * 3600);
/// How long something is pinned where the writer does not say.
pub const PIN_TTL_DEFAULT: Duration = Duration::from_secs(30 * 60);

/// How an object is to be kept in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// It is the last of what is written together: of a prompt's blocks the one that a longer prompt has in another form.
    /// What leaves memory first is learnt with it.
    pub is_last: bool,
    /// Whether it outlasts others.
    pub pin: Pin,
    /// With which others it is of use only: see [`groups`](crate::groups).
    pub group: Option<GroupId>,
    /// The object without which it is of no use: of a prompt's blocks the one before.
    pub behind: Option<Parent>,
}

/// An object that others are of no use without, by its key. It may itself be behind another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Parent(pub Fingerprint);

/// A group of objects, by the hash of its name. Groups are of one cluster and [tenant](crate::tenant), whoever writes their
/// objects; two names whose hashes are equal are one group, which costs hits and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId {
    kind: GroupKind,
    hash: Fingerprint,
}

/// When others of a group are of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum GroupKind {
    /// When one of them has left.
    Fellows,
    /// When their parent, which is none of them, has left.
    Behind,
}

impl GroupId {
    /// The group of that name: any bytes.
    #[must_use]
    pub fn of(name: &[u8]) -> Self {
        Self::drawn(xxh3_128(name))
    }

    /// A group without a name, of a number that nobody else has.
    #[must_use]
    pub const fn drawn(number: u128) -> Self {
        Self {
            kind: GroupKind::Fellows,
            hash: Fingerprint(number),
        }
    }

    /// The group of those that are behind this object.
    #[must_use]
    pub const fn behind(parent: Parent) -> Self {
        Self {
            kind: GroupKind::Behind,
            hash: parent.0,
        }
    }

    pub(crate) const fn new(kind: GroupKind, hash: Fingerprint) -> Self {
        Self { kind, hash }
    }

    pub(crate) const fn kind(self) -> GroupKind {
        self.kind
    }

    /// Its home is that of the key with this hash: that of its parent, if it has one.
    #[must_use]
    pub const fn hash(self) -> Fingerprint {
        self.hash
    }

    /// The group that a tenant has under this name: those of two tenants are two.
    #[must_use]
    pub fn in_tenant(self, tenant: TenantTag) -> Self {
        if tenant == TenantTag::DEFAULT {
            return self;
        }
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.hash.0.to_le_bytes());
        bytes[16..].copy_from_slice(&tenant.0.to_le_bytes());
        Self::of(&bytes)
    }
}

/// Whether a copy outlasts others in memory. Pins bind what leaves to make room, and nothing else: removals and
/// upserts, the loss of a node, and the end of its process take what is pinned as anything else, and a copy that is read
/// back from a drive is not pinned. Every copy of an object is pinned as its writer wished. The same two kinds are
/// Mooncake's, with its times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pin {
    /// It leaves when the policy says so.
    #[default]
    None,
    /// For a time it leaves only if all else that may leave has. The time begins when the copy is there; reading does
    /// not prolong it.
    Soft {
        /// How long, in milliseconds; at most [`PIN_TTL_MAX`] count.
        ttl_ms: u32,
    },
    /// It never leaves. What is pinned so is bounded:
    /// [`HARD_PINNED_SHARE`](crate::residence::HARD_PINNED_SHARE).
    Hard,
}

impl Pin {
    /// A soft pin for so long, or [`PIN_TTL_DEFAULT`].
    #[must_use]
    pub fn soft(ttl: Option<Duration>) -> Self {
        let ttl = ttl.unwrap_or(PIN_TTL_DEFAULT).min(PIN_TTL_MAX);
        let ttl_ms = u32::try_from(ttl.as_millis()).expect("a day of milliseconds");
        Self::Soft { ttl_ms }
    }
}
