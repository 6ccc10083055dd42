//! A small world, which Miri runs too: on the way of its bytes is what is unsafe in leases, the table
//! of operations, tasks and memory.

use std::net::SocketAddr;
use std::time::Duration;

use super::{World, WorldOptions};
use crate::arena::ArenaOptions;
use crate::fs::{File, OpenOptions};
use crate::net::{Message, TcpListener, TcpStream};
use crate::runtime::CoreOptions;
use crate::vectored::Scatter;
use crate::{BufferPool, arena, spawn_local, time};

fn small() -> CoreOptions {
    CoreOptions {
        arena: ArenaOptions {
            bytes_max: 2 << 20,
            chunk_bytes: 2 << 20,
            ..ArenaOptions::default()
        },
        ..CoreOptions::default()
    }
}

/// A message of control bytes and a region, received in pieces from a pool.
async fn converse(address: SocketAddr) {
    let listener = TcpListener::bind(address).expect("a port");
    let sends = spawn_local(async move {
        let stream = TcpStream::connect(address).await.expect("connected");
        let mut region = arena().alloc(300).expect("room");
        region.as_mut_slice().fill(7);
        let mut message = Message::new();
        message.control(|out| out.extend_from_slice(b"head"));
        message.payload(region.freeze());
        stream.send_message(message).await.0.expect("sent");
    });
    let stream = listener.accept().await.expect("accepted");
    let pool = BufferPool::new(2, 128).expect("a pool");
    let mut receives = stream.receives(&pool);
    let mut got = Vec::new();
    while let Some(bytes) = receives.next().await.expect("received") {
        got.extend_from_slice(&bytes);
    }
    sends.await.expect("no panic");
    assert_eq!(&got[..4], b"head");
    assert_eq!(&got[4..], [7; 300]);
}

/// A list scattered from a file; a receive that is dropped under way.
async fn write_and_give_up(address: SocketAddr) {
    let file = File::open("f", OpenOptions::READ_WRITE)
        .await
        .expect("made");
    file.write_all_at(vec![9; 600], 0, 600, 0)
        .await
        .0
        .expect("room");
    let mut scatter = Scatter::new();
    for len in [100, 500] {
        let region = arena().alloc(len).expect("room");
        scatter.push(region, 0, len).expect("room");
    }
    let (read, scatter) = file.read_scatter_at(scatter, 0).await;
    read.expect("read");
    assert!(
        scatter
            .into_regions()
            .iter()
            .all(|part| part.as_slice()[..100] == [9; 100])
    );
    let listener = TcpListener::bind(address).expect("a port");
    let stream = TcpStream::connect(address).await.expect("connected");
    let region = arena().alloc(64).expect("room");
    let dropped = time::timeout(Duration::from_micros(5), stream.recv(region, 0, 64)).await;
    assert!(dropped.is_err(), "nothing comes");
    drop(listener);
}

#[test]
fn a_small_world_ends_well() {
    let mut world = World::new(1, WorldOptions::default());
    let host = "10.0.0.1".parse().expect("a host");
    let process = world.start(host, 2, small());
    let first = world.spawn(process, 0, move || converse(SocketAddr::new(host, 1)));
    let second = world.spawn(process, 1, move || {
        write_and_give_up(SocketAddr::new(host, 2))
    });
    world.run_for(Duration::from_secs(2));
    assert!(first.is_there() && second.is_there());
}
