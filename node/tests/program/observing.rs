//! `serve --metrics`: what is told, what moves it, and to whom it is told.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use lunette::kvstore::{
    Client, ClientHost, ClientOptions, ClusterClient, ClusterClientOptions, Lent, Preferred,
    PutOptions, Value,
};
use lunette::runtime::{CoreOptions, Placement, arena, block_on};
use lunette::transfer::{Attachments, Connection};
use lunette_cluster::proto::fence::NamespaceKind;
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{AskerId, GetMessage, HoldWish, NearWish};
use lunette_kvstore_proto::message::{FormatVersion, KeyRequest, Op, Status};
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::ids::{CoreIndex, RequestId};
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::frame::{FrameKind, PayloadDigest, encode_frame};
use lunette_transfer_proto::hello::{Handshake, Hello, VersionRange};
use rustix::process::Signal;

use crate::process::{Node, await_that, lunette, run, run_with_input, send};
use crate::scrape::{Families, address, ask, get, health, scrape, value};
use crate::town::{Town, await_members, is_there, put, with_client};

/// Each family, and what moves it in [`each_metric_is_moved`]. Nothing is told that is not here.
const FAMILIES: [(&str, &str); 48] = [
    ("info", CONSTANT),
    ("memory_capacity_bytes", CONSTANT),
    ("state", "joining, serving, fenced"),
    ("objects", "puts"),
    ("memory_used_bytes", "puts"),
    ("memory_free_bytes", "puts"),
    ("memory_pinned_bytes", "a put that is pinned for ever"),
    ("connections", "the client's"),
    ("hits_total", "gets of what was put"),
    ("misses_total", "gets of what was not"),
    ("payload_received_bytes_total", "puts"),
    ("payload_sent_bytes_total", "gets"),
    ("evictions_total", "puts of more than there is memory"),
    ("evicted_bytes_total", "puts of more than there is memory"),
    ("room_waits_total", "puts of more than there is memory"),
    ("dropped_objects_total", "removals"),
    (
        "refused_requests_total",
        "what only nodes that are alone know",
    ),
    ("copies_total", "puts, and replicas of the other node's"),
    ("requests_total", "all of that"),
    ("request_duration_seconds", "all of that"),
    ("epoch", "another member comes"),
    ("members", "another member comes"),
    ("lease_seconds", "the coordinator goes"),
    ("home_copies", "puts"),
    (
        "scarce_keys",
        "puts of two copies where there is room for one",
    ),
    (
        "repairs_total",
        "puts of two copies where there is room for one",
    ),
    (
        "abandoned_copies_total",
        "puts of a group, and of more than there is memory",
    ),
    (
        "back_copies_total",
        "puts of what has left, in turn with others",
    ),
    ("moved_copies_total", OF_FULL_MEMORY),
    ("moved_bytes_total", OF_FULL_MEMORY),
    (
        "cut_off_requests_total",
        "gets after the coordinator has gone",
    ),
    ("one_sided_reads_total", "gets of what is long"),
    (
        "one_sided_fallbacks_total",
        "a reader that says so, of what is not there",
    ),
    (
        "handed_over_puts_total",
        "puts of a thread that has met the node",
    ),
    ("dropped_copies_total", "removals"),
    ("replicas_total", "puts of two copies"),
    ("messages_total", "puts of two copies"),
    ("pushed_gets_total", OF_ADAPTERS),
    ("pushed_bytes_total", OF_ADAPTERS),
    ("pushes_failed_total", OF_ADAPTERS),
    ("asked_by_adapters_total", OF_ADAPTERS),
    ("pulled_puts_total", OF_ADAPTERS),
    ("pulled_bytes_total", OF_ADAPTERS),
    ("queue_pairs", OF_ADAPTERS),
    ("tenant_copies", "a put of a tenant"),
    ("tenant_memory_bytes", "a put of a tenant"),
    ("tenant_quota_bytes", "a quota"),
    ("tenant_credit_bytes", "a put of a tenant with a quota"),
];

const CONSTANT: &str = "nothing";
/// What no node moves that has no adapter: the tests of `lunette-kvstore` do, over a simulated fabric.
const OF_ADAPTERS: &str = "adapters";
/// It moves where memory of some size is free in pieces only (`moving` of the store's tests of clusters).
const OF_FULL_MEMORY: &str = "memory";

