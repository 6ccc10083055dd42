//! Nodes that say and count what a test wants, and hold nothing, whatever they say of writes.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use lunette_cluster::proto::map::{ClusterMap, Epoch, MapMember};
use lunette_kvstore_proto::message::directory::{
    Answer as Told, AnswerMessage, AskMessage, Gathered,
};
use lunette_kvstore_proto::message::{
    FormatVersion, FormatVersions, NodeCard, NodeStat, Op, Status,
};
use lunette_kvstore_proto::owner::WriteAnswer;
use lunette_kvstore_proto::version::Version;
use lunette_runtime::net::TcpListener;
use lunette_runtime::{arena, spawn_local, time};
use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::ids::{CoreIndex, NodeId};
use lunette_transfer::{
    Answer, Drain, Intake, Later, Payload, PayloadOutcome, REPLY_BYTES_MAX, RequestHead, Response,
    Room, ServeOptions, Service, serve,
};
use lunette_transfer_proto::hello::{Hello, VersionRange};

const PATIENCE: Duration = Duration::from_secs(20);

/// What strangers of one test count together.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Connections that are open.
    pub(crate) open: Cell<usize>,
    /// Most that were open at a time.
    pub(crate) open_max: Cell<usize>,
    /// Maps that were asked for.
    pub(crate) maps: Cell<usize>,
    /// Stats that were asked for.
    pub(crate) stats: Cell<usize>,
    /// None of them is answered before that many were asked for.
    pub(crate) stats_awaited: Cell<usize>,
    /// Writes that came alone.
    pub(crate) writes: Cell<usize>,
    /// Requests for many writes at once, which they do not know.
    pub(crate) scatters: Cell<usize>,
    /// Longest payload that they take, if it is not 1 MiB.
    pub(crate) payload_bytes_max: Cell<Option<u32>>,
    /// Whether an object that is asked for with others is sent, damaged.
    pub(crate) sends_damaged: Cell<bool>,
    /// Whether what threads ask for is answered with what is no answer.
    pub(crate) makes_no_sense: Cell<bool>,
    /// Whether nothing of what threads ask for is answered.
    pub(crate) is_silent: Cell<bool>,
    /// Whether homes answer nothing.
    pub(crate) are_homes_silent: Cell<bool>,
}

/// A node of one core that knows of no object, and of no request that came later than most.
pub(crate) struct Stranger {
    pub(crate) member: MapMember,
    told: Rc<Teller>,
}

struct Teller {
    map: RefCell<Option<ClusterMap>>,
    counts: Rc<Counts>,
    open: Cell<usize>,
}

fn response(status: Status, body: Vec<u8>) -> Response {
    Response {
        status: status.code(),
        body,
        payload: None,
    }
}

fn misses(body: &[u8]) -> Response {
    let asks = AskMessage::decode(body).expect("a question").asks;
    let answers = asks.iter().map(|ask| (ask.request(), Told::Miss)).collect();
    let mut body = Vec::new();
    AnswerMessage { answers }.encode(FormatVersion::NEWEST, &mut body);
    response(Status::Ok, body)
}

fn written() -> Vec<u8> {
    let version = Version {
        epoch: Epoch(1),
        sequence: 1,
    };
    let answer = WriteAnswer::Written {
        version,
        is_cut_off: false,
    };
    let mut body = Vec::new();
    answer.encode(FormatVersion::NEWEST, &mut body);
    body
}

/// An object, whose bytes are not those that its owner sent.
fn damaged() -> Response {
    let object = Gathered::Here {
        version: Version {
            epoch: Epoch(1),
            sequence: 1,
        },
        is_cut_off: false,
        len_bytes: 100,
    };
    let mut body = Vec::new();
    Gathered::encode(&[object], FormatVersion::NEWEST, &mut body);
    let bytes = arena().alloc(100).expect("room").freeze();
    let crc32c = crc32c(bytes.as_slice()) ^ 1;
    Response {
        payload: Some(Payload::region(bytes, crc32c)),
        ..response(Status::Ok, body)
    }
}

impl Teller {
    fn new(counts: &Rc<Counts>) -> Rc<Self> {
        Rc::new(Self {
            map: RefCell::default(),
            counts: Rc::clone(counts),
            open: Cell::new(0),
        })
    }
}

impl Service for Teller {
    type Pending = ();

