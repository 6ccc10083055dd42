//! The service of a member, with its machines and its memory, under requests of anybody: what peers say in
//! any seat's name, and bytes that are nothing.
//!
//! ```text
//!   for each step, a byte that says which, and its choices
//! ```
//!
//! Two members and their coordinator run in a simulated world. A stranger that has the cluster's secret, or a
//! cluster without one, says what it likes to the first; an honest client puts and gets beside it. Each key has one
//! value, so that whatever happens a get brings that or none.

use std::cell::RefCell;
use std::future::pending;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_cluster::proto::map::Epoch;
use lunette_cluster::{Hosted, serve};
use lunette_generate::{Bytes, Source};
use lunette_kvstore::{
    ClusterClient, ClusterClientOptions, ClusterOptions, Fetched, NodeOptions, PutOptions,
    SeatedNode, Value,
};
use lunette_kvstore_proto::key::{Fingerprint, Key};
use lunette_kvstore_proto::message::directory::{
    Answer, Ask, AskMessage, AskerId, ChangeMessage, CommitMessage, Content, FillMessage,
    GatherMessage, GetMessage, HoldWish, ListMessage, MemberMessage, NearWish, PeekMessage,
    QuotaChange, QuotaMessage, ReadMessage, ReplicaMessage, ReservationId, ReserveMessage,
    RevokeMessage, ScatterHead, ScatterMessage, ScatterWrite, SeatMessage, Term, WriteMessage,
};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::retention::{GroupId, Parent, Pin, Retention};
use lunette_kvstore_proto::tenant::Tenant;
use lunette_runtime::arena::Region;
use lunette_runtime::net::TcpListener;
use lunette_runtime::sim::{World, WorldOptions};
use lunette_runtime::{CoreOptions, arena, spawn_local, time};
use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::ids::{CoreIndex, NodeId, RequestId};
use lunette_transfer::{Attachments, Connection, Payload, Room};
use lunette_transfer_proto::hello::{Hello, VersionRange};

use crate::directory::draw;

/// Most steps of a script, so that one run stays short.
const STEPS_MAX: usize = 60;
const MEMORY_BYTES: u64 = 4 << 20;
/// Objects that may be in somebody's hands.
const KEYS: u8 = 6;
/// How long anybody waits for an answer, in the world's time.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a world may last.
const WORLD_MAX: Duration = Duration::from_secs(900);

/// What a script reached. A corpus is judged by what its files reach together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Requests that were carried out.
    pub done: u32,
    /// Those that were refused as nonsense.
    pub malformed: u32,
    /// Those that were refused otherwise.
    pub refused: u32,
    /// Messages between seats that were taken in.
    pub told: u32,
    /// Messages that came back with the acknowledgement.
    pub answered: u32,
    /// Writes of the stranger's that succeeded.
    pub written: u32,
    /// Honest puts that succeeded.
    pub stored: u32,
    /// Honest gets that brought the value.
    pub hits: u32,
    /// Honest gets that did not.
    pub misses: u32,
}

/// Lets anybody say anything to a member.
///
/// # Panics
/// If the member does, or brings wrong bytes, or does not answer any more: that is what it is for.
pub fn member(data: &[u8]) -> Reached {
    let options = WorldOptions {
        short_receives_per_mille: 0,
        ..WorldOptions::default()
    };
    let mut world = World::new(1, options);
    let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let process = world.start(host, 1, CoreOptions::default());
    let reached = Rc::new(RefCell::new(Reached::default()));
    let (script, counted) = (data.to_vec(), Rc::clone(&reached));
    let done = world.spawn(process, 0, || async move {
        play(&script, &counted).await;
    });
    let until = world.now() + WORLD_MAX;
    assert!(world.run_until(until, || done.is_there()), "it ends");
    drop(world);
    Rc::into_inner(reached).map_or_else(Reached::default, RefCell::into_inner)
}

