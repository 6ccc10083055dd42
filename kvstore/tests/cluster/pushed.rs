//! Gets whose bytes owners' adapters write to where they belong.

use std::cell::Cell;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore::{
    AdapterGets, ClusterClient, Fetched, Got, LandFailure, Landing, Lent, PutOptions, Stored,
    TooManyLandings, Value,
};
use lunette_kvstore_proto::paths::Path;
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::arena::{Exposed, HugePages, SharedMemory};
use lunette_runtime::sim::{World, WorldOptions};
use lunette_runtime::{CoreOptions, Scope, arena, spawn_local, time};
use lunette_transfer::Room;
use lunette_verbs::PairEvent;
use lunette_verbs::sim::{Fabric, Fault, Raised};

use super::on_each_driver::run;
use super::scene::{Scene as Nodes, eventually, key, pattern};

const MIB: u64 = 1 << 20;
const WORLDS: u64 = 4;

/// In simulated worlds alone: it takes its time.
pub(crate) fn run_in_worlds<F: Future<Output = ()> + 'static>(
    seeds: u64,
    scenario: impl Fn(u64) -> F,
) {
    for seed in 0..seeds {
        let mut world = World::new(seed, WorldOptions::default());
        let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let process = world.start(host, 1, CoreOptions::default());
        let done = world.spawn(process, 0, || scenario(seed));
        let until = world.now() + Duration::from_secs(600);
        let ended = world.run_until(until, || done.is_there());
        assert!(ended, "in a world of seed {seed} it does not end");
    }
}

pub(crate) fn memory(len: usize) -> Exposed {
    Exposed::map(len, HugePages::Never, &mut Vec::new()).expect("memory")
}

/// Nodes and a client with so many adapters each, and memory of the client's that owners may write.
pub(crate) struct Pushing {
    pub(crate) scene: Nodes,
    pub(crate) fabric: Fabric,
    pub(crate) client: ClusterClient,
    /// The first of the client's adapters.
    pub(crate) device: usize,
    pub(crate) memory: Exposed,
    _landing: Landing,
}

impl Pushing {
    async fn of(nodes: usize, adapters: usize, len: usize) -> Self {
        Self::by(Some(Path::Written), (nodes, adapters), len).await
    }

    /// Of which gets go this way alone.
    pub(crate) async fn by(
        path: Option<Path>,
        (nodes, adapters): (usize, usize),
        len: usize,
    ) -> Self {
        Self::asking(true, path, (nodes, adapters), len).await
    }

    /// The same, of a client that asks by messages, or over connections alone.
    pub(crate) async fn asking(
        by_messages: bool,
        path: Option<Path>,
        (nodes, adapters): (usize, usize),
        len: usize,
    ) -> Self {
        let mut scene = Nodes::of(nodes, 64 * MIB).await;
        scene.set_messages(by_messages);
        Self::over(scene, path, adapters, len).await
    }

    /// The same, over these nodes.
    pub(crate) async fn over(
        mut scene: Nodes,
        path: Option<Path>,
        adapters: usize,
        len: usize,
    ) -> Self {
        let fabric = scene.set_fabric(7, adapters);
        let (client, device) = scene.fabric_client(path).await;
        let memory = memory(len);
        let landing = client.land(memory.clone()).await.expect("room");
        assert_eq!(landing.adapters(), adapters);
        Self {
            scene,
            fabric,
            client,
            device,
            memory,
            _landing: landing,
        }
    }

    /// Gets an object into pieces of the memory, which are compared with what it is.
    pub(crate) async fn get(&self, n: usize, bytes: usize, len: usize, pieces: Vec<Exposed>) {
        let fetched = self
            .client
            .get(&key(n), Room::exposed(pieces.clone()))
            .await;
        let is_hit = matches!(fetched, Ok(Fetched::Hit { len_bytes, .. }) if len_bytes == len);
        assert!(is_hit, "{n}: {fetched:?}");
        let got: Vec<u8> = pieces.iter().flat_map(Exposed::to_vec).collect();
        assert!(got[..len] == *pattern(bytes, len).as_slice(), "{n}");
    }

