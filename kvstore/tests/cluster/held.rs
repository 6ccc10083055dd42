//! Gets of held copies, which the client's adapters read without asking anybody.

use std::time::Duration;

use lunette_kvstore::{ClusterClient, Fetched, Got, Lent, PutOptions, Stored, Value};
use lunette_kvstore_proto::message::Op;
use lunette_kvstore_proto::message::directory::HoldWish;
use lunette_kvstore_proto::paths::Path;
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::arena::SharedMemory;
use lunette_runtime::{spawn_local, time};
use lunette_transfer::Room;
use lunette_verbs::sim::{Fault, Speed};

use super::on_each_driver::run;
use super::pushed::{Pushing, memory, run_in_worlds};
use super::scene::{eventually, key, pattern, room};

const WORLDS: u64 = 4;
const HOLD: HoldWish = HoldWish {
    holder: 7,
    ttl_ms: 4000,
};

impl Pushing {
    /// Has an object held, until gets of it ask nobody.
    async fn until_held(&self, n: usize, len: usize) {
        eventually("its place is known", async || {
            let found = self.client.lookup(&key(n), Some(HOLD)).await;
            assert!(matches!(found, Ok(Some(_))), "{found:?}");
            let before = self.client.by_adapters().read_unasked;
            self.scene.expect(&self.client, n, len).await;
            self.client.by_adapters().read_unasked > before
        })
        .await;
    }

    /// How many requests for bytes nodes have had.
    async fn asked(&self, nodes: usize) -> u64 {
        let mut asked = 0;
        for node in 0..nodes {
            for op in [Op::Find, Op::Read, Op::FindFar, Op::ReadFar, Op::Gather] {
                let outcomes = self.scene.outcomes(node, op).await;
                asked += outcomes.into_iter().map(|(_, count)| count).sum::<u64>();
            }
        }
        asked
    }
}

async fn reading(nodes: usize, adapters: usize) -> Pushing {
    Pushing::by(Some(Path::Read), (nodes, adapters), 4 << 20).await
}

fn range(offset_bytes: u64, len_bytes: u32) -> ByteRange {
    ByteRange {
        offset_bytes,
        len_bytes,
    }
}

async fn upsert(client: &ClusterClient, n: usize, bytes: usize, len: usize) {
    let options = PutOptions {
        kind: WriteKind::Upsert,
        ..PutOptions::default()
    };
    let stored = client
        .put(&key(n), Value::new(pattern(bytes, len)), options)
        .await;
    assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
}

#[test]
fn held_copies_are_read_and_nobody_is_asked() {
    run(WORLDS, || async {
        let lens = [1, 100, 4096, 65_537, 3_000_000];
        let scene = reading(2, 2).await;
        for (n, len) in lens.into_iter().enumerate() {
            scene.scene.put(&scene.client, n, n, len).await;
            scene.until_held(n, len).await;
        }
        let keys: Vec<_> = (0..lens.len()).map(key).collect();
        let found = scene.client.hold_all(&keys, HOLD).await;
        for (found, len) in found.into_iter().zip(lens) {
            let found = found.expect("asked").expect("it is there");
            assert_eq!((found.len_bytes as usize, found.held_ms), (len, 4000));
        }
        let (asked, before) = (scene.asked(2).await, scene.client.by_adapters());
        for (n, len) in lens.into_iter().enumerate() {
            scene.scene.expect(&scene.client, n, len).await;
        }
        let ranges = [range(299_990, 10), range(7, 0), range(1_000_000, 70_000)];
        let got = scene
            .client
            .get_ranges(&key(4), &ranges, room(70_010))
            .await;
        let Ok(Fetched::Hit { room: got, .. }) = got else {
            panic!("{got:?}");
        };
        let whole = pattern(4, 3_000_000);
        assert!(got.as_slice()[..10] == whole.as_slice()[299_990..300_000]);
        assert!(got.as_slice()[10..70_010] == whole.as_slice()[1_000_000..1_070_000]);
        // What is small would be asked for together.
        let wanted = (0..3).map(|n| (key(n), room(lens[n])));
        for (n, got) in scene.client.get_all(wanted).await.into_iter().enumerate() {
            let is_hit = matches!(got, Ok(Fetched::Hit { len_bytes, .. }) if len_bytes == lens[n]);
            assert!(is_hit, "{got:?}");
        }
        let after = scene.client.by_adapters();
        assert_eq!(after.read_unasked, before.read_unasked + 9);
        assert_eq!(after.read, before.read + 9);
        assert_eq!(scene.asked(2).await, asked);
        // What is not inside is asked for, and the place stays good.
        let beyond = scene
            .client
            .get_ranges(&key(1), &[range(99, 2)], room(10))
            .await;
        assert!(beyond.is_err(), "{beyond:?}");
        scene.scene.expect(&scene.client, 1, 100).await;
        let last = scene.client.by_adapters();
        assert_eq!(last.read_unasked, after.read_unasked + 1);
    });
}

