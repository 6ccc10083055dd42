//! Gets whose bytes the client's adapters read where they lie.

use std::time::Duration;

use lunette_kvstore::{Fetched, PutOptions, Stored, Value};
use lunette_kvstore_proto::paths::Path;
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::{spawn_local, time};
use lunette_transfer::Room;
use lunette_verbs::sim::Fault;

use super::on_each_driver::run;
use super::pushed::{Pushing, memory, run_in_worlds};
use super::scene::{eventually, key, pattern, room};

const WORLDS: u64 = 4;

async fn reading(nodes: usize, adapters: usize) -> Pushing {
    Pushing::by(Some(Path::Read), (nodes, adapters), 4 << 20).await
}

/// Of a client that asks over connections alone: its adapters do nothing but read.
async fn reading_alone() -> Pushing {
    Pushing::asking(false, Some(Path::Read), (1, 1), 4 << 20).await
}

impl Pushing {
    /// Gets an object into memory of the client's arena until it is read.
    async fn until_read(&self, n: usize, len: usize) {
        eventually("adapters read", async || {
            let before = self.client.by_adapters().read;
            self.scene.expect(&self.client, n, len).await;
            self.client.by_adapters().read > before
        })
        .await;
    }
}

#[test]
fn what_is_read_is_what_would_have_been_sent() {
    run(WORLDS, || async {
        let lens = [1, 100, 4096, 65_537, 1 << 20, 4095, 3_000_000];
        let scene = reading(2, 2).await;
        for (n, len) in lens.into_iter().enumerate() {
            scene.scene.put(&scene.client, n, n, len).await;
            scene.until_read(n, len).await;
        }
        // Exposed memory is registered when it is seen again.
        for _ in 0..3 {
            scene.get(0, 0, 1, vec![scene.memory.slice(0, 1)]).await;
            scene
                .get(2, 2, 4096, vec![scene.memory.slice(0, 4096)])
                .await;
        }
        let (before, told) = (scene.client.by_adapters(), scene.told().await);
        let mut expected = before;
        for (n, len) in lens.into_iter().enumerate() {
            scene.scene.expect(&scene.client, n, len).await;
            let first = len / 3;
            let parts = [(0, first), (first + 7, 0), (first + 20, len - first + 9)];
            let parts = parts.map(|(start, len)| scene.memory.slice(start, len));
            scene.get(n, n, len, parts.to_vec()).await;
            expected.read += 2;
            expected.read_bytes += 2 * len as u64;
        }
        assert_eq!(scene.client.by_adapters(), expected);
        assert_eq!(
            scene.told().await,
            told,
            "no core has sent or written a byte"
        );
    });
}

#[test]
fn ranges_are_read_and_refused_as_ever() {
    run(1, || async {
        const LEN: usize = 300_000;
        let scene = reading(1, 1).await;
        let client = &scene.client;
        scene.scene.put(client, 1, 1, LEN).await;
        scene.until_read(1, LEN).await;
        let range = |offset_bytes, len_bytes| ByteRange {
            offset_bytes,
            len_bytes,
        };
        let ranges = [
            range(299_990, 10),
            range(0, 1),
            range(7, 0),
            range(70_001, 150_000),
        ];
        let total: usize = ranges.iter().map(|range| range.len_bytes as usize).sum();
        let before = client.by_adapters();
        let fetched = client.get_ranges(&key(1), &ranges, room(total)).await;
        let Ok(Fetched::Hit {
            room: got,
            len_bytes,
            object_len_bytes,
            ..
        }) = fetched
        else {
            panic!("{fetched:?}");
        };
        assert_eq!((len_bytes, object_len_bytes), (total, LEN));
        let (whole, mut expected) = (pattern(1, LEN), Vec::new());
        for range in ranges {
            let start = usize::try_from(range.offset_bytes).expect("small");
            expected.extend_from_slice(&whole.as_slice()[start..start + range.len_bytes as usize]);
        }
        assert!(got.as_slice()[..total] == expected);
        assert_eq!(client.by_adapters().read, before.read + 1);
        let beyond = client
            .get_ranges(&key(1), &[range(299_000, 1001)], room(5000))
            .await;
        assert!(beyond.is_err(), "{beyond:?}");
        let short = client
            .get(&key(1), room(LEN - 1))
            .await
            .expect_err("too short");
        assert!(short.room.is_some(), "the room comes back");
        let missing = client.get(&key(9), room(100)).await;
        assert!(matches!(missing, Ok(Fetched::Miss { is_known: true, .. })));
        scene.scene.expect(client, 1, LEN).await;
        assert_eq!(client.by_adapters().read, before.read + 2);
    });
}

