//! Requests that objects' bytes go with: what is written is read back, and nothing else is.
#![forbid(unsafe_code)]

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_cluster_proto::map::Epoch;
use lunette_kvstore_proto::key::{Fingerprint, Key};
use lunette_kvstore_proto::message::directory::{
    AdaptersMessage, AskerId, BytesReply, CommitMessage, Described, Descriptor, FarWish,
    FillMessage, GetMessage, HoldWish, MeetMessage, MeetReply, NearWish, PLACES_MAX, PairMessage,
    PushPlace, PushWish, PushedReply, Reach, ReachMessage, Reached, ReadMessage, ReplicaMessage,
    ReservationId, ReserveMessage, ReserveReply, RevokeMessage, StripedReply, WriteMessage,
};
use lunette_kvstore_proto::message::{FormatVersion, MessageFault};
use lunette_kvstore_proto::owner::WriteAnswer;
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::range::{ByteRange, RANGES_MAX};
use lunette_kvstore_proto::retention::{GroupId, Parent, Pin, Retention};
use lunette_kvstore_proto::striped::{Manifest, WriteId};
use lunette_kvstore_proto::version::{CopyInfo, Form, Generation, Version, WriteKind};
use lunette_runtime_core::ids::{CoreIndex, NodeId, RequestId};
use proptest::collection::vec;
use proptest::prelude::*;

fn seat() -> impl Strategy<Value = Seat> {
    any::<(u64, u64, u16)>().prop_map(|(node, incarnation, core)| Seat {
        node: NodeId(node),
        incarnation,
        core: CoreIndex(core),
    })
}

fn version() -> impl Strategy<Value = Version> {
    any::<(u64, u64)>().prop_map(|(epoch, sequence)| Version {
        epoch: Epoch(epoch),
        sequence,
    })
}

const fn namespace(is_strict: bool) -> NamespaceKind {
    if is_strict {
        NamespaceKind::Strict
    } else {
        NamespaceKind::Cache
    }
}

const fn kind(is_upsert: bool) -> WriteKind {
    if is_upsert {
        WriteKind::Upsert
    } else {
        WriteKind::Put
    }
}

fn write_answer() -> impl Strategy<Value = WriteAnswer> {
    prop_oneof![
        (version(), any::<bool>()).prop_map(|(version, is_cut_off)| WriteAnswer::Written {
            version,
            is_cut_off
        }),
        version().prop_map(|version| WriteAnswer::Exists { version }),
        prop::sample::select(vec![
            WriteAnswer::Busy,
            WriteAnswer::Full,
            WriteAnswer::Unavailable,
            WriteAnswer::Aborted,
            WriteAnswer::Interrupted,
        ]),
    ]
}

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut body = Vec::new();
    encode(&mut body);
    body
}

/// What decodes encodes to the same bytes, in the same version.
macro_rules! check_all {
    ($body:ident: $($name:ident),*) => {
        $(if let Ok(message) = $name::decode($body) {
            assert_eq!(encoded(|out| message.encode(FormatVersion($body[0]), out)), $body);
        })*
    };
}

/// As [`check_all`], of answers, which are in the version of their question.
macro_rules! check_answers {
    ($body:ident: $($name:ident),*) => {
        $(if let Ok(message) = $name::decode(FormatVersion::NEWEST, $body) {
            assert_eq!(encoded(|out| message.encode(FormatVersion::NEWEST, out)), $body);
        })*
    };
}

fn decode_as_all(body: &[u8]) {
    check_all!(body: WriteMessage, GetMessage, ReadMessage, ReplicaMessage);
    check_all!(body: ReserveMessage, FillMessage, CommitMessage, RevokeMessage);
    check_all!(body: MeetMessage, AdaptersMessage, PairMessage, ReachMessage);
    check_answers!(body: BytesReply, StripedReply, WriteAnswer, ReserveReply, MeetReply, Described);
    check_answers!(body: PushedReply, Reached);
    if let Ok((wish, rest)) = FarWish::split(body) {
        let again = encoded(|out| wish.encode(FormatVersion(body[0]), out));
        assert_eq!([&again[..], rest].concat(), body);
    }
    if let Ok((wish, rest)) = PushWish::split(body) {
        let again = encoded(|out| wish.encode(FormatVersion(body[0]), out));
        assert_eq!([&again[..], rest].concat(), body);
    }
    if let Ok((wish, rest)) = NearWish::split(body) {
        let again = encoded(|out| wish.encode(FormatVersion(body[0]), out));
        assert_eq!([&again[..], rest].concat(), body);
    }
}

