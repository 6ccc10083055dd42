//! Keys, page by page: an owner names those of what it has in the order of their fingerprints, from any place on.
//!
//! ```text
//!  list:    version u8 | to seat | after fingerprint, if any | keys u16 | prefix
//!  listed:  epoch u64 | next fingerprint, if any | count u16 | key, count of them
//! ```
//!
//! A prefix and a key are their bytes behind their 16-bit length. Homes know fingerprints alone, so owners are asked, all
//! of them, and who asks leaves out what others have named too. Nothing is kept of who asks: a page may be asked for
//! again, and what comes or goes meanwhile may be named or not.

use lunette_cluster_proto::map::Epoch;
use lunette_runtime_core::codec::Writer;
use lunette_runtime_core::limits::{BODY_BYTES_MAX, KEY_BYTES_MAX};

use super::wire::{Decoder, Encoder, Wire};
use crate::key::{Fingerprint, Key, KeyFault};
use crate::message::{FormatVersion, MessageFault};
use crate::placement::Seat;
use crate::tenant::TENANT_PREFIX;

/// Most keys of one page.
pub const LISTED_MAX: usize = 512;
/// Most bytes of one page's keys, with their lengths.
pub const LISTED_BYTES_MAX: usize = 64 * 1024;

/// What a key takes beside its bytes.
const KEY_HEAD_BYTES: usize = size_of::<u16>();
const HEAD_BYTES_MAX: usize = 64;
const _: () = assert!(HEAD_BYTES_MAX + LISTED_BYTES_MAX <= BODY_BYTES_MAX);
const _: () = assert!(KEY_HEAD_BYTES + KEY_BYTES_MAX <= LISTED_BYTES_MAX);

/// To name keys of what an owner has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListMessage<'a> {
    /// The owner: one life of it only.
    pub to: Seat,
    /// From where on, in the order of fingerprints: behind this one.
    pub after: Option<Fingerprint>,
    /// How many keys are wanted; at most [`LISTED_MAX`] count.
    pub keys: u16,
    /// How the keys begin, as the store has them: at most as long as a key. See [`is_meant`].
    pub prefix: &'a [u8],
}

/// Keys of what an owner has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListReply {
    /// The map that the owner knows: there may be members in it of which who asks has not heard.
    pub epoch: Epoch,
    /// Behind which one to go on; `None`: these were the last. It may be later than the last of the keys: what lies
    /// between is not meant.
    pub next: Option<Fingerprint>,
    keys: Vec<Box<[u8]>>,
    /// Of these, with their lengths.
    bytes: usize,
}

/// Whether a key is one of those that a prefix means: it begins so, is its tenant's, and no part's.
#[must_use]
pub fn is_meant(key: Key<'_>, prefix: &[u8]) -> bool {
    let (key_bytes, of_tenant) = (key.bytes(), |key: &[u8]| key.starts_with(TENANT_PREFIX));
    key_bytes.starts_with(prefix) && of_tenant(key_bytes) == of_tenant(prefix) && !key.is_of_part()
}

impl<'a> ListMessage<'a> {
    /// Appends the message to `out`, in a version that is spoken here.
    ///
    /// # Panics
    /// If the prefix is longer than a key may be.
    pub fn encode(&self, version: FormatVersion, out: &mut Vec<u8>) {
        assert!(self.prefix.len() <= KEY_BYTES_MAX, "no key begins so");
        let out = &mut Encoder::begin(version, out);
        self.to.put(out);
        self.after.put(out);
        let mut out = Writer::new(out);
        out.u16(self.keys).short_bytes(self.prefix);
    }

    /// The message in `body`, whose prefix it borrows.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else than one message.
    pub fn decode(body: &'a [u8]) -> Result<Self, MessageFault> {
        let mut decoder = Decoder::begin(body)?;
        let reader = &mut decoder;
        let (to, after) = (Wire::take(reader)?, Wire::take(reader)?);
        let (keys, prefix) = (reader.u16()?, reader.short_bytes()?);
        reader.end()?;
        if prefix.len() > KEY_BYTES_MAX {
            let len_bytes = prefix.len();
            return Err(KeyFault::TooLong { len_bytes }.into());
        }
        Ok(Self {
            to,
            after,
            keys,
            prefix,
        })
    }
}

impl ListReply {
    /// No keys, of an owner that knows this map.
    #[must_use]
    pub fn of(epoch: Epoch) -> Self {
        Self {
            epoch,
            ..Self::default()
        }
    }

    /// The keys, in the order of their fingerprints: at most [`LISTED_MAX`], of [`LISTED_BYTES_MAX`] in all.
    #[must_use]
    pub fn keys(&self) -> &[Box<[u8]>] {
        &self.keys
    }

    /// The same.
    #[must_use]
    pub fn into_keys(self) -> Vec<Box<[u8]>> {
        self.keys
    }

