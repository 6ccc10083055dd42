//! Requests that go by messages between adapters, and those that do not.

use std::time::Duration;

use futures_util::future::join_all;
use lunette_kvstore_proto::message::directory::PairMessage;
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::paths::Path;
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime::time;
use lunette_runtime_core::ids::RequestId;
use lunette_transfer::adapters::{Adapters, Heard, Messages, RdmaOptions};
use lunette_transfer::{Attachments, Connection};
use lunette_transfer_proto::frame::{FrameHeader, FrameKind, HEADER_BYTES};
use lunette_transfer_proto::message::{self, MESSAGE_BYTES_MAX};
use lunette_verbs::connect::{Exchange, HANDSHAKE_MAX};
use lunette_verbs::sim::Fault;
use lunette_verbs::{Context, QueuePair, Ready};

use super::on_each_driver::run;
use super::pushed::{Pushing, run_in_worlds};
use super::scene::{PATIENCE, Scene as Nodes, eventually, key, stranger};

const WORLDS: u64 = 4;
const LEN: usize = 5000;

impl Pushing {
    /// Looks a key up until that goes by a message.
    async fn until_asked(&self) {
        eventually("it is asked by a message", async || {
            let before = self.client.asked_by_adapters();
            self.client.lookup(&key(0), None).await.expect("asked");
            self.client.asked_by_adapters() > before
        })
        .await;
    }

    /// Requests that nodes have been asked by messages.
    async fn heard(&self) -> u64 {
        let reports = self.scene.reports().await.into_iter();
        let members = reports.filter_map(|report| report.member);
        members.map(|member| member.asked_by_adapters).sum()
    }

    /// Requests of this kind that the nodes had, however they came.
    async fn had(&self, op: Op) -> u64 {
        let outcomes = self.scene.outcomes(0, op).await;
        outcomes.into_iter().map(|(_, count)| count).sum()
    }
}

async fn pushing(nodes: usize) -> Pushing {
    Pushing::by(Some(Path::Written), (nodes, 1), 4 << 20).await
}

#[test]
fn lookups_and_gets_are_asked_by_messages() {
    run(WORLDS, || async {
        let scene = pushing(2).await;
        for n in 0..8 {
            scene.scene.put(&scene.client, n, n, LEN).await;
        }
        let into = |n: usize| vec![scene.memory.slice(n * LEN, LEN)];
        eventually("owners are asked by messages, and write", async || {
            let before = (
                scene.client.asked_by_adapters(),
                scene.client.by_adapters().written,
            );
            for n in 0..8 {
                scene.get(n, n, LEN, into(n)).await;
            }
            let asked = scene.client.asked_by_adapters() - before.0;
            let written = scene.client.by_adapters().written - before.1;
            (asked, written) == (8, 8)
        })
        .await;
        let before = scene.client.asked_by_adapters();
        for n in 0..12 {
            let found = scene.client.lookup(&key(n), None).await.expect("asked");
            assert_eq!(found.is_some(), n < 8, "{n}");
        }
        let all: Vec<_> = (0..40).map(key).collect();
        let there = scene.client.exists(&all).await.expect("asked");
        assert!(there.iter().enumerate().all(|(n, there)| *there == (n < 8)));
        // One for each lookup, and of the batch one for each node.
        assert_eq!(scene.client.asked_by_adapters(), before + 14);
        assert_eq!(scene.heard().await, scene.client.asked_by_adapters());
        // What changes something goes over the connection, once.
        let removed = scene.client.remove(&[key(3)]).await;
        assert_eq!(removed, [Ok(true)]);
        assert_eq!(scene.client.asked_by_adapters(), before + 14);
    });
}

#[test]
fn what_is_too_long_for_a_message_goes_over_the_connection() {
    run(WORLDS, || async {
        let scene = pushing(1).await;
        scene.scene.put(&scene.client, 0, 0, LEN).await;
        scene.until_asked().await;
        let before = scene.client.asked_by_adapters();
        let many = MESSAGE_BYTES_MAX / 16;
        let all: Vec<_> = (0..many).map(key).collect();
        let there = scene.client.exists(&all).await.expect("asked");
        assert!(
            there
                .iter()
                .enumerate()
                .all(|(n, there)| *there == (n == 0))
        );
        assert_eq!(scene.client.asked_by_adapters(), before);
    });
}