/// Encodes, and wants the same back, and nothing from a part of it.
macro_rules! expect_back {
    ($name:ident, $message:expr, $cut:expr) => {
        let message = $message;
        let body = encoded(|out| message.encode(FormatVersion::NEWEST, out));
        prop_assert!($name::decode(&body[..$cut.index(body.len())]).is_err());
        prop_assert_eq!($name::decode(&body), Ok(message));
    };
}

/// As [`expect_back`], of answers.
macro_rules! expect_answer_back {
    ($name:ident, $message:expr, $cut:expr) => {
        let (version, message) = (FormatVersion::NEWEST, $message);
        let body = encoded(|out| message.encode(version, out));
        prop_assert!($name::decode(version, &body[..$cut.index(body.len())]).is_err());
        prop_assert_eq!($name::decode(version, &body), Ok(message));
    };
}

fn pin() -> impl Strategy<Value = Pin> {
    let soft = any::<u32>().prop_map(|ttl_ms| Pin::Soft { ttl_ms });
    prop_oneof![Just(Pin::None), soft, Just(Pin::Hard)]
}

fn retention() -> impl Strategy<Value = Retention> {
    let hash = || prop::option::of(any::<u128>());
    (any::<bool>(), pin(), hash(), hash()).prop_map(|(is_last, pin, group, behind)| Retention {
        is_last,
        pin,
        group: group.map(GroupId::drawn),
        behind: behind.map(|hash| Parent(Fingerprint(hash))),
    })
}

