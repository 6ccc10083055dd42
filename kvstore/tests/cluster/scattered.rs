//! Batches of puts, which go to each owner in one request.

use std::rc::Rc;
use std::time::Duration;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_kvstore::{
    ClusterClient, ClusterClientOptions, Fetched, Outcome, PutOptions, StoreErrorKind, Stored,
    Value,
};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{
    AskerId, ScatterHead, ScatterMessage, ScatterWrite, Scattered,
};
use lunette_kvstore_proto::message::{FormatVersion, FormatVersions, Op, Status};
use lunette_kvstore_proto::owner::WriteAnswer;
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::retention::Retention;
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::{arena, time};
use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::ids::RequestId;
use lunette_transfer::{Attachments, Connection, Payload, Reply, WriteSource};

use crate::on_each_driver::run;
use crate::scene::{Scene, eventually, key, pattern, room, stranger};
use crate::strangers::{Counts, Stranger};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

/// How often members were asked for so, with this outcome.
async fn counted(scene: &Scene, nodes: usize, op: Op, outcome: Outcome) -> u64 {
    let mut count = 0;
    for node in 0..nodes {
        let outcomes = scene.outcomes(node, op).await;
        let counts = outcomes.iter().filter(|(which, _)| *which == outcome);
        count += counts.map(|(_, count)| count).sum::<u64>();
    }
    count
}

fn len_of(n: usize) -> usize {
    [4096, 1, 70, 3000][n % 4]
}

fn objects(ns: impl Iterator<Item = usize>) -> Vec<(Vec<u8>, Value)> {
    ns.map(|n| (key(n), Value::new(pattern(n, len_of(n)))))
        .collect()
}

async fn put_all(
    client: &ClusterClient,
    ns: impl Iterator<Item = usize>,
    copies: u8,
) -> Vec<Stored> {
    let options = PutOptions {
        copies,
        ..PutOptions::default()
    };
    let stored = client.put_all(&objects(ns), options).await;
    let stored = stored.into_iter().map(|stored| stored.expect("put"));
    stored.collect()
}

#[test]
fn small_objects_of_a_batch_are_few_requests_of_each_owner() {
    run(2, || async {
        const COUNT: usize = 60;
        let scene = Scene::of(2, 64 * MIB).await;
        let client = scene.client().await;
        for stored in put_all(&client, 0..COUNT, 1).await {
            assert!(matches!(stored, Stored::Written { .. }), "{stored:?}");
        }
        for n in 0..COUNT {
            scene.expect(&client, n, len_of(n)).await;
        }
        let requests = counted(&scene, 2, Op::Scatter, Outcome::Ok).await;
        assert!((2..=4).contains(&requests), "{requests}, of 32 at most");
        let writes = counted(&scene, 2, Op::Write, Outcome::Ok).await;
        assert_eq!(writes, COUNT as u64, "each is a write");
    });
}

#[test]
fn what_is_there_already_leaves_the_others_as_they_are() {
    run(2, || async {
        const COUNT: usize = 40;
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        put_all(&client, (0..COUNT).step_by(2), 1).await;
        // All of what is there is of other bytes now.
        let others = (0..COUNT).map(|n| (key(n), Value::new(pattern(n, 4000 - n))));
        let others: Vec<_> = others.collect();
        let stored = client.put_all(&others, PutOptions::default()).await;
        for (n, stored) in stored.into_iter().enumerate() {
            let is_new = matches!(stored, Ok(Stored::Written { .. }));
            assert_eq!(is_new, n % 2 == 1, "{n}: {stored:?}");
            let len = if is_new { 4000 - n } else { len_of(n) };
            scene.expect(&client, n, len).await;
        }
        // Nothing of it is wanted.
        let stored = client.put_all(&others, PutOptions::default()).await;
        let exists = |stored: &Result<_, _>| matches!(stored, Ok(Stored::Exists { .. }));
        assert!(stored.iter().all(exists), "{stored:?}");
    });
}

