//! TCP between tasks of one core and between cores.

use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lunette_runtime_core::ids::CoreIndex;
use rustix::io::Errno;

use super::*;
use crate::arena::{Arena, ArenaOptions, Region};
use crate::{
    CoreOptions, DriverChoice, Idle, OpError, Placement, ProbeError, Runtime, StartError, arena,
    block_on, spawn_local, spawn_on, time,
};

/// Runs a scenario on each driver that this system allows.
fn run<F: Future<Output = ()> + 'static>(scenario: impl Fn() -> F) {
    for driver in [DriverChoice::Uring, DriverChoice::Epoll] {
        let options = CoreOptions {
            driver,
            ..CoreOptions::default()
        };
        match block_on(None, options, &scenario) {
            Ok(()) => {}
            Err(StartError::Driver(error @ ProbeError::Forbidden(_))) => skip(error),
            Err(error) => unreachable!("{error}"),
        }
    }
}

fn skip(error: ProbeError) {
    // Where it is forbidden on purpose, the test is there to run on epoll.
    if std::env::var_os("LUNETTE_WITHOUT_URING").is_some() {
        return;
    }
    let thread = std::thread::current();
    println!(
        "SKIP {}: on io_uring: {error}",
        thread.name().unwrap_or_default()
    );
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(loopback()).expect("a port");
    let address = listener.local_addr();
    let accepted = spawn_local(async move { listener.accept().await });
    let client = TcpStream::connect(address).await.expect("connected");
    (client, accepted.await.expect("task").expect("accepted"))
}

#[test]
fn a_message_of_control_bytes_and_regions_arrives_in_order() {
    run(|| async {
        let (client, server) = pair().await;
        let mut region = arena().alloc(3 << 20).expect("room");
        for (index, byte) in region.as_mut_slice().iter_mut().enumerate() {
            *byte = u8::try_from(index % 251).expect("small");
        }
        let region = region.freeze();
        let mut message = Message::new();
        message.control(|out| out.extend_from_slice(b"head"));
        message.payload(region.clone());
        message.control(|out| out.extend_from_slice(b"tail"));
        let total = message.len();
        let sender = spawn_local(async move { client.send_message(message).await.0 });
        let mut got = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        while got.len() < total {
            let (count, back) = server.recv(buffer, 0, 1 << 16).await;
            buffer = back;
            got.extend_from_slice(&buffer[..count.expect("received")]);
        }
        sender.await.expect("task").expect("sent");
        assert_eq!(&got[..4], b"head");
        assert_eq!(&got[4..total - 4], region.as_slice());
        assert_eq!(&got[total - 4..], b"tail");
    });
}

#[test]
fn a_dropped_receive_keeps_its_region_until_its_completion() {
    run(|| async {
        let (client, server) = pair().await;
        let region = arena().alloc(4096).expect("room");
        {
            let receive = server.recv(region, 0, 4096);
            let waited = time::timeout(Duration::from_millis(5), receive).await;
            assert!(waited.is_err(), "nothing was sent");
        }
        assert!(arena().used_bytes() > 0, "the device still owns the region");
        while arena().used_bytes() > 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        drop(client);
    });
}

#[test]
fn a_stopped_receive_gives_its_buffer_back_and_loses_no_byte() {
    run(|| async {
        let (client, server) = pair().await;
        let stop = time::sleep(Duration::from_millis(2));
        let (result, buffer) = server.recv_until(vec![0; 8], 0, 8, stop).await;
        assert_eq!(result, Err(OpError::Cancelled));
        client
            .send_all(b"abc".to_vec(), 0, 3)
            .await
            .0
            .expect("sent");
        let stop = time::sleep(Duration::from_secs(60));
        let (result, buffer) = server.recv_until(buffer, 2, 6, stop).await;
        assert_eq!(result, Ok(3));
        assert_eq!(&buffer[2..5], b"abc");
    });
}

