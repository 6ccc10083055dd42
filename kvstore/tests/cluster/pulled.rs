//! Puts whose bytes owners' adapters read where they lie.

use std::time::Duration;

use futures_util::future::join_all;
use lunette_kvstore::{AdapterPuts, ClusterClient, PutOptions, StoreErrorKind, Stored, Value};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{AskerId, PullWish, PushPlace, WriteMessage};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::paths::Path;
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::arena::Exposed;
use lunette_runtime::{Scope, time};
use lunette_runtime_core::ids::RequestId;
use lunette_transfer::Attachments;
use lunette_verbs::sim::Fault;

use super::messages::Reader;
use super::on_each_driver::run;
use super::pushed::{Pushing, memory, run_in_worlds};
use super::scene::{PATIENCE, eventually, key, pattern};

const WORLDS: u64 = 4;
const LEN: usize = 9000;

async fn pulling(nodes: usize, adapters: usize) -> Pushing {
    Pushing::by(Some(Path::Read), (nodes, adapters), 8 << 20).await
}

fn value_of(pieces: Vec<Exposed>) -> Value {
    Value::gathered(pieces.into_iter().map(Into::into).collect())
}

async fn upsert(client: &ClusterClient, n: usize, value: Value) -> Stored {
    let options = PutOptions {
        kind: WriteKind::Upsert,
        ..PutOptions::default()
    };
    client
        .put(&key(n), value, options)
        .await
        .expect("it is put")
}

impl Pushing {
    /// Pieces of the landed memory, of these lengths, with bytes that only this number has.
    fn filled(&self, n: usize, lens: &[usize]) -> Vec<Exposed> {
        let len = lens.iter().sum();
        let bytes = pattern(n, len);
        let (mut at, mut from) = (0, 0);
        let pieces = lens.iter().map(|len| {
            let piece = self.memory.slice(at, *len);
            piece.copy_in(0, &bytes.as_slice()[from..from + len]);
            (at, from) = (at + len + 40, from + len);
            piece
        });
        pieces.collect()
    }

    /// Puts something until its owner reads it.
    async fn until_pulled(&self, n: usize) {
        eventually("owners read what is put", async || {
            let before = self.client.puts_by_adapters().pulled;
            let value = value_of(self.filled(n, &[LEN]));
            assert!(matches!(
                upsert(&self.client, n, value).await,
                Stored::Written { .. }
            ));
            self.client.puts_by_adapters().pulled > before
        })
        .await;
    }

    /// Values that nodes have read, and bytes of them.
    async fn has_pulled(&self) -> (u64, u64) {
        let reports = self.scene.reports().await.into_iter();
        let members = reports.filter_map(|report| report.member);
        members.fold((0, 0), |(values, bytes), member| {
            (values + member.pulled, bytes + member.pulled_bytes)
        })
    }
}

#[test]
fn what_is_read_is_what_was_put() {
    run(WORLDS, || async {
        let scene = pulling(2, 2).await;
        let other = scene.scene.client_from(None).await;
        for n in 0..16 {
            scene.until_pulled(n).await;
        }
        let before = scene.client.puts_by_adapters();
        let lens: [&[usize]; 6] = [
            &[1],
            &[4096],
            &[100, 1, 7],
            &[65_537],
            &[1 << 20, 3, 500_000],
            &[4097; 16],
        ];
        let mut expected = before;
        for (n, lens) in (100..).zip(lens) {
            let pieces = scene.filled(n, lens);
            let (name, value) = (key(n), value_of(pieces));
            let put = scene.client.put(&name, value, PutOptions::default());
            assert!(matches!(put.await, Ok(Stored::Written { .. })));
            // What was put is nobody's any more.
            scene.memory.copy_in(0, &vec![0xee; 4 << 20]);
            let len = lens.iter().sum();
            scene.scene.expect(&other, n, len).await;
            expected.pulled += 1;
            expected.pulled_bytes += len as u64;
        }
        assert_eq!(scene.client.puts_by_adapters(), expected);
        assert_eq!(expected.fallbacks, 0);
        let told = scene.has_pulled().await;
        assert_eq!(told, (expected.pulled, expected.pulled_bytes));
        // What is there already is not read.
        let again = value_of(scene.filled(100, &[1]));
        let put = scene
            .client
            .put(&key(100), again, PutOptions::default())
            .await;
        assert!(matches!(put, Ok(Stored::Exists { .. })), "{put:?}");
        assert_eq!(scene.client.puts_by_adapters(), expected);
    });
}

