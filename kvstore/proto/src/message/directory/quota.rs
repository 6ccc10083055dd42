//! Quotas of tenants, as a client asks a member for them, and for others.
//!
//! ```text
//!  quota:   version u8 | to seat | changes u8 | (name | is_some u8 | bytes u64)
//!  quotas:  epoch u64 | count u16 | (name | quota u64 | used u64 | credit u64) ...
//!  a name:  length u16 | bytes
//! ```
//!
//! What is said twice changes nothing the second time, unless somebody else has said something in between.

use lunette_cluster_proto::map::Epoch;
use lunette_runtime_core::codec::Writer;

use super::term::Term;
use super::wire::{Decoder, Encoder, Wire, body, fields, put_all, take_all, unknown};
use crate::credit::QUOTAS_MAX;
use crate::message::{FormatVersion, MessageFault};
use crate::placement::Seat;
use crate::tenant::Tenant;

/// To be told of quotas, by one core of one member. A change is made before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaMessage {
    /// A core: one life of it only.
    pub to: Seat,
    /// What is to be another.
    pub change: Option<QuotaChange>,
}

/// A quota that is to be another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaChange {
    /// Whose.
    pub tenant: Tenant,
    /// How many bytes; `None`: it is to have none.
    pub quota_bytes: Option<u64>,
    /// Until when it may be made.
    pub term: Term,
}

/// What a core knows of one quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaUse {
    /// Whose.
    pub tenant: Tenant,
    /// How much memory the tenant may have in all, in bytes.
    pub quota_bytes: u64,
    /// What it has at this core, in bytes.
    pub used_bytes: u64,
    /// What it may have there.
    pub credit_bytes: u64,
}

/// What a core knows of quotas: at most [`QUOTAS_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaReply {
    /// The map that the core knows: there may be members in it of which who asks has not heard.
    pub epoch: Epoch,
    /// By tenant.
    pub quotas: Vec<QuotaUse>,
}

fields!(QuotaChange {
    tenant,
    quota_bytes,
    term
});
fields!(QuotaUse {
    tenant,
    quota_bytes,
    used_bytes,
    credit_bytes
});
body!(QuotaReply);

impl Wire for Tenant {
    fn put(&self, out: &mut Encoder<'_>) {
        Writer::new(out).short_bytes(self.name().as_bytes());
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        let bytes = reader.short_bytes()?;
        let name = std::str::from_utf8(bytes).ok();
        let name = name.and_then(|name| Self::named(name).ok());
        name.map_or_else(|| unknown("length of a tenant's name", 0), Ok)
    }
}

impl Wire for QuotaReply {
    fn put(&self, out: &mut Encoder<'_>) {
        self.epoch.put(out);
        put_all(&self.quotas, QUOTAS_MAX, out);
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        Ok(Self {
            epoch: Wire::take(reader)?,
            quotas: take_all(reader, QUOTAS_MAX)?,
        })
    }
}

impl QuotaMessage {
    /// Appends the message to `out`, in a version that is spoken here.
    pub fn encode(&self, version: FormatVersion, out: &mut Vec<u8>) {
        let out = &mut Encoder::begin(version, out);
        self.to.put(out);
        self.change.put(out);
    }

    /// The message in `body`.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else than one message.
    pub fn decode(body: &[u8]) -> Result<Self, MessageFault> {
        let reader = &mut Decoder::begin(body)?;
        let message = Self {
            to: Wire::take(reader)?,
            change: Wire::take(reader)?,
        };
        reader.end()?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime_core::ids::{CoreIndex, NodeId};

    use super::*;

    const VERSION: FormatVersion = FormatVersion(1);

    fn message(change: Option<(&str, Option<u64>)>) -> QuotaMessage {
        let tenant = |name| Tenant::named(name).expect("a name");
        QuotaMessage {
            to: Seat {
                node: NodeId(7),
                incarnation: 2,
                core: CoreIndex(3),
            },
            change: change.map(|(name, quota_bytes)| QuotaChange {
                tenant: tenant(name),
                quota_bytes,
                term: Term {
                    told_ns: 3,
                    wait_ms: 0x0102,
                },
            }),
        }
    }

    #[test]
    fn golden_messages() {
        let seat = [1, 7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0];
        let when = [3, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0];
        let set = [1, 2, 0, b'a', b'b', 1, 9, 0, 0, 0, 0, 0, 0, 0];
        let set = [&set[..], &when].concat();
        let unset = [&[1, 1, 0, b'c', 0][..], &when].concat();
        for (change, golden) in [
            (None, &[0][..]),
            (Some(("ab", Some(9))), &set),
            (Some(("c", None)), &unset),
        ] {
            let message = message(change);
            let mut body = Vec::new();
            message.encode(VERSION, &mut body);
            assert_eq!(body, [&seat, golden].concat());
            assert_eq!(QuotaMessage::decode(&body), Ok(message));
            for len in 0..body.len() {
                assert!(QuotaMessage::decode(&body[..len]).is_err(), "cut at {len}");
            }
            body.push(0);
            assert_eq!(QuotaMessage::decode(&body), Err(MessageFault::Trailing(1)));
        }
    }

    #[test]
    fn what_is_no_name_is_no_tenants() {
        let mut body = Vec::new();
        message(Some(("ab", None))).encode(VERSION, &mut body);
        body[22] = 0xff;
        let fault = QuotaMessage::decode(&body).expect_err("no text");
        assert!(
            matches!(fault, MessageFault::UnknownCode { .. }),
            "{fault:?}"
        );
    }

    #[test]
    fn golden_answer() {
        let quota = QuotaUse {
            tenant: Tenant::default(),
            quota_bytes: 1,
            used_bytes: 2,
            credit_bytes: 3,
        };
        let reply = QuotaReply {
            epoch: Epoch(4),
            quotas: vec![quota],
        };
        let mut body = Vec::new();
        reply.encode(VERSION, &mut body);
        let first = 4_u64.to_le_bytes();
        let numbers = [1_u64, 2, 3].map(u64::to_le_bytes).concat();
        let golden = [&first[..], &[1, 0, 7, 0], b"default", &numbers].concat();
        assert_eq!(body, golden);
        assert_eq!(QuotaReply::decode(VERSION, &body), Ok(reply));
        for len in 0..body.len() {
            assert!(QuotaReply::decode(VERSION, &body[..len]).is_err());
        }
    }
}