    /// Gets two ranges of an object, the later one first, into two pieces that end elsewhere.
    async fn get_two_ranges(&self, n: usize, len: usize) {
        let (middle, third) = (len / 2, len / 3);
        let ranges = [(middle, len - middle), (0, middle)].map(|(start, len)| ByteRange {
            offset_bytes: start as u64,
            len_bytes: u32::try_from(len).expect("small"),
        });
        let pieces = [(11, third), (third + 40, len - third)];
        let pieces = pieces.map(|(start, len)| self.memory.slice(start, len));
        let room = Room::exposed(pieces.to_vec());
        let fetched = self.client.get_ranges(&key(n), &ranges, room).await;
        let is_hit = matches!(fetched, Ok(Fetched::Hit { len_bytes, object_len_bytes, .. })
            if (len_bytes, object_len_bytes) == (len, len));
        assert!(is_hit, "{n}: {fetched:?}");
        let got: Vec<u8> = pieces.iter().flat_map(Exposed::to_vec).collect();
        let whole = pattern(n, len);
        let (first, then) = whole.as_slice().split_at(middle);
        assert!(got == [then, first].concat(), "{n}");
    }

    /// Gets an object until its bytes are written.
    async fn until_written(&self, n: usize, len: usize) {
        eventually("owners write", async || {
            let before = self.client.by_adapters().written;
            self.get(n, n, len, vec![self.memory.slice(0, len)]).await;
            self.client.by_adapters().written > before
        })
        .await;
    }

    /// Gets that were written, bytes of them, and those that failed, as the nodes count them, and bytes that
    /// were sent.
    pub(crate) async fn told(&self) -> (u64, u64, u64, u64) {
        let reports = self.scene.reports().await;
        let mut told = (0, 0, 0, 0);
        for report in reports {
            let member = report.member.expect("a member");
            told.0 += member.pushed;
            told.1 += member.pushed_bytes;
            told.2 += member.pushes_failed;
            told.3 += report.stat.payload_out_bytes;
        }
        told
    }

    /// Waits until nodes tell of what the client has got, and of as many bytes that were sent, and gets that failed, as
    /// before: who has been written to knows it before who has written.
    async fn is_told(&self, before: (u64, u64, u64, u64)) {
        let got = self.client.by_adapters();
        let expected = (got.written, got.written_bytes, before.2, before.3);
        eventually("owners know what they have written", async || {
            self.told().await == expected
        })
        .await;
    }

    async fn queue_pairs(&self) -> u64 {
        let reports = self.scene.reports().await;
        let members = reports.iter().filter_map(|report| report.member);
        members.map(|member| member.queue_pairs).sum()
    }
}

#[test]
fn what_is_written_is_what_would_have_been_sent() {
    run(WORLDS, || async {
        let lens = [1, 100, 4096, 65_537, 1 << 20, 4095, 3_000_000];
        let scene = Pushing::of(2, 2, 4 << 20).await;
        for (n, len) in lens.into_iter().enumerate() {
            scene.scene.put(&scene.client, n, n, len).await;
            scene.until_written(n, len).await;
        }
        let (before, told) = (scene.client.by_adapters(), scene.told().await);
        let mut expected = before;
        for (n, len) in lens.into_iter().enumerate() {
            let whole = scene.memory.slice(1000, len + 5);
            scene.get(n, n, len, vec![whole]).await;
            let first = len / 3;
            let parts = [(0, first), (first + 7, 0), (first + 20, len - first + 9)];
            let parts = parts.map(|(start, len)| scene.memory.slice(start, len));
            scene.get(n, n, len, parts.to_vec()).await;
            expected.written += 2;
            expected.written_bytes += 2 * len as u64;
        }
        assert_eq!(scene.client.by_adapters(), expected);
        // No core has sent a byte.
        scene.is_told(told).await;
        assert_eq!(scene.client.by_adapters().fallbacks, 0);
        // Two adapters of either side, with two nodes.
        assert_eq!(scene.queue_pairs().await, 4);
    });
}

