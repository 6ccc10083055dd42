//! Long objects of members on this host are copied from their memory, by clients in other processes.

use std::time::Duration;

use lunette::kvstore::{ClusterClient, Fetched, PutOptions, Stored, Value};
use lunette::runtime::arena;
use lunette::transfer::Room;
use rustix::process::Signal;

use crate::process::{Node, send};
use crate::scrape::{scrape, value};
use crate::town::{Town, await_members, with_client, with_client_of};

const PATIENT: Duration = Duration::from_secs(20);
const METRICS: [&str; 2] = ["--metrics", "127.0.0.1:0"];
const OBJECTS: u8 = 12;
const LEN: usize = 200_000;

fn key(n: u8) -> Vec<u8> {
    format!("object-{n}").into_bytes()
}

const fn byte(n: u8) -> u8 {
    n + 1
}

async fn put_all(client: &ClusterClient) {
    let options = PutOptions {
        copies: 2,
        ..PutOptions::default()
    };
    for n in 0..OBJECTS {
        let mut region = arena().alloc(LEN).expect("room");
        region.as_mut_slice().fill(byte(n));
        let value = Value::new(region.freeze());
        let put = client.put(&key(n), value, options).await;
        assert!(matches!(put, Ok(Stored::Written { .. })), "{put:?}");
    }
    for n in 0..OBJECTS {
        let found = async || {
            let found = client.lookup(&key(n), None).await.expect("asked");
            found.map_or(0, |found| found.owners.len())
        };
        while found().await < 2 {
            lunette::runtime::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Gets each object, and looks at its bytes.
async fn get_all(client: &ClusterClient) {
    for n in 0..OBJECTS {
        let room = Room::whole(arena().alloc(LEN).expect("room"));
        let fetched = client.get(&key(n), room).await;
        let got = match &fetched {
            Ok(Fetched::Hit {
                room, len_bytes, ..
            }) => &room.as_slice()[..*len_bytes],
            _ => &[],
        };
        assert_eq!(got.len(), LEN, "{fetched:?}");
        assert!(got.iter().all(|&found| found == byte(n)));
    }
}

fn metric(node: &Node, name: &str) -> f64 {
    let name = format!("lunette_store_{name}");
    value(&scrape(node), &name, "{core=\"0\"}")
}

fn sent(node: &Node) -> f64 {
    metric(node, "payload_sent_bytes_total")
}

fn told(node: &Node) -> f64 {
    metric(node, "one_sided_reads_total")
}

#[test]
fn an_owner_sends_nothing_of_what_is_copied_and_what_it_had_mapped_ends_with_it() {
    let town = Town::new();
    let node = Node::spawn(&mut town.member(1, &METRICS));
    let other = Node::spawn(&mut town.member(2, &METRICS));
    await_members(&node, 2);
    let address = node.address().to_owned();
    with_client_of(&address, PATIENT, |client| async move {
        put_all(&client).await;
        while client.one_sided().owners < 2 {
            get_all(&client).await;
        }
        let all = |metric: fn(&Node) -> f64| metric(&node) + metric(&other);
        let (sent_before, told_before) = (all(sent), all(told));
        let reads = client.one_sided().reads;
        get_all(&client).await;
        assert_eq!(client.one_sided().reads, reads + u64::from(OBJECTS));
        let sent_bytes = all(sent) - sent_before;
        assert!(sent_bytes < 0.5, "no process has sent a byte: {sent_bytes}");
        let given = all(told) - told_before - f64::from(OBJECTS);
        assert!(given.abs() < 0.5, "each was told: {given}");
        let mut other = other;
        send(&other.child, Signal::KILL);
        other.wait();
        // Until its lease is over nobody knows of what it was the home of.
        while client.map().members().len() > 1 {
            for n in 0..OBJECTS {
                client.lookup(&key(n), None).await.expect("asked");
            }
            lunette::runtime::time::sleep(Duration::from_millis(20)).await;
        }
        // From the copies that are left, whatever was mapped.
        get_all(&client).await;
        assert_eq!(client.one_sided().owners, 1);
    });
}

#[test]
fn a_member_that_is_told_so_sends_everything() {
    let town = Town::new();
    // An adapter that is not there is done without, too.
    let arguments = [&METRICS[..], &["--no-one-sided", "--rdma", "none0"]].concat();
    let node = Node::spawn(&mut town.member(1, &arguments));
    await_members(&node, 1);
    with_client(&node, PATIENT, |client| async move {
        let room = || Room::whole(arena().alloc(LEN).expect("room"));
        let region = arena().alloc(LEN).expect("room").freeze();
        let put = client
            .put(b"key", Value::new(region), PutOptions::default())
            .await;
        assert!(put.is_ok(), "{put:?}");
        for _ in 0..20 {
            let fetched = client.get(b"key", room()).await;
            assert!(matches!(fetched, Ok(Fetched::Hit { .. })), "{fetched:?}");
        }
        assert_eq!(client.one_sided().owners, 0);
    });
    assert!(metric(&node, "payload_sent_bytes_total") >= 4_000_000.0);
    assert!(metric(&node, "one_sided_reads_total") < 0.5);
}
