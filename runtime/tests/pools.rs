//! Receives into pools of buffers, on each driver: nothing lost, every buffer back.
#![forbid(unsafe_code)]

mod on_each_driver;

use std::net::SocketAddr;
use std::time::Duration;

use lunette_runtime::net::{TcpListener, TcpStream};
use lunette_runtime::{BufferPool, POOLS_MAX, PoolError, PooledBytes, arena, spawn_local, time};

use on_each_driver::run;

const WORLDS: u64 = 10;

async fn pair() -> (TcpStream, TcpStream) {
    let loopback: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let listener = TcpListener::bind(loopback).expect("a port");
    let address = listener.local_addr();
    let accepted = spawn_local(async move { listener.accept().await });
    let client = TcpStream::connect(address).await.expect("connected");
    (client, accepted.await.expect("task").expect("accepted"))
}

async fn send(stream: &TcpStream, bytes: Vec<u8>) {
    let len = bytes.len();
    stream.send_all(bytes, 0, len).await.0.expect("sent");
}

fn byte_at(at: usize) -> u8 {
    u8::try_from(at % 251).expect("small")
}

/// Waits until every buffer is back.
async fn until_whole(pool: &BufferPool, count: usize) {
    let deadline = time::now() + Duration::from_secs(10);
    while pool.available() < count {
        assert!(time::now() < deadline, "buffers are lost: {pool:?}");
        time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_long_stream_arrives_whole_through_few_buffers() {
    const LEN: usize = 3 << 20;
    run(WORLDS, || async {
        let (client, server) = pair().await;
        let pool = BufferPool::new(4, 4096).expect("a pool");
        let sender = spawn_local(async move {
            let bytes = (0..LEN).map(byte_at).collect();
            send(&client, bytes).await;
        });
        let mut receives = server.receives(&pool);
        let mut got = Vec::with_capacity(LEN);
        let mut kept: Vec<PooledBytes> = Vec::new();
        while let Some(bytes) = receives.next().await.expect("received") {
            got.extend_from_slice(&bytes);
            // Keeps all of the pool for a while, so that it runs dry again and again.
            kept.push(bytes);
            if kept.len() == 7 || pool.available() == 0 {
                kept.clear();
            }
        }
        sender.await.expect("task");
        assert_eq!(got.len(), LEN);
        let wrong = got
            .iter()
            .enumerate()
            .position(|(at, &byte)| byte != byte_at(at));
        assert_eq!(wrong, None);
        assert!(receives.next().await.expect("ended").is_none());
        drop((kept, receives));
    });
}

#[test]
fn an_empty_pool_makes_receivers_wait_and_a_buffer_that_comes_back_wakes_them() {
    run(WORLDS, || async {
        let pool = BufferPool::new(1, 8).expect("a pool");
        let (client, server) = pair().await;
        let (other_client, other_server) = pair().await;
        let mut receives = server.receives(&pool);
        send(&client, b"12345678".to_vec()).await;
        let held = receives.next().await.expect("received").expect("bytes");
        assert_eq!((&*held, pool.available()), (&b"12345678"[..], 0));
        let other_pool = pool.clone();
        let other = spawn_local(async move {
            let mut receives = other_server.receives(&other_pool);
            let bytes = receives.next().await.expect("received").expect("bytes");
            bytes.to_vec()
        });
        send(&other_client, b"abcdefgh".to_vec()).await;
        time::sleep(Duration::from_millis(20)).await;
        assert!(!other.is_finished(), "there is no buffer for it");
        drop(held);
        assert_eq!(other.await.expect("task"), b"abcdefgh");
    });
}

#[test]
fn a_buffer_that_arrives_for_a_receiver_that_is_gone_goes_back_to_its_pool() {
    run(WORLDS, || async {
        let pool = BufferPool::new(8, 64).expect("a pool");
        for round in 0..20_u64 {
            let (client, server) = pair().await;
            let mut receives = server.receives(&pool);
            let waiter = spawn_local(async move { receives.next().await.map(drop) });
            time::yield_now().await;
            let sender = spawn_local(async move { send(&client, vec![1; 200]).await });
            time::sleep(Duration::from_micros(round * 20)).await;
            // The receive, what it brought, and its cancel cross each other.
            waiter.abort();
            drop(server);
            sender.await.expect("task");
        }
        // Partly filled buffers stay with the system, which goes on with them.
        until_whole(&pool, 7).await;
    });
}

#[test]
fn pieces_of_one_buffer_stay_readable_while_the_system_fills_its_rest() {
    run(WORLDS, || async {
        let pool = BufferPool::new(2, 1 << 16).expect("a pool");
        let (client, server) = pair().await;
        let mut receives = server.receives(&pool);
        let mut kept = Vec::new();
        for round in 0..100_u8 {
            send(&client, vec![round; 10]).await;
            if pool.available() == 0 {
                // Without piecewise filling each message takes a buffer of its own.
                kept.clear();
            }
            kept.push((
                round,
                receives.next().await.expect("received").expect("bytes"),
            ));
        }
        for (round, bytes) in &kept {
            assert_eq!(**bytes, [*round; 10]);
        }
    });
}

#[test]
fn a_pool_gives_its_memory_back_after_its_last_piece() {
    run(WORLDS, || async {
        let before = arena().used_bytes();
        let pool = BufferPool::new(4, 4096).expect("a pool");
        let (client, server) = pair().await;
        let mut receives = server.receives(&pool);
        send(&client, b"last".to_vec()).await;
        let bytes = receives.next().await.expect("received").expect("bytes");
        drop((receives, server, client, pool));
        time::sleep(Duration::from_millis(5)).await;
        assert!(arena().used_bytes() > before);
        assert_eq!(&*bytes, b"last");
        drop(bytes);
        assert_eq!(arena().used_bytes(), before);
    });
}

#[test]
fn pools_are_bounded_and_wrong_sizes_are_refused() {
    run(WORLDS, || async {
        for (count, len) in [(0, 1), (3, 1), (1, 0)] {
            assert!(matches!(
                BufferPool::new(count, len),
                Err(PoolError::BadSize)
            ));
        }
        let too_long = BufferPool::new(1 << 15, 1 << 20).expect_err("more than a region");
        assert!(matches!(too_long, PoolError::Memory(_)));
        let mut pools = Vec::new();
        for _ in 0..POOLS_MAX {
            pools.push(BufferPool::new(1, 1).expect("a pool"));
        }
        let refused = BufferPool::new(1, 1).expect_err("the bound");
        assert!(refused.is_backpressure());
        pools.pop();
        BufferPool::new(1, 1).expect("room again");
    });
}
