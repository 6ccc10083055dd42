//! What a coordinator is asked and what it answers.

use super::wire::{
    CompareWire, DeleteResponse, ErrorWire, EventWire, Header, Int, LeaseMessage, Pair,
    PlainResponse, PutRequest, RangeRequest, RangeResponse, RequestOp, ResponseOp, Streamed,
    TxnRequest, TxnResponse, WatchRequest, WatchResponse, bytes, parse,
};
use super::{
    CODE_FAILED_PRECONDITION, CODE_INVALID_ARGUMENT, CODE_NOT_FOUND, CODE_OUT_OF_RANGE,
    CODE_RESOURCE_EXHAUSTED, CODE_UNAVAILABLE, PATH_DELETE, PATH_GRANT, PATH_KEEP_ALIVE, PATH_PUT,
    PATH_RANGE, PATH_REVOKE, PATH_TXN, PATH_WATCH,
};
use crate::coordination::{
    Answer, Ask, Change, CoordinationFault, KeyRange, Op, OpOutcome, Outcome, Revision, Txn,
    WatchFrom,
};

/// What a request asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// One answer.
    Ask(Ask),
    /// Lines, until someone closes.
    Watch(WatchFrom),
}

/// What this request asks.
///
/// # Errors
/// [`CoordinationFault`], to be answered.
pub fn decode_request(path: &str, body: &[u8]) -> Result<Asked, CoordinationFault> {
    let ask = match path {
        PATH_RANGE => Ask::Op(Op::Range(parse::<RangeRequest>(body)?.into_range())),
        PATH_PUT => Ask::Op(parse::<PutRequest>(body)?.into_op()),
        PATH_DELETE => Ask::Op(Op::Delete(parse::<RangeRequest>(body)?.into_range())),
        PATH_TXN => Ask::Txn(txn(parse(body)?)?),
        PATH_GRANT => {
            let message: LeaseMessage = parse(body)?;
            let lease = message
                .id
                .lease()
                .ok_or_else(|| refused("a lease is named by who asks"))?;
            let ttl_s = u32::try_from(message.ttl.0).unwrap_or(u32::MAX);
            Ask::Grant { lease, ttl_s }
        }
        PATH_KEEP_ALIVE | PATH_REVOKE => {
            let message: LeaseMessage = parse(body)?;
            let lease = message.id.lease().ok_or(CoordinationFault::LeaseNotFound)?;
            if path == PATH_REVOKE {
                Ask::Revoke(lease)
            } else {
                Ask::KeepAlive(lease)
            }
        }
        PATH_WATCH => {
            let WatchRequest {
                create_request: create,
            } = parse(body)?;
            let range: KeyRange = RangeRequest {
                key: create.key,
                range_end: create.range_end,
            }
            .into_range();
            let revision = create.start_revision.revision();
            return Ok(Asked::Watch(WatchFrom { range, revision }));
        }
        _ => return Err(refused("there is nothing here")),
    };
    ask.check()?;
    Ok(Asked::Ask(ask))
}

fn refused(message: &str) -> CoordinationFault {
    let (code, message) = (CODE_INVALID_ARGUMENT, message.to_owned());
    CoordinationFault::Refused { code, message }
}

fn txn(wire: TxnRequest) -> Result<Txn, CoordinationFault> {
    let ops = |ops: Vec<RequestOp>| -> Result<Vec<Op>, CoordinationFault> {
        let one = |op: RequestOp| op.into_op().ok_or_else(|| refused("not one operation"));
        ops.into_iter().map(one).collect()
    };
    let compare = |wire: CompareWire| {
        wire.into_compare()
            .ok_or_else(|| refused("only revisions are compared, for equality"))
    };
    Ok(Txn {
        compare: wire
            .compare
            .into_iter()
            .map(compare)
            .collect::<Result<_, _>>()?,
        success: ops(wire.success)?,
        failure: ops(wire.failure)?,
    })
}

const fn header(revision: Revision) -> Header {
    Header {
        revision: Int(revision.0),
    }
}

/// The body of an answer to `ask`.
#[must_use]
pub fn encode_answer(ask: &Ask, answer: &Answer) -> Vec<u8> {
    let header = header(answer.revision);
    match &answer.outcome {
        Outcome::Op(OpOutcome::Range(pairs)) => bytes(&RangeResponse {
            header,
            kvs: pairs.iter().map(Pair::of).collect(),
        }),
        Outcome::Op(OpOutcome::Delete { deleted }) => bytes(&DeleteResponse {
            header,
            deleted: Int(*deleted),
        }),
        Outcome::Op(OpOutcome::Put) | Outcome::Revoked => bytes(&PlainResponse { header }),
        Outcome::Txn {
            succeeded,
            outcomes,
        } => bytes(&TxnResponse {
            header,
            succeeded: *succeeded,
            responses: outcomes
                .iter()
                .map(|outcome| response(outcome, answer.revision))
                .collect(),
        }),
        Outcome::Leased { ttl_s } => {
            let ttl = Int(u64::from(*ttl_s));
            match ask {
                Ask::KeepAlive(lease) => bytes(&kept_alive(header, lease.as_u64(), ttl)),
                Ask::Grant { lease, .. } => bytes(&LeaseMessage {
                    header,
                    id: Int(lease.as_u64()),
                    ttl,
                }),
                _ => unreachable!("only leases are leased"),
            }
        }
    }
}