/// Where there is no memory for bytes, as when it is asked what there is of an object in parts, there is nothing to bring.
#[test]
fn what_has_no_bytes_is_asked_for_by_whoever_has_adapters() {
    const PARTS: usize = 4;
    const PART: usize = 10_000;
    run(WORLDS, || async {
        for path in [Some(Path::Written), Some(Path::Read), None] {
            let scene = Pushing::by(path, (1, 1), 1 << 20).await;
            let client = &scene.client;
            scene.scene.put(client, 0, 0, PART).await;
            let whole = vec![scene.memory.slice(0, PART)];
            eventually("adapters bring bytes", async || {
                scene.get(0, 0, PART, whole.clone()).await;
                let brought = client.by_adapters();
                path.is_none() || brought.written + brought.read > 0
            })
            .await;
            let options = PutOptions {
                stripe_len: u32::try_from(PART).ok(),
                kind: WriteKind::Upsert,
                ..PutOptions::default()
            };
            let len = PARTS * PART;
            // The second finds the first, whose parts it removes.
            for n in [1, 2] {
                let value = Value::new(pattern(n, len));
                let stored = client.put(&key(1), value, options).await;
                assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
            }
            eventually("the first is gone", async || {
                let stats = client.stat().await.into_iter();
                let entries = stats.map(|(_, stat)| stat.expect("it answers").shards.entries);
                entries.sum::<u64>() == 2 + PARTS as u64
            })
            .await;
            assert_eq!(client.sizes(&[key(1)]).await, [Ok(Some(len))]);
            let located = client.locate(&[key(1)]).await.remove(0);
            assert_eq!(
                located.map(|there| there.map(|it| it.len_bytes)),
                Ok(Some(len))
            );
            scene.get(1, 2, len, vec![scene.memory.slice(0, len)]).await;
            assert_eq!(client.remove(&[key(1)]).await, [Ok(true)]);
        }
    });
}

#[test]
fn ranges_are_written_and_refused_as_ever() {
    run(WORLDS, || async {
        let lens = [2, 4097, 300_000];
        let scene = Pushing::of(2, 2, 1 << 20).await;
        let client = &scene.client;
        for (n, len) in lens.into_iter().enumerate() {
            scene.scene.put(client, n, n, len).await;
            scene.until_written(n, len).await;
        }
        let (before, told) = (client.by_adapters(), scene.told().await);
        for (n, len) in lens.into_iter().enumerate() {
            scene.get_two_ranges(n, len).await;
        }
        let after = client.by_adapters();
        assert_eq!(after.written, before.written + 3);
        assert_eq!(after.written_bytes, before.written_bytes + 304_099);
        // No core has sent a byte.
        scene.is_told(told).await;
        let beyond = ByteRange {
            offset_bytes: 4000,
            len_bytes: 98,
        };
        let room = Room::exposed(vec![scene.memory.slice(0, 200)]);
        let failure = client.get_ranges(&key(1), &[beyond], room).await;
        assert!(failure.expect_err("not inside").room.is_some());
        let inside = ByteRange {
            len_bytes: 97,
            ..beyond
        };
        let small = Room::exposed(vec![scene.memory.slice(0, 96)]);
        let failure = client.get_ranges(&key(1), &[inside], small).await;
        assert!(failure.expect_err("too small").room.is_some());
        assert_eq!(client.by_adapters(), after);
    });
}