#[test]
fn what_is_long_or_empty_or_no_object_goes_by_itself() {
    run(1, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        let lens = [10, 70_000, 0, 20, 30];
        let mut objects: Vec<_> = (0..lens.len())
            .map(|n| (key(n), Value::new(pattern(n, lens[n]))))
            .collect();
        objects.push((Vec::new(), Value::new(pattern(9, 10))));
        let mut stored = client.put_all(&objects, PutOptions::default()).await;
        let refused = stored.pop().expect("the last").expect_err("no key");
        assert!(matches!(refused.kind, StoreErrorKind::Key(_)), "{refused}");
        for (n, stored) in stored.into_iter().enumerate() {
            assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
            scene.expect(&client, n, lens[n]).await;
        }
        assert_eq!(counted(&scene, 1, Op::Scatter, Outcome::Ok).await, 1);
        // One alone is sent as ever.
        put_all(&client, 9..10, 1).await;
        assert_eq!(counted(&scene, 1, Op::Scatter, Outcome::Ok).await, 1);
    });
}

/// More than there is memory for: what is there then is whole.
#[test]
fn a_node_that_is_full_takes_what_it_can() {
    run(1, || async {
        const COUNT: usize = 1200;
        let scene = Scene::of(1, MIB).await;
        let client = scene.client().await;
        let objects: Vec<_> = (0..COUNT)
            .map(|n| (key(n), Value::new(pattern(n, 4096))))
            .collect();
        for batch in objects.chunks(64) {
            for stored in client.put_all(batch, PutOptions::default()).await {
                assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
            }
        }
        let mut there = 0;
        for n in 0..COUNT {
            let fetched = client.get(&key(n), room(4096)).await.expect("an answer");
            // What had been asked to leave may be gone by now.
            if let Fetched::Hit { room, .. } = fetched {
                assert!(room.as_slice() == pattern(n, 4096).as_slice(), "{n}");
                there += 1;
            }
        }
        assert!((100..250).contains(&there), "{there} fit");
    });
}

#[test]
fn copies_are_made_of_each() {
    run(1, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        let client = scene.client().await;
        put_all(&client, 0..30, 2).await;
        let copies = async || {
            let mut copies = 0;
            for node in 1..=3 {
                copies += scene.held_by(&client, node).await;
            }
            copies
        };
        eventually("each has two copies", async || copies().await == 60).await;
    });
}

#[test]
fn a_batch_that_nobody_waits_for_keeps_nothing() {
    run(1, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let client = scene.client().await;
        let upsert = PutOptions {
            kind: WriteKind::Upsert,
            ..PutOptions::default()
        };
        let batch = || -> Vec<_> {
            let values = (0..40).map(|n| (key(n), Value::new(pattern(n, 4096))));
            values.collect()
        };
        client.put_all(&batch(), upsert).await;
        let before = arena().used_bytes();
        for wait_us in [0, 20, 50, 100, 200, 400, 800] {
            let objects = batch();
            let put = client.put_all(&objects, upsert);
            drop(time::timeout(Duration::from_micros(wait_us), put).await);
        }
        eventually("values are free", async || arena().used_bytes() <= before).await;
        for stored in put_all(&client, 40..80, 1).await {
            assert!(matches!(stored, Stored::Written { .. }), "{stored:?}");
        }
    });
}

/// As those are that were built before there was such a request.
#[test]
fn an_owner_that_knows_no_such_request_is_sent_the_writes_one_by_one() {
    run(1, || async {
        let counts = Rc::new(Counts::default());
        let strangers = [1, 2].map(|id| Stranger::start(id, FormatVersions::OURS, &counts));
        let all: Vec<_> = strangers.iter().collect();
        strangers.iter().for_each(|stranger| stranger.join(&all));
        let seeds = vec![strangers[0].address()];
        let client = ClusterClient::connect(ClusterClientOptions::new(seeds)).await;
        let client = client.expect("a client");
        for batch in 0..3 {
            for stored in put_all(&client, batch * 30..(batch + 1) * 30, 1).await {
                assert!(matches!(stored, Stored::Written { .. }), "{stored:?}");
            }
        }
        assert_eq!(counts.scatters.get(), 2, "each was asked once");
        assert_eq!(counts.writes.get(), 90);
    });
}

/// A request, a key, a length and a checksum.
type Write<'a> = (u64, &'a [u8], u32, u32);

struct Asker {
    connection: Connection,
    to: Seat,
}

