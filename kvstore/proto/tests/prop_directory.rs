//! Messages of the directory: round trips, and decoding of what nobody wrote.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_cluster_proto::map::Epoch;
use lunette_kvstore_proto::credit::CreditNews;
use lunette_kvstore_proto::groups::GroupNews;
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::FormatVersion;
use lunette_kvstore_proto::message::directory::{
    Answer, AnswerMessage, Ask, AskMessage, AskerId, Away, Content, CopyPage, CopyPlace, Found,
    GONE_MAX, Gone, HOLDERS_MAX, HoldWish, Losses, Only, OpId, PAST_MAX, Recalled, Refusal,
    SeatMessage, ToHome, ToOwner, ToPeer, TombstonePage,
};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::retention::{GroupId, Parent};
use lunette_kvstore_proto::tenant::TenantTag;
use lunette_kvstore_proto::version::{
    COPIES_WANTED_MAX, CopyInfo, Form, Generation, Tombstone, Version, WriteKind,
};
use lunette_runtime_core::ids::{CoreIndex, NodeId, RequestId};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

prop_compose! {
    fn version()(epoch: u64, sequence: u64) -> Version {
        Version { epoch: Epoch(epoch), sequence }
    }
}

prop_compose! {
    fn seat()(node: u64, incarnation: u64, core: u16) -> Seat {
        Seat { node: NodeId(node), incarnation, core: CoreIndex(core) }
    }
}

prop_compose! {
    fn info()(
        version in version(),
        (is_put, is_striped) in any::<(bool, bool)>(),
        generation in any::<u64>(),
        wanted in 1..=COPIES_WANTED_MAX,
        (len_bytes, crc32c) in any::<(u32, u32)>(),
    ) -> CopyInfo {
        let kind = if is_put { WriteKind::Put } else { WriteKind::Upsert };
        let generation = Generation(generation);
        let form = form(is_striped);
        CopyInfo { version, kind, form, generation, wanted, len_bytes, crc32c }
    }
}

const fn form(is_striped: bool) -> Form {
    if is_striped {
        Form::Striped
    } else {
        Form::Whole
    }
}

fn only() -> impl Strategy<Value = Only> {
    let version = version().prop_map(|version| Only::Version { version });
    prop_oneof![Just(Only::Any), Just(Only::Whole), version]
}

fn key() -> impl Strategy<Value = Fingerprint> {
    any::<u128>().prop_map(Fingerprint)
}

fn namespace() -> impl Strategy<Value = NamespaceKind> {
    prop_oneof![Just(NamespaceKind::Cache), Just(NamespaceKind::Strict)]
}

prop_compose! {
    fn hold()(holder: u64, ttl_ms: u32) -> HoldWish {
        HoldWish { holder, ttl_ms }
    }
}

prop_compose! {
    fn place()(key in key(), version in version()) -> CopyPlace {
        CopyPlace { key, version }
    }
}

prop_compose! {
    fn tombstone()(version in version(), generation: u64) -> Tombstone {
        Tombstone { version, generation: Generation(generation) }
    }
}

fn to_home() -> impl Strategy<Value = ToHome> {
    let parts = (
        0..8_u8,
        (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>()),
        (key(), version(), info(), namespace(), hold()),
    );
    parts.prop_map(
        |(which, (op, asker, request, wait_ms), (key, version, info, namespace, hold))| {
            let (op, asker, order) = (OpId(op), AskerId(asker), request);
            let (kind, request) = (info.kind, RequestId(request));
            match which {
                0 => ToHome::Claim {
                    op,
                    key,
                    kind,
                    namespace,
                    wait_ms,
                },
                1 => ToHome::Abandon { op, key },
                2 => ToHome::Publish {
                    op,
                    key,
                    info,
                    namespace,
                },
                3 => ToHome::Retract {
                    key,
                    version,
                    reuses: u8::try_from(wait_ms % 256).expect("a byte"),
                },
                4 => ToHome::Dropped {
                    key,
                    version,
                    order,
                },
                5 => ToHome::Gone {
                    asker,
                    request,
                    key,
                    version,
                    namespace,
                    hold,
                },
                6 => ToHome::Settle,
                _ => ToHome::Kept { op, key, version },
            }
        },
    )
}