#[test]
fn a_region_is_landed_where_it_is_exposed() {
    run(1, || async {
        let scene = Pushing::of(1, 1, 1 << 20).await;
        scene.scene.put(&scene.client, 1, 1, 9000).await;
        scene.until_written(1, 9000).await;
        let neighbours = [0, 1].map(|_| arena().alloc(10_000).expect("room"));
        let [region, beside] = neighbours;
        let memory = region.expose();
        let _landing = scene.client.land(memory.clone()).await.expect("room");
        let before = scene.client.by_adapters().written;
        scene.get(1, 1, 9000, vec![memory.slice(700, 9000)]).await;
        assert_eq!(scene.client.by_adapters().written, before + 1);
        // What lies beside it is nobody's to write.
        let memory = beside.expose();
        scene.get(1, 1, 9000, vec![memory.slice(0, 9000)]).await;
        assert_eq!(scene.client.by_adapters().written, before + 1);
    });
}

#[test]
fn what_adapters_do_not_reach_is_sent() {
    run(1, || async {
        let scene = Pushing::of(1, 1, 1 << 20).await;
        let (client, memory) = (&scene.client, &scene.memory);
        scene.scene.put(client, 1, 1, 50_000).await;
        scene.scene.put(client, 2, 2, 0).await;
        scene.until_written(1, 50_000).await;
        let before = client.by_adapters();
        // A region, memory that was not landed, pieces of which one is elsewhere, too many of them, more ranges than a
        // queue pair takes writes, nothing.
        scene.scene.expect(client, 1, 50_000).await;
        let other = self::memory(50_000);
        scene.get(1, 1, 50_000, vec![other.clone()]).await;
        let pieces = vec![memory.slice(0, 40_000), other.slice(0, 10_000)];
        scene.get(1, 1, 50_000, pieces).await;
        let many = (0..17).map(|n| memory.slice(n * 3000, 3000)).collect();
        scene.get(1, 1, 50_000, many).await;
        let range = ByteRange {
            offset_bytes: 10,
            len_bytes: 1000,
        };
        let parts = Room::exposed(vec![memory.slice(0, 200_000)]);
        let fetched = client.get_ranges(&key(1), &[range; 200], parts).await;
        assert!(matches!(
            fetched,
            Ok(Fetched::Hit {
                len_bytes: 200_000,
                ..
            })
        ));
        scene.get(2, 2, 0, vec![memory.slice(0, 10)]).await;
        let short = Room::exposed(vec![memory.slice(0, 49_999)]);
        let failure = client.get(&key(1), short).await.expect_err("too long");
        assert!(failure.room.is_some(), "the room comes back");
        let missing = client
            .get(&key(9), Room::exposed(vec![memory.clone()]))
            .await;
        assert!(matches!(missing, Ok(Fetched::Miss { is_known: true, .. })));
        assert_eq!(client.by_adapters(), before, "none of it was written");
        scene.get(1, 1, 50_000, vec![memory.slice(7, 50_000)]).await;
        assert_eq!(client.by_adapters().written, before.written + 1);
        // Who has no adapters goes on as ever.
        let without = scene.scene.client_from(None).await;
        scene.scene.expect(&without, 1, 50_000).await;
        assert_eq!(without.by_adapters(), AdapterGets::default());
    });
}

#[test]
fn memory_is_landed_once_and_given_back() {
    run(1, || async {
        let scene = Pushing::of(1, 2, 1 << 20).await;
        scene.scene.put(&scene.client, 1, 1, 5000).await;
        scene.until_written(1, 5000).await;
        let again = scene.client.land(scene.memory.clone()).await;
        let refused = again.expect_err("it begins there");
        assert_eq!(refused, TooManyLandings { landings_max: 4096 });
        let registered = scene.fabric.registrations(scene.device);
        let other = memory(10_000);
        let landing = scene.client.land(other.clone()).await.expect("room");
        assert_eq!(scene.fabric.registrations(scene.device), registered + 1);
        let before = scene.client.by_adapters().written;
        scene.get(1, 1, 5000, vec![other.slice(5000, 5000)]).await;
        assert_eq!(scene.client.by_adapters().written, before + 1);
        drop(landing);
        assert_eq!(scene.fabric.registrations(scene.device), registered);
        scene.get(1, 1, 5000, vec![other.slice(5000, 5000)]).await;
        assert_eq!(
            scene.client.by_adapters().written,
            before + 1,
            "it was sent"
        );
    });
}