/// Families of members of clusters only.
const OF_MEMBERS: [&str; 26] = [
    "back_copies_total",
    "tenant_quota_bytes",
    "tenant_credit_bytes",
    "handed_over_puts_total",
    "tenant_copies",
    "tenant_memory_bytes",
    "pushed_gets_total",
    "pushed_bytes_total",
    "pushes_failed_total",
    "asked_by_adapters_total",
    "pulled_puts_total",
    "pulled_bytes_total",
    "queue_pairs",
    "one_sided_reads_total",
    "one_sided_fallbacks_total",
    "epoch",
    "members",
    "lease_seconds",
    "home_copies",
    "scarce_keys",
    "repairs_total",
    "abandoned_copies_total",
    "cut_off_requests_total",
    "dropped_copies_total",
    "replicas_total",
    "messages_total",
];

const METRICS: [&str; 2] = ["--metrics", "127.0.0.1:0"];
const PATIENT: Duration = Duration::from_secs(20);
const OBJECTS: usize = 24;

fn key(number: usize) -> String {
    format!("key-{number}")
}

/// Waits until a sample is above a bound.
fn await_above(node: &Node, family: &str, sample: &str, bound: f64) {
    let family = format!("lunette_store_{family}");
    await_that(&format!("{family}{sample} above {bound}"), || {
        value(&scrape(node), &family, sample) > bound
    });
}

/// Each of these objects is put, with a copy on the other node too.
async fn put_twice(client: ClusterClient, prefix: &'static str) {
    for number in 0..OBJECTS {
        assert!(put(&client, &format!("{prefix}{number}"), 1000, 2).await);
    }
}

fn put_of_tenant(node: &Node) {
    let of_tenant = [
        "put",
        "--nodes",
        node.address(),
        "--tenant",
        "a\"b",
        "--pin",
        "forever",
    ];
    // Some of them are here.
    for number in 0..12 {
        let key = format!("of-tenant-{number}");
        run_with_input(&[&of_tenant[..], &[&key]].concat(), b"value").ended_with(0);
    }
    let quota = [
        "cluster",
        "quota",
        "--nodes",
        node.address(),
        "--tenant",
        "a\"b",
        "--memory",
        "1MiB",
    ];
    run(&quota).ended_with(0);
    for family in ["tenant_quota_bytes", "tenant_credit_bytes"] {
        await_above(node, family, "{core=\"0\",tenant=\"a\\\"b\"}", 0.0);
    }
    for family in ["tenant_copies", "tenant_memory_bytes"] {
        await_above(node, family, "{core=\"0\",tenant=\"a\\\"b\"}", 0.0);
        await_above(node, family, "{core=\"0\",tenant=\"default\"}", 0.0);
    }
}

/// Puts of a thread, at the cores of nodes that its client has met.
/// What has left the other node for want of room is written here.
fn come_back(node: &Node, other: &Node) {
    let preferring = |member: &Node| PutOptions {
        preferred: Preferred::new(&[member.address().parse().expect("an address")]).expect("one"),
        ..PutOptions::default()
    };
    let (there, here) = (preferring(other), preferring(node));
    with_client(node, PATIENT, move |client| async move {
        for options in [there, here] {
            for number in 0..64 {
                let region = arena().alloc(512 * 1024).expect("room").freeze();
                let key = format!("back-{number}");
                let put = client.put(key.as_bytes(), Value::new(region), options);
                assert!(put.await.is_ok(), "{key}");
            }
        }
    });
    await_above(node, "back_copies_total", "{core=\"0\"}", 0.0);
}

fn hand_over(node: &Node) {
    let seeds = vec![node.address().parse().expect("an address")];
    let options = ClusterClientOptions::new(seeds);
    let host = ClientHost::start(&Placement::Anywhere(1), CoreOptions::default(), &options);
    let host = host.expect("a core");
    let handle = host.handle();
    let objects = |count| {
        let object = |n| {
            (
                format!("handed-{n}").into_bytes(),
                vec![Lent::bytes(vec![7; 100])],
            )
        };
        (0..count).map(object).collect::<Vec<_>>()
    };
    let family = "lunette_store_handed_over_puts_total";
    await_that("puts are handed over", || {
        let stored = handle.put_all_waiting(objects(OBJECTS), PutOptions::default());
        assert!(stored.iter().all(Result::is_ok), "{stored:?}");
        value(&scrape(node), family, "{core=\"0\"}") > 0.0
    });
}