#[test]
fn a_peer_that_is_gone_is_an_error_and_the_buffer_comes_back() {
    run(|| async {
        let (client, server) = pair().await;
        drop(server);
        let (result, buffer) = client.recv(vec![7; 4], 0, 4).await;
        assert_eq!(result, Ok(0), "end of stream");
        assert_eq!(buffer.len(), 4);
        let mut outcome = Ok(());
        for _ in 0..100 {
            outcome = client.send_all(vec![0; 1024], 0, 1024).await.0;
            if outcome.is_err() {
                break;
            }
        }
        assert!(
            matches!(outcome, Err(OpError::Os(Errno::PIPE | Errno::CONNRESET))),
            "{outcome:?}"
        );
    });
}

#[test]
fn a_port_in_use_and_a_refused_connection_are_typed() {
    run(|| async {
        let listener = TcpListener::bind(loopback()).expect("a port");
        let address = listener.local_addr();
        let error = TcpListener::bind(address).expect_err("the port is in use");
        assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
        drop(listener);
        let error = TcpStream::connect(address)
            .await
            .expect_err("nobody listens");
        assert_eq!(error, OpError::Os(Errno::CONNREFUSED));
    });
}

#[test]
fn who_waits_for_a_port_gets_it_once_it_is_free() {
    run(|| async {
        let former = TcpListener::bind(loopback()).expect("a port");
        let address = former.local_addr();
        let refused = TcpListener::bind_within(address, Duration::from_millis(20)).await;
        let error = refused.expect_err("the port is in use");
        assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
        let bind = spawn_local(TcpListener::bind_within(address, Duration::from_secs(60)));
        time::sleep(Duration::from_millis(20)).await;
        drop(former);
        let listener = bind.await.expect("a task").expect("the port is free");
        assert_eq!(listener.local_addr(), address);
    });
}

#[test]
fn cores_talk_over_tcp_and_by_message_under_every_idle_policy() {
    for driver in [DriverChoice::Uring, DriverChoice::Epoll] {
        cores_talk(driver);
    }
}

fn cores_talk(driver: DriverChoice) {
    for idle in [
        Idle::Efficient,
        Idle::Adaptive(Duration::from_micros(20)),
        Idle::Latency,
    ] {
        let options = CoreOptions {
            idle,
            driver,
            ..CoreOptions::default()
        };
        let runtime = match Runtime::start(&Placement::Anywhere(2), options) {
            Err(StartError::Driver(error @ ProbeError::Forbidden(_))) => return skip(error),
            runtime => runtime.expect("two cores"),
        };
        let (server, client) = (CoreIndex(0), CoreIndex(1));
        let address = runtime.spawn_on(server, || async {
            let listener = TcpListener::bind(loopback()).expect("a port");
            let address = listener.local_addr();
            spawn_local(async move {
                let stream = listener.accept().await.expect("accepted");
                let mut buffer = vec![0; 64];
                loop {
                    let (count, back) = stream.recv(buffer, 0, 64).await;
                    let count = count.expect("received");
                    if count == 0 {
                        break;
                    }
                    let (sent, back) = stream.send_all(back, 0, count).await;
                    sent.expect("sent");
                    buffer = back;
                }
            });
            address
        });
        let address = address.expect("started").wait().expect("bound");
        let rounds = runtime.spawn_on(client, move || async move {
            let stream = TcpStream::connect(address).await.expect("connected");
            for round in 0..200_u32 {
                let (sent, _) = stream.send_all(round.to_le_bytes().to_vec(), 0, 4).await;
                sent.expect("sent");
                let (count, buffer) = stream.recv(vec![0; 4], 0, 4).await;
                assert_eq!(count, Ok(4));
                assert_eq!(buffer, round.to_le_bytes());
                let echoed = spawn_on(server, move || async move { round }).await;
                assert_eq!(echoed, Ok(round));
            }
            200
        });
        assert_eq!(rounds.expect("started").wait(), Ok(200));
        runtime.shut_down().expect("no panic");
    }
}

