//! Hosts that are gone for good, and say nothing: whoever asks is not held up by one after the other.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore::{ClusterClient, ClusterClientOptions, PutOptions, Stored, Value};
use lunette_runtime::sim::{Kill, Outcome, ProcessId, World, WorldOptions};
use lunette_runtime::{CoreOptions, time};

use super::scene::{key, pattern};
use super::town::{CLIENTS, MEMBER, connected, start_two};

const MINUTE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);
const SILENT: usize = 6;
const KEYS: usize = 32;

const fn address(last: u8) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), MEMBER.port())
}

const SECOND: SocketAddr = address(4);

/// Seeds of which all but the last are of hosts that are not there.
fn seeds() -> Vec<SocketAddr> {
    let silent = (0..SILENT).zip(100..).map(|(_, last)| address(last));
    silent.chain([MEMBER]).collect()
}

async fn with_silent_seeds(timeout: Duration) -> ClusterClient {
    let options = ClusterClientOptions {
        timeout,
        ..ClusterClientOptions::new(seeds())
    };
    ClusterClient::connect(options).await.expect("one is there")
}

fn wait(world: &mut World, what: &str, is_over: impl Fn() -> bool) {
    let end = world.now() + MINUTE;
    assert!(world.run_until(end, is_over), "{what}");
}

/// Runs a client in a process of its own, to its end.
fn ask<F>(world: &mut World, what: &str, asks: impl FnOnce() -> F)
where
    F: Future<Output = ()> + 'static,
{
    let process = world.start(CLIENTS, 1, CoreOptions::default());
    let asked = world.spawn(process, 0, asks);
    wait(world, what, || asked.is_there());
}

/// Two members, once both are there.
fn two() -> (World, ProcessId) {
    let mut world = World::new(1, WorldOptions::default());
    let second = start_two(&mut world, SECOND);
    ask(&mut world, "both are members", || async {
        let client = connected().await;
        while client.map().members().len() < 2 {
            time::sleep(LOOK).await;
        }
    });
    (world, second)
}

#[test]
fn a_client_connects_beside_seeds_that_are_silent() {
    let (mut world, _second) = two();
    ask(&mut world, "it connects", || async {
        let begun = time::now();
        with_silent_seeds(MINUTE).await;
        let took = time::now().since(begun);
        assert!(took < Duration::from_secs(1), "{took:?}");
    });
}

/// Who wants a newer map asks seeds as well: that these are silent does not keep it from asking members again.
#[test]
fn a_newer_map_is_found_beside_seeds_that_are_silent() {
    let (mut world, second) = two();
    let goes_on = Rc::new(Cell::new(false));
    let process = world.start(CLIENTS, 1, CoreOptions::default());
    let (due, connects) = (Rc::clone(&goes_on), Rc::new(Cell::new(false)));
    let is_connected = Rc::clone(&connects);
    let asked: Outcome<()> = world.spawn(process, 0, move || async move {
        let client = with_silent_seeds(Duration::from_secs(4)).await;
        assert_eq!(client.map().members().len(), 2);
        connects.set(true);
        while !due.get() {
            time::sleep(LOOK).await;
        }
        // Half of them are at home at the second one, whose lease ends after two seconds.
        for n in 0..KEYS {
            let value = Value::new(pattern(n, 100));
            let put = client.put(&key(n), value, PutOptions::default()).await;
            assert!(matches!(put, Ok(Stored::Written { .. })), "{n}: {put:?}");
        }
    });
    wait(&mut world, "it connects", || is_connected.get());
    world.kill(second, Kill::PowerLoss);
    goes_on.set(true);
    wait(&mut world, "all are put", || asked.is_there());
}

/// A client that has asked for nothing in a while does not know that a member is gone. Whatever it asks all members for, the others
/// tell it.
#[test]
fn who_is_gone_is_not_waited_for() {
    for way in 0..3 {
        let (mut world, second) = two();
        let goes_on = Rc::new(Cell::new(false));
        let process = world.start(CLIENTS, 1, CoreOptions::default());
        let (due, connects) = (Rc::clone(&goes_on), Rc::new(Cell::new(false)));
        let is_connected = Rc::clone(&connects);
        let asked = world.spawn(process, 0, move || async move {
            let client = connected().await;
            assert_eq!(client.map().members().len(), 2);
            connects.set(true);
            while !due.get() {
                time::sleep(LOOK).await;
            }
            assert_eq!(client.map().members().len(), 2, "it has not heard of it");
            let begun = time::now();
            ask_all(&client, way).await;
            time::now().since(begun)
        });
        wait(&mut world, "it connects", || is_connected.get());
        world.kill(second, Kill::PowerLoss);
        ask(&mut world, "one is left", || async {
            let client = connected().await;
            while client.map().members().len() > 1 {
                // It would not look otherwise.
                drop(client.exists(&[key(0)]).await);
                time::sleep(LOOK).await;
            }
        });
        goes_on.set(true);
        wait(&mut world, "it ends", || asked.is_there());
        let took = asked.take().expect("it has ended");
        assert!(took < Duration::from_secs(1), "{way}: {took:?}");
    }
}

async fn ask_all(client: &ClusterClient, way: usize) {
    match way {
        0 => assert!(client.list(b"", None).await.is_ok()),
        1 => assert!(client.quotas().await.is_ok()),
        _ => {
            let stats = client.stat().await;
            let told: Vec<bool> = stats.iter().map(|(_, stat)| stat.is_ok()).collect();
            assert_eq!(told, [true]);
        }
    }
}