fn traffic(node: &Node) {
    with_client(node, PATIENT, |client| put_twice(client, "twice-"));
    hand_over(node);
    let pin = ["put", "--nodes", node.address(), "--pin"];
    // Some of them have their home here.
    for number in 0..12 {
        let key = format!("pinned-{number}");
        run_with_input(&[&pin[..], &["forever", &key]].concat(), b"value").ended_with(0);
    }
    put_of_tenant(node);
    let group = ["put", "--nodes", node.address(), "--group", "together"];
    for number in 0..12 {
        let key = format!("together-{number}");
        run_with_input(&[&group[..], &[&key]].concat(), b"value").ended_with(0);
    }
    run_with_input(&[&pin[..], &["60", "pinned-long"]].concat(), b"value").ended_with(0);
    run_with_input(&[&pin[..], &["0", "pinned-never"]].concat(), b"value").ended_with(2);
    await_above(node, "replicas_total", "{core=\"0\",outcome=\"made\"}", 0.0);
    await_above(node, "copies_total", "{core=\"0\",kind=\"replica\"}", 0.0);
    with_client(node, PATIENT, |client| async move {
        for number in 0..OBJECTS {
            assert!(put(&client, &key(number), 1000, 1).await);
            assert!(!put(&client, &key(number), 1000, 1).await, "it is there");
            assert_eq!(is_there(&client, &key(number)).await, Some(true));
            let other = format!("never-{number}");
            assert_eq!(is_there(&client, &other).await, Some(false));
        }
        let keys: Vec<_> = (0..OBJECTS).map(|n| key(n).into_bytes()).collect();
        for removed in client.remove(&keys).await {
            assert!(removed.expect("it is removed"));
        }
        for number in 0..40 {
            // The last ones find no room for their second copies.
            let copies = if number < 32 { 1 } else { 2 };
            assert!(put(&client, &format!("large-{number}"), 512 * 1024, copies).await);
        }
    });
    await_above(node, "scarce_keys", "{core=\"0\"}", 0.0);
    await_above(node, "repairs_total", "{core=\"0\"}", 0.0);
    await_above(node, "abandoned_copies_total", "{core=\"0\"}", 0.0);
    with_client(node, PATIENT, |client| async move {
        while client.one_sided().reads == 0 {
            for number in 0..32 {
                assert!(
                    is_there(&client, &format!("large-{number}"))
                        .await
                        .is_some()
                );
            }
        }
        come_again(&client).await;
    });
    await_above(node, "one_sided_fallbacks_total", "{core=\"0\"}", 0.0);
    // What such nodes do not know.
    let address: SocketAddr = node.address().parse().expect("an address");
    let refused = block_on(None, CoreOptions::default(), move || async move {
        let client = Client::connect(&[address], ClientOptions::default()).await;
        let client = client.expect("it answers");
        client.exists(&[b"key".to_vec()]).await.is_err()
    });
    assert_eq!(refused, Ok(true));
}

/// As a reader does that was told of something which it did not find.
async fn come_again(client: &ClusterClient) {
    let map = client.map();
    for member in map.members() {
        let hello = Hello {
            versions: VersionRange::OURS,
            session_epoch: 7,
            in_flight_max: 4,
            payload_bytes_max: 1 << 20,
            greeting: Vec::new(),
        };
        let connected = Connection::connect(member.address, hello, PATIENT).await;
        let connection = connected.expect("it answers");
        let wish = NearWish {
            from_bytes: u32::MAX,
            is_again: true,
            hold: HoldWish {
                holder: 7,
                ttl_ms: 0,
            },
        };
        let message = GetMessage {
            epoch: map.epoch(),
            asker: AskerId(7),
            request: RequestId(1),
            to: Seat {
                node: member.id,
                incarnation: member.incarnation,
                core: CoreIndex(0),
            },
            namespace: NamespaceKind::Cache,
            ranges: Vec::new(),
            key: Key::new(b"never").expect("a key"),
        };
        let body = |out: &mut Vec<u8>| {
            wish.encode(FormatVersion(1), out);
            message.encode(FormatVersion(1), out);
        };
        let asked = connection.call(Op::FindNear.code(), body, Attachments::default(), PATIENT);
        let status = Status::from_code(asked.await.expect("it answers").status);
        assert_eq!(status, Status::NotFound);
    }
}