async fn play(script: &[u8], reached: &RefCell<Reached>) {
    let nodes = town().await;
    let client = honest(nodes[0].address()).await;
    let stranger = Stranger::connect(&client).await;
    let mut source = Bytes::new(script);
    for _ in 0..STEPS_MAX {
        if source.is_spent() {
            break;
        }
        stranger.step(&mut source, &client, reached).await;
    }
    // Whatever has become of the objects, it serves.
    for number in 0..KEYS {
        get(&client, number, reached).await;
    }
    let (stat, _) = stranger.ask(Op::Stat, Vec::new(), None).await;
    assert_eq!(stat, Some(Status::Ok), "it answers");
    let fresh = client.put(b"nobody's", Value::empty(), PutOptions::default());
    reached.borrow_mut().stored += u32::from(fresh.await.is_ok());
    drop(nodes);
}

/// Two members, on this core, and their coordinator.
async fn town() -> Vec<SeatedNode> {
    let listener = TcpListener::bind(loopback()).expect("a port");
    let coordinator = listener.local_addr();
    drop(spawn_local(serve(
        listener,
        Hosted::in_memory(),
        None,
        pending(),
    )));
    let mut nodes = Vec::new();
    for id in 1..=2 {
        let mut options = NodeOptions::new(NodeId(id), loopback(), MEMORY_BYTES);
        options.cluster = Some(ClusterOptions::new("fuzz", vec![coordinator]));
        nodes.push(SeatedNode::start(options).await.expect("a node"));
    }
    for node in &nodes {
        while node.joined().await.expect("a member").members().len() < nodes.len() {
            time::sleep(Duration::from_millis(20)).await;
        }
    }
    nodes
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

async fn honest(seed: SocketAddr) -> ClusterClient {
    let options = ClusterClientOptions {
        timeout: PATIENCE,
        ..ClusterClientOptions::new(vec![seed])
    };
    ClusterClient::connect(options).await.expect("a map")
}

fn name(number: u8) -> [u8; 2] {
    [b'k', number % KEYS]
}

/// The one value of a key.
fn bytes_of(number: u8) -> Vec<u8> {
    let number = number % KEYS;
    vec![number + 1; usize::from(number) * 700]
}

fn region_of(bytes: &[u8]) -> Option<Region> {
    if bytes.is_empty() {
        return None;
    }
    let mut region = arena().alloc(bytes.len()).expect("room");
    region.as_mut_slice().copy_from_slice(bytes);
    Some(region.freeze())
}

/// An honest get: the key's value, or none.
async fn get(client: &ClusterClient, number: u8, reached: &RefCell<Reached>) {
    let room = Room::whole(arena().alloc(1 << 16).expect("room"));
    match client.get(&name(number), room).await {
        Ok(Fetched::Hit {
            room, len_bytes, ..
        }) => {
            let found = &room.as_slice()[..len_bytes];
            assert!(found == bytes_of(number), "key {number}: other bytes");
            reached.borrow_mut().hits += 1;
        }
        Ok(Fetched::Miss { .. }) | Err(_) => reached.borrow_mut().misses += 1,
    }
}

/// An honest put. Whether it succeeds may be the stranger's doing.
async fn put(
    client: &ClusterClient,
    number: u8,
    source: &mut impl Source,
    reached: &RefCell<Reached>,
) {
    let value = region_of(&bytes_of(number)).map_or_else(Value::empty, Value::new);
    let options = PutOptions {
        kind: draw::kind(source),
        copies: 1 + source.below(2),
        ..PutOptions::default()
    };
    let stored = client.put(&name(number), value, options).await;
    reached.borrow_mut().stored += u32::from(stored.is_ok());
}

/// Who says anything, in anybody's name.
struct Stranger {
    connection: Connection,
    /// The member that it talks to.
    to: Seat,
}

impl Stranger {
    async fn connect(client: &ClusterClient) -> Self {
        let map = client.map();
        let member = &map.members()[0];
        let hello = Hello {
            versions: VersionRange::OURS,
            session_epoch: 7,
            in_flight_max: 4,
            payload_bytes_max: 1 << 20,
            greeting: Vec::new(),
        };
        let connected = Connection::connect(member.address, hello, PATIENCE).await;
        let to = Seat {
            node: member.id,
            incarnation: member.incarnation,
            core: CoreIndex(0),
        };
        Self {
            connection: connected.expect("it answers"),
            to,
        }
    }

    /// What came of a request, unless nobody answered in time, and the body of the answer.
    async fn ask(
        &self,
        op: Op,
        body: Vec<u8>,
        payload: Option<Payload>,
    ) -> (Option<Status>, Vec<u8>) {
        self.ask_code(op.code(), body, payload).await
    }

    async fn ask_code(
        &self,
        op: u16,
        body: Vec<u8>,
        payload: Option<Payload>,
    ) -> (Option<Status>, Vec<u8>) {
        let room = Room::whole(arena().alloc(1 << 16).expect("room"));
        let attachments = Attachments {
            payload,
            room: Some(room),
            arrange: None,
        };
        let write = |out: &mut Vec<u8>| out.extend_from_slice(&body);
        match self.connection.call(op, write, attachments, PATIENCE).await {
            Ok(reply) => (Some(Status::from_code(reply.status)), reply.body),
            Err(failure) => {
                let closed = self.connection.closed();
                assert!(closed.is_none(), "{closed:?} after {}", failure.error);
                (None, Vec::new())
            }
        }
    }

    async fn step(
        &self,
        source: &mut impl Source,
        client: &ClusterClient,
        reached: &RefCell<Reached>,
    ) {
        let which = source.below(16);
        let number = source.u8();
        match which {
            0 => return put(client, number, source, reached).await,
            1 => return get(client, number, reached).await,
            2 => {
                drop(client.remove(&[name(number).to_vec()]).await);
                return;
            }
            3 => {
                time::sleep(Duration::from_millis(u64::from(number) * 20)).await;
                return;
            }
            _ => {}
        }
        let (op, body) = match which {
            4 => (
                number.into(),
                (0..source.below(40)).map(|_| source.u8()).collect(),
            ),
            5..=9 => (Op::Tell.code(), self.tell(source, client)),
            10 => (Op::Ask.code(), self.questions(source, client)),
            _ => self.object(source, number, client),
        };
        let sent = if op == Op::Scatter.code() {
            scattered(number).map(bytes_of).concat()
        } else {
            bytes_of(number)
        };
        let brings = [Op::Write, Op::Scatter, Op::Replicate, Op::Fill]
            .map(Op::code)
            .contains(&op);
        let payload = region_of(&sent).filter(|_| brings);
        let payload = payload.map(|region| Payload::region(region, crc32c(&sent)));
        let (status, answer) = self.ask_code(op, body, payload).await;
        let mut reached = reached.borrow_mut();
        match status {
            Some(Status::Ok) => reached.done += 1,
            Some(Status::BadRequest | Status::Unsupported) => reached.malformed += 1,
            _ => reached.refused += 1,
        }
        if status == Some(Status::Ok) {
            reached.told += u32::from(op == Op::Tell.code());
            reached.answered += u32::from(op == Op::Tell.code() && !answer.is_empty());
            reached.written += u32::from(op == Op::Write.code());
        }
    }

    /// The seat that it talks to; now and then another, or another life of it.
    fn to(&self, source: &mut impl Source) -> Seat {
        match source.below(16) {
            0 => draw::seat(source),
            1 => Seat {
                incarnation: self.to.incarnation + 1,
                ..self.to
            },
            _ => self.to,
        }
    }

    /// Some seat's name: the other member's, this one's own, or nobody's.
    fn from(&self, source: &mut impl Source, client: &ClusterClient) -> Seat {
        let map = client.map();
        let members = map.members();
        match usize::from(source.below(4)) {
            index if index < members.len() => Seat {
                node: members[index].id,
                incarnation: members[index].incarnation,
                core: CoreIndex(0),
            },
            _ => draw::seat(source),
        }
    }

    /// A message between seats.
    fn tell(&self, source: &mut impl Source, client: &ClusterClient) -> Vec<u8> {
        let known = client.map().epoch();
        let epoch = draw::epoch(source, known);
        let (from, to) = (self.from(source, client), self.to(source));
        let count = 1 + source.below(3);
        let content = match source.below(7) {
            0 => Content::ToHome((0..count).map(|_| draw::to_home(source, known)).collect()),
            1 => Content::ToOwner((0..count).map(|_| draw::to_owner(source, known)).collect()),
            2 => Content::Page(draw::page(source, known)),
            3 => Content::ToPeer(draw::to_peer(source, known)),
            4 => Content::Groups((0..count).map(|_| draw::group_news(source)).collect()),
            5 => Content::Credit((0..count).map(|_| draw::credit_news(source)).collect()),
            _ => Content::Relay {
                asker: AskerId(source.below(4).into()),
                request: RequestId(source.below(8).into()),
                answer: if source.flag() {
                    Answer::Miss
                } else {
                    Answer::Stale(epoch)
                },
            },
        };
        let message = SeatMessage::new(epoch, from, to, content);
        let mut body = Vec::new();
        message.encode(FormatVersion::NEWEST, &mut body);
        of_real_keys(body)
    }

    /// Questions of an asker.
    fn questions(&self, source: &mut impl Source, client: &ClusterClient) -> Vec<u8> {
        let asks = (0..source.below(5)).map(|_| {
            let request = RequestId(source.below(8).into());
            let key = draw::key(source);
            let namespace = draw::namespace(source);
            if source.below(4) == 0 {
                let wait_ms = u32::from(source.u8()) << 4;
                Ask::Remove {
                    request,
                    key,
                    namespace,
                    wait_ms,
                    only: draw::only(wait_ms, client.map().epoch()),
                }
            } else {
                Ask::Lookup {
                    request,
                    key,
                    namespace,
                    hold: draw::hold(source),
                }
            }
        });
        let asks = asks.collect();
        let message = AskMessage {
            epoch: draw::epoch(source, client.map().epoch()),
            asker: AskerId(source.below(4).into()),
            over_below: RequestId(source.below(8).into()),
            to: self.to(source),
            asks,
        };
        let mut body = Vec::new();
        message.encode(FormatVersion::NEWEST, &mut body);
        of_real_keys(body)
    }

    /// A request about an object.
    fn object(
        &self,
        source: &mut impl Source,
        number: u8,
        client: &ClusterClient,
    ) -> (u16, Vec<u8>) {
        let name = name(number);
        let key = Key::new(&name).expect("short");
        let (asker, to) = (AskerId(source.below(4).into()), self.to(source));
        let mut body = Vec::new();
        let op = if source.flag() {
            let known = client.map().epoch();
            moving(source, (asker, to, key), (number, known), &mut body)
        } else {
            reserving(source, (asker, to, key), number, &mut body)
        };
        (op.code(), body)
    }
}

/// Which objects are written together.
const fn scattered(number: u8) -> [u8; 2] {
    [number, number / 2]
}

/// Two objects, the first of which may be the second as well, or of nothing.
fn scattering(
    source: &mut impl Source,
    (asker, to): (AskerId, Seat),
    number: u8,
    body: &mut Vec<u8>,
) -> Op {
    let head = ScatterHead {
        asker,
        over_below: RequestId(0),
        to,
        kind: draw::kind(source),
        namespace: draw::namespace(source),
        wanted: source.below(4),
        wait_ms: source.u8().into(),
    };
    let names = scattered(number).map(name);
    let writes = scattered(number).into_iter().zip(&names);
    let writes = writes.map(|(number, name)| {
        let bytes = bytes_of(number);
        ScatterWrite {
            request: RequestId(source.below(8).into()),
            len_bytes: u32::try_from(bytes.len()).expect("short"),
            crc32c: crc32c(&bytes),
            retention: retention(number),
            key: Key::new(name).expect("short"),
        }
    });
    let writes = writes.collect();
    ScatterMessage { head, writes }.encode(FormatVersion::NEWEST, body);
    Op::Scatter
}

/// A request that moves an object's bytes, or removes everything.
fn moving(
    source: &mut impl Source,
    (asker, to, key): (AskerId, Seat, Key<'_>),
    (number, known): (u8, Epoch),
    body: &mut Vec<u8>,
) -> Op {
    if source.below(8) == 0 {
        return scattering(source, (asker, to), number, body);
    }
    let (request, namespace) = (RequestId(source.below(8).into()), draw::namespace(source));
    let ranges = (0..source.below(3)).map(|_| ByteRange {
        offset_bytes: u64::from(source.u8()) << 3,
        len_bytes: u32::from(source.u8()),
    });
    let ranges = ranges.collect();
    let newest = FormatVersion::NEWEST;
    match source.below(8) {
        0..=2 => {
            let message = WriteMessage {
                kind: draw::kind(source),
                form: draw::form(number),
                namespace,
                wanted: source.below(4),
                wait_ms: source.u8().into(),
                retention: retention(number),
                ..WriteMessage::new((asker, request), RequestId(0), to, key)
            };
            message.encode(newest, body);
            Op::Write
        }
        3 => {
            let epoch = draw::epoch(source, known);
            let message = GetMessage {
                epoch,
                asker,
                request,
                to,
                namespace,
                ranges,
                key,
            };
            let op = wish_near(number, asker, (Op::Find, Op::FindNear), body);
            message.encode(newest, body);
            op
        }
        4 => {
            let message = ReadMessage {
                to,
                version: draw::place(source, known).version,
                namespace,
                ranges,
                key,
            };
            let op = wish_near(number, asker, (Op::Read, Op::ReadNear), body);
            message.encode(newest, body);
            op
        }
        5 | 6 => {
            let mut info = draw::info(source, known);
            let bytes = bytes_of(number);
            info.len_bytes = u32::try_from(bytes.len()).expect("short");
            info.crc32c = crc32c(&bytes);
            let message = ReplicaMessage {
                to,
                info,
                namespace,
                is_repair: number.is_multiple_of(2),
                pin: pin(number),
                key,
            };
            message.encode(newest, body);
            Op::Replicate
        }
        _ => peeking((to, known, namespace), key, number, body),
    }
}

/// A lookup or a get that never waits, or the removal of everything.
fn peeking(
    (to, known, namespace): (Seat, Epoch, NamespaceKind),
    key: Key<'_>,
    number: u8,
    body: &mut Vec<u8>,
) -> Op {
    let newest = FormatVersion::NEWEST;
    if number.is_multiple_of(4) {
        let other = name(number / 4);
        let other = Key::new(&other).expect("short");
        let rooms = [u32::from(number), 0, 4096, 100];
        let keys = [key, other, key, other];
        let message = GatherMessage {
            to,
            epoch: known,
            namespace,
            wanted: rooms.into_iter().zip(keys).collect(),
        };
        message.encode(newest, body);
        Op::Gather
    } else if number.is_multiple_of(2) {
        let keys = [key.fingerprint(), Fingerprint(number.into())];
        PeekMessage::encode((to, known, namespace), keys.into_iter(), newest, body);
        Op::Peek
    } else if number % 4 == 1 {
        let message = ListMessage {
            to,
            after: (number > 99).then_some(key.fingerprint()),
            keys: number.into(),
            prefix: &key.bytes()[..usize::from(number % 3)],
        };
        message.encode(newest, body);
        Op::List
    } else if number % 8 == 7 {
        let tenant = Tenant::named(["a", "default"][usize::from(number % 16 / 8)]);
        let quota_bytes = (number > 99).then_some(u64::from(number) << 8);
        let term = term_of(number);
        let change = (number > 49).then(|| QuotaChange {
            tenant: tenant.expect("a name"),
            quota_bytes,
            term,
        });
        QuotaMessage { to, change }.encode(newest, body);
        Op::Quota
    } else if number % 32 == 27 {
        MemberMessage { to }.encode(newest, body);
        Op::Clock
    } else {
        let term = term_of(number);
        ChangeMessage { to, term }.encode(newest, body);
        if number % 16 == 5 {
            Op::Retire
        } else {
            Op::Clear
        }
    }
}

/// One of eight has been on its way for too long.
fn term_of(number: u8) -> Term {
    Term {
        told_ns: u64::from(number),
        wait_ms: if number / 32 == 3 { 1 } else { u32::MAX },
    }
}

/// Every third key is asked for as by who maps the node's memory, which nobody does in a world.
fn wish_near(number: u8, asker: AskerId, (far, near): (Op, Op), body: &mut Vec<u8>) -> Op {
    if !number.is_multiple_of(3) {
        return far;
    }
    let wish = NearWish {
        from_bytes: number.into(),
        is_again: number.is_multiple_of(2),
        hold: HoldWish {
            holder: asker.0,
            ttl_ms: 100,
        },
    };
    wish.encode(FormatVersion::NEWEST, body);
    near
}

fn retention(number: u8) -> Retention {
    Retention {
        is_last: number.is_multiple_of(3),
        pin: pin(number),
        group: (number % 5 < 2).then(|| GroupId::of(&[number % 2])),
        behind: (number % 7 < 3).then(|| Parent(Fingerprint((number % 3).into()))),
    }
}

const fn pin(number: u8) -> Pin {
    match number % 4 {
        0 => Pin::Hard,
        1 => Pin::Soft {
            ttl_ms: (number as u32) << 4,
        },
        _ => Pin::None,
    }
}

/// A request about an object that is written in ranges.
fn reserving(
    source: &mut impl Source,
    (asker, to, key): (AskerId, Seat, Key<'_>),
    number: u8,
    body: &mut Vec<u8>,
) -> Op {
    let reservation = ReservationId(source.below(3).into());
    let newest = FormatVersion::NEWEST;
    match source.below(4) {
        0 => {
            let message = ReserveMessage {
                asker,
                reservation,
                to,
                kind: draw::kind(source),
                namespace: draw::namespace(source),
                wanted: source.below(4),
                len_bytes: u32::try_from(bytes_of(number).len()).expect("short"),
                keep_ms: u32::from(source.u8()) << 4,
                retention: retention(number),
                key,
            };
            message.encode(newest, body);
            Op::Reserve
        }
        1 => {
            let is_beyond = source.below(4) == 0;
            let message = FillMessage {
                asker,
                reservation,
                to,
                offset_bytes: u32::from(is_beyond) << 6,
                key,
            };
            message.encode(newest, body);
            Op::Fill
        }
        2 => {
            let wait_ms: u32 = source.u8().into();
            let message = CommitMessage {
                asker,
                reservation,
                to,
                request: RequestId(source.below(8).into()),
                over_below: RequestId(0),
                wait_ms,
                hold_ms: wait_ms << 4,
                key,
            };
            message.encode(newest, body);
            Op::Commit
        }
        _ => {
            let message = RevokeMessage {
                asker,
                reservation,
                to,
                key,
            };
            message.encode(newest, body);
            Op::Revoke
        }
    }
}

/// A body that names keys which have bytes, in place of those that are drawn.
fn of_real_keys(mut body: Vec<u8>) -> Vec<u8> {
    const LEN: usize = size_of::<u128>();
    let mut at = 0;
    while at + LEN <= body.len() {
        let found = draw::number_of(Fingerprint(u128::from_le_bytes(
            body[at..at + LEN].try_into().expect("its length"),
        )));
        if let Some(number) = found {
            let name = name(number);
            let real = Key::new(&name).expect("short").fingerprint();
            body[at..at + LEN].copy_from_slice(&real.0.to_le_bytes());
            at += LEN;
        } else {
            at += 1;
        }
    }
    body
}
