//! The engine over two rails of Soft-RoCE, on two ports linked to each other: `cargo xtask test --lane vm`
//! runs this in a machine that has them. Two engines have both devices, in opposite order, so that there is
//! a rail each way.
#![forbid(unsafe_code)]

use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lunette_gpu::fake::{FakeMachine, FakeOptions};
use lunette_gpu::{Device, DeviceRegion, Stream, StreamOptions};
use lunette_runtime::arena::{Exposed, HugePages};
use lunette_runtime::{CoreOptions, Idle, block_on, time};
use lunette_transfer::engine::{
    AdapterChoice, AdapterFault, Batch, Carrier, DeviceSegment, Done, Engine, EngineOptions, Peer,
    PostOptions, RdmaOptions, RegisterOptions, RemoteSegment, TransferError,
};

const LEN: usize = 8 << 20;
/// Tells the child of a test where to listen.
const LISTEN: &str = "LUNETTE_TRANSFER_LISTEN";

/// The ports are there once, and one test takes them down.
fn alone<F: Future<Output = ()> + 'static>(test: impl FnOnce() -> F + Send) {
    static PORTS: Mutex<()> = Mutex::new(());
    let _ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    let options = CoreOptions {
        idle: Idle::Efficient,
        ..CoreOptions::default()
    };
    block_on(None, options, test).expect("a core");
}

fn engine(listen: &str, devices: [&str; 2]) -> Engine {
    let options = EngineOptions {
        listen: listen
            .split_whitespace()
            .map(|at| at.parse().expect("an address"))
            .collect(),
        rdma: RdmaOptions {
            adapters: AdapterChoice::Named(devices.map(str::to_owned).to_vec()),
            ..RdmaOptions::default()
        },
        same_host: false,
        ..EngineOptions::default()
    };
    let engine = Engine::start(options).expect("an engine");
    let unused: Vec<_> = engine
        .adapters()
        .iter()
        .filter(|found| found.fault.is_some())
        .collect();
    assert!(unused.is_empty(), "{unused:?}");
    engine
}

fn memory() -> Exposed {
    Exposed::map(LEN, HugePages::Never, &mut Vec::new()).expect("memory")
}

fn pattern(seed: u8) -> Vec<u8> {
    (0..=250)
        .cycle()
        .skip(usize::from(seed))
        .take(LEN)
        .collect()
}

async fn post(peer: &Peer, batch: &Batch) -> Result<Done, TransferError> {
    let options = PostOptions {
        timeout: Duration::from_secs(20),
        notification: Some(b"over".to_vec()),
        ..PostOptions::default()
    };
    peer.post(batch, options).expect("posted").await
}

/// Writes a pattern and reads it back.
async fn there_and_back(
    peer: &Peer,
    remote: &RemoteSegment,
    seed: u8,
) -> Result<(), TransferError> {
    let (source, target) = (memory(), memory());
    source.copy_in(0, &pattern(seed));
    let mut batch = Batch::new();
    batch
        .write(source.slice(0, 50), remote, 0)
        .expect("a write");
    batch
        .write(source.slice(50, LEN - 50), remote, 50)
        .expect("a write");
    post(peer, &batch).await?;
    let mut batch = Batch::new();
    batch.read(target.clone(), remote, 0).expect("a read");
    post(peer, &batch).await?;
    assert!(target.to_vec() == pattern(seed), "what was written is read");
    Ok(())
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.expect("ip runs").success(), "ip {arguments}");
}

fn one_sided_up(peer: &Peer) -> usize {
    let rails = peer.rails();
    let up = rails
        .iter()
        .filter(|rail| rail.is_up && rail.carrier == Carrier::OneSided);
    up.count()
}

async fn asks(at: &str) -> (Engine, Peer, RemoteSegment) {
    let engine = engine("", ["rxe1", "rxe0"]);
    let addresses = [at.parse().expect("an address")];
    for _ in 0..200 {
        if let Ok(peer) = engine.open(&addresses).await
            && let Ok(remote) = peer.segment("kv").await
        {
            return (engine, peer, remote);
        }
        time::sleep(Duration::from_millis(100)).await;
    }
    unreachable!("somebody serves at {at}");
}