impl Asker {
    async fn scatter(&self, writes: Vec<Write<'_>>, bytes: Vec<u8>) -> Reply {
        let head = ScatterHead {
            asker: AskerId(77),
            over_below: RequestId(0),
            to: self.to,
            kind: WriteKind::Put,
            namespace: NamespaceKind::Cache,
            wanted: 1,
            wait_ms: 5000,
        };
        let write = |(request, key, len_bytes, crc32c)| ScatterWrite {
            request: RequestId(request),
            len_bytes,
            crc32c,
            retention: Retention::default(),
            key: Key::new(key).expect("a key"),
        };
        let writes = writes.into_iter().map(write).collect();
        let message = ScatterMessage { head, writes };
        let body = |out: &mut Vec<u8>| message.encode(FormatVersion(1), out);
        let payload = (!bytes.is_empty()).then(|| {
            let mut region = arena().alloc(bytes.len()).expect("room");
            region.as_mut_slice().copy_from_slice(&bytes);
            let sum = crc32c(&bytes);
            Payload::pieces(vec![WriteSource::Region(region.freeze())], sum)
        });
        let attachments = Attachments {
            payload,
            ..Attachments::default()
        };
        let reply = self
            .connection
            .call(Op::Scatter.code(), body, attachments, PATIENCE);
        reply.await.expect("an answer")
    }
}

/// Sent again, with other writes beside: each is done once.
#[test]
fn a_write_is_done_once_whatever_it_comes_with() {
    run(1, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        let (connection, to) = stranger(&client).await;
        let asker = Asker { connection, to };
        let (a, b) = (crc32c(b"aaaa"), crc32c(b"bb"));
        let answers = async |writes: Vec<_>, bytes: &[u8]| {
            let count = writes.len();
            let reply = asker.scatter(writes, bytes.to_vec()).await;
            assert_eq!(Status::from_code(reply.status), Status::Ok);
            Scattered::decode(FormatVersion(1), &reply.body, count).expect("it makes sense")
        };
        let first = answers(vec![(1, b"a", 4, a)], b"aaaa").await;
        let again = answers(vec![(1, b"a", 4, a), (2, b"b", 2, b)], b"aaaabb").await;
        assert_eq!(again[0], first[0]);
        let of = |scattered: &Scattered| match scattered {
            Scattered::Done {
                answer: WriteAnswer::Written { version, .. },
            } => *version,
            other => panic!("{other:?}"),
        };
        assert!(of(&again[1]) > of(&again[0]));
        let bytes = |text: &[u8]| {
            let mut region = arena().alloc(text.len()).expect("room");
            region.as_mut_slice().copy_from_slice(text);
            region.freeze()
        };
        scene.expect_bytes(&client, b"a", &bytes(b"aaaa")).await;
        scene.expect_bytes(&client, b"b", &bytes(b"bb")).await;
    });
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    run(1, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        let (connection, to) = stranger(&client).await;
        let asker = Rc::new(Asker { connection, to });
        let (a, b) = (crc32c(b"aaaa"), crc32c(b"bb"));
        let bad: [(Vec<Write<'_>>, &[u8]); 6] = [
            // Nothing, checksums of others, lengths that are not the payload's, an empty value, no payload.
            (vec![], b""),
            (vec![(1, b"a", 4, a), (2, b"b", 2, a)], b"aaaabb"),
            (vec![(1, b"a", 4, b), (2, b"b", 2, a)], b"aaaabb"),
            (vec![(1, b"a", 4, a), (2, b"b", 3, b)], b"aaaabb"),
            (vec![(1, b"a", 4, a), (2, b"b", 0, crc32c(b""))], b"aaaa"),
            (vec![(1, b"a", 4, a)], b""),
        ];
        for (writes, bytes) in bad {
            let reply = asker.scatter(writes.clone(), bytes.to_vec()).await;
            let status = Status::from_code(reply.status);
            assert_eq!(status, Status::BadRequest, "{writes:?}");
        }
        for body in [vec![1; 60], vec![1], vec![]] {
            let write = |out: &mut Vec<u8>| out.extend_from_slice(&body);
            let reply = asker
                .connection
                .call(Op::Scatter.code(), write, Attachments::default(), PATIENCE)
                .await;
            let status = Status::from_code(reply.expect("an answer").status);
            assert_eq!(status, Status::BadRequest);
        }
        let present = client.exists(&[b"a".to_vec(), b"b".to_vec()]).await;
        assert_eq!(present.expect("an answer"), [false, false]);
        // To another life of the node.
        let stale = Asker {
            connection: stranger(&client).await.0,
            to: Seat {
                incarnation: asker.to.incarnation + 1,
                ..asker.to
            },
        };
        let reply = stale.scatter(vec![(1, b"a", 4, a)], b"aaaa".to_vec()).await;
        assert_eq!(Status::from_code(reply.status), Status::WrongSeat);
    });
}
