//! What a client asks and what it is answered.

use super::wire::{
    CompareWire, DeleteResponse, ErrorWire, Header, Int, LeaseMessage, PlainResponse, PutRequest,
    RangeRequest, RangeResponse, RequestOp, ResponseOp, Streamed, StreamedError, TxnRequest,
    TxnResponse, WatchCreate, WatchRequest, WatchResponse, bytes, parse,
};
use super::{
    CODE_DEADLINE_EXCEEDED, CODE_FAILED_PRECONDITION, CODE_NOT_FOUND, CODE_OUT_OF_RANGE,
    CODE_RESOURCE_EXHAUSTED, CODE_UNAVAILABLE, PATH_DELETE, PATH_GRANT, PATH_KEEP_ALIVE, PATH_PUT,
    PATH_RANGE, PATH_REVOKE, PATH_TXN, PATH_WATCH, shortened,
};
use crate::coordination::{
    Answer, Ask, Change, CoordinationFault, LeaseId, Op, OpOutcome, Outcome, RANGE_KEYS_MAX,
    Revision, Txn, WatchFrom,
};

/// One line of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchLine {
    /// It has begun: changes from the wanted one on will come.
    Created,
    /// Changes, in order.
    Changes(Vec<Change>),
}

/// Where to post what, to ask this.
#[must_use]
pub fn encode(ask: &Ask) -> (&'static str, Vec<u8>) {
    let lease = |lease: &LeaseId, ttl| LeaseMessage {
        id: Int(lease.as_u64()),
        ttl: Int(ttl),
        header: Header::default(),
    };
    match ask {
        Ask::Op(Op::Range(range)) => (PATH_RANGE, bytes(&RangeRequest::of(range))),
        Ask::Op(Op::Put { key, value, lease }) => {
            (PATH_PUT, bytes(&PutRequest::of(key, value, *lease)))
        }
        Ask::Op(Op::Delete(range)) => (PATH_DELETE, bytes(&RangeRequest::of(range))),
        Ask::Txn(txn) => (PATH_TXN, bytes(&txn_of(txn))),
        Ask::Grant { lease: id, ttl_s } => (PATH_GRANT, bytes(&lease(id, u64::from(*ttl_s)))),
        Ask::KeepAlive(id) => (PATH_KEEP_ALIVE, bytes(&lease(id, 0))),
        Ask::Revoke(id) => (PATH_REVOKE, bytes(&lease(id, 0))),
    }
}

fn txn_of(txn: &Txn) -> TxnRequest {
    let ops = |ops: &[Op]| ops.iter().map(RequestOp::of).collect();
    TxnRequest {
        compare: txn.compare.iter().map(CompareWire::of).collect(),
        success: ops(&txn.success),
        failure: ops(&txn.failure),
    }
}

/// Where to post what, to watch this.
#[must_use]
pub fn encode_watch(from: &WatchFrom) -> (&'static str, Vec<u8>) {
    let RangeRequest { key, range_end } = RangeRequest::of(&from.range);
    let start_revision = Int(from.revision.0);
    let create_request = WatchCreate {
        key,
        range_end,
        start_revision,
    };
    (PATH_WATCH, bytes(&WatchRequest { create_request }))
}

/// The answer to `ask` of this status and body.
///
/// # Errors
/// The refusal that it tells, and [`CoordinationFault::Malformed`] if it is no answer to `ask`.
pub fn decode(ask: &Ask, status: u16, body: &[u8]) -> Result<Answer, CoordinationFault> {
    if status != 200 {
        return Err(refusal(status, body));
    }
    let op = |header: &Header, outcome| changed(header, Outcome::Op(outcome));
    match ask {
        Ask::Op(Op::Range(_)) => {
            let RangeResponse { header, kvs } = parse(body)?;
            let pairs = pairs(kvs)?;
            op(&header, OpOutcome::Range(pairs))
        }
        Ask::Op(Op::Put { .. }) => {
            let PlainResponse { header } = parse(body)?;
            op(&header, OpOutcome::Put)
        }
        Ask::Op(Op::Delete(_)) => {
            let DeleteResponse { header, deleted } = parse(body)?;
            op(&header, OpOutcome::Delete { deleted: deleted.0 })
        }
        Ask::Txn(txn) => {
            let TxnResponse {
                header,
                succeeded,
                responses,
            } = parse(body)?;
            let asked = if succeeded {
                &txn.success
            } else {
                &txn.failure
            };
            let outcomes = outcomes(asked, responses)?;
            changed(
                &header,
                Outcome::Txn {
                    succeeded,
                    outcomes,
                },
            )
        }
        Ask::Grant { .. } => leased(parse(body)?),
        Ask::KeepAlive(_) => {
            if let Ok(StreamedError { error }) = parse(body) {
                return Err(refused(500, &error));
            }
            let Streamed { result } = parse(body)?;
            leased(result)
        }
        Ask::Revoke(_) => {
            let PlainResponse { header } = parse(body)?;
            let revision = header.revision.revision();
            let outcome = Outcome::Revoked;
            Ok(Answer { revision, outcome })
        }
    }
}