#[test]
fn more_than_may_be_under_way_are_asked_all_the_same() {
    run(WORLDS, || async {
        let scene = pushing(1).await;
        for n in 0..8 {
            scene.scene.put(&scene.client, n, n, LEN).await;
        }
        scene.until_asked().await;
        let before = scene.client.asked_by_adapters();
        let lookups = (0..400).map(async |n: usize| {
            let key = key(n % 16);
            let found = scene.client.lookup(&key, None).await.expect("asked");
            assert_eq!(found.is_some(), n % 16 < 8);
        });
        join_all(lookups).await;
        let gets = (0..400).map(async |n: usize| {
            let slot = vec![scene.memory.slice(n * LEN, LEN)];
            scene.get(n % 8, n % 8, LEN, slot).await;
        });
        join_all(gets).await;
        let asked = scene.client.asked_by_adapters() - before;
        assert!((1..800).contains(&asked), "some, and not all: {asked}");
        // Nothing is left of them that would keep others from it.
        for _ in 0..600 {
            scene.until_asked().await;
        }
    });
}

#[test]
fn a_node_that_takes_no_messages_is_asked_over_the_connection() {
    run(WORLDS, || async {
        let mut nodes = Nodes::of(0, 64 << 20).await;
        nodes.set_messages(false);
        nodes.add(64 << 20).await;
        nodes.set_messages(true);
        let scene = Pushing::over(nodes, Some(Path::Written), 1, 1 << 20).await;
        scene.scene.put(&scene.client, 0, 0, LEN).await;
        eventually("its owner writes", async || {
            let before = scene.client.by_adapters().written;
            let slot = vec![scene.memory.slice(0, LEN)];
            scene.get(0, 0, LEN, slot).await;
            scene.client.by_adapters().written > before
        })
        .await;
        assert_eq!(scene.client.asked_by_adapters(), 0);
        assert_eq!(scene.heard().await, 0);
    });
}

#[test]
fn an_adapter_that_falls_silent_costs_a_lookup_a_moment() {
    for device in [0, 1] {
        run_in_worlds(WORLDS, move |_seed| async move {
            let scene = pushing(1).await;
            scene.scene.put(&scene.client, 0, 0, LEN).await;
            scene.until_asked().await;
            // The owner's, which answers, or the client's, which asks.
            scene.fabric.inject(device, Fault::Silence);
            let began = time::now();
            let found = scene.client.lookup(&key(0), None).await;
            assert!(matches!(found, Ok(Some(_))), "{found:?}");
            let took = time::now().since(began);
            assert!(took < Duration::from_millis(400), "{took:?}");
            scene.scene.expect(&scene.client, 0, LEN).await;
        });
    }
}

#[test]
fn a_home_that_takes_its_time_is_asked_again_and_keeps_its_queue_pair() {
    run_in_worlds(WORLDS, |_seed| async {
        let scene = pushing(1).await;
        scene.scene.put(&scene.client, 0, 0, LEN).await;
        scene.until_asked().await;
        scene.fabric.inject(0, Fault::Slow { steps: u32::MAX });
        let asked = scene.had(Op::Ask).await;
        let key = key(0);
        let found = scene.client.lookup(&key, None);
        let given_up = time::timeout(Duration::from_millis(100), found).await;
        assert!(given_up.is_err(), "its answer is under way");
        assert_eq!(scene.had(Op::Ask).await, asked + 1);
        scene.fabric.inject(0, Fault::Slow { steps: 1 });
        time::sleep(Duration::from_millis(50)).await;
        let pair = scene.fabric.queue_pairs(scene.device);
        for _ in 0..100 {
            scene.until_asked().await;
        }
        assert_eq!(scene.fabric.queue_pairs(scene.device), pair);
    });
}

/// Somebody who has connected adapters to the first node, and keeps to no rules.
pub(crate) struct Reader {
    pub(crate) connection: Connection,
    pub(crate) seat: Seat,
    messages: Messages,
    pair: QueuePair<Ready>,
}

impl Reader {
    /// What it calls its queue pair.
    pub(crate) const PAIR: u64 = 1;

    pub(crate) async fn of(scene: &Pushing) -> Self {
        let device = scene.fabric.add_device();
        let context = Context::simulated(&scene.fabric, device).expect("it was added");
        let options = RdmaOptions::default();
        let adapters = Adapters::open(&options, false, vec![context]);
        let adapter = &adapters.all()[0];
        let messages = Messages::open(adapter, 64, 64).expect("receives");
        let (connection, seat) = stranger(&scene.client).await;
        let pair = adapter.written(messages.receives()).expect("a queue pair");
        let deadline = time::now() + HANDSHAKE_MAX;
        let mut exchange = Exchange::initiator(pair, options.patience, adapter.epoch(), deadline);
        let mut received: Option<Vec<u8>> = None;
        let pair = loop {
            let step = exchange.step(time::now(), received.as_deref());
            let message = step.message.expect("it has something to say");
            let pairing = PairMessage {
                to: seat,
                connection: Self::PAIR,
                adapter: 0,
                message: &message,
            };
            let body = |out: &mut Vec<u8>| pairing.encode(FormatVersion::NEWEST, out);
            let nothing = Attachments::default();
            let reply = connection.call(Op::PairAsking.code(), body, nothing, PATIENCE);
            let reply = reply.await.expect("an answer");
            assert_eq!(reply.status, Status::Ok.code());
            if let Some(pair) = step.outcome.expect("it is connected") {
                break pair;
            }
            received = Some(reply.body);
        };
        Self {
            connection,
            seat,
            messages,
            pair,
        }
    }