#[test]
fn a_replaced_object_is_read_as_one_of_its_versions() {
    run(WORLDS, || async {
        let scene = reading(2, 1).await;
        const LEN: usize = 100_000;
        let upsert = PutOptions {
            kind: WriteKind::Upsert,
            ..PutOptions::default()
        };
        scene.scene.put(&scene.client, 1, 1, LEN).await;
        scene.until_read(1, LEN).await;
        // Reads take long beside writes.
        scene.fabric.inject(scene.device, Fault::Slow { steps: 40 });
        let writer = scene.client.clone();
        let writing = spawn_local(async move {
            for n in 2..40 {
                let stored = writer
                    .put(&key(1), Value::new(pattern(n, LEN)), upsert)
                    .await;
                assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
            }
        });
        for _ in 0..40 {
            let fetched = scene.client.get(&key(1), room(LEN)).await.expect("asked");
            let Fetched::Hit {
                room, len_bytes, ..
            } = fetched
            else {
                panic!("it is there");
            };
            let is_one =
                (1..40).any(|n| room.as_slice()[..len_bytes] == *pattern(n, LEN).as_slice());
            assert!(is_one, "it is of one version");
        }
        writing.await.expect("written");
    });
}

#[test]
fn what_leaves_memory_while_it_is_read_is_asked_for() {
    run_in_worlds(8, |seed| async move {
        let scene = reading_alone().await;
        const LEN: usize = 50_000;
        scene.scene.put(&scene.client, 1, 1, LEN).await;
        scene.until_read(1, LEN).await;
        scene
            .fabric
            .inject(scene.device, Fault::Slow { steps: 100_000 });
        let getting = scene.client.clone();
        let get = spawn_local(async move {
            let whole = ByteRange {
                offset_bytes: 0,
                len_bytes: 50_000,
            };
            // Of ranges no checksum is known.
            if seed.is_multiple_of(2) {
                getting.get(&key(1), room(LEN)).await
            } else {
                getting.get_ranges(&key(1), &[whole], room(LEN)).await
            }
        });
        time::sleep(Duration::from_millis(5)).await;
        let removed = scene.client.remove(&[key(1)]).await;
        assert_eq!(removed, [Ok(true)]);
        // Whatever has its memory next.
        for n in 2..6 {
            scene.scene.put(&scene.client, n, n, LEN).await;
        }
        match get.await.expect("it ends").expect("asked") {
            Fetched::Hit {
                room, len_bytes, ..
            } => {
                assert!(room.as_slice()[..len_bytes] == *pattern(1, LEN).as_slice());
            }
            Fetched::Miss { .. } => assert_eq!(scene.client.by_adapters().fallbacks, 1),
        }
    });
}

