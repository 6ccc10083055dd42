//! A coordinator and its client under attack: bytes instead of HTTP and JSON, either way.
//!
//! ```text
//!   byte 0      which answer is awaited (bits 0..2), whether the bytes are steps of honest clients
//!               (bit 6), and whether honest bytes come first (bit 7)
//!   byte 1      how many bytes come at once, 1..=256
//!   then        bytes: of an answer, of a watch, of requests to a coordinator
//! ```

mod steps;

use lunette_cluster_proto::coordination::{
    Ask, Compare, CoordinationFault, KeyRange, LeaseId, Op, Revision, Txn, WatchFrom,
};
use lunette_cluster_proto::coordinator::{Coordinator, HISTORY_MAX, KEYS_MAX};
use lunette_cluster_proto::gateway::{self, Asked, WatchLine};
use lunette_cluster_proto::http::{self, Part, RequestReader, ResponseReader};
use lunette_cluster_proto::map::ClusterMap;
use lunette_cluster_proto::quota::{decode_quota, encode_quota};
use lunette_runtime_core::time::Time;

/// What a script reached. A corpus is judged by what its files reach together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Answers that were understood.
    pub answers: u32,
    /// Refusals that were.
    pub refusals: u32,
    /// Answers that were no answers.
    pub malformed: u32,
    /// Streams that were no HTTP.
    pub http_faults: u32,
    /// Changes that a watch told.
    pub changes: u32,
    /// Watches whose past was compacted.
    pub compacted: u32,
    /// Requests that a coordinator carried out.
    pub carried_out: u32,
    /// Requests that it refused.
    pub refused: u32,
    /// Watches that it began.
    pub watches: u32,
    /// Maps that were read.
    pub maps: u32,
    /// Quotas that were read.
    pub quotas: u32,
    /// Questions of honest clients that came through and were answered.
    pub asked: u32,
}

/// Drives both ends of the gateway with any bytes.
///
/// # Panics
/// If an invariant does not hold: that is what it is for.
pub fn cluster(data: &[u8]) -> Reached {
    let mut reached = Reached::default();
    let [flags, piece, bytes @ ..] = data else {
        return reached;
    };
    let piece = 1 + usize::from(*piece);
    if flags & 0x40 != 0 {
        steps::attack(bytes, piece, &mut reached);
        return reached;
    }
    let ask = asked(*flags);
    let mut stream = Vec::new();
    if flags & 0x80 != 0 {
        stream = honest(&ask);
    }
    stream.extend_from_slice(bytes);
    answer(&ask, &stream, piece, &mut reached);
    watch(bytes, &mut reached);
    coordinator(&stream, bytes, piece, &mut reached);
    if let Ok(quota_bytes) = decode_quota(bytes) {
        reached.quotas += 1;
        assert_eq!(decode_quota(&encode_quota(quota_bytes)), Ok(quota_bytes));
    }
    if let Ok(map) = ClusterMap::decode(bytes) {
        // Members of later versions are longer than those written here.
        assert_eq!(ClusterMap::decode(&map.encode()), Ok(map));
        reached.maps += 1;
    }
    reached
}

/// Something of each kind.
fn asked(flags: u8) -> Ask {
    let (lease, key) = (LeaseId::new(5), || b"k".to_vec());
    let value = b"v".to_vec();
    let put = Op::Put {
        key: key(),
        value,
        lease: None,
    };
    let range = Op::Range(KeyRange::prefix("k"));
    match flags & 7 {
        0 => Ask::Op(range),
        1 => Ask::Op(put),
        2 => Ask::Op(Op::Delete(KeyRange::one("k"))),
        3 => Ask::Grant { lease, ttl_s: 5 },
        4 => Ask::KeepAlive(lease),
        5 => Ask::Revoke(lease),
        _ => Ask::Txn(Txn {
            compare: vec![Compare::absent(key())],
            success: vec![put],
            failure: vec![range],
        }),
    }
}

/// What a coordinator answers to it, and what a client sends to ask it.
fn honest(ask: &Ask) -> Vec<u8> {
    let mut coordinator = Coordinator::default();
    let mut out = Vec::new();
    match coordinator.handle(Time::ZERO, ask) {
        Ok(answer) => http::append_response(&mut out, 200, &gateway::encode_answer(ask, &answer)),
        Err(fault) => {
            let (status, body) = gateway::encode_fault(Some(ask), &fault);
            http::append_response(&mut out, status, &body);
        }
    }
    out
}