    /// Says this, and whether it has arrived.
    async fn say(&self, bytes: &[u8]) -> bool {
        match self.messages.send(&self.pair, bytes) {
            Some(sent) => sent.await.0.is_ok(),
            None => false,
        }
    }

    /// The status of the next answer.
    async fn hear(&self, id: u64) -> Status {
        let mut status = None;
        let take = |_number: u32, heard: Heard<'_>| {
            let Heard::Message(bytes) = heard else {
                return;
            };
            let frame = message::decode(bytes).expect("a message");
            assert_eq!(frame.header.id, RequestId(id));
            status = Some(Status::from_code(frame.header.code));
        };
        let heard = time::timeout(PATIENCE, self.messages.hear(take)).await;
        heard.expect("in time").expect("receives");
        status.expect("a message")
    }

    /// Waits until the node has broken its end.
    pub(crate) async fn is_broken_off(&self) {
        eventually("it is broken off", async || !self.say(b"anything").await).await;
    }
}

fn request(op: u16, id: u64, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let kind = FrameKind::Request;
    assert!(message::encode(&mut out, kind, op, RequestId(id), body));
    out
}

#[test]
fn whoever_keeps_to_no_rules_loses_its_queue_pair_and_nobody_else_does() {
    run(WORLDS, || async {
        let scene = pushing(1).await;
        scene.scene.put(&scene.client, 0, 0, LEN).await;
        scene.until_asked().await;
        let peek = request(Op::Peek.code(), 1, &[]);
        let mut damaged = peek.clone();
        damaged[HEADER_BYTES - 1] ^= 1;
        let mut answer = Vec::new();
        let kind = FrameKind::Response;
        assert!(message::encode(&mut answer, kind, 0, RequestId(1), &[]));
        let header: &[u8; HEADER_BYTES] = peek[..HEADER_BYTES].try_into().expect("a header");
        let mut payload = FrameHeader::decode(header).expect("a header");
        payload.payload.len_bytes = 4;
        let cut = peek[..HEADER_BYTES - 1].to_vec();
        let longer = [peek.as_slice(), &[0]].concat();
        for hostile in [damaged, answer, payload.encode().to_vec(), cut, longer] {
            let reader = Reader::of(&scene).await;
            assert!(reader.say(&hostile).await, "it arrives");
            reader.is_broken_off().await;
            assert_eq!(reader.connection.closed(), None, "its connection goes on");
            scene.until_asked().await;
        }
    });
}

#[test]
fn what_may_not_be_asked_by_a_message_is_refused_and_nonsense_too() {
    run(WORLDS, || async {
        let scene = pushing(1).await;
        scene.scene.put(&scene.client, 0, 0, LEN).await;
        let reader = Reader::of(&scene).await;
        let mut id = 0;
        let mut ask = async |op: u16, body: &[u8]| {
            id += 1;
            assert!(reader.say(&request(op, id, body)).await);
            reader.hear(id).await
        };
        for op in Op::ALL {
            let expected = if op.may_be_message() {
                Status::BadRequest
            } else {
                Status::Unsupported
            };
            for body in [&b""[..], &[1; 7], &[255; 300]] {
                let status = ask(op.code(), body).await;
                assert_eq!(status, expected, "{op:?}, {} bytes", body.len());
            }
        }
        assert_eq!(ask(9999, b"").await, Status::Unsupported);
        scene.scene.expect(&scene.client, 0, LEN).await;
    });
}

#[test]
fn what_no_adapter_can_write_is_sent_once() {
    run(WORLDS, || async {
        let scene = pushing(1).await;
        const LONG: usize = 3 << 20;
        scene.scene.put(&scene.client, 0, 0, LEN).await;
        scene.until_asked().await;
        scene.scene.put(&scene.client, 1, 1, LONG).await;
        let sent = async || {
            let reports = scene.scene.reports().await.into_iter();
            let sent = reports.map(|report| report.stat.payload_out_bytes);
            sent.sum::<u64>()
        };
        // Its owner's memory is registered when it is first asked for there.
        let (before, asked) = (sent().await, scene.client.asked_by_adapters());
        let into = vec![scene.memory.slice(0, LONG)];
        scene.get(1, 1, LONG, into).await;
        assert_eq!(scene.client.asked_by_adapters(), asked + 1);
        assert_eq!(scene.client.by_adapters().written, 0);
        assert_eq!(sent().await, before + LONG as u64);
    });
}