    /// Adds a key behind the others, if there is room for it: whether there was.
    #[must_use]
    pub fn push(&mut self, key: Key<'_>) -> bool {
        let bytes = self.bytes + KEY_HEAD_BYTES + key.bytes().len();
        let fits = self.keys.len() < LISTED_MAX && bytes <= LISTED_BYTES_MAX;
        if fits {
            self.keys.push(key.bytes().into());
            self.bytes = bytes;
        }
        fits
    }

    /// Appends the answer to `out`, in the version of what was asked.
    pub fn encode(&self, version: FormatVersion, out: &mut Vec<u8>) {
        let out = &mut Encoder::within(version, out);
        self.epoch.put(out);
        self.next.put(out);
        let count = u16::try_from(self.keys.len()).expect("bounded");
        let mut out = Writer::new(out);
        out.u16(count);
        for key in &self.keys {
            out.short_bytes(key);
        }
    }

    /// The answer in `body` to what was asked with `after`.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else than one answer, keys that are none or out of their order among them.
    pub fn decode(
        version: FormatVersion,
        after: Option<Fingerprint>,
        body: &[u8],
    ) -> Result<Self, MessageFault> {
        let mut decoder = Decoder::within(version, body);
        let reader = &mut decoder;
        let mut reply = Self {
            epoch: Wire::take(reader)?,
            next: Wire::take(reader)?,
            ..Self::default()
        };
        let (found, items_max) = (usize::from(reader.u16()?), LISTED_MAX);
        if found > items_max {
            return Err(MessageFault::TooManyItems { found, items_max });
        }
        let mut last = after;
        for _ in 0..found {
            let key = Key::new(reader.short_bytes()?)?;
            let fingerprint = Some(key.fingerprint());
            if fingerprint <= last {
                return Err(MessageFault::KeysOutOfOrder);
            }
            last = fingerprint;
            if !reply.push(key) {
                return Err(MessageFault::TooMuchRoom(body.len() as u64));
            }
        }
        reader.end()?;
        // Whoever goes on gets on.
        let gets_on = reply.next.is_none() || reply.next >= last && reply.next > after;
        gets_on.then_some(reply).ok_or(MessageFault::KeysOutOfOrder)
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime_core::ids::{CoreIndex, NodeId};

    use super::*;
    use crate::striped::{Manifest, PartsOf, WriteId};
    use crate::tenant::Tenant;

    const VERSION: FormatVersion = FormatVersion(1);

    const fn list(prefix: &[u8]) -> ListMessage<'_> {
        ListMessage {
            to: Seat {
                node: NodeId(7),
                incarnation: 2,
                core: CoreIndex(3),
            },
            after: Some(Fingerprint(5)),
            keys: 9,
            prefix,
        }
    }

    fn encoded(message: &ListMessage<'_>) -> Vec<u8> {
        let mut body = Vec::new();
        message.encode(VERSION, &mut body);
        body
    }

