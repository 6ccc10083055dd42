//! Tenants: who shares a cluster and has keys, groups and a share of memory of their own.
//!
//! ```text
//!  key of an object:  TENANT_PREFIX (7 bytes) | length of the name u8 | name | the key as its caller chose it
//!  key of a part:     as of any object in parts (see striped) | tag u64, little-endian
//! ```
//!
//! The default tenant's keys are what callers chose, and none of them begins with either prefix. So a key is of one
//! tenant, and whoever has it can tell of which: as a [`TenantTag`], which is all that owners need. Tenants are apart so
//! that they do not meet by chance. They are no matter of rights: whoever is let into a cluster may say that they are any.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

use crate::key::{Key, KeyFault};
use crate::striped::PART_KEY_BYTES;

/// How keys of tenants other than the default one begin.
pub const TENANT_PREFIX: &[u8; 7] = b"\xfftenant";
/// Longest name in bytes.
pub const TENANT_NAME_BYTES_MAX: usize = 64;
/// The default tenant's name.
pub const DEFAULT_TENANT: &str = "default";

const NAME_AT: usize = TENANT_PREFIX.len() + 1;

/// A tenant. Clones share its name. The default one is that of whoever names none.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tenant {
    /// How its keys begin; `None`: as callers chose.
    head: Option<Arc<[u8]>>,
}

/// A tenant, by the hash of its name: two whose hashes are equal share their share of memory, and nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantTag(pub u64);

impl TenantTag {
    /// The default tenant's.
    pub const DEFAULT: Self = Self(0);

    /// That of a name which is not the default tenant's.
    fn of_name(name: &[u8]) -> Self {
        Self(xxh3_64(name).max(1))
    }

    /// That of the tenant whose key this is.
    #[must_use]
    pub fn of(key: Key<'_>) -> Self {
        let bytes = key.bytes();
        if key.is_of_part() {
            let tag = bytes.get(PART_KEY_BYTES..);
            let tag = tag.and_then(|tag| tag.try_into().ok());
            return tag.map_or(Self::DEFAULT, |tag| Self(u64::from_le_bytes(tag)));
        }
        name_in(bytes).map_or(Self::DEFAULT, Self::of_name)
    }
}

/// The name of the tenant whose key this is, if it says one.
fn name_in(key: &[u8]) -> Option<&[u8]> {
    let (&len, rest) = key.strip_prefix(TENANT_PREFIX)?.split_first()?;
    rest.get(..len.into())
}

/// Why something is no tenant's name.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a tenant's name has 1 to {TENANT_NAME_BYTES_MAX} bytes, not {len_bytes}")]
pub struct TenantFault {
    /// Length of what was offered.
    pub len_bytes: usize,
}

impl Tenant {
    /// The tenant of that name, of at most [`TENANT_NAME_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// [`TenantFault`].
    pub fn named(name: &str) -> Result<Self, TenantFault> {
        let len_bytes = name.len();
        let len = u8::try_from(len_bytes);
        let len = len.map_err(|_too_long| TenantFault { len_bytes })?;
        if !(1..=TENANT_NAME_BYTES_MAX).contains(&len_bytes) {
            return Err(TenantFault { len_bytes });
        }
        if name == DEFAULT_TENANT {
            return Ok(Self::default());
        }
        let head = [TENANT_PREFIX.as_slice(), &[len], name.as_bytes()].concat();
        Ok(Self {
            head: Some(head.into()),
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        let name = self.head.as_deref().and_then(|head| head.get(NAME_AT..));
        let name = name.map(|name| std::str::from_utf8(name).expect("it was made of text"));
        name.unwrap_or(DEFAULT_TENANT)
    }

    /// Whose key this is, where that says it; a part's tells no name, and is of nobody here.
    #[must_use]
    pub fn of(key: Key<'_>) -> Option<Self> {
        let name = std::str::from_utf8(name_in(key.bytes())?).ok()?;
        Self::named(name).ok()
    }

    /// Its tag.
    #[must_use]
    pub fn tag(&self) -> TenantTag {
        let head = self.head.as_deref();
        head.map_or(TenantTag::DEFAULT, |head| {
            TenantTag::of_name(&head[NAME_AT..])
        })
    }

    /// What the store has a caller's key as. [`check`](Self::check) tells whether it is one.
    #[must_use]
    pub fn key<'a>(&self, chosen: &'a [u8]) -> Cow<'a, [u8]> {
        if chosen.is_empty() {
            return Cow::Borrowed(chosen);
        }
        self.prefix(chosen)
    }