/// An answer about keys, which tells the revision: there is none before the first.
fn changed(header: &Header, outcome: Outcome) -> Result<Answer, CoordinationFault> {
    let revision = header.revision.revision();
    if revision == Revision(0) {
        return Err(malformed("no revision"));
    }
    Ok(Answer { revision, outcome })
}

fn malformed(reason: &str) -> CoordinationFault {
    CoordinationFault::Malformed {
        reason: reason.to_owned(),
    }
}

fn pairs(
    kvs: Vec<super::wire::Pair>,
) -> Result<Vec<crate::coordination::KeyValue>, CoordinationFault> {
    if kvs.len() > RANGE_KEYS_MAX {
        return Err(CoordinationFault::TooLarge {
            what: "the number of keys",
        });
    }
    Ok(kvs.into_iter().map(super::wire::Pair::into_pair).collect())
}

/// A lease that is gone is kept alive for no time.
fn leased(message: LeaseMessage) -> Result<Answer, CoordinationFault> {
    let ttl_s = u32::try_from(message.ttl.0).map_err(|_| malformed("a lease of centuries"))?;
    if ttl_s == 0 {
        return Err(CoordinationFault::LeaseNotFound);
    }
    let revision = message.header.revision.revision();
    let outcome = Outcome::Leased { ttl_s };
    Ok(Answer { revision, outcome })
}

fn outcomes(asked: &[Op], responses: Vec<ResponseOp>) -> Result<Vec<OpOutcome>, CoordinationFault> {
    if asked.len() != responses.len() {
        return Err(malformed("not one response for each operation"));
    }
    let outcome = |(op, response): (&Op, ResponseOp)| match (op, response) {
        (
            Op::Range(_),
            ResponseOp {
                response_range: Some(range),
                ..
            },
        ) => Ok(OpOutcome::Range(pairs(range.kvs)?)),
        (
            Op::Put { .. },
            ResponseOp {
                response_put: Some(_),
                ..
            },
        ) => Ok(OpOutcome::Put),
        (
            Op::Delete(_),
            ResponseOp {
                response_delete_range: Some(delete),
                ..
            },
        ) => Ok(OpOutcome::Delete {
            deleted: delete.deleted.0,
        }),
        _ => Err(malformed("a response of another kind than its operation")),
    };
    asked.iter().zip(responses).map(outcome).collect()
}

/// What an answer that is not 200 says.
fn refusal(status: u16, body: &[u8]) -> CoordinationFault {
    refused(status, &parse(body).unwrap_or_default())
}

fn refused(status: u16, told: &ErrorWire) -> CoordinationFault {
    let text = if told.message.is_empty() {
        &told.error
    } else {
        &told.message
    };
    let message = shortened(text);
    match told.code {
        CODE_NOT_FOUND if message.contains("lease") => CoordinationFault::LeaseNotFound,
        CODE_FAILED_PRECONDITION if message.contains("lease already exists") => {
            CoordinationFault::LeaseExists
        }
        CODE_OUT_OF_RANGE => CoordinationFault::Compacted {
            oldest: Revision(0),
        },
        CODE_UNAVAILABLE | CODE_DEADLINE_EXCEEDED => CoordinationFault::Unavailable { message },
        CODE_RESOURCE_EXHAUSTED => CoordinationFault::TooLarge {
            what: "the request or the store",
        },
        0 if status >= 500 => CoordinationFault::Unavailable {
            message: format!("status {status}"),
        },
        0 => CoordinationFault::Refused {
            code: u32::from(status),
            message: "no reason was given".to_owned(),
        },
        code => CoordinationFault::Refused { code, message },
    }
}

/// A line of a watch of which the head had this status.
///
/// # Errors
/// [`CoordinationFault::Compacted`] if it ends because what it wants is not kept; other refusals, and
/// [`CoordinationFault::Malformed`].
pub fn decode_watch_line(status: u16, line: &[u8]) -> Result<WatchLine, CoordinationFault> {
    if status != 200 {
        return Err(refusal(status, line));
    }
    if let Ok(StreamedError { error }) = parse(line) {
        return Err(refused(500, &error));
    }
    let Streamed { result } = parse::<Streamed<WatchResponse>>(line)?;
    if result.compact_revision.0 > 0 {
        let oldest = result.compact_revision.revision();
        return Err(CoordinationFault::Compacted { oldest });
    }
    if result.canceled {
        let message = shortened(&result.cancel_reason);
        return Err(CoordinationFault::Unavailable { message });
    }
    if result.created {
        return Ok(WatchLine::Created);
    }
    let mut changes = Vec::with_capacity(result.events.len());
    for event in result.events {
        let pair = event.kv.into_pair();
        changes.push(match event.kind.as_str() {
            "" | "PUT" => Change::Put(pair),
            "DELETE" => Change::Delete {
                key: pair.key,
                revision: pair.modified,
            },
            _ => return Err(malformed("a change of an unknown kind")),
        });
    }
    Ok(WatchLine::Changes(changes))
}