proptest! {
    #[test]
    fn requests_come_back(
        (asker, request, epoch) in any::<(u64, u64, u64)>(),
        (wanted, wait_ms, is_strict) in any::<(u8, u32, bool)>(),
        (is_upsert, is_striped) in any::<(bool, bool)>(),
        retention in retention(),
        to in seat(),
        version in version(),
        key in vec(any::<u8>(), 1..60),
        cut: prop::sample::Index,
    ) {
        let (asker, request) = (AskerId(asker), RequestId(request));
        let (namespace, kind) = (namespace(is_strict), kind(is_upsert));
        let form = if is_striped { Form::Striped } else { Form::Whole };
        let key = Key::new(&key).expect("short");
        expect_back!(
            WriteMessage,
            WriteMessage {
                kind,
                form,
                namespace,
                wanted,
                wait_ms,
                retention,
                ..WriteMessage::new((asker, request), RequestId(epoch), to, key)
            },
            cut
        );
        let info = CopyInfo {
            version,
            kind,
            form,
            generation: Generation(epoch),
            wanted: 1 + wanted % 8,
            len_bytes: wait_ms,
            crc32c: wait_ms,
        };
        expect_back!(ReplicaMessage, ReplicaMessage { to, info, namespace, is_repair: is_upsert, pin: retention.pin, key }, cut);
    }

    #[test]
    fn requests_with_ranges_come_back(
        (asker, request, epoch, is_strict) in any::<(u64, u64, u64, bool)>(),
        ranges in vec(any::<(u64, u32)>(), 0..5),
        to in seat(),
        version in version(),
        key in vec(any::<u8>(), 1..60),
        cut: prop::sample::Index,
    ) {
        let (asker, request, epoch) = (AskerId(asker), RequestId(request), Epoch(epoch));
        let (namespace, key) = (namespace(is_strict), Key::new(&key).expect("short"));
        let range = |(offset_bytes, len_bytes)| ByteRange { offset_bytes, len_bytes };
        let ranges: Vec<_> = ranges.into_iter().map(range).collect();
        let also = ranges.clone();
        let get = GetMessage { epoch, asker, request, to, namespace, ranges, key };
        expect_back!(GetMessage, get, cut);
        let ranges = also;
        expect_back!(ReadMessage, ReadMessage { to, version, namespace, ranges, key }, cut);
    }

    #[test]
    fn reservations_come_back(
        (asker, reservation, request) in any::<(u64, u64, u64)>(),
        (wanted, wait_ms, is_strict, is_upsert) in any::<(u8, u32, bool, bool)>(),
        (len_bytes, keep_ms, offset_bytes) in any::<(u32, u32, u32)>(),
        retention in retention(),
        to in seat(),
        key in vec(any::<u8>(), 1..60),
        cut: prop::sample::Index,
    ) {
        let (asker, reservation) = (AskerId(asker), ReservationId(reservation));
        let (namespace, kind) = (namespace(is_strict), kind(is_upsert));
        let (request, key) = (RequestId(request), Key::new(&key).expect("short"));
        let reserve = ReserveMessage {
            asker, reservation, to, kind, namespace, wanted, len_bytes, keep_ms, retention, key,
        };
        expect_back!(ReserveMessage, reserve, cut);
        expect_back!(FillMessage, FillMessage { asker, reservation, to, offset_bytes, key }, cut);
        let commit = CommitMessage {
            asker, reservation, to, request, over_below: request, wait_ms, hold_ms: keep_ms, key,
        };
        expect_back!(CommitMessage, commit, cut);
        expect_back!(RevokeMessage, RevokeMessage { asker, reservation, to, key }, cut);
    }

    #[test]
    fn answers_come_back(
        answer in write_answer(),
        version in version(),
        is_cut_off: bool,
        object_len_bytes: u32,
        write: u128,
        cut: prop::sample::Index,
    ) {
        expect_answer_back!(WriteAnswer, answer, cut);
        expect_answer_back!(BytesReply, BytesReply::new(version, is_cut_off, object_len_bytes), cut);
        let len_bytes = 1 + u64::from(object_len_bytes);
        let manifest = Manifest::new(len_bytes, 16 << 20, WriteId(write)).expect("within the limits");
        expect_answer_back!(StripedReply, StripedReply { version, is_cut_off, manifest }, cut);
        expect_answer_back!(ReserveReply, ReserveReply::Exists { version }, cut);
        expect_answer_back!(ReserveReply, ReserveReply::Reserved, cut);
    }

    #[test]
    fn meetings_wishes_and_descriptors_come_back(
        to in seat(),
        version in version(),
        (boot_id, proof, number, crc32c) in any::<(u128, u128, u64, u32)>(),
        (slot, chunk, held_ms, is_again) in any::<(u32, u32, u32, bool)>(),
        (offset_bytes, len_bytes) in (0..1_u64 << 29, 0..1_u32 << 26),
        rest in vec(any::<u8>(), 0..20),
        cut: prop::sample::Index,
    ) {
        expect_back!(MeetMessage, MeetMessage { to, boot_id, proof }, cut);
        expect_answer_back!(MeetReply, MeetReply { ticket: boot_id, name: proof, words: slot }, cut);
        let number = number.max(1);
        let descriptor = Descriptor { slot, number, chunk, offset_bytes, len_bytes, crc32c, held_ms };
        let bytes = BytesReply::new(version, is_again, len_bytes);
        expect_answer_back!(Described, Described { bytes, descriptor }, cut);
        let hold = HoldWish { holder: number, ttl_ms: held_ms };
        let wish = NearWish { from_bytes: slot, is_again, hold };
        let body = encoded(|out| wish.encode(FormatVersion::NEWEST, out));
        prop_assert!(NearWish::split(&body[..cut.index(body.len())]).is_err());
        let body = [&body[..], &rest].concat();
        prop_assert_eq!(NearWish::split(&body), Ok((wish, &rest[..])));
        let far = FarWish { connection: number, near: wish };
        let body = encoded(|out| far.encode(FormatVersion::NEWEST, out));
        prop_assert!(FarWish::split(&body[..cut.index(body.len())]).is_err());
        let body = [&body[..], &rest].concat();
        prop_assert_eq!(FarWish::split(&body), Ok((far, &rest[..])));
        let reach = Reach {
            address: offset_bytes,
            key: slot,
            word_address: offset_bytes,
            word_key: chunk,
            number,
            len_bytes,
            crc32c,
            held_ms,
        };
        expect_answer_back!(Reached, Reached { bytes, reach }, cut);
        let nobodys = Reached { bytes, reach: Reach { number: 0, ..reach } };
        let body = encoded(|out| nobodys.encode(FormatVersion::NEWEST, out));
        prop_assert!(Reached::decode(FormatVersion::NEWEST, &body).is_err());
    }

    #[test]
    fn wishes_of_bytes_that_are_written_come_back(
        (connection, immediate, crc32c) in any::<(u64, u32, u32)>(),
        places in vec((0..u64::MAX >> 1, any::<u32>(), 1..=u32::MAX), 1..=PLACES_MAX),
        pieces in vec(any::<u32>(), 0..4),
        (version, is_cut_off) in (version(), any::<bool>()),
        rest in vec(any::<u8>(), 0..20),
        cut: prop::sample::Index,
    ) {
        let place = |(address, key, len_bytes)| PushPlace { address, key, len_bytes };
        let places: Vec<_> = places.into_iter().map(place).collect();
        let answer = PushPlace { len_bytes: 64, ..places[0] };
        let total: u64 = places.iter().map(|place| u64::from(place.len_bytes)).sum();
        let wish = PushWish { connection, immediate, answer, places };
        let body = encoded(|out| wish.encode(FormatVersion::NEWEST, out));
        prop_assert!(PushWish::split(&body[..cut.index(body.len())]).is_err());
        let len_bytes = immediate % (64 << 20);
        let parts = wish.parts(len_bytes);
        prop_assert_eq!(parts.is_some(), len_bytes > 0 && u64::from(len_bytes) <= total);
        let covered = |parts: Vec<PushPlace>| parts.iter().map(|part| part.len_bytes).sum::<u32>();
        prop_assert!(parts.is_none_or(|parts| covered(parts) == len_bytes));
        let pieces: Vec<u32> = pieces.into_iter().map(|len| len % (1 << 24)).collect();
        if let Some(writes) = wish.writes(&pieces) {
            // What is written comes to the same bytes, piece by piece and place by place.
            for (piece, len) in pieces.iter().enumerate() {
                let of_piece = writes.iter().filter(|write| write.piece == piece);
                let mut at = 0;
                for write in of_piece {
                    prop_assert_eq!(write.offset_bytes, at);
                    prop_assert!(write.there.len_bytes > 0);
                    at += write.there.len_bytes;
                }
                prop_assert_eq!(at, *len);
            }
            let in_all = pieces.iter().sum();
            let parts = wish.parts(in_all).expect("it fits");
            let mut writes = writes.into_iter();
            for part in parts {
                let (mut at, end) = (part.address, part.address + u64::from(part.len_bytes));
                while at < end {
                    let write = writes.next().expect("one for each byte");
                    prop_assert_eq!((write.there.address, write.there.key), (at, part.key));
                    at += u64::from(write.there.len_bytes);
                }
                prop_assert_eq!(at, end);
            }
            prop_assert!(writes.next().is_none());
        }
        let body = [&body[..], &rest].concat();
        prop_assert_eq!(PushWish::split(&body), Ok((wish, &rest[..])));
        let bytes = BytesReply::new(version, is_cut_off, immediate);
        expect_answer_back!(PushedReply, PushedReply { bytes, len_bytes: immediate, crc32c }, cut);
    }

    /// Small bytes make short keys and known codes, which decode further than random ones.
    #[test]
    fn small_random_bytes_never_panic(mut body in vec(0_u8..3, 0..120)) {
        if let Some(first) = body.first_mut() {
            *first = 1;
        }
        decode_as_all(&body);
    }
}

#[test]
fn ranges_are_bounded_before_they_are_read() {
    let to = Seat {
        node: NodeId(1),
        incarnation: 1,
        core: CoreIndex(0),
    };
    let range = ByteRange {
        offset_bytes: 1,
        len_bytes: 2,
    };
    let message = ReadMessage {
        to,
        version: Version::default(),
        namespace: NamespaceKind::Cache,
        ranges: vec![range; RANGES_MAX],
        key: Key::new(b"key").expect("a key"),
    };
    let mut body = encoded(|out| message.encode(FormatVersion::NEWEST, out));
    assert_eq!(ReadMessage::decode(&body), Ok(message));
    let count_at = body.len() - (2 + 3) - RANGES_MAX * 12 - 2;
    let above = u16::try_from(RANGES_MAX + 1).expect("small");
    body[count_at..count_at + 2].copy_from_slice(&above.to_le_bytes());
    let fault = ReadMessage::decode(&body).expect_err("too many");
    let expected = MessageFault::TooManyItems {
        found: RANGES_MAX + 1,
        items_max: RANGES_MAX,
    };
    assert_eq!(fault, expected);
}