/// All parts of a stream of answers, however it is cut, and whether it ended with a fault.
fn parts(stream: &[u8], piece: usize) -> (Vec<Part>, bool) {
    let (mut reader, mut parts) = (ResponseReader::default(), Vec::new());
    for piece in stream.chunks(piece) {
        reader.push(piece);
        loop {
            match reader.next_part() {
                Ok(Some(part)) => parts.push(part),
                Ok(None) => break,
                Err(fault) => {
                    assert_eq!(reader.next_part(), Err(fault), "a fault stays");
                    return (parts, true);
                }
            }
        }
    }
    (parts, false)
}

fn answer(ask: &Ask, stream: &[u8], piece: usize, reached: &mut Reached) {
    let (parts, has_failed) = parts(stream, piece);
    assert_eq!(
        (&parts, has_failed),
        (
            &self::parts(stream, stream.len().max(1)).0,
            self::parts(stream, 1).1
        ),
        "the same comes out however the stream is cut"
    );
    reached.http_faults += u32::from(has_failed);
    let mut status = 0;
    for part in parts {
        match part {
            Part::Head { status: told } => status = told,
            Part::End => {}
            Part::Line(line) => match gateway::decode(ask, status, &line) {
                Ok(answer) => {
                    let again = gateway::encode_answer(ask, &answer);
                    assert_eq!(gateway::decode(ask, 200, &again), Ok(answer));
                    reached.answers += 1;
                }
                Err(CoordinationFault::Malformed { .. }) => reached.malformed += 1,
                Err(_) => reached.refusals += 1,
            },
        }
    }
}

fn watch(bytes: &[u8], reached: &mut Reached) {
    for line in bytes.split(|&byte| byte == b'\n') {
        match gateway::decode_watch_line(200, line) {
            Ok(WatchLine::Created) => {}
            Ok(WatchLine::Changes(changes)) => {
                let again = gateway::encode_watch_line(Ok(&changes));
                let same = WatchLine::Changes(changes.clone());
                assert_eq!(gateway::decode_watch_line(200, &again), Ok(same));
                reached.changes += u32::try_from(changes.len()).unwrap_or(u32::MAX);
            }
            Err(CoordinationFault::Compacted { .. }) => reached.compacted += 1,
            Err(_) => {}
        }
    }
}

/// Requests, as HTTP, and as lines of a path and a body.
fn coordinator(stream: &[u8], bytes: &[u8], piece: usize, reached: &mut Reached) {
    let mut coordinator = Coordinator::default();
    let mut now = Time::ZERO;
    let mut reader = RequestReader::default();
    'stream: for piece in stream.chunks(piece) {
        reader.push(piece);
        loop {
            match reader.next_request() {
                Ok(Some(request)) => {
                    request_of(&mut coordinator, now, &request.path, &request.body, reached);
                }
                Ok(None) => break,
                Err(_) => break 'stream,
            }
        }
    }
    for line in bytes.split(|&byte| byte == b'\n') {
        let Some(at) = line.iter().position(|&byte| byte == b' ') else {
            continue;
        };
        let path = String::from_utf8_lossy(&line[..at]).into_owned();
        request_of(&mut coordinator, now, &path, &line[at + 1..], reached);
        now = Time::from_ns(now.as_ns() + 1_000_000_000);
    }
    coordinator.on_timeout(Time::MAX);
    assert_eq!(coordinator.poll_timeout(), None, "every lease ends");
}

fn request_of(
    coordinator: &mut Coordinator,
    now: Time,
    path: &str,
    body: &[u8],
    reached: &mut Reached,
) {
    let before = coordinator.revision();
    match gateway::decode_request(path, body) {
        Ok(Asked::Ask(ask)) => {
            let answered = coordinator.handle(now, &ask);
            assert!(coordinator.revision() >= before);
            if answered.is_ok() {
                reached.carried_out += 1;
            } else {
                reached.refused += 1;
            }
            let snapshot = coordinator.snapshot();
            let restored = Coordinator::restore(now, &snapshot).expect("it is its own snapshot");
            assert_eq!(restored.snapshot(), snapshot);
            assert_eq!(restored.revision(), coordinator.revision());
        }
        Ok(Asked::Watch(from)) => {
            let WatchFrom { revision, .. } = from.clone();
            if let Ok(id) = coordinator.watch(from) {
                reached.watches += 1;
                let told = coordinator.poll_watch(id).expect("it has just begun");
                let told = told.unwrap_or_default();
                assert!(told.len() <= HISTORY_MAX && told.len() <= KEYS_MAX);
                assert!(told.iter().all(|change| change.revision() >= revision));
                assert!(revision > Revision(0) || told.is_empty(), "from now on");
            }
        }
        Err(_) => reached.refused += 1,
    }
}