#[test]
fn threads_hold_copies_that_are_read_unasked() {
    run(1, || async {
        let scene = reading(1, 1).await;
        scene.scene.put(&scene.client, 1, 1, 4096).await;
        scene.until_held(1, 4096).await;
        let handle = scene.client.handle().expect("a task");
        let memory = SharedMemory::owned(vec![0; 4096]);
        // What is not landed comes with another handle each time, and is worth no registration.
        let _landed = handle.land(&Lent::whole(&memory)).await.expect("room");
        eventually("it is read", async || {
            let found = handle.hold_all(vec![key(9), key(1)], HOLD).await;
            assert!(matches!(found[..], [Ok(None), Ok(Some(_))]), "{found:?}");
            let before = scene.client.by_adapters().read_unasked;
            let got = handle.get(key(1), vec![Lent::whole(&memory)]).await;
            assert!(matches!(got, Ok(Got::Hit { .. })), "{got:?}");
            scene.client.by_adapters().read_unasked > before
        })
        .await;
    });
}

#[test]
fn what_is_changed_is_not_read_once_that_is_acknowledged() {
    run(WORLDS, || async {
        let scene = reading(2, 1).await;
        const LEN: usize = 5000;
        let other = scene.scene.client_from(None).await;
        for n in 0..4 {
            scene.scene.put(&scene.client, n, n, LEN).await;
            scene.until_held(n, LEN).await;
        }
        for version in 10..14 {
            upsert(&other, 0, version, LEN).await;
            let (client, nodes) = (&scene.client, &scene.scene);
            nodes.expect_value(client, 0, version, LEN).await;
            let found = client.lookup(&key(0), Some(HOLD)).await;
            assert!(matches!(found, Ok(Some(_))));
            let before = client.by_adapters().read_unasked;
            nodes.expect_value(client, 0, version, LEN).await;
            assert_eq!(client.by_adapters().read_unasked, before + 1);
        }
        assert_eq!(other.remove(&[key(1)]).await, [Ok(true)]);
        // Whatever has its memory next, of another key or of the same.
        for n in 20..24 {
            scene.scene.put(&other, n, n, LEN).await;
        }
        let gone = scene.client.get(&key(1), room(LEN)).await;
        assert!(matches!(gone, Ok(Fetched::Miss { is_known: true, .. })));
        assert_eq!(other.remove(&[key(2)]).await, [Ok(true)]);
        scene.scene.put(&other, 2, 30, LEN).await;
        scene.scene.expect_value(&scene.client, 2, 30, LEN).await;
        // Waits until each member knows.
        let cleared = other.clear().await.expect("it is done");
        assert_eq!(cleared.late, []);
        let gone = scene.client.get(&key(3), room(LEN)).await;
        assert!(matches!(gone, Ok(Fetched::Miss { .. })), "{gone:?}");
    });
}

#[test]
fn what_was_removed_is_gone_although_somebody_is_being_sent_it() {
    run_in_worlds(WORLDS, |_| async {
        let scene = reading(1, 1).await;
        const LEN: usize = 50_000;
        scene.scene.put(&scene.client, 1, 1, LEN).await;
        scene.until_held(1, LEN).await;
        // Of another client, to which the owner's adapter writes: it keeps the memory meanwhile.
        let (other, _) = scene.scene.fabric_client(Some(Path::Written)).await;
        let landed = memory(LEN);
        let _landing = other.land(landed.clone()).await.expect("room");
        eventually("owners write", async || {
            let into = Room::exposed(vec![landed.clone()]);
            drop(other.get(&key(1), into).await);
            other.by_adapters().written > 0
        })
        .await;
        scene.fabric.inject(0, Fault::Slow { steps: 100_000 });
        let getting = other.clone();
        let into = Room::exposed(vec![landed.clone()]);
        let get = spawn_local(async move { getting.get(&key(1), into).await });
        time::sleep(Duration::from_millis(5)).await;
        assert_eq!(scene.client.remove(&[key(1)]).await, [Ok(true)]);
        let gone = scene.client.get(&key(1), room(LEN)).await;
        let is_gone = matches!(gone, Ok(Fetched::Miss { is_known: true, .. }));
        assert!(is_gone, "{gone:?}");
        drop(get.await);
    });
}

/// A copy of 5,000 bytes, whose place is known for as long.
async fn held_for_50_ms() -> Pushing {
    let scene = reading(1, 1).await;
    scene.scene.put(&scene.client, 1, 1, 5000).await;
    scene.until_held(1, 5000).await;
    let short = HoldWish { ttl_ms: 50, ..HOLD };
    let found = scene.client.lookup(&key(1), Some(short)).await;
    assert!(matches!(found, Ok(Some(_))));
    scene
}

