//! Questions that are begun in one turn.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore::{ClusterClient, Preferred, PutOptions};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::placement::home_of;
use lunette_runtime::sim::{World, WorldOptions};
use lunette_runtime::{CoreOptions, time};
use lunette_runtime_core::ids::NodeId;

use super::scene::{key, put_in_time};
use super::town::{CLIENTS, MEMBER, connected, start_two};

const HOLDER: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 4), 7000));
const LEN: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(60);

/// Puts an object whose home is the first member, where it is preferred: its number, of those from `from` on.
async fn put_at(client: &ClusterClient, from: usize, node: SocketAddr) -> usize {
    let map = client.map();
    let is_homed = |n: &usize| {
        let fingerprint = Key::new(&key(*n)).expect("a key").fingerprint();
        home_of(&map, fingerprint).is_some_and(|home| home.node == NodeId(1))
    };
    let n = (from..).find(is_homed).expect("there are many");
    let options = PutOptions {
        preferred: Preferred::new(&[node]).expect("one"),
        ..PutOptions::default()
    };
    put_in_time(client, n, LEN, options).await;
    n
}

/// A removal waits for who has a copy and does not answer; who looks something else up in that moment does not.
#[test]
fn who_reads_does_not_wait_for_who_removes() {
    let mut world = World::new(1, WorldOptions::default());
    let holder = start_two(&mut world, HOLDER);
    let clients = world.start(CLIENTS, 1, CoreOptions::default());
    let (is_put, is_paused) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (puts, pauses) = (Rc::clone(&is_put), Rc::clone(&is_paused));
    let asked = world.spawn(clients, 0, move || async move {
        let mut client = connected().await;
        while client.map().members().len() < 2 {
            client = connected().await;
        }
        let removed = put_at(&client, 0, HOLDER).await;
        let found = put_at(&client, removed + 1, MEMBER).await;
        puts.set(true);
        while !pauses.get() {
            time::sleep(Duration::from_millis(1)).await;
        }
        let began = time::now();
        let names = ([key(removed)], key(found));
        let removing = async {
            let _late = client.remove(&names.0).await;
            time::now().since(began)
        };
        let reading = async {
            let found = client.lookup(&names.1, None).await;
            assert!(matches!(found, Ok(Some(_))), "{found:?}");
            time::now().since(began)
        };
        let (removing, reading) = futures_util::future::join(removing, reading).await;
        assert!(removing > Duration::from_millis(500), "{removing:?}");
        assert!(reading < Duration::from_millis(100), "{reading:?}");
    });
    let end = world.now() + PATIENCE;
    assert!(world.run_until(end, || is_put.get()), "both are put");
    world.pause(holder);
    is_paused.set(true);
    let end = world.now() + PATIENCE;
    assert!(world.run_until(end, || asked.is_there()), "it ends");
}