#[test]
fn when_adapters_fail_bytes_come_over_the_connection() {
    run_in_worlds(16, |seed| async move {
        let seed = usize::try_from(seed).expect("small");
        let by_messages = seed.is_multiple_of(2);
        let scene = Pushing::asking(by_messages, Some(Path::Read), (2, 2), 4 << 20).await;
        let lens: Vec<usize> = (0..12).map(|n| 1 + n * 7919).collect();
        for (n, &len) in lens.iter().enumerate() {
            scene.scene.put(&scene.client, n, n, len).await;
        }
        scene.until_read(0, 1).await;
        let faults = [
            Fault::RetryExceeded,
            Fault::Flush,
            Fault::RemoteAccess,
            // A message is posted by itself.
            Fault::PartialPost {
                taken: u32::from(!by_messages),
            },
            Fault::Code(9),
        ];
        for round in 0..18 {
            let device = scene.device + (round + seed) % 2;
            scene
                .fabric
                .inject(device, faults[(round * 5 + seed) % faults.len()]);
            for (n, &len) in lens.iter().enumerate() {
                scene.scene.expect(&scene.client, n, len).await;
            }
            time::sleep(Duration::from_millis(60)).await;
        }
        let counted = scene.client.by_adapters();
        assert!(counted.fallbacks > 0, "{counted:?}");
        scene.until_read(3, lens[3]).await;
    });
}

#[test]
fn whoever_drops_a_get_has_its_memory_and_nothing_lands_there() {
    run_in_worlds(WORLDS, |_seed| async {
        let scene = reading_alone().await;
        let memory = &scene.memory;
        scene.scene.put(&scene.client, 1, 1, 9000).await;
        let into = || vec![memory.slice(0, 9000)];
        eventually("adapters read", async || {
            scene.get(1, 1, 9000, into()).await;
            scene.client.by_adapters().read > 0
        })
        .await;
        scene
            .fabric
            .inject(scene.device, Fault::Slow { steps: u32::MAX });
        let wanted = key(1);
        let get = scene.client.get(&wanted, Room::exposed(into()));
        let given_up = time::timeout(Duration::from_millis(100), get).await;
        assert!(given_up.is_err(), "it is under way");
        eventually("its queue pair is given up", async || {
            scene.fabric.queue_pairs(scene.device).is_empty()
        })
        .await;
        memory.copy_in(0, &[0x55; 9000]);
        scene.fabric.inject(scene.device, Fault::Slow { steps: 1 });
        time::sleep(Duration::from_millis(500)).await;
        assert!(
            memory.slice(0, 9000).to_vec() == [0x55; 9000],
            "nothing has landed"
        );
        scene.get(1, 1, 9000, into()).await;
    });
}

#[test]
fn an_adapter_that_never_speaks_again_is_done_without() {
    run_in_worlds(WORLDS, |_seed| async {
        let scene = reading(1, 1).await;
        scene.scene.put(&scene.client, 1, 1, 9000).await;
        scene.until_read(1, 9000).await;
        scene.fabric.inject(scene.device, Fault::Silence);
        let began = time::now();
        scene.scene.expect(&scene.client, 1, 9000).await;
        let took = time::now().since(began);
        assert!(took < Duration::from_secs(3), "{took:?}");
        assert_eq!(scene.client.by_adapters().fallbacks, 1);
    });
}

#[test]
fn buffers_that_are_made_for_one_get_are_not_registered() {
    run(1, || async {
        let scene = reading(1, 1).await;
        scene.scene.put(&scene.client, 1, 1, 5000).await;
        scene.until_read(1, 5000).await;
        let registered = scene.fabric.registrations(scene.device);
        for _ in 0..10 {
            let once = memory(5000);
            scene.get(1, 1, 5000, vec![once]).await;
        }
        assert_eq!(scene.fabric.registrations(scene.device), registered);
    });
}

#[test]
fn the_quickest_way_is_gone_and_all_are_tried() {
    run_in_worlds(WORLDS, |_seed| async {
        let scene = Pushing::by(None, (1, 1), 1 << 20).await;
        scene.scene.put(&scene.client, 1, 1, 5000).await;
        for _ in 0..200 {
            scene
                .get(1, 1, 5000, vec![scene.memory.slice(0, 5000)])
                .await;
        }
        let counted = scene.client.by_adapters();
        assert!(counted.written >= 4 && counted.read >= 4, "{counted:?}");
        assert!(
            counted.written + counted.read < 200,
            "some are sent: {counted:?}"
        );
        assert_eq!(counted.fallbacks, 0);
    });
}