#[test]
fn a_hold_that_has_ended_is_not_relied_on() {
    run_in_worlds(WORLDS, |_| async {
        let scene = held_for_50_ms().await;
        let before = scene.client.by_adapters();
        scene.scene.expect(&scene.client, 1, 5000).await;
        time::sleep(Duration::from_millis(60)).await;
        scene.scene.expect(&scene.client, 1, 5000).await;
        let after = scene.client.by_adapters();
        assert_eq!(after.read, before.read + 2);
        assert_eq!(after.read_unasked, before.read_unasked + 1);
        assert_eq!(after.fallbacks, before.fallbacks, "it did not even try");
    });
}

#[test]
fn bytes_that_are_there_when_a_hold_has_ended_are_asked_for() {
    run_in_worlds(2, |_| async {
        let scene = held_for_50_ms().await;
        let late = Speed {
            bytes_per_second: 12_500_000_000,
            latency: Duration::from_millis(80),
        };
        scene.fabric.set_speed(scene.device, late);
        let before = scene.client.by_adapters();
        scene.scene.expect(&scene.client, 1, 5000).await;
        let after = scene.client.by_adapters();
        assert_eq!(after.read_unasked, before.read_unasked);
        assert_eq!(after.fallbacks, before.fallbacks + 1);
    });
}

#[test]
fn nothing_is_read_unasked_of_an_owner_whose_lease_may_be_over() {
    run_in_worlds(WORLDS, |_| async {
        let mut scene = reading(1, 1).await;
        scene.scene.put(&scene.client, 1, 1, 5000).await;
        scene.until_held(1, 5000).await;
        scene.scene.end_coordinator();
        let found = scene.client.lookup(&key(1), Some(HOLD)).await;
        let held_ms = found.expect("asked").expect("it is there").held_ms;
        assert_eq!(held_ms, 4000, "longer than the lease, which is 2 s");
        let mut unasked = scene.client.by_adapters().read_unasked;
        let began = time::now();
        let mut was_unasked = 0;
        while time::now() < began + Duration::from_millis(3500) {
            let fetched = scene.client.get(&key(1), room(5000)).await;
            let Ok(Fetched::Hit { is_cut_off, .. }) = fetched else {
                panic!("{fetched:?}");
            };
            let is_unasked = scene.client.by_adapters().read_unasked > unasked;
            unasked += u64::from(is_unasked);
            was_unasked += usize::from(is_unasked);
            assert!(!(is_cut_off && is_unasked));
            // Its lease is 2 s from the last renewal, half a second less for sure.
            let is_late = time::now() > began + Duration::from_millis(1600);
            assert!(!(is_late && is_unasked), "its lease is over by now");
            time::sleep(Duration::from_millis(20)).await;
        }
        assert!(was_unasked > 0);
    });
}

#[test]
fn an_owner_that_leaves_takes_its_places_along() {
    run(WORLDS, || async {
        let mut scene = reading(2, 1).await;
        const LEN: usize = 5000;
        const KEYS: usize = 8;
        for n in 0..KEYS {
            scene.scene.put(&scene.client, n, n, LEN).await;
            scene.until_held(n, LEN).await;
        }
        let here = scene.scene.held_by(&scene.client, 1).await;
        scene.scene.remove_first().await;
        let mut gone = 0;
        for n in 0..KEYS {
            match scene.client.get(&key(n), room(LEN)).await {
                Ok(Fetched::Hit { room, .. }) => {
                    assert!(room.as_slice()[..LEN] == *pattern(n, LEN).as_slice());
                }
                Ok(Fetched::Miss { .. }) => gone += 1,
                Err(failure) => panic!("{failure:?}"),
            }
        }
        assert_eq!(gone, here);
    });
}

#[test]
fn when_adapters_fail_held_copies_are_asked_for() {
    run_in_worlds(8, |seed| async move {
        let scene = reading(1, 1).await;
        const LEN: usize = 20_000;
        scene.scene.put(&scene.client, 1, 1, LEN).await;
        scene.until_held(1, LEN).await;
        let faults = [
            Fault::RetryExceeded,
            Fault::Flush,
            Fault::RemoteAccess,
            Fault::LinkDown,
        ];
        let fault = faults[usize::try_from(seed).expect("small") % faults.len()];
        scene.fabric.inject(scene.device, fault);
        let before = scene.client.by_adapters();
        scene.scene.expect(&scene.client, 1, LEN).await;
        let after = scene.client.by_adapters();
        assert_eq!(after.read_unasked, before.read_unasked, "{fault:?}");
        assert_eq!(after.fallbacks, before.fallbacks + 1, "{fault:?}");
        if fault != Fault::LinkDown {
            scene.until_held(1, LEN).await;
        }
    });
}