/// Regions of so many bytes, each filled with its number.
fn numbered(lens: &[usize]) -> Vec<Region> {
    let regions = (1_u8..).zip(lens).map(|(number, &len)| {
        let mut region = arena().alloc(len).expect("room");
        region.as_mut_slice().fill(number);
        region.freeze()
    });
    regions.collect()
}

/// What arrives until the connection ends.
async fn all_of(stream: TcpStream) -> Vec<u8> {
    let (mut got, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let (count, back) = stream.recv(buffer, 0, 1 << 16).await;
        buffer = back;
        match count {
            Ok(0) | Err(_) => return got,
            Ok(count) => got.extend_from_slice(&buffer[..count]),
        }
    }
}

fn say(outbox: &Outbox, word: &[u8]) {
    outbox.append_bytes(&mut word.to_vec());
}

#[test]
fn what_is_queued_while_a_stretch_is_open_goes_behind_it() {
    run(|| async {
        let (client, server) = pair().await;
        let outbox = Outbox::default();
        let sending = outbox.clone();
        let sender = spawn_local(async move {
            let sent = sending.run(&client).await;
            client.shutdown();
            sent
        });
        let receiver = spawn_local(all_of(server));
        say(&outbox, b"<");
        let head = |message: &mut Message| message.control(|out| out.push(b'['));
        let mut first = outbox.begin(1, head, 100_010).await.expect("open");
        say(&outbox, b"]");
        assert_eq!(outbox.pending_bytes(), 1 + 1 + 100_010 + 1);
        let waits = outbox.clone();
        let second = spawn_local(async move {
            let mut second = waits.begin(1, head, 5).await.expect("open");
            say(&waits, b">");
            second.append(numbered(&[5]).remove(0));
        });
        let mut lens = vec![];
        for region in numbered(&[10, 60_000, 40_000]) {
            // What has been queued of it leaves by itself.
            lens.push(region.len());
            first.append(region);
            outbox.drained_below(1 + first.left_bytes()).await;
        }
        assert_eq!(first.left_bytes(), 0);
        assert!(!second.is_finished(), "one stretch is open at a time");
        drop(first);
        second.await.expect("task");
        outbox.drained_below(0).await;
        outbox.close();
        sender.await.expect("task").expect("sent");
        let mut expected = b"<[".to_vec();
        for (number, len) in (1..).zip(lens) {
            expected.resize(expected.len() + len, number);
        }
        expected.extend_from_slice(b"][\x01\x01\x01\x01\x01>");
        assert!(receiver.await.expect("task") == expected);
    });
}

#[test]
fn a_stretch_that_stays_short_ends_its_connection() {
    run(|| async {
        let (client, server) = pair().await;
        let outbox = Outbox::default();
        let head = |message: &mut Message| message.control(|out| out.push(b'['));
        let mut stretch = outbox.begin(1, head, 7).await.expect("open");
        stretch.append(numbered(&[6]).remove(0));
        say(&outbox, b"]");
        let waits = outbox.clone();
        let second = spawn_local(async move { waits.begin(1, head, 1).await.is_none() });
        time::sleep(Duration::from_millis(1)).await;
        drop(stretch);
        assert!(
            second.await.expect("task"),
            "after the close nothing begins"
        );
        assert!(outbox.begin(1, head, 1).await.is_none());
        outbox
            .run(&client)
            .await
            .expect("nothing is left to be sent");
        drop(client);
        assert_eq!(all_of(server).await, b"", "nothing follows what is missing");
        assert_eq!(arena().used_bytes(), 0);
    });
}

#[test]
#[should_panic(expected = "no more than it began with")]
fn a_stretch_takes_no_more_than_it_began_with() {
    let arena = Arena::new(ArenaOptions::default());
    let outbox = Outbox::default();
    let begun = pin!(outbox.begin(1, |_| {}, 7));
    let Poll::Ready(Some(mut stretch)) = begun.poll(&mut Context::from_waker(Waker::noop())) else {
        unreachable!("no other is open");
    };
    stretch.append(arena.alloc(8).expect("room").freeze());
}