#[test]
fn what_is_not_landed_or_empty_or_in_too_many_pieces_is_sent() {
    run(WORLDS, || async {
        let scene = pulling(1, 1).await;
        scene.until_pulled(0).await;
        let before = scene.client.puts_by_adapters();
        let put = async |n: usize, value: Value| {
            let name = key(n);
            let put = scene.client.put(&name, value, PutOptions::default());
            assert!(matches!(put.await, Ok(Stored::Written { .. })), "{n}");
        };
        let apart = memory(LEN);
        apart.copy_in(0, &pattern(1, 2 * LEN).as_slice()[LEN..]);
        put(2, value_of(vec![apart.clone()])).await;
        scene
            .scene
            .expect_bytes(&scene.client, &key(2), &pattern(1, 2 * LEN).slice(LEN, LEN))
            .await;
        let first = scene.filled(1, &[LEN]);
        put(1, value_of([first, vec![apart]].concat())).await;
        scene.scene.expect(&scene.client, 1, 2 * LEN).await;
        put(3, value_of(scene.filled(3, &[10; 17]))).await;
        scene.scene.expect(&scene.client, 3, 170).await;
        put(5, Value::empty()).await;
        scene.scene.expect(&scene.client, 5, 0).await;
        put(6, Value::new(pattern(6, LEN))).await;
        scene.scene.expect(&scene.client, 6, LEN).await;
        assert_eq!(scene.client.puts_by_adapters(), before);
    });
}

#[test]
fn many_at_once_are_all_there() {
    run(WORLDS, || async {
        let scene = pulling(2, 2).await;
        scene.until_pulled(0).await;
        scene.until_pulled(1).await;
        let slots = 400;
        for n in 0..slots {
            let slot = scene.memory.slice(n * LEN, LEN);
            slot.copy_in(0, pattern(n, LEN).as_slice());
        }
        let puts = (0..slots).map(async |n: usize| {
            let value = value_of(vec![scene.memory.slice(n * LEN, LEN)]);
            upsert(&scene.client, n, value).await
        });
        let stored = join_all(puts).await;
        assert!(
            stored
                .iter()
                .all(|stored| matches!(stored, Stored::Written { .. }))
        );
        for n in 0..slots {
            scene.scene.expect(&scene.client, n, LEN).await;
        }
        let AdapterPuts { pulled, .. } = scene.client.puts_by_adapters();
        assert!(pulled > slots as u64 / 4, "{pulled}");
    });
}

#[test]
fn when_adapters_fail_values_are_sent() {
    run_in_worlds(12, |seed| async move {
        let seed = usize::try_from(seed).expect("small");
        let scene = pulling(2, 2).await;
        scene.until_pulled(0).await;
        let faults = [
            Fault::RetryExceeded,
            Fault::Flush,
            Fault::RemoteAccess,
            Fault::PartialPost { taken: 0 },
            Fault::Code(9),
        ];
        for round in 0..20 {
            // The owners': the first ones are those of the first node.
            let fault = faults[(round + seed) % faults.len()];
            scene.fabric.inject((round + seed) % 2, fault);
            for n in 0..6 {
                let bytes = round * 10 + n;
                let value = value_of(scene.filled(bytes, &[LEN, n + 1]));
                upsert(&scene.client, n, value).await;
                let (client, nodes) = (&scene.client, &scene.scene);
                nodes.expect_value(client, n, bytes, LEN + n + 1).await;
            }
            time::sleep(Duration::from_millis(60)).await;
        }
        let counted = scene.client.puts_by_adapters();
        assert!(counted.fallbacks > 0 && counted.pulled > 20, "{counted:?}");
        scene.until_pulled(3).await;
    });
}

#[test]
fn an_adapter_that_never_speaks_again_is_done_without() {
    run_in_worlds(WORLDS, |_seed| async {
        let scene = pulling(1, 1).await;
        scene.until_pulled(0).await;
        scene.fabric.inject(0, Fault::Silence);
        let began = time::now();
        let value = value_of(scene.filled(7, &[LEN]));
        assert!(matches!(
            upsert(&scene.client, 0, value).await,
            Stored::Written { .. }
        ));
        let took = time::now().since(began);
        assert!(took < Duration::from_secs(4), "{took:?}");
        scene.scene.expect_value(&scene.client, 0, 7, LEN).await;
    });
}

#[test]
fn memory_that_could_not_be_read_thrice_rests_and_is_read_again() {
    run_in_worlds(WORLDS, |_seed| async {
        let scene = pulling(1, 1).await;
        let put = async || {
            upsert(&scene.client, 0, value_of(scene.filled(7, &[LEN]))).await;
            scene.client.puts_by_adapters()
        };
        for (failures, rests) in [(2, false), (3, true)] {
            scene.until_pulled(0).await;
            let (mut before, mut in_a_row) = (put().await, 0);
            while in_a_row < failures {
                scene.fabric.inject(0, Fault::RemoteAccess);
                // While the queue pair is being connected it is sent.
                let now = loop {
                    let now = put().await;
                    if now != before {
                        break now;
                    }
                    time::sleep(Duration::from_millis(60)).await;
                };
                let has_failed = now.fallbacks > before.fallbacks;
                in_a_row = if has_failed { in_a_row + 1 } else { 0 };
                before = now;
            }
            // Longer than a queue pair is away, and not as long as memory rests.
            for _ in 0..100 {
                time::sleep(Duration::from_millis(80)).await;
                put().await;
            }
            let now = scene.client.puts_by_adapters();
            assert_eq!(now.pulled == before.pulled, rests, "{failures}: {now:?}");
        }
        scene.until_pulled(0).await;
    });
}

