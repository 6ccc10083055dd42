//! Requests that objects' bytes go with: what is written is read back, and nothing else is.
#![forbid(unsafe_code)]

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_cluster_proto::map::Epoch;
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{
    AskerId, BytesReply, GetMessage, ReadMessage, ReplicaMessage, WriteMessage,
};
use lunette_kvstore_proto::owner::WriteAnswer;
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::version::{CopyInfo, Generation, Version, WriteKind};
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

/// Decodes as everything, and requires that what decodes encodes to the same bytes.
fn decode_as_all(body: &[u8]) {
    if let Ok(message) = WriteMessage::decode(body) {
        assert_eq!(encoded(|out| message.encode(out)), body);
    }
    if let Ok(message) = GetMessage::decode(body) {
        assert_eq!(encoded(|out| message.encode(out)), body);
    }
    if let Ok(message) = ReadMessage::decode(body) {
        assert_eq!(encoded(|out| message.encode(out)), body);
    }
    if let Ok(message) = ReplicaMessage::decode(body) {
        assert_eq!(encoded(|out| message.encode(out)), body);
    }
    if let Ok(reply) = BytesReply::decode(body) {
        assert_eq!(encoded(|out| reply.encode(out)), body);
    }
    if let Ok(answer) = WriteAnswer::decode(body) {
        assert_eq!(encoded(|out| answer.encode(out)), body);
    }
}

proptest! {
    #[test]
    fn requests_come_back(
        (asker, request, epoch) in any::<(u64, u64, u64)>(),
        (wanted, wait_ms, is_strict, is_upsert) in any::<(u8, u32, bool, bool)>(),
        to in seat(),
        version in version(),
        key in vec(any::<u8>(), 1..60),
        cut: prop::sample::Index,
    ) {
        let (asker, request) = (AskerId(asker), RequestId(request));
        let (namespace, kind) = (namespace(is_strict), kind(is_upsert));
        let key = Key::new(&key).expect("short");
        let message = WriteMessage { asker, request, to, kind, namespace, wanted, wait_ms, key };
        let body = encoded(|out| message.encode(out));
        prop_assert_eq!(WriteMessage::decode(&body), Ok(message));
        prop_assert!(WriteMessage::decode(&body[..cut.index(body.len())]).is_err());
        let message = GetMessage { epoch: Epoch(epoch), asker, request, to, namespace, key };
        let body = encoded(|out| message.encode(out));
        prop_assert_eq!(GetMessage::decode(&body), Ok(message));
        let message = ReadMessage { to, version, namespace, key };
        let body = encoded(|out| message.encode(out));
        prop_assert_eq!(ReadMessage::decode(&body), Ok(message));
        let info = CopyInfo {
            version,
            kind,
            generation: Generation(epoch),
            wanted: 1 + wanted % 8,
            len_bytes: wait_ms,
            crc32c: wait_ms,
        };
        let message = ReplicaMessage { to, info, namespace, key };
        let body = encoded(|out| message.encode(out));
        prop_assert_eq!(ReplicaMessage::decode(&body), Ok(message));
    }

    #[test]
    fn answers_come_back(answer in write_answer(), version in version(), is_cut_off: bool) {
        let body = encoded(|out| answer.encode(out));
        prop_assert_eq!(WriteAnswer::decode(&body), Ok(answer));
        let reply = BytesReply { version, is_cut_off };
        let body = encoded(|out| reply.encode(out));
        prop_assert_eq!(BytesReply::decode(&body), Ok(reply));
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