/// The other node is lost, then the coordinator.
fn losses(node: &Node, mut other: Node, mut coordinator: Node) {
    with_client(node, PATIENT, |client| put_twice(client, "lost-"));
    send(&other.child, Signal::KILL);
    other.wait();
    with_client(node, PATIENT, |client| async move {
        let keys = (0..OBJECTS).map(|n| format!("lost-{n}").into_bytes());
        // Those whose home was the other node may be gone already.
        drop(client.remove(&keys.collect::<Vec<_>>()).await);
        put_twice(client, "alone-").await;
    });
    await_above(node, "messages_total", "{core=\"0\",way=\"dropped\"}", 0.0);
    await_above(
        node,
        "replicas_total",
        "{core=\"0\",outcome=\"failed\"}",
        0.0,
    );
    await_members(node, 1);
    send(&coordinator.child, Signal::KILL);
    coordinator.wait();
    await_that("its lease is over", || health(node).0 == 503);
    let (_, object) = health(node);
    assert_eq!(
        (&object["state"], &object["lease_left_ms"]),
        (&"fenced".into(), &0.into())
    );
    let reason = object["reason"].as_str().expect("a reason");
    assert!(reason.starts_with("fenced"), "{reason}");
    let found = with_client(node, PATIENT, |client| async move {
        is_there(&client, "alone-1").await
    });
    assert_eq!(found, Some(true), "caches are served on the last map");
}

fn has_moved(scrapes: &[Families], family: &str) -> bool {
    let first = &scrapes[0][family];
    scrapes.iter().any(|scrape| scrape[family] != *first)
}

#[test]
fn each_metric_is_moved() {
    let town = Town::new();
    let node = Node::spawn(&mut town.member(1, &METRICS));
    let mut scrapes = vec![scrape(&node)];
    await_that("it serves", || health(&node).0 == 200);
    let other = Node::spawn(&mut town.member(2, &[]));
    await_members(&node, 2);
    traffic(&node);
    scrapes.push(scrape(&node));
    come_back(&node, &other);
    losses(&node, other, town.coordinator);
    scrapes.push(scrape(&node));

    let mut named: Vec<String> = Vec::new();
    for (family, why) in FAMILIES {
        let family = format!("lunette_store_{family}");
        let is_constant = [CONSTANT, OF_ADAPTERS, OF_FULL_MEMORY].contains(&why);
        assert_eq!(
            has_moved(&scrapes, &family),
            !is_constant,
            "{family}: {why}"
        );
        named.push(family);
    }
    named.sort_unstable();
    let told: Vec<_> = scrapes[0].keys().cloned().collect();
    assert_eq!(told, named, "each family is in the table, and no other");
    for (family, sample) in [
        ("copies_total", "kind=\"write\""),
        ("copies_total", "kind=\"replica\""),
        ("dropped_copies_total", "cause=\"ordered\""),
        ("messages_total", "way=\"sent\""),
        ("messages_total", "way=\"received\""),
        ("requests_total", "op=\"write\",outcome=\"ok\""),
        ("requests_total", "op=\"write\",outcome=\"exists\""),
        ("requests_total", "op=\"find\",outcome=\"ok\""),
        ("requests_total", "op=\"find\",outcome=\"not_found\""),
        ("requests_total", "op=\"ask\",outcome=\"ok\""),
        ("requests_total", "op=\"tell\",outcome=\"ok\""),
        ("requests_total", "op=\"replicate\",outcome=\"ok\""),
        ("requests_total", "op=\"stat\",outcome=\"ok\""),
        ("requests_total", "op=\"map\",outcome=\"ok\""),
        ("requests_total", "op=\"exists\",outcome=\"unsupported\""),
    ] {
        let family = format!("lunette_store_{family}");
        let sample = format!("{{core=\"0\",{sample}}}");
        assert!(
            value(&scrapes[2], &family, &sample) > 0.0,
            "{family}{sample}"
        );
    }
}