#[test]
fn whoever_drops_a_put_leaves_nothing_behind() {
    run(WORLDS, || async {
        let scene = pulling(1, 1).await;
        scene.until_pulled(0).await;
        scene.fabric.inject(0, Fault::Slow { steps: u32::MAX });
        let puts = Scope::new();
        let (client, value) = (scene.client.clone(), value_of(scene.filled(1, &[LEN])));
        let put = async move {
            let _put = client.put(&key(1), value, PutOptions::default()).await;
        };
        puts.spawn(put).expect("a task");
        time::sleep(Duration::from_millis(50)).await;
        drop(puts);
        scene.fabric.inject(0, Fault::Slow { steps: 1 });
        // Its key is not its any more, sooner or later.
        let other = scene.scene.client_from(None).await;
        let stored = upsert(&other, 1, Value::new(pattern(9, LEN))).await;
        assert!(matches!(stored, Stored::Written { .. }), "{stored:?}");
        scene.scene.expect_value(&other, 1, 9, LEN).await;
        scene.until_pulled(2).await;
    });
}

#[test]
fn what_is_changed_meanwhile_is_put_whole_or_not_at_all() {
    run_in_worlds(8, |_seed| async {
        let scene = pulling(1, 1).await;
        scene.until_pulled(0).await;
        scene.fabric.inject(0, Fault::Slow { steps: 50 });
        for n in 1..20 {
            let pieces = scene.filled(n, &[LEN]);
            let value = value_of(pieces.clone());
            let options = PutOptions::default();
            let wanted = key(n);
            let put = scene.client.put(&wanted, value, options);
            let change = async {
                time::yield_now().await;
                time::yield_now().await;
                pieces[0].copy_in(LEN - 10, &[0xff; 10]);
            };
            let (put, ()) = futures_util::future::join(put, change).await;
            match put {
                Ok(Stored::Written { .. }) => {
                    let changed = pieces[0].to_vec();
                    let room = super::scene::room(LEN);
                    let fetched = scene.client.get(&key(n), room).await.expect("asked");
                    let lunette_kvstore::Fetched::Hit { room, .. } = fetched else {
                        unreachable!("it is there");
                    };
                    let got = room.as_slice()[..LEN].to_vec();
                    assert!(got == changed || got == pattern(n, LEN).as_slice());
                }
                Ok(other) => unreachable!("{other:?}"),
                Err(error) => {
                    use StoreErrorKind::{Interrupted, TimedOut};
                    assert!(matches!(error.kind, Interrupted | TimedOut), "{error}");
                }
            }
        }
    });
}

#[test]
fn wishes_that_lead_nowhere_harm_their_writer_alone() {
    run(WORLDS, || async {
        let scene = pulling(1, 1).await;
        scene.until_pulled(0).await;
        let wish = |connection| PullWish {
            connection,
            crc32c: 1,
            places: vec![PushPlace {
                address: 1 << 40,
                key: 0x7777,
                len_bytes: 500,
            }],
        };
        let reader = Reader::of(&scene).await;
        let name = key(1);
        let name = Key::new(&name).expect("a key");
        let who = (AskerId(99), RequestId(1));
        let write = WriteMessage::new(who, RequestId(0), reader.seat, name);
        let ask = async |wish: &PullWish, cut: usize| {
            let body = |out: &mut Vec<u8>| {
                wish.encode(FormatVersion::NEWEST, out);
                write.encode(FormatVersion::NEWEST, out);
                out.truncate(out.len() - cut);
            };
            let nothing = Attachments::default();
            let asked = reader
                .connection
                .call(Op::WritePulled.code(), body, nothing, PATIENCE);
            Status::from_code(asked.await.expect("an answer").status)
        };
        // A queue pair that there is not, and half of a wish.
        assert_eq!(ask(&wish(5), 0).await, Status::PushFailed);
        let whole = ask(&wish(Reader::PAIR), 60).await;
        assert_eq!(whole, Status::BadRequest);
        // Memory that nobody has named.
        assert_eq!(ask(&wish(Reader::PAIR), 0).await, Status::PushFailed);
        reader.is_broken_off().await;
        assert_eq!(reader.connection.closed(), None);
        // The key is free, and others' adapters read on.
        scene.until_pulled(1).await;
        scene.scene.expect(&scene.client, 1, LEN).await;
    });
}