fn to_owner() -> impl Strategy<Value = ToOwner> {
    let parts = (
        0..13_u8,
        (any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()),
        (key(), version(), namespace(), hold(), option::of(place())),
        vec(any::<u64>(), 0..=HOLDERS_MAX),
    );
    parts.prop_map(
        |(which, (op, asker, order, flag), (key, version, namespace, hold, after), nodes)| {
            let (op, asker, request) = (OpId(op), AskerId(asker), RequestId(order));
            let generation = Generation(order);
            let refusal = if flag { Refusal::Busy } else { Refusal::Fenced };
            match which {
                0 => ToOwner::Granted {
                    op,
                    key,
                    version,
                    generation,
                },
                1 => ToOwner::Exists { op, key, version },
                2 => ToOwner::Refused { op, key, refusal },
                3 => ToOwner::Recorded {
                    op,
                    key,
                    version,
                    is_cut_off: flag,
                    order,
                },
                4 => ToOwner::Lost { op, key, version },
                5 => ToOwner::Drop {
                    key,
                    version,
                    order,
                    was_recorded: flag,
                },
                6 => ToOwner::Settled,
                7 => ToOwner::CopiesWanted {
                    is_full: flag,
                    after,
                },
                8 => ToOwner::CameBack { key },
                11 => ToOwner::Replacing { op, key, version },
                9 => ToOwner::WasUsed {
                    key,
                    reuses: u8::try_from(order % 256).expect("a byte"),
                },
                10 => ToOwner::Replicate {
                    key,
                    version,
                    missing: u8::try_from(order % 256).expect("a byte"),
                    holders: nodes.into_iter().map(NodeId).collect(),
                },
                _ => ToOwner::Serve {
                    asker,
                    request,
                    key,
                    version,
                    namespace,
                    hold,
                },
            }
        },
    )
}

fn page() -> impl Strategy<Value = CopyPage> {
    let parts = (
        option::of(place()),
        any::<bool>(),
        option::of(any::<(u64, u64)>()),
        vec((key(), info()), 0..5),
        any::<bool>(),
    );
    parts.prop_map(|(after, is_full, away, copies, is_last)| {
        let away = away.map(|(since, back)| Away {
            since: Epoch(since),
            back: Epoch(back),
        });
        CopyPage {
            after,
            is_full,
            away,
            copies,
            is_last,
        }
    })
}

fn gone() -> impl Strategy<Value = Vec<Gone>> {
    let gone = (option::of(any::<(u64, u64)>()), any::<u64>());
    let gone = gone.prop_map(|(life, last)| Gone {
        life: life.map(|(node, incarnation)| (NodeId(node), incarnation)),
        last: Epoch(last),
    });
    vec(gone, 0..=GONE_MAX)
}

fn losses() -> impl Strategy<Value = Losses> {
    let parts = (gone(), vec(gone(), 0..=PAST_MAX));
    parts.prop_map(|(open, past)| Losses { open, past })
}

fn recalled() -> impl Strategy<Value = Recalled> {
    let numbers = any::<(u64, u64, u32, u16, u64)>();
    (numbers, any::<(bool, bool)>(), losses()).prop_map(
        |((incarnation, epoch, homes, cores, horizon), (is_whole, is_final), losses)| Recalled {
            incarnation,
            epoch: Epoch(epoch),
            homes,
            cores,
            horizon: Epoch(horizon),
            is_whole,
            is_final,
            losses,
        },
    )
}

fn to_peer() -> impl Strategy<Value = ToPeer> {
    let pages = (
        option::of(key()),
        any::<(u64, bool, bool)>(),
        vec((key(), tombstone()), 0..5),
        option::of(key()),
        losses(),
        option::of(recalled()),
    );
    prop_oneof![
        (key(), tombstone()).prop_map(|(key, tombstone)| ToPeer::Bury { key, tombstone }),
        (key(), version()).prop_map(|(key, version)| ToPeer::Buried { key, version }),
        option::of(key()).prop_map(|after| ToPeer::TombstonesWanted { after }),
        pages.prop_map(|(after, known, tombstones, next, losses, recalled)| {
            let (horizon, is_informed, is_quiet) = (Epoch(known.0), known.1, known.2);
            ToPeer::Tombstones(TombstonePage {
                after,
                horizon,
                is_informed,
                is_quiet,
                tombstones,
                next,
                losses,
                recalled,
            })
        }),
        Just(ToPeer::CompleteWanted),
        Just(ToPeer::Complete),
        Just(ToPeer::Left),
    ]
}

fn message() -> impl Strategy<Value = SeatMessage> {
    let content = prop_oneof![
        vec(to_home(), 0..9).prop_map(Content::ToHome),
        vec(to_owner(), 0..9).prop_map(Content::ToOwner),
        page().prop_map(Content::Page),
        to_peer().prop_map(Content::ToPeer),
        vec(group_news(), 0..9).prop_map(Content::Groups),
        vec(credit_news(), 0..9).prop_map(Content::Credit),
        relay(),
    ];
    (any::<u64>(), seat(), seat(), content)
        .prop_map(|(epoch, from, to, content)| SeatMessage::new(Epoch(epoch), from, to, content))
}

fn ask() -> impl Strategy<Value = Ask> {
    let parts = (any::<(u64, u32)>(), key(), namespace(), option::of(hold()));
    let ask = (parts, any::<bool>(), only());
    ask.prop_map(
        |(((request, wait_ms), key, namespace, hold), is_lookup, only)| {
            let request = RequestId(request);
            if is_lookup {
                Ask::Lookup {
                    request,
                    key,
                    namespace,
                    hold,
                }
            } else {
                Ask::Remove {
                    request,
                    key,
                    namespace,
                    wait_ms,
                    only,
                }
            }
        },
    )
}