#[test]
fn bytes_go_over_both_rails_also_when_the_link_goes_away_meanwhile() {
    alone(async || {
        let server = engine("127.0.0.1:7611", ["rxe0", "rxe1"]);
        let registered = server.register(memory(), &RegisterOptions::named("kv"));
        registered.expect("registered");
        let (client, peer, remote) = asks("127.0.0.1:7611").await;
        for seed in 0..2 {
            let began = time::now();
            there_and_back(&peer, &remote, seed).await.expect("done");
            println!(
                "there and back in {:?}: {:?}",
                time::now().since(began),
                peer.rails()
            );
        }
        let moved = client.statistics().one_sided_bytes;
        assert_eq!(moved, 4 * LEN as u64, "all by adapters");
        let told = client.statistics().one_sided_notes;
        assert_eq!(told, 4, "by messages, each once");
        assert_eq!((one_sided_up(&peer), server.accepted_queue_pairs()), (2, 2));
        assert_eq!(server.notified().await.bytes, b"over");
        let flapping = lunette_runtime::spawn_local(async {
            time::sleep(Duration::from_millis(20)).await;
            ip("link set net0 down");
            time::sleep(Duration::from_millis(1_500)).await;
            ip("link set net0 up");
        });
        let began = time::now();
        for seed in 2..5 {
            there_and_back(&peer, &remote, seed)
                .await
                .expect("done, one way or the other");
        }
        println!(
            "a link that goes away: {:?}, {:?}",
            time::now().since(began),
            client.statistics()
        );
        flapping.await.expect("it runs");
        let before = client.statistics().one_sided_bytes;
        for seed in 5..45 {
            there_and_back(&peer, &remote, seed).await.expect("done");
            if one_sided_up(&peer) == 2 && client.statistics().one_sided_bytes > before {
                return;
            }
            time::sleep(Duration::from_millis(500)).await;
        }
        panic!("the rails do not come back: {:?}", peer.rails());
    });
}

#[test]
fn a_devices_memory_that_adapters_do_not_take_goes_by_way_of_its_owner() {
    const BYTES: usize = 256 * 1024;
    alone(async || {
        let server = engine("127.0.0.1:7614", ["rxe0", "rxe1"]);
        let machine = FakeMachine::new(1);
        let options = FakeOptions {
            has_peer_memory: true,
            ..FakeOptions::default()
        };
        let device = Device::fake(&machine, machine.add_device(options));
        let device = device.expect("added");
        let stream = Stream::new(&device, StreamOptions::default()).expect("a stream");
        let region = DeviceRegion::alloc(&device, BYTES as u64).expect("memory");
        let segment = DeviceSegment::new(region, stream);
        let options = RegisterOptions::named("kv");
        server
            .register_device(segment, &options)
            .expect("registered");
        let (client, peer, remote) = asks("127.0.0.1:7614").await;
        let (source, target) = (memory().slice(0, BYTES), memory().slice(0, BYTES));
        source.copy_in(0, &pattern(3)[..BYTES]);
        let mut batch = Batch::new();
        batch.write(source.clone(), &remote, 0).expect("a write");
        post(&peer, &batch).await.expect("done");
        let mut batch = Batch::new();
        batch.read(target.clone(), &remote, 0).expect("a read");
        post(&peer, &batch).await.expect("done");
        assert!(
            target.to_vec() == source.to_vec(),
            "what was written is read"
        );
        // This driver answers that it registers no dma-buf, and that nothing lies at the address.
        assert_eq!(client.statistics().one_sided_bytes, 0);
    });
}

fn child(at: &str) -> Child {
    let name = "a_peer_that_is_killed_is_noticed_and_its_successor_is_served";
    Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", name])
        .env(LISTEN, at)
        .stdout(Stdio::null())
        .spawn()
        .expect("a child")
}

#[test]
fn a_peer_that_is_killed_is_noticed_and_its_successor_is_served() {
    if let Ok(at) = std::env::var(LISTEN) {
        return alone(async move || {
            let server = engine(&at, ["rxe0", "rxe1"]);
            let registered = server.register(memory(), &RegisterOptions::named("kv"));
            registered.expect("registered");
            time::sleep(Duration::from_secs(120)).await;
        });
    }
    alone(async || {
        for at in ["127.0.0.1:7612", "127.0.0.1:7613"] {
            let mut server = child(at);
            let (client, peer, remote) = asks(at).await;
            there_and_back(&peer, &remote, 1).await.expect("done");
            assert!(client.statistics().one_sided_bytes > 0, "by adapters");
            let source = memory();
            let mut batch = Batch::new();
            batch.write(source, &remote, 0).expect("a write");
            let options = PostOptions {
                timeout: Duration::from_secs(5),
                ..PostOptions::default()
            };
            let posted = peer.post(&batch, options).expect("posted");
            while peer.rails().iter().all(|rail| rail.under_way_bytes == 0) {
                time::yield_now().await;
            }
            server.kill().expect("it runs");
            server.wait().expect("it ends");
            let began = time::now();
            let ended = posted.await;
            println!(
                "a killed peer: {ended:?} after {:?}",
                time::now().since(began)
            );
            assert!(time::now().since(began) < Duration::from_secs(12));
        }
    });
}

#[test]
fn devices_that_are_not_there_are_told_and_done_without() {
    alone(async || {
        let options = EngineOptions {
            rdma: RdmaOptions {
                adapters: AdapterChoice::Named(vec!["rxe7".to_owned(), "rxe0".to_owned()]),
                ..RdmaOptions::default()
            },
            ..EngineOptions::default()
        };
        let engine = Engine::start(options).expect("an engine");
        let faults: Vec<_> = engine.adapters().iter().map(|found| &found.fault).collect();
        assert!(
            matches!(faults[..], [Some(AdapterFault::Open(_)), None]),
            "{faults:?}"
        );
    });
}