#[test]
fn a_node_that_is_alone_counts_what_it_is_asked() {
    let node = Node::start("1MiB", &[&["--core-count", "2"], &METRICS[..]].concat());
    let (status, object) = health(&node);
    assert_eq!((status, &object["state"]), (200, &"alone".into()));
    assert_eq!(
        (&object["serving"], &object["cores"]),
        (&true.into(), &2.into())
    );
    let at = ["--nodes", node.address()];
    let run = |arguments: &[&str]| run(&[arguments, &at].concat());
    let value_bytes = vec![7; 400 * 1024];
    for key in ["a", "b", "c", "d", "e"] {
        run_with_input(&[&["put", key], &at[..]].concat(), &value_bytes).ended_with(0);
        run_with_input(&[&["put", key], &at[..]].concat(), &value_bytes).ended_with(0);
    }
    run(&["get", "e"]).ended_with(0);
    run(&["get", "f"]).ended_with(3);
    run(&["rm", "e"]).ended_with(0);
    run(&["stat", "e"]).ended_with(3);
    run_with_input(&[&["put", "g"], &at[..]].concat(), &vec![0; 2 << 20]).ended_with(1);
    let pinned = [&["put", "g", "--pin", "60"], &at[..]].concat();
    let refused = run_with_input(&pinned, b"g").ended_with(2);
    assert!(refused.stderr.contains("cluster"), "{}", refused.stderr);
    let families = scrape(&node);
    let all_cores = |family: &str, sample: &str| {
        let family = format!("lunette_store_{family}");
        ["0", "1"]
            .map(|core| value(&families, &family, &format!("{{core=\"{core}\"{sample}}}")))
            .into_iter()
            .sum::<f64>()
    };
    let bytes = 400.0 * 1024.0;
    for (family, sample, expected) in [
        ("hits_total", "", 1.0),
        ("misses_total", "", 1.0),
        ("dropped_objects_total", "", 1.0),
        ("payload_received_bytes_total", "", 5.0 * bytes),
        ("payload_sent_bytes_total", "", bytes),
        ("copies_total", ",kind=\"write\"", 5.0),
        ("requests_total", ",op=\"put\",outcome=\"ok\"", 5.0),
        ("requests_total", ",op=\"put\",outcome=\"exists\"", 5.0),
        ("requests_total", ",op=\"put\",outcome=\"too_large\"", 1.0),
        ("requests_total", ",op=\"get\",outcome=\"not_found\"", 1.0),
        ("requests_total", ",op=\"remove\",outcome=\"ok\"", 1.0),
        ("refused_requests_total", "", 1.0),
    ] {
        let found = all_cores(family, sample);
        assert!((found - expected).abs() < 0.5, "{family}{sample}: {found}");
    }
    let [evicted, evicted_bytes, objects] =
        ["evictions_total", "evicted_bytes_total", "objects"].map(|family| all_cores(family, ""));
    assert!(
        evicted > 0.0 && evicted_bytes >= evicted * bytes,
        "{evicted_bytes}"
    );
    assert!(
        (evicted + objects - 4.0).abs() < 0.5,
        "all but what was removed"
    );
    let is_of_members = |name: &str| {
        let name = name.strip_prefix("lunette_store_").expect("ours");
        OF_MEMBERS.contains(&name)
    };
    assert!(!families.keys().any(|name| is_of_members(name)));
    assert_eq!(families.len(), FAMILIES.len() - OF_MEMBERS.len());
}

#[test]
fn what_is_no_page_is_refused_with_the_status_for_it() {
    let node = Node::start("1MiB", &METRICS);
    assert_eq!(get(&node, "/").status, 404);
    assert_eq!(get(&node, "/metrics?name=value").status, 200);
    let posted = ask(
        &node,
        b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    );
    assert_eq!(posted.status, 405);
    assert!(posted.head.contains("Allow: GET, HEAD"), "{}", posted.head);
    assert_eq!(ask(&node, b"\x16\x03\x01\r\n\r\n").status, 400);
    let head = ask(&node, b"HEAD /health HTTP/1.1\r\n\r\n");
    assert_eq!((head.status, head.text.as_str()), (200, ""));
    assert!(!head.head.contains("Content-Length: 0"), "{}", head.head);
}