#[test]
fn threads_have_memory_that_owners_write() {
    run(1, || async {
        let scene = Pushing::of(1, 2, 1 << 20).await;
        scene.scene.put(&scene.client, 1, 1, 9000).await;
        scene.until_written(1, 9000).await;
        let handle = scene.client.handle().expect("a task");
        let memory = SharedMemory::owned(vec![0; 20_000]);
        let registered = scene.fabric.registrations(scene.device);
        let landed = handle.land(&Lent::whole(&memory)).await.expect("room");
        assert_eq!(landed.adapters(), 2);
        let refused = handle.land(&Lent::whole(&memory)).await;
        let too_many = TooManyLandings { landings_max: 4096 };
        let refused = refused.expect_err("it begins there");
        assert_eq!(refused, LandFailure::TooMany(too_many));
        let before = scene.client.by_adapters().written;
        let get = async || {
            let part = Lent::part(&memory, 500..9500).expect("inside");
            let got = handle.get(key(1), vec![part]).await;
            assert!(matches!(
                got,
                Ok(Got::Hit {
                    len_bytes: 9000,
                    ..
                })
            ));
        };
        get().await;
        assert_eq!(scene.client.by_adapters().written, before + 1);
        drop(landed);
        eventually("it is registered no more", async || {
            scene.fabric.registrations(scene.device) == registered
        })
        .await;
        get().await;
        assert_eq!(
            scene.client.by_adapters().written,
            before + 1,
            "it was sent"
        );
        let again = handle.land(&Lent::whole(&memory)).await.expect("room");
        get().await;
        assert_eq!(scene.client.by_adapters().written, before + 2);
        drop(again);
        let mut bytes = vec![0; 9000];
        memory.copy_out_summed(500, &mut bytes);
        assert!(bytes == *pattern(1, 9000).as_slice());
    });
}

#[test]
fn queue_pairs_end_with_their_connection() {
    run(WORLDS, || async {
        let scene = Pushing::of(1, 1, 1 << 20).await;
        scene.scene.put(&scene.client, 1, 1, 5000).await;
        scene.until_written(1, 5000).await;
        assert_eq!(scene.queue_pairs().await, 1);
        let Pushing {
            scene,
            client,
            _landing,
            ..
        } = scene;
        drop((client, _landing));
        eventually("its queue pair is gone", async || {
            let reports = scene.reports().await;
            reports[0].member.expect("a member").queue_pairs == 0
        })
        .await;
    });
}

#[test]
fn queue_pairs_are_closed_with_a_connection_on_which_nothing_is_asked_and_come_back() {
    run(WORLDS, || async {
        let mut scene = Nodes::of(1, 64 * MIB).await;
        let fabric = scene.set_fabric(7, 2);
        scene.set_client_idle(Duration::from_millis(400));
        let (client, device) = scene.fabric_client(Some(Path::Written)).await;
        scene.put(&client, 1, 1, 5000).await;
        let memory = memory(5000);
        let _landing = client.land(memory.clone()).await.expect("room");
        for _ in 0..2 {
            let before = client.by_adapters().written;
            eventually("the owner writes", async || {
                let room = Room::exposed(vec![memory.clone()]);
                let fetched = client.get(&key(1), room).await;
                assert!(matches!(fetched, Ok(Fetched::Hit { .. })), "{fetched:?}");
                client.by_adapters().written > before
            })
            .await;
            let both = || [0, device].map(|device| fabric.queue_pairs(device).len());
            assert_eq!(both(), [1, 1]);
            eventually("they are gone on both sides", async || both() == [0, 0]).await;
        }
    });
}

