//! The gateway's messages, field by field.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::coordination::{
    Compare, CoordinationFault, Expected, KeyRange, KeyValue, LeaseId, Op, Revision,
};

/// A number of 64 bits, in a string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Int(pub(super) u64);

/// Bytes, in base64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl Int {
    const fn is_zero(&self) -> bool {
        self.0 == 0
    }

    pub(super) const fn revision(self) -> Revision {
        Revision(self.0)
    }

    pub(super) fn lease(self) -> Option<LeaseId> {
        (!self.is_zero()).then(|| LeaseId::new(self.0))
    }
}

impl Bytes {
    const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Int {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

struct IntVisitor;

impl Visitor<'_> for IntVisitor {
    type Value = Int;

    fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("a number of at least 0, or a string of one")
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Int, E> {
        Ok(Int(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Int, E> {
        value.parse().map(Int).map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Int {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IntVisitor)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

struct BytesVisitor;

impl Visitor<'_> for BytesVisitor {
    type Value = Bytes;

    fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("a string in base64")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Bytes, E> {
        STANDARD.decode(value).map(Bytes).map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(BytesVisitor)
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Header {
    #[serde(default, skip_serializing_if = "Int::is_zero")]
    pub(super) revision: Int,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Pair {
    #[serde(default, skip_serializing_if = "Bytes::is_empty")]
    pub(super) key: Bytes,
    #[serde(default, skip_serializing_if = "Int::is_zero")]
    pub(super) create_revision: Int,
    #[serde(default, skip_serializing_if = "Int::is_zero")]
    pub(super) mod_revision: Int,
    #[serde(default, skip_serializing_if = "Bytes::is_empty")]
    pub(super) value: Bytes,
    #[serde(default, skip_serializing_if = "Int::is_zero")]
    pub(super) lease: Int,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct RangeRequest {
    #[serde(default, skip_serializing_if = "Bytes::is_empty")]
    pub(super) key: Bytes,
    #[serde(default, skip_serializing_if = "Bytes::is_empty")]
    pub(super) range_end: Bytes,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct RangeResponse {
    #[serde(default)]
    pub(super) header: Header,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) kvs: Vec<Pair>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct PutRequest {
    #[serde(default, skip_serializing_if = "Bytes::is_empty")]
    pub(super) key: Bytes,
    #[serde(default, skip_serializing_if = "Bytes::is_empty")]
    pub(super) value: Bytes,
    #[serde(default, skip_serializing_if = "Int::is_zero")]
    pub(super) lease: Int,
}

/// The answer to what has no other answer.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct PlainResponse {
    #[serde(default)]
    pub(super) header: Header,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct DeleteResponse {
    #[serde(default)]
    pub(super) header: Header,
    #[serde(default, skip_serializing_if = "Int::is_zero")]
    pub(super) deleted: Int,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct CompareWire {
    #[serde(default)]
    pub(super) key: Bytes,
    #[serde(default)]
    pub(super) target: String,
    #[serde(default)]
    pub(super) result: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) mod_revision: Option<Int>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) create_revision: Option<Int>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct RequestOp {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) request_range: Option<RangeRequest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) request_put: Option<PutRequest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) request_delete_range: Option<RangeRequest>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ResponseOp {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) response_range: Option<RangeResponse>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) response_put: Option<PlainResponse>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) response_delete_range: Option<DeleteResponse>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct TxnRequest {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) compare: Vec<CompareWire>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) success: Vec<RequestOp>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) failure: Vec<RequestOp>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct TxnResponse {
    #[serde(default)]
    pub(super) header: Header,
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub(super) succeeded: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) responses: Vec<ResponseOp>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct LeaseMessage {
    #[serde(default)]
    pub(super) header: Header,
    #[serde(default, rename = "ID", skip_serializing_if = "Int::is_zero")]
    pub(super) id: Int,
    #[serde(default, rename = "TTL", skip_serializing_if = "Int::is_zero")]
    pub(super) ttl: Int,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct WatchCreate {
    #[serde(default, skip_serializing_if = "Bytes::is_empty")]
    pub(super) key: Bytes,
    #[serde(default, skip_serializing_if = "Bytes::is_empty")]
    pub(super) range_end: Bytes,
    #[serde(default, skip_serializing_if = "Int::is_zero")]
    pub(super) start_revision: Int,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WatchRequest {
    pub(super) create_request: WatchCreate,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct EventWire {
    #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) kv: Pair,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct WatchResponse {
    #[serde(default)]
    pub(super) header: Header,
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub(super) created: bool,
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub(super) canceled: bool,
    #[serde(default, skip_serializing_if = "Int::is_zero")]
    pub(super) compact_revision: Int,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) cancel_reason: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) events: Vec<EventWire>,
}

/// A refusal.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ErrorWire {
    #[serde(default)]
    pub(super) error: String,
    #[serde(default)]
    pub(super) message: String,
    /// The code, of gRPC's. Within a stream some versions call it `grpc_code`.
    #[serde(default, alias = "grpc_code")]
    pub(super) code: u32,
}

/// A refusal in the middle of a stream, whose head has said that all is well.
#[derive(Debug, Deserialize)]
pub(super) struct StreamedError {
    pub(super) error: ErrorWire,
}

/// A line of a stream. Also what every answer looks like that is a refusal instead.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Streamed<T> {
    pub(super) result: T,
}

impl Pair {
    pub(super) fn of(pair: &KeyValue) -> Self {
        Self {
            key: Bytes(pair.key.clone()),
            create_revision: Int(pair.created.0),
            mod_revision: Int(pair.modified.0),
            value: Bytes(pair.value.clone()),
            lease: Int(pair.lease.map_or(0, LeaseId::as_u64)),
        }
    }

    pub(super) fn into_pair(self) -> KeyValue {
        KeyValue {
            key: self.key.0,
            value: self.value.0,
            created: self.create_revision.revision(),
            modified: self.mod_revision.revision(),
            lease: self.lease.lease(),
        }
    }
}

impl RangeRequest {
    pub(super) fn of(range: &KeyRange) -> Self {
        Self {
            key: Bytes(range.start.clone()),
            range_end: Bytes(range.end.clone().unwrap_or_default()),
        }
    }

    pub(super) fn into_range(self) -> KeyRange {
        KeyRange {
            start: self.key.0,
            end: Some(self.range_end.0).filter(|end| !end.is_empty()),
        }
    }
}

impl PutRequest {
    pub(super) fn of(key: &[u8], value: &[u8], lease: Option<LeaseId>) -> Self {
        Self {
            key: Bytes(key.to_vec()),
            value: Bytes(value.to_vec()),
            lease: Int(lease.map_or(0, LeaseId::as_u64)),
        }
    }

    pub(super) fn into_op(self) -> Op {
        Op::Put {
            key: self.key.0,
            value: self.value.0,
            lease: self.lease.lease(),
        }
    }
}

impl RequestOp {
    pub(super) fn of(op: &Op) -> Self {
        match op {
            Op::Range(range) => Self {
                request_range: Some(RangeRequest::of(range)),
                ..Self::default()
            },
            Op::Put { key, value, lease } => Self {
                request_put: Some(PutRequest::of(key, value, *lease)),
                ..Self::default()
            },
            Op::Delete(range) => Self {
                request_delete_range: Some(RangeRequest::of(range)),
                ..Self::default()
            },
        }
    }

    pub(super) fn into_op(self) -> Option<Op> {
        match (
            self.request_range,
            self.request_put,
            self.request_delete_range,
        ) {
            (Some(range), None, None) => Some(Op::Range(range.into_range())),
            (None, Some(put), None) => Some(put.into_op()),
            (None, None, Some(range)) => Some(Op::Delete(range.into_range())),
            _ => None,
        }
    }
}

impl CompareWire {
    pub(super) fn of(compare: &Compare) -> Self {
        let wire = Self {
            key: Bytes(compare.key.clone()),
            result: "EQUAL".to_owned(),
            ..Self::default()
        };
        match compare.expected {
            Expected::Modified(revision) => Self {
                target: "MOD".to_owned(),
                mod_revision: Some(Int(revision.0)),
                ..wire
            },
            Expected::Created(revision) => Self {
                target: "CREATE".to_owned(),
                create_revision: Some(Int(revision.0)),
                ..wire
            },
        }
    }

    pub(super) fn into_compare(self) -> Option<Compare> {
        // What is left out is the first of its kind, and zero.
        if !matches!(self.result.as_str(), "" | "EQUAL") {
            return None;
        }
        let expected = match self.target.as_str() {
            "MOD" => Expected::Modified(self.mod_revision.unwrap_or_default().revision()),
            "CREATE" => Expected::Created(self.create_revision.unwrap_or_default().revision()),
            _ => return None,
        };
        Some(Compare {
            key: self.key.0,
            expected,
        })
    }
}

/// A value of these bytes.
pub(super) fn parse<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, CoordinationFault> {
    serde_json::from_slice(json).map_err(|error| CoordinationFault::Malformed {
        reason: super::shortened(&error.to_string()),
    })
}

/// The bytes of a value.
pub(super) fn bytes<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("the messages hold nothing that JSON cannot say")
}