#[test]
fn who_says_nothing_holds_nobody_up() {
    let node = Node::start("1MiB", &METRICS);
    let connect = || TcpStream::connect(address(&node)).expect("it listens");
    let silent: Vec<TcpStream> = (0..16).map(|_| connect()).collect();
    // All places are taken: whoever comes then is sent away.
    let mut late = connect();
    drop(late.write_all(b"GET /health HTTP/1.1\r\n\r\n"));
    let ended = std::io::Read::read(&mut late, &mut [0; 16]);
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    run(&["stat", "--nodes", node.address()]).ended_with(0);
    // Their time runs out.
    await_that("there is room again", || {
        let mut stream = connect();
        let begun = Instant::now();
        drop(stream.set_read_timeout(Some(PATIENT)));
        drop(stream.write_all(b"GET /health HTTP/1.1\r\n\r\n"));
        let read = std::io::Read::read(&mut stream, &mut [0; 16]);
        assert!(begun.elapsed() < PATIENT, "answered or closed");
        matches!(read, Ok(1..))
    });
    drop(silent);
}

/// A connection to a node on which an object arrives, the second half of which never does.
fn half_a_put(node: &Node) -> TcpStream {
    let hello = Hello {
        versions: VersionRange::OURS,
        session_epoch: 1,
        in_flight_max: 1,
        payload_bytes_max: 1 << 20,
        greeting: Vec::new(),
    };
    let bytes = vec![7; 1 << 20];
    let digest = PayloadDigest {
        len_bytes: 1 << 20,
        crc32c: crc32c(&bytes),
    };
    let (mut out, mut body) = (Vec::new(), Vec::new());
    Handshake::initiator(hello, Time::MAX).start(&mut out);
    let key = Key::new(b"half").expect("a key");
    KeyRequest { key }.encode(&mut body);
    let (kind, id) = (FrameKind::Request, RequestId(1));
    encode_frame(&mut out, kind, Op::Put.code(), id, &body, Some(digest));
    out.extend_from_slice(&bytes[..bytes.len() / 2]);
    let mut stream = TcpStream::connect(node.address()).expect("it listens");
    stream.write_all(&out).expect("it reads");
    stream
}

#[test]
fn a_node_that_ends_says_that_it_is_draining_while_a_connection_holds_it_up() {
    let mut node = Node::start("8MiB", &METRICS);
    assert_eq!(health(&node).1["state"], "alone");
    let stream = half_a_put(&node);
    // Otherwise it would find nothing to wait for.
    await_above(&node, "memory_used_bytes", "{core=\"0\"}", 0.0);
    send(&node.child, Signal::TERM);
    await_that("it is draining", || health(&node).1["state"] == "draining");
    let (status, object) = health(&node);
    assert_eq!((status, &object["serving"]), (503, &false.into()));
    let reason = object["reason"].as_str().expect("a reason");
    assert!(reason.starts_with("draining:"), "{reason}");
    let states = scrape(&node);
    let draining = value(&states, "lunette_store_state", "{state=\"draining\"}");
    assert!(draining > 0.0, "{:?}", states["lunette_store_state"]);
    drop(stream);
    let (code, said) = node.wait();
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn metrics_stay_on_loopback_unless_told_otherwise() {
    let arguments = ["serve", "--memory", "1MiB", "--listen", "127.0.0.1:0"];
    let arguments = [&arguments[..], &["--metrics", "0.0.0.0:0"]].concat();
    let refused = run(&arguments).ended_with(1);
    assert!(
        refused.stderr.contains("LUNETTE_INSECURE=1"),
        "{}",
        refused.stderr
    );
    let arguments = [&arguments[..], &["--json"]].concat();
    let node = Node::spawn(lunette(&arguments).env("LUNETTE_INSECURE", "1"));
    assert!(address(&node).starts_with("0.0.0.0:"), "{}", node.ready);
    let taken = ["--metrics", node.address()];
    let serve = ["serve", "--memory", "1MiB", "--listen", "127.0.0.1:0"];
    let failed = run(&[&serve[..], &taken].concat()).ended_with(1);
    assert!(failed.stderr.contains(node.address()), "{}", failed.stderr);
}