#[test]
fn a_queue_pair_that_only_the_owner_has_lost_is_connected_anew() {
    for path in [Path::Written, Path::Read] {
        run_in_worlds(2, move |_seed| async move {
            let scene = Pushing::by(Some(path), (1, 1), 1 << 20).await;
            scene.scene.put(&scene.client, 1, 1, 5000).await;
            let brought = async || {
                eventually("adapters bring it", async || {
                    let before = scene.client.by_adapters();
                    scene
                        .get(1, 1, 5000, vec![scene.memory.slice(0, 5000)])
                        .await;
                    let after = scene.client.by_adapters();
                    after.written + after.read > before.written + before.read
                })
                .await;
            };
            brought().await;
            let number = scene.fabric.queue_pairs(0)[0];
            scene
                .fabric
                .raise(0, Raised::Pair(number, PairEvent::Fatal));
            time::sleep(Duration::from_millis(10)).await;
            brought().await;
        });
    }
}

#[test]
fn whoever_drops_a_get_has_its_memory_and_nothing_lands_there() {
    run(WORLDS, || async {
        let scene = Pushing::of(1, 1, 1 << 20).await;
        let (client, memory) = (&scene.client, &scene.memory);
        scene.scene.put(client, 1, 1, 9000).await;
        scene.until_written(1, 9000).await;
        // The owner's adapter takes its time.
        scene.fabric.inject(0, Fault::Slow { steps: u32::MAX });
        let asked = Rc::new(Cell::new(false));
        let (getting, is_asked) = (client.clone(), Rc::clone(&asked));
        let room = Room::exposed(vec![memory.slice(0, 9000)]);
        let gets = Scope::new();
        let get = async move {
            is_asked.set(true);
            drop(getting.get(&key(1), room).await);
        };
        gets.spawn(get).expect("a task");
        eventually("it is asked for", async || asked.get()).await;
        let pinned = scene.fabric.trace().0;
        time::sleep(Duration::from_millis(20)).await;
        assert_eq!(scene.fabric.trace().0, pinned, "it is under way");
        drop(gets);
        eventually("its queue pair is given up", async || {
            scene.fabric.queue_pairs(scene.device).is_empty()
        })
        .await;
        memory.copy_in(0, &[0x55; 9000]);
        scene.fabric.inject(0, Fault::Slow { steps: 1 });
        for _ in 0..50 {
            time::sleep(Duration::from_millis(1)).await;
        }
        assert!(
            memory.slice(0, 9000).to_vec() == [0x55; 9000],
            "nothing has landed"
        );
        eventually("its owner counts it", async || scene.told().await.2 > 0).await;
        scene.get(1, 1, 9000, vec![memory.slice(0, 9000)]).await;
        scene.until_written(1, 9000).await;
    });
}

#[test]
fn when_adapters_fail_bytes_come_over_the_connection() {
    run_in_worlds(12, |seed| async move {
        let seed = usize::try_from(seed).expect("small");
        let scene = Pushing::of(2, 2, 1 << 20).await;
        let lens: Vec<usize> = (0..12).map(|n| 1 + n * 7919).collect();
        for (n, &len) in lens.iter().enumerate() {
            scene.scene.put(&scene.client, n, n, len).await;
        }
        scene.until_written(0, 1).await;
        let faults = [
            Fault::RetryExceeded,
            Fault::Flush,
            Fault::RemoteAccess,
            Fault::ReceiverNotReady,
            Fault::PartialPost { taken: 1 },
            Fault::Code(9),
        ];
        for round in 0..18 {
            let device = (round + seed) % 6;
            scene
                .fabric
                .inject(device, faults[(round * 5 + seed) % faults.len()]);
            for (n, &len) in lens.iter().enumerate() {
                if n > 0 && (n + round) % 3 == 0 {
                    scene.get_two_ranges(n, len).await;
                } else {
                    scene.get(n, n, len, vec![scene.memory.slice(n, len)]).await;
                }
            }
            time::sleep(Duration::from_millis(60)).await;
        }
        let counted = scene.client.by_adapters();
        assert!(counted.fallbacks > 0, "{counted:?}");
        let (_, _, failed, _) = scene.told().await;
        assert!(
            failed > 0 && failed <= counted.fallbacks,
            "{failed} {counted:?}"
        );
        scene.until_written(3, lens[3]).await;
    });
}