fn question() -> impl Strategy<Value = AskMessage> {
    let parts = (any::<(u64, u64, u64)>(), seat(), vec(ask(), 0..9));
    parts.prop_map(|((epoch, asker, over), to, asks)| AskMessage {
        epoch: Epoch(epoch),
        asker: AskerId(asker),
        over_below: RequestId(over),
        to,
        asks,
    })
}

fn one_answer() -> impl Strategy<Value = Answer> {
    let owners = vec(seat(), 0..=usize::from(COPIES_WANTED_MAX));
    let found = (version(), any::<(u32, u32, u32, bool)>(), owners);
    let found = found.prop_map(
        |(version, (len_bytes, crc32c, held_ms, is_striped), owners)| {
            Answer::Found(Found {
                version,
                form: form(is_striped),
                len_bytes,
                crc32c,
                held_ms,
                owners,
            })
        },
    );
    let removed = (any::<bool>(), version());
    prop_oneof![
        found,
        removed.prop_map(|(found, version)| Answer::Removed { found, version }),
        any::<u64>().prop_map(|epoch| Answer::Stale(Epoch(epoch))),
        prop::sample::select(vec![
            Answer::Miss,
            Answer::Unknown,
            Answer::Unavailable,
            Answer::Busy,
            Answer::Full,
            Answer::Interrupted,
        ]),
    ]
}

fn request() -> impl Strategy<Value = RequestId> {
    any::<u64>().prop_map(RequestId)
}

fn answer() -> impl Strategy<Value = AnswerMessage> {
    vec((request(), one_answer()), 0..9).prop_map(|answers| AnswerMessage { answers })
}

fn group_news() -> impl Strategy<Value = GroupNews> {
    (any::<u128>(), 0..4).prop_map(|(hash, which)| {
        let group = if hash.is_multiple_of(2) {
            GroupId::drawn(hash)
        } else {
            GroupId::behind(Parent(Fingerprint(hash)))
        };
        match which {
            0 => GroupNews::Joined { group },
            1 => GroupNews::Left { group },
            2 => GroupNews::Broken { group },
            _ => GroupNews::Part { group },
        }
    })
}

fn credit_news() -> impl Strategy<Value = CreditNews> {
    (any::<[u64; 5]>(), any::<bool>(), 0..3).prop_map(
        |([tenant, number, one, other, third], is, which)| {
            let tenant = TenantTag(tenant);
            match which {
                0 => CreditNews::Use {
                    tenant,
                    number,
                    have_bytes: one,
                    want_bytes: other,
                    need_bytes: third,
                },
                1 => CreditNews::Lent {
                    tenant,
                    number,
                    max_bytes: one,
                    is_last: is,
                },
                _ => CreditNews::Wanted { tenant },
            }
        },
    )
}

fn relay() -> impl Strategy<Value = Content> {
    let parts = (any::<u64>(), request(), one_answer());
    parts.prop_map(|(asker, request, answer)| Content::Relay {
        asker: AskerId(asker),
        request,
        answer,
    })
}

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut body = Vec::new();
    encode(&mut body);
    body
}

/// Decodes as everything, and requires that what decodes encodes to the same bytes.
fn decode_as_all(body: &[u8]) {
    if let Ok(message) = SeatMessage::decode(body) {
        assert_eq!(
            encoded(|out| message.encode(FormatVersion::NEWEST, out)),
            body
        );
    }
    if let Ok(message) = AskMessage::decode(body) {
        assert_eq!(
            encoded(|out| message.encode(FormatVersion::NEWEST, out)),
            body
        );
    }
    if let Ok(message) = AnswerMessage::decode(body) {
        assert_eq!(
            encoded(|out| message.encode(FormatVersion::NEWEST, out)),
            body
        );
    }
}

proptest! {
    #[test]
    fn messages_between_seats_come_back(message in message(), cut: prop::sample::Index) {
        let body = encoded(|out| message.encode(FormatVersion::NEWEST, out));
        prop_assert_eq!(SeatMessage::decode(&body), Ok(message));
        prop_assert!(SeatMessage::decode(&body[..cut.index(body.len())]).is_err());
    }

    #[test]
    fn questions_and_answers_come_back(question in question(), answer in answer()) {
        let body = encoded(|out| question.encode(FormatVersion::NEWEST, out));
        prop_assert_eq!(AskMessage::decode(&body), Ok(question));
        let body = encoded(|out| answer.encode(FormatVersion::NEWEST, out));
        prop_assert_eq!(AnswerMessage::decode(&body), Ok(answer));
    }

    #[test]
    fn damaged_messages_never_panic(
        message in message(),
        at: prop::sample::Index,
        byte: u8,
    ) {
        let mut body = encoded(|out| message.encode(FormatVersion::NEWEST, out));
        let at = at.index(body.len());
        body[at] = byte;
        decode_as_all(&body);
    }

    /// Small bytes make small counts and known codes, which decode further than random ones.
    #[test]
    fn small_random_bytes_never_panic(mut body in vec(0_u8..4, 0..200)) {
        if let Some(first) = body.first_mut() {
            *first = 1;
        }
        decode_as_all(&body);
    }
}