const fn kept_alive(header: Header, lease: u64, ttl: Int) -> Streamed<LeaseMessage> {
    let id = Int(lease);
    Streamed {
        result: LeaseMessage { header, id, ttl },
    }
}

fn response(outcome: &OpOutcome, revision: Revision) -> ResponseOp {
    let header = header(revision);
    match outcome {
        OpOutcome::Range(pairs) => ResponseOp {
            response_range: Some(RangeResponse {
                header,
                kvs: pairs.iter().map(Pair::of).collect(),
            }),
            ..ResponseOp::default()
        },
        OpOutcome::Put => ResponseOp {
            response_put: Some(PlainResponse { header }),
            ..ResponseOp::default()
        },
        OpOutcome::Delete { deleted } => ResponseOp {
            response_delete_range: Some(DeleteResponse {
                header,
                deleted: Int(*deleted),
            }),
            ..ResponseOp::default()
        },
    }
}

/// The status and the body of a refusal, as etcd gives them. A lease that is gone is no refusal to
/// keep it alive, but an answer without a length.
#[must_use]
pub fn encode_fault(ask: Option<&Ask>, fault: &CoordinationFault) -> (u16, Vec<u8>) {
    if let (Some(Ask::KeepAlive(lease)), CoordinationFault::LeaseNotFound) = (ask, fault) {
        return (
            200,
            bytes(&kept_alive(Header::default(), lease.as_u64(), Int(0))),
        );
    }
    let (status, code, message) = match fault {
        CoordinationFault::LeaseNotFound => {
            (404, CODE_NOT_FOUND, "requested lease not found".to_owned())
        }
        CoordinationFault::LeaseExists => (
            412,
            CODE_FAILED_PRECONDITION,
            "lease already exists".to_owned(),
        ),
        CoordinationFault::Compacted { .. } => {
            let message = "required revision has been compacted".to_owned();
            (400, CODE_OUT_OF_RANGE, message)
        }
        CoordinationFault::TooLarge { .. } => (429, CODE_RESOURCE_EXHAUSTED, fault.to_string()),
        CoordinationFault::Refused { code, message } => (400, *code, message.clone()),
        CoordinationFault::Malformed { reason } => (400, CODE_INVALID_ARGUMENT, reason.clone()),
        CoordinationFault::Unreachable { .. }
        | CoordinationFault::TimedOut
        | CoordinationFault::Unavailable { .. } => (503, CODE_UNAVAILABLE, fault.to_string()),
    };
    let error = message.clone();
    (
        status,
        bytes(&ErrorWire {
            error,
            message,
            code,
        }),
    )
}

/// The first line of a watch.
#[must_use]
pub fn encode_created(revision: Revision) -> Vec<u8> {
    watch_line(WatchResponse {
        header: header(revision),
        created: true,
        ..WatchResponse::default()
    })
}

/// A line of a watch: changes, or why there are no more.
///
/// # Errors
/// None: a fault is a line too.
#[must_use]
pub fn encode_watch_line(changes: Result<&[Change], &CoordinationFault>) -> Vec<u8> {
    match changes {
        Ok(changes) => watch_line(WatchResponse {
            header: header(changes.last().map_or(Revision(0), Change::revision)),
            events: changes.iter().map(event).collect(),
            ..WatchResponse::default()
        }),
        Err(CoordinationFault::Compacted { oldest }) => watch_line(WatchResponse {
            canceled: true,
            compact_revision: Int(oldest.0),
            ..WatchResponse::default()
        }),
        Err(fault) => watch_line(WatchResponse {
            canceled: true,
            cancel_reason: fault.to_string(),
            ..WatchResponse::default()
        }),
    }
}

fn watch_line(result: WatchResponse) -> Vec<u8> {
    bytes(&Streamed { result })
}