#[test]
fn an_adapter_that_never_speaks_again_is_done_without() {
    run_in_worlds(WORLDS, |_seed| async {
        let scene = Pushing::of(1, 1, 1 << 20).await;
        scene.scene.put(&scene.client, 1, 1, 9000).await;
        scene.until_written(1, 9000).await;
        scene.fabric.inject(0, Fault::Silence);
        let began = time::now();
        scene
            .get(1, 1, 9000, vec![scene.memory.slice(0, 9000)])
            .await;
        let took = time::now().since(began);
        assert!(took < Duration::from_secs(3), "{took:?}");
        assert_eq!(scene.client.by_adapters().fallbacks, 1);
        let began = time::now();
        scene
            .get(1, 1, 9000, vec![scene.memory.slice(0, 9000)])
            .await;
        assert!(time::now().since(began) < Duration::from_secs(1), "at once");
    });
}

#[test]
fn a_replaced_object_is_got_as_one_of_its_versions() {
    run(WORLDS, || async {
        let scene = Pushing::of(2, 1, 4 << 20).await;
        const LEN: usize = 200_000;
        let upsert = PutOptions {
            kind: WriteKind::Upsert,
            ..PutOptions::default()
        };
        scene.scene.put(&scene.client, 1, 0, LEN).await;
        eventually("owners write", async || {
            let room = Room::exposed(vec![scene.memory.slice(0, LEN)]);
            let fetched = scene.client.get(&key(1), room).await;
            assert!(matches!(fetched, Ok(Fetched::Hit { .. })));
            scene.client.by_adapters().written > 0
        })
        .await;
        let writer = scene.client.clone();
        let writing = spawn_local(async move {
            for n in 1..40 {
                let stored = writer
                    .put(&key(1), Value::new(pattern(n, LEN)), upsert)
                    .await;
                assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
            }
        });
        let mut slots = (0..).map(|n| scene.memory.slice(n % 8 * LEN, LEN));
        for _ in 0..60 {
            let slot = slots.next().expect("there are always more");
            let fetched = scene
                .client
                .get(&key(1), Room::exposed(vec![slot.clone()]))
                .await;
            match fetched.expect("asked") {
                Fetched::Hit { len_bytes, .. } => {
                    assert_eq!(len_bytes, LEN);
                    let got = slot.to_vec();
                    let is_one = (0..40).any(|n| got == pattern(n, LEN).as_slice());
                    assert!(is_one, "it is of one version");
                }
                Fetched::Miss { .. } => panic!("it is there"),
            }
        }
        writing.await.expect("written");
    });
}

#[test]
fn when_its_owner_is_gone_a_get_ends_and_memory_is_the_callers() {
    run(WORLDS, || async {
        let mut scene = Pushing::of(2, 1, 1 << 20).await;
        let twice = PutOptions {
            copies: 2,
            ..PutOptions::default()
        };
        for n in 0..8 {
            let value = Value::new(pattern(n, 9000));
            let put = scene.client.put(&key(n), value, twice).await;
            assert!(matches!(put, Ok(Stored::Written { .. })), "{put:?}");
        }
        eventually("each has two copies", async || {
            for n in 0..8 {
                let found = scene.client.lookup(&key(n), None).await.expect("asked");
                if found.expect("found").owners.len() != 2 {
                    return false;
                }
            }
            true
        })
        .await;
        for n in 0..8 {
            scene.until_written(n, 9000).await;
        }
        scene.scene.remove_first().await;
        eventually("the client knows that it left", async || {
            scene.client.exists(&[key(0)]).await.is_ok() && scene.client.map().members().len() == 1
        })
        .await;
        for n in 0..8 {
            scene
                .get(n, n, 9000, vec![scene.memory.slice(0, 9000)])
                .await;
        }
    });
}
