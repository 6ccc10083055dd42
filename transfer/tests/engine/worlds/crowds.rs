//! Many peers, and many who never say who they are: refused by type at the bound, at a bounded cost, and
//! nobody else is harmed. In worlds, where there is room for them.
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use lunette_runtime::net::TcpStream;
use lunette_runtime::sim::{World, WorldOptions};
use lunette_runtime::{CoreOptions, spawn_local, time};
use lunette_transfer::engine::{
    Batch, Engine, EngineOptions, OpenError, Peer, PostOptions, RegisterOptions, RemoteSegment,
};

use crate::scene::{full_of, guarded, memory};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const PORT: u16 = 700;
const CONNECTIONS_MAX: usize = 300;
const SILENCE_MAX: Duration = Duration::from_secs(2);

fn bounded() -> EngineOptions {
    EngineOptions {
        connections_max: CONNECTIONS_MAX,
        connect_timeout: SILENCE_MAX,
        ..guarded()
    }
}

/// Runs `scenario` on one host of a world, while an engine serves a segment of 4 KiB on another.
fn run<F: Future<Output = ()> + 'static>(seed: u64, scenario: impl FnOnce() -> F + 'static) {
    let options = WorldOptions {
        losses_per_mille: 0,
        ..WorldOptions::default()
    };
    let mut world = World::new(seed, options);
    let server = world.start(THERE, 1, CoreOptions::default());
    let client = world.start(HERE, 1, CoreOptions::default());
    drop(world.spawn(server, 0, || async {
        let engine = Engine::start(EngineOptions {
            listen: vec![SocketAddr::from((THERE, PORT))],
            ..bounded()
        });
        let engine = engine.expect("an engine");
        let registered = engine.register(memory(4096), &RegisterOptions::named("kv"));
        registered.expect("registered");
        std::future::pending::<()>().await;
    }));
    world.run_for(Duration::from_millis(1));
    let done = world.spawn(client, 0, scenario);
    let until = world.now() + Duration::from_secs(120);
    let ended = world.run_until(until, || done.is_there());
    assert!(ended, "seed {seed}: it does not end");
}

async fn open() -> Result<(Engine, Peer, RemoteSegment), OpenError> {
    let engine = Engine::start(bounded()).expect("an engine");
    let peer = engine.open(&[SocketAddr::from((THERE, PORT))]).await?;
    let remote = peer.segment("kv").await?;
    Ok((engine, peer, remote))
}

/// Writes and reads back; how long that took.
async fn there_and_back(peer: &Peer, remote: &RemoteSegment, byte: u8) -> Duration {
    let began = time::now();
    let target = full_of(!byte, 4096);
    let mut write = Batch::new();
    write
        .write(full_of(byte, 4096), remote, 0)
        .expect("a write");
    let mut read = Batch::new();
    read.read(target.clone(), remote, 0).expect("a read");
    for batch in [write, read] {
        let posted = peer.post(&batch, PostOptions::default());
        posted.expect("posted").await.expect("done");
    }
    assert!(target.to_vec().iter().all(|&found| found == byte));
    time::now().since(began)
}

#[test]
fn a_thousand_peers_share_as_many_connections_as_there_may_be() {
    for seed in 0..2 {
        run(seed, || async {
            let (mut inside, mut refused) = (Vec::new(), 0);
            for _ in 0..1000 {
                match open().await {
                    Ok(opened) => inside.push(opened),
                    Err(error) => {
                        assert!(matches!(error, OpenError::Connect { .. }), "{error}");
                        assert!(error.is_retryable(), "{error}");
                        refused += 1;
                    }
                }
            }
            assert_eq!((inside.len(), refused), (CONNECTIONS_MAX, 700));
            for (byte, (_, peer, remote)) in (0..=255).cycle().zip(&inside) {
                there_and_back(peer, remote, byte).await;
            }
            // Who leaves makes room.
            inside.truncate(CONNECTIONS_MAX - 1);
            time::sleep(Duration::from_millis(100)).await;
            let (_engine, peer, remote) = open().await.expect("there is room");
            there_and_back(&peer, &remote, 7).await;
        });
    }
}

#[test]
fn ten_thousand_who_say_nothing_delay_nobody_and_are_gone_after_a_while() {
    run(3, || async {
        let (_engine, peer, remote) = open().await.expect("open");
        let alone = there_and_back(&peer, &remote, 1).await;
        let mut silent = Vec::new();
        for _ in 0..100 {
            let connecting: Vec<_> = (0..100)
                .map(|_| spawn_local(TcpStream::connect(SocketAddr::from((THERE, PORT)))))
                .collect();
            for connecting in connecting {
                silent.push(connecting.await.expect("no panic").expect("accepted"));
            }
        }
        assert_eq!(silent.len(), 10_000);
        for byte in 0..20 {
            let took = there_and_back(&peer, &remote, byte).await;
            assert!(took < alone * 3, "{took:?} beside {alone:?} alone");
        }
        // A house that is full says so, or has room again: nobody waits for the silent ones.
        let began = time::now();
        match open().await {
            Ok(_) => {}
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        assert!(time::now().since(began) < Duration::from_millis(500));
        time::sleep(SILENCE_MAX + Duration::from_millis(500)).await;
        let (_engine, late, remote) = open().await.expect("the silent ones were sent away");
        there_and_back(&late, &remote, 9).await;
        drop(silent);
    });
}