    fn on_request(&self, request: RequestHead<'_>) -> Intake<()> {
        let map = self.map.borrow();
        match (Op::try_from(request.op), map.as_ref()) {
            (Ok(Op::Map), Some(map)) => {
                self.counts.maps.set(self.counts.maps.get() + 1);
                Intake::Answer(response(Status::Ok, map.encode()))
            }
            (Ok(Op::Ask), Some(_)) if self.counts.are_homes_silent.get() => {
                Intake::Later(Later::new(std::future::pending()))
            }
            (Ok(Op::Ask), Some(_)) => {
                let answer = misses(request.body);
                // As long as it takes, the connection is in use.
                Intake::Later(Later::new(async move {
                    time::sleep(Duration::from_millis(20)).await;
                    answer
                }))
            }
            (Ok(Op::Stat), Some(_)) => {
                let counts = Rc::clone(&self.counts);
                counts.stats.set(counts.stats.get() + 1);
                Intake::Later(Later::new(async move {
                    while counts.stats.get() < counts.stats_awaited.get() {
                        time::sleep(Duration::from_millis(1)).await;
                    }
                    let mut body = Vec::new();
                    NodeStat::default().encode(&mut body);
                    response(Status::Ok, body)
                }))
            }
            (Ok(Op::Write), Some(_)) => {
                self.counts.writes.set(self.counts.writes.get() + 1);
                Intake::Answer(response(Status::Ok, written()))
            }
            (Ok(Op::Gather), _) if self.counts.sends_damaged.get() => Intake::Answer(damaged()),
            (Ok(Op::Peek | Op::Gather | Op::Scatter), _) if self.counts.makes_no_sense.get() => {
                Intake::Answer(response(Status::Ok, vec![0xff; 3]))
            }
            (Ok(Op::Peek | Op::Gather | Op::Scatter), _) if self.counts.is_silent.get() => {
                Intake::Later(Later::new(std::future::pending()))
            }
            (op, _) => {
                let is_scatter = op == Ok(Op::Scatter);
                let scatters = self.counts.scatters.get() + usize::from(is_scatter);
                self.counts.scatters.set(scatters);
                Intake::Answer(response(Status::Unsupported, Vec::new()))
            }
        }
    }

    fn on_payload(&self, (): (), _: Room, _: PayloadOutcome) -> Answer {
        unreachable!("nothing is received")
    }

    fn on_connections(&self, open: usize) {
        let counts = &self.counts;
        let sum = counts.open.get() + open - self.open.replace(open);
        counts.open.set(sum);
        counts.open_max.set(counts.open_max.get().max(sum));
    }
}

impl Stranger {
    /// One that says that it speaks these versions.
    pub(crate) fn start(id: u64, versions: FormatVersions, counts: &Rc<Counts>) -> Self {
        let loopback = "127.0.0.1:0".parse().expect("an address");
        let listener = TcpListener::bind(loopback).expect("a port");
        let address = listener.local_addr();
        let card = NodeCard {
            node_id: NodeId(id),
            weight: 1,
            core: CoreIndex(0),
            ports: vec![address.port()],
            versions,
        };
        let mut greeting = Vec::new();
        card.encode(&mut greeting);
        let options = ServeOptions {
            guard: None,
            reply_bytes_max: REPLY_BYTES_MAX,
            hello: Hello {
                versions: VersionRange::OURS,
                session_epoch: id,
                in_flight_max: 16,
                payload_bytes_max: counts.payload_bytes_max.get().unwrap_or(1 << 20),
                greeting,
            },
            connections_max: 16,
            handshake_timeout: PATIENCE,
            stall_timeout: PATIENCE,
        };
        let told = Teller::new(counts);
        let serving = serve(listener, Rc::clone(&told), options, Drain::default());
        drop(spawn_local(serving));
        let member = MapMember::new(NodeId(id), 1, address);
        Self { member, told }
    }

    /// One that has ended.
    pub(crate) fn gone(id: u64, counts: &Rc<Counts>) -> Self {
        let loopback = "127.0.0.1:0".parse().expect("an address");
        let address = TcpListener::bind(loopback).expect("a port").local_addr();
        Self {
            member: MapMember::new(NodeId(id), 1, address),
            told: Teller::new(counts),
        }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.member.address
    }

    /// From now on it is a member of the cluster of these, and tells their map.
    pub(crate) fn join(&self, members: &[&Self]) {
        let members = members.iter().map(|other| other.member).collect();
        let map = ClusterMap::new(Epoch(1), 0, members).expect("a map");
        *self.told.map.borrow_mut() = Some(map);
    }
}