    #[test]
    fn golden_list_and_its_answer() {
        let body = encoded(&list(b"ab"));
        let mut golden = vec![1, 7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0];
        golden.extend([1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend([9, 0, 2, 0, b'a', b'b']);
        assert_eq!(body, golden);
        assert_eq!(ListMessage::decode(&body), Ok(list(b"ab")));
        for len in 0..body.len() {
            assert!(ListMessage::decode(&body[..len]).is_err(), "cut at {len}");
        }
        let trailing = [body.as_slice(), &[0]].concat();
        let refused = ListMessage::decode(&trailing);
        assert_eq!(refused, Err(MessageFault::Trailing(1)));

        let mut keys = [&b"abc"[..], b"ab"].map(|key| Key::new(key).expect("a key"));
        keys.sort_by_key(|key| key.fingerprint());
        assert_eq!(keys.map(|key| key.bytes().len()), [3, 2]);
        let mut reply = ListReply::of(Epoch(4));
        assert!(keys.into_iter().all(|key| reply.push(key)));
        let mut body = Vec::new();
        reply.encode(VERSION, &mut body);
        let golden = [
            4, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 3, 0, b'a', b'b', b'c', 2, 0, b'a', b'b',
        ];
        assert_eq!(body, golden);
        assert_eq!(ListReply::decode(VERSION, None, &body), Ok(reply));
        for len in 0..body.len() {
            assert!(ListReply::decode(VERSION, None, &body[..len]).is_err());
        }
    }

    #[test]
    fn what_is_too_long_or_no_key_is_refused() {
        let longest = vec![7; KEY_BYTES_MAX];
        let mut body = encoded(&list(&longest));
        assert_eq!(ListMessage::decode(&body), Ok(list(&longest)));
        let at = body.len() - KEY_BYTES_MAX - 2;
        let len_bytes = KEY_BYTES_MAX + 1;
        let len = u16::try_from(len_bytes).expect("short").to_le_bytes();
        body[at..at + 2].copy_from_slice(&len);
        body.push(7);
        let refused = ListMessage::decode(&body);
        assert_eq!(refused, Err(KeyFault::TooLong { len_bytes }.into()));
        let refused = ListReply::decode(VERSION, None, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(refused, Err(KeyFault::Empty.into()));
    }

    /// So many keys in the order of their fingerprints, each of so many bytes.
    fn keys(count: usize, len_bytes: usize) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = (0..count)
            .map(|number| {
                let mut key = vec![7; len_bytes];
                key[..4].copy_from_slice(&u32::try_from(number).expect("few").to_le_bytes());
                key
            })
            .collect();
        keys.sort_by_key(|key| Key::new(key).expect("a key").fingerprint());
        keys
    }

    #[test]
    fn a_page_is_bounded_in_keys_and_in_bytes() {
        for (key_bytes, fits) in [(4, LISTED_MAX), (KEY_BYTES_MAX, 63)] {
            let keys = keys(fits + 1, key_bytes);
            let mut keys = keys.iter().map(|key| Key::new(key).expect("a key"));
            let mut reply = ListReply::default();
            let pushed = keys.clone().filter(|key| reply.push(*key)).count();
            assert_eq!((pushed, reply.keys().len()), (fits, fits));
            let mut body = Vec::new();
            reply.encode(VERSION, &mut body);
            assert!(body.len() <= HEAD_BYTES_MAX + LISTED_BYTES_MAX);
            assert_eq!(ListReply::decode(VERSION, None, &body), Ok(reply));
            // One more than a page has.
            let count = u16::try_from(fits + 1).expect("short");
            body[9..11].copy_from_slice(&count.to_le_bytes());
            Writer::new(&mut body).short_bytes(keys.next_back().expect("one").bytes());
            let refused = ListReply::decode(VERSION, None, &body).expect_err("too much");
            let expected = if fits == LISTED_MAX {
                MessageFault::TooManyItems {
                    found: fits + 1,
                    items_max: LISTED_MAX,
                }
            } else {
                MessageFault::TooMuchRoom(body.len() as u64)
            };
            assert_eq!(refused, expected);
        }
    }

    #[test]
    fn a_page_that_does_not_get_on_is_refused() {
        let keys = keys(3, 4);
        let keys: Vec<Key<'_>> = keys
            .iter()
            .map(|key| Key::new(key).expect("a key"))
            .collect();
        let [one, two, three] = [0, 1, 2].map(|place: usize| Some(keys[place].fingerprint()));
        let page = |next, order: [usize; 2]| {
            let mut reply = ListReply {
                next,
                ..ListReply::default()
            };
            assert!(order.iter().all(|place| reply.push(keys[*place])));
            let mut body = Vec::new();
            reply.encode(VERSION, &mut body);
            body
        };
        let nothing = |next| {
            let mut body = Vec::new();
            let reply = ListReply {
                next,
                ..ListReply::default()
            };
            reply.encode(VERSION, &mut body);
            body
        };
        for (after, body, is_right) in [
            (None, page(None, [0, 1]), true),
            (None, page(two, [0, 1]), true),
            (None, page(three, [0, 1]), true),
            (one, page(None, [1, 2]), true),
            (one, nothing(two), true),
            (one, nothing(None), true),
            (None, page(None, [1, 0]), false),
            (None, page(None, [1, 1]), false),
            (None, page(one, [0, 1]), false),
            (one, page(None, [0, 1]), false),
            (one, nothing(one), false),
            (two, nothing(one), false),
        ] {
            let decoded = ListReply::decode(VERSION, after, &body).map(drop);
            let expected = if is_right {
                Ok(())
            } else {
                Err(MessageFault::KeysOutOfOrder)
            };
            assert_eq!(decoded, expected, "{after:?} {body:?}");
        }
    }

    #[test]
    fn keys_of_other_tenants_and_parts_are_not_meant() {
        let tenant = Tenant::named("a").expect("a name");
        let other = Tenant::named("ab").expect("a name");
        let of_tenant = tenant.key(b"k").into_owned();
        let head = &of_tenant[..of_tenant.len() - 1];
        let of_other = other.key(b"k").into_owned();
        let manifest = Manifest::new(9, 4, WriteId(3)).expect("within the limits");
        let parts_of = PartsOf::from(Key::new(b"k").expect("a key"));
        let part = manifest.part_key(parts_of, 1);
        for (prefix, key, expected) in [
            (&b""[..], &b"k"[..], true),
            (b"k", b"k", true),
            (b"k", b"kk", true),
            (b"kk", b"k", false),
            (b"", &of_tenant, false),
            (b"", part.key().bytes(), false),
            (b"\xff", b"\xff", true),
            (b"\xff", &of_tenant, false),
            (head, &of_tenant, true),
            (head, &of_other, false),
            (head, b"k", false),
        ] {
            let key = Key::new(key).expect("a key");
            assert_eq!(is_meant(key, prefix), expected, "{prefix:?} {key:?}");
        }
    }
}