fn event(change: &Change) -> EventWire {
    match change {
        Change::Put(pair) => EventWire {
            kind: String::new(),
            kv: Pair::of(pair),
        },
        Change::Delete { key, revision } => EventWire {
            kind: "DELETE".to_owned(),
            kv: Pair {
                key: super::wire::Bytes(key.clone()),
                mod_revision: Int(revision.0),
                ..Pair::default()
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::{WatchLine, decode, decode_watch_line, encode, encode_watch};
    use super::*;
    use crate::coordination::{Compare, Expected, KeyValue, LeaseId};

    fn pair() -> KeyValue {
        KeyValue {
            key: b"foo".to_vec(),
            value: b"bar".to_vec(),
            created: Revision(2),
            modified: Revision(3),
            lease: Some(LeaseId::new(77)),
        }
    }

    fn asks() -> Vec<(Ask, Outcome)> {
        let lease = LeaseId::new(7);
        let key = || b"k".to_vec();
        let put = Op::Put {
            key: key(),
            value: vec![0, 255],
            lease: Some(lease),
        };
        let range = Op::Range(KeyRange::prefix("a/"));
        let delete = Op::Delete(KeyRange::one("d"));
        let found = OpOutcome::Range(vec![pair()]);
        let deleted = OpOutcome::Delete { deleted: 1 };
        let expected = Expected::Modified(Revision(5));
        let txn = Txn {
            compare: vec![
                Compare {
                    key: key(),
                    expected,
                },
                Compare::absent("n"),
            ],
            success: vec![put.clone(), delete.clone()],
            failure: vec![range.clone()],
        };
        let outcomes = |succeeded, outcomes| Outcome::Txn {
            succeeded,
            outcomes,
        };
        vec![
            (Ask::Op(range), Outcome::Op(found.clone())),
            (Ask::Op(put), Outcome::Op(OpOutcome::Put)),
            (Ask::Op(delete), Outcome::Op(deleted.clone())),
            (
                Ask::Txn(txn.clone()),
                outcomes(true, vec![OpOutcome::Put, deleted]),
            ),
            (Ask::Txn(txn), outcomes(false, vec![found])),
            (Ask::Grant { lease, ttl_s: 5 }, Outcome::Leased { ttl_s: 5 }),
            (Ask::KeepAlive(lease), Outcome::Leased { ttl_s: 5 }),
            (Ask::Revoke(lease), Outcome::Revoked),
        ]
    }

    #[test]
    fn both_directions_agree_on_everything() {
        for (ask, outcome) in asks() {
            let (path, body) = encode(&ask);
            assert_eq!(decode_request(path, &body), Ok(Asked::Ask(ask.clone())));
            let answer = Answer {
                revision: Revision(9),
                outcome,
            };
            let body = encode_answer(&ask, &answer);
            assert_eq!(decode(&ask, 200, &body), Ok(answer));
        }
        let from = WatchFrom {
            range: KeyRange::prefix("a/"),
            revision: Revision(4),
        };
        let (path, body) = encode_watch(&from);
        assert_eq!(decode_request(path, &body), Ok(Asked::Watch(from)));
    }

    /// Recorded from etcd 3.4.23.
    #[test]
    fn what_etcd_answers_is_understood() {
        let header = r#""header":{"cluster_id":"324952591200643719","member_id":"3319814642761637952","revision":"3","raft_term":"2"}"#;
        let range = Ask::Op(Op::Range(KeyRange::one("foo")));
        let body = format!(
            r#"{{{header},"kvs":[{{"key":"Zm9v","create_revision":"2","mod_revision":"3","version":"1","value":"YmFy","lease":"77"}}],"count":"1"}}"#
        );
        let outcome = Outcome::Op(OpOutcome::Range(vec![pair()]));
        let answer = Answer {
            revision: Revision(3),
            outcome,
        };
        assert_eq!(decode(&range, 200, body.as_bytes()), Ok(answer));
        let keep_alive = Ask::KeepAlive(LeaseId::new(78));
        let gone = format!(r#"{{"result":{{{header},"ID":"78"}}}}"#);
        let refused = Err(CoordinationFault::LeaseNotFound);
        assert_eq!(decode(&keep_alive, 200, gone.as_bytes()), refused);
        let exists = br#"{"error":"etcdserver: lease already exists","message":"etcdserver: lease already exists","code":9}"#;
        let refused = Err(CoordinationFault::LeaseExists);
        assert_eq!(decode(&keep_alive, 412, exists), refused);
        let changes = format!(
            r#"{{"result":{{{header},"events":[{{"kv":{{"key":"Zm9v","create_revision":"2","mod_revision":"3","version":"2","value":"YmFy","lease":"77"}}}},{{"type":"DELETE","kv":{{"key":"Zm9v","mod_revision":"4"}}}}]}}}}"#
        );
        let delete = Change::Delete {
            key: b"foo".to_vec(),
            revision: Revision(4),
        };
        let line = WatchLine::Changes(vec![Change::Put(pair()), delete]);
        assert_eq!(decode_watch_line(200, changes.as_bytes()), Ok(line));
        let compacted =
            br#"{"result":{"header":{"raft_term":"2"},"canceled":true,"compact_revision":"4"}}"#;
        let oldest = Revision(4);
        let refused = Err(CoordinationFault::Compacted { oldest });
        assert_eq!(decode_watch_line(200, compacted), refused);
    }

    /// As later versions of the gateway end a stream.
    #[test]
    fn refusals_within_a_stream_are_understood() {
        for (line, fault) in [
            (
                &br#"{"error":{"grpc_code":11,"http_code":400,"message":"compacted"}}"#[..],
                CoordinationFault::Compacted {
                    oldest: Revision(0),
                },
            ),
            (
                br#"{"error":{"code":14,"message":"no leader","details":[]}}"#,
                CoordinationFault::Unavailable {
                    message: "no leader".to_owned(),
                },
            ),
        ] {
            assert_eq!(decode_watch_line(200, line), Err(fault.clone()));
            let keep_alive = Ask::KeepAlive(LeaseId::new(1));
            assert_eq!(decode(&keep_alive, 200, line), Err(fault));
        }
    }

    #[test]
    fn faults_come_back_as_they_were() {
        let ask = Ask::Revoke(LeaseId::new(3));
        for (fault, ask) in [
            (CoordinationFault::LeaseNotFound, ask.clone()),
            (
                CoordinationFault::LeaseNotFound,
                Ask::KeepAlive(LeaseId::new(3)),
            ),
            (CoordinationFault::LeaseExists, ask.clone()),
            (
                CoordinationFault::Compacted {
                    oldest: Revision(0),
                },
                ask.clone(),
            ),
            (refused("why"), ask),
        ] {
            let (status, body) = encode_fault(Some(&ask), &fault);
            assert_eq!(decode(&ask, status, &body), Err(fault));
        }
        let unavailable = decode(&Ask::Revoke(LeaseId::new(1)), 502, b"<html>").unwrap_err();
        assert!(unavailable.is_retryable(), "{unavailable}");
    }

    #[test]
    fn watch_lines_come_back() {
        let changes = vec![
            Change::Put(pair()),
            Change::Delete {
                key: b"x".to_vec(),
                revision: Revision(8),
            },
        ];
        let line = encode_watch_line(Ok(&changes));
        assert_eq!(
            decode_watch_line(200, &line),
            Ok(WatchLine::Changes(changes))
        );
        let created = encode_created(Revision(1));
        assert_eq!(decode_watch_line(200, &created), Ok(WatchLine::Created));
        let fault = CoordinationFault::Compacted {
            oldest: Revision(6),
        };
        let line = encode_watch_line(Err(&fault));
        assert_eq!(decode_watch_line(200, &line), Err(fault));
    }

    #[test]
    fn answers_that_do_not_fit_their_question_are_malformed() {
        let txn = Ask::Txn(Txn {
            success: vec![Op::Range(KeyRange::one("a"))],
            ..Txn::default()
        });
        let range = Ask::Op(Op::Range(KeyRange::one("a")));
        for (ask, body) in [
            (&txn, &br#"{"succeeded":true}"#[..]),
            (
                &txn,
                br#"{"succeeded":true,"responses":[{"response_put":{}}]}"#,
            ),
            (&range, b"[]"),
            (&range, b"{\"kvs\":[{\"key\":\"?\"}]}"),
            (&range, b"{\"kvs\":[{\"mod_revision\":-1}]}"),
            (
                &range,
                b"{\"kvs\":[{\"mod_revision\":\"99999999999999999999\"}]}",
            ),
            (&range, b"{"),
            (&range, b""),
        ] {
            let fault = decode(ask, 200, body).unwrap_err();
            assert!(
                matches!(fault, CoordinationFault::Malformed { .. }),
                "{fault}"
            );
        }
    }

    #[test]
    fn requests_that_make_no_sense_are_refused() {
        for (path, body) in [
            ("/v3/kv/nope", "{}"),
            (PATH_PUT, "{"),
            (PATH_TXN, r#"{"success":[{}]}"#),
            (PATH_TXN, r#"{"compare":[{"key":"YQ==","target":"VALUE"}]}"#),
            (
                PATH_TXN,
                r#"{"compare":[{"key":"YQ==","target":"MOD","result":"GREATER"}]}"#,
            ),
            (PATH_GRANT, r#"{"TTL":"5"}"#),
            (PATH_GRANT, r#"{"ID":"5","TTL":"99999999"}"#),
        ] {
            let fault = decode_request(path, body.as_bytes()).unwrap_err();
            assert_ne!(encode_fault(None, &fault).0, 200, "{path} {body}");
        }
    }
}