    /// How the store has those of its keys that begin so; all of them begin with nothing.
    #[must_use]
    pub fn prefix<'a>(&self, chosen: &'a [u8]) -> Cow<'a, [u8]> {
        match &self.head {
            Some(head) => Cow::Owned([head, chosen].concat()),
            None => Cow::Borrowed(chosen),
        }
    }

    /// What the caller chose as a key of this tenant's, which the store has so.
    #[must_use]
    pub fn chosen<'a>(&self, key: &'a [u8]) -> Option<&'a [u8]> {
        match &self.head {
            Some(head) => key.strip_prefix(&**head),
            None => Some(key),
        }
    }

    /// A key of this tenant's, as [`key`](Self::key) makes it.
    ///
    /// # Errors
    /// [`KeyFault`]: what the caller chose is none; that of a tenant is shorter by the name's length and eight bytes.
    pub fn check<'a>(&self, key: &'a [u8]) -> Result<Key<'a>, KeyFault> {
        let Some(head) = &self.head else {
            return Key::of_caller(key);
        };
        let valid = Key::new(key)?;
        let is_own = key.strip_prefix(&**head).is_some_and(|key| !key.is_empty());
        if is_own {
            Ok(valid)
        } else {
            Err(KeyFault::Reserved)
        }
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tenant").field(&self.name()).finish()
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime_core::limits::KEY_BYTES_MAX;

    use super::*;
    use crate::retention::GroupId;
    use crate::striped::{Manifest, PartsOf, WriteId};

    fn named(name: &str) -> Tenant {
        Tenant::named(name).expect("a name")
    }

    #[test]
    fn names_are_bounded() {
        for (name, expected) in [
            ("", Err(TenantFault { len_bytes: 0 })),
            ("a", Ok("a")),
            ("default", Ok("default")),
            (&"n".repeat(64), Ok(&*"n".repeat(64))),
            (&"n".repeat(65), Err(TenantFault { len_bytes: 65 })),
            (&"n".repeat(300), Err(TenantFault { len_bytes: 300 })),
        ] {
            let tenant = Tenant::named(name);
            assert_eq!(
                tenant.as_ref().map(Tenant::name),
                expected.as_ref().copied()
            );
        }
        assert_eq!(named("default"), Tenant::default());
        assert_eq!(format!("{:?}", named("a")), "Tenant(\"a\")");
    }

    #[test]
    fn golden_key() {
        let key = named("ab").key(b"k").into_owned();
        assert_eq!(key, b"\xfftenant\x02abk");
    }

    #[test]
    fn keys_of_tenants_never_meet() {
        let tenants = [
            Tenant::default(),
            named("a"),
            named("b"),
            named("ab"),
            named("\u{1}a"),
        ];
        let chosen: [&[u8]; 5] = [b"k", b"ak", b"bk", b"\xfftenant\x01ak", b"\xfflunette"];
        let mut seen = std::collections::BTreeSet::new();
        for tenant in &tenants {
            for chosen in chosen {
                let key = tenant.key(chosen);
                match tenant.check(&key) {
                    Ok(valid) => {
                        assert_eq!(TenantTag::of(valid), tenant.tag());
                        assert_eq!(tenant.chosen(&key), Some(chosen));
                        assert!(key.starts_with(&tenant.prefix(b"")));
                        let told = Tenant::of(valid).unwrap_or_default();
                        assert_eq!(&told, tenant);
                        assert!(seen.insert(key.into_owned()), "{tenant:?} {chosen:?}");
                    }
                    Err(fault) => {
                        assert_eq!((tenant.name(), fault), (DEFAULT_TENANT, KeyFault::Reserved));
                    }
                }
            }
        }
        assert_eq!(seen.len(), 3 + 4 * 5);
    }

    #[test]
    fn what_callers_chose_is_checked_as_a_whole() {
        let tenant = named("a");
        let check = |key: &[u8]| tenant.check(&tenant.key(key)).map(|key| key.bytes().len());
        assert_eq!(check(b""), Err(KeyFault::Empty));
        assert_eq!(check(b"k"), Ok(10));
        let longest = KEY_BYTES_MAX - 9;
        assert_eq!(check(&vec![7; longest]), Ok(KEY_BYTES_MAX));
        let len_bytes = KEY_BYTES_MAX + 1;
        let too_long = Err(KeyFault::TooLong { len_bytes });
        assert_eq!(check(&vec![7; longest + 1]), too_long);
        // A key that is not this tenant's.
        for other in [&b"k"[..], b"\xfftenant\x01bk", b"\xfftenant\x01a"] {
            assert_eq!(tenant.check(other), Err(KeyFault::Reserved));
        }
    }

    #[test]
    fn whatever_bytes_are_has_a_tag() {
        for bytes in [
            &b"\xfftenant"[..],
            b"\xfftenant\x05ab",
            b"\xfflunette",
            b"\xfflunette0123456789012345678901234567890123456789",
        ] {
            let key = Key::new(bytes).expect("a key");
            assert_eq!(TenantTag::of(key), TenantTag::DEFAULT, "{bytes:?}");
        }
    }

    #[test]
    fn parts_and_groups_are_of_their_tenant() {
        let manifest = Manifest::new(9, 4, WriteId(3)).expect("within the limits");
        for tenant in [Tenant::default(), named("a")] {
            let key = tenant.key(b"k");
            let part = manifest.part_key(PartsOf::from(Key::new(&key).expect("a key")), 1);
            assert!(part.key().is_of_part());
            assert_eq!(TenantTag::of(part.key()), tenant.tag());
        }
        let group = GroupId::of(b"g");
        assert_eq!(group.in_tenant(TenantTag::DEFAULT), group);
        let ids = [
            group,
            group.in_tenant(named("a").tag()),
            group.in_tenant(named("b").tag()),
        ];
        assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
    }
}
