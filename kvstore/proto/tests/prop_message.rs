//! Messages: round trips, and decoding of what nobody wrote.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::{
    FormatVersions, KeyBatch, KeyBatchWriter, KeyRequest, NodeCard, NodeStat, PresenceReply,
    RemoveReply, VersionReply, encode_presence, encode_removals,
};
use lunette_kvstore_proto::shard::RemoveOutcome;
use lunette_runtime_core::ids::{CoreIndex, NodeId};
use proptest::prelude::*;

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 1..=40)
}

fn outcome() -> impl Strategy<Value = RemoveOutcome> {
    prop_oneof![
        Just(RemoveOutcome::Removed),
        Just(RemoveOutcome::NotFound),
        Just(RemoveOutcome::Busy),
    ]
}

fn card() -> impl Strategy<Value = NodeCard> {
    let ports = prop::collection::vec(any::<u16>(), 1..=256);
    (
        any::<u64>(),
        any::<u32>(),
        any::<prop::sample::Index>(),
        ports,
    )
        .prop_map(|(node_id, weight, core, ports)| NodeCard {
            node_id: NodeId(node_id),
            weight,
            core: CoreIndex(u16::try_from(core.index(ports.len())).expect("at most 255")),
            ports,
            versions: FormatVersions::OURS,
        })
}

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut body = Vec::new();
    encode(&mut body);
    body
}

fn batch(keys: &[Vec<u8>]) -> Vec<u8> {
    encoded(|out| {
        let mut writer = KeyBatchWriter::new(out);
        for key in keys {
            writer.push(Key::new(key).expect("a key")).expect("room");
        }
    })
}

/// Decodes as everything, and requires that what decodes encodes to the same bytes.
fn decode_as_all(body: &[u8]) {
    if let Ok(request) = KeyRequest::decode(body) {
        assert_eq!(encoded(|out| request.encode(out)), body);
    }
    if let Ok(found) = KeyBatch::decode(body) {
        let keys: Vec<_> = found.keys().map(|key| key.bytes().to_vec()).collect();
        assert_eq!(keys.len(), found.len());
        assert_eq!(batch(&keys), body);
    }
    if let Ok(reply) = VersionReply::decode(body) {
        assert_eq!(encoded(|out| reply.encode(out)), body);
    }
    if let Ok(stat) = NodeStat::decode(body) {
        let again = NodeStat::decode(&encoded(|out| stat.encode(out)));
        assert_eq!(again, Ok(stat), "what a later version has more is ignored");
    }
    if let Ok(card) = NodeCard::decode(body) {
        // What follows it is of later versions.
        assert!(body.starts_with(&encoded(|out| card.encode(out))));
    }
    let expected = body
        .first_chunk()
        .map_or(0, |count| usize::from(u16::from_le_bytes(*count)));
    if let Ok(reply) = PresenceReply::decode(body, expected) {
        assert_eq!(encoded(|out| encode_presence(reply.present(), out)), body);
    }
    if let Ok(reply) = RemoveReply::decode(body, expected) {
        assert_eq!(encoded(|out| encode_removals(reply.outcomes(), out)), body);
    }
}

proptest! {
    #[test]
    fn key_requests_come_back(bytes in key()) {
        let key = Key::new(&bytes).expect("a key");
        let body = encoded(|out| KeyRequest { key }.encode(out));
        prop_assert_eq!(KeyRequest::decode(&body), Ok(KeyRequest { key }));
        decode_as_all(&body);
    }

    #[test]
    fn batches_come_back(keys in prop::collection::vec(key(), 0..50)) {
        let body = batch(&keys);
        let decoded = KeyBatch::decode(&body).expect("a whole batch");
        prop_assert_eq!(decoded.is_empty(), keys.is_empty());
        prop_assert!(decoded.keys().map(Key::bytes).eq(keys.iter().map(Vec::as_slice)));
        decode_as_all(&body);
    }

    #[test]
    fn presence_comes_back(present in prop::collection::vec(any::<bool>(), 0..70)) {
        let body = encoded(|out| encode_presence(present.iter().copied(), out));
        let decoded = PresenceReply::decode(&body, present.len()).expect("a whole reply");
        prop_assert!(decoded.present().eq(present.iter().copied()));
        decode_as_all(&body);
    }

    #[test]
    fn removals_come_back(outcomes in prop::collection::vec(outcome(), 0..70)) {
        let body = encoded(|out| encode_removals(outcomes.iter().copied(), out));
        let decoded = RemoveReply::decode(&body, outcomes.len()).expect("a whole reply");
        prop_assert!(decoded.outcomes().eq(outcomes.iter().copied()));
        decode_as_all(&body);
    }

    #[test]
    fn cards_come_back(card in card()) {
        let bytes = encoded(|out| card.encode(out));
        prop_assert_eq!(NodeCard::decode(&bytes), Ok(card));
        decode_as_all(&bytes);
    }

    #[test]
    fn no_prefix_of_a_message_is_a_message(
        keys in prop::collection::vec(key(), 1..5),
        card in card(),
        cut in any::<prop::sample::Index>(),
    ) {
        let body = batch(&keys);
        prop_assert!(KeyBatch::decode(&body[..cut.index(body.len())]).is_err());
        let bytes = encoded(|out| card.encode(out));
        prop_assert!(NodeCard::decode(&bytes[..cut.index(bytes.len())]).is_err());
    }

    #[test]
    fn random_bytes_never_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        decode_as_all(&body);
    }

    /// Small bytes make small counts and lengths, which decode further than random ones.
    #[test]
    fn small_random_bytes_never_panic(body in prop::collection::vec(0_u8..4, 0..60)) {
        decode_as_all(&body);
    }
}
