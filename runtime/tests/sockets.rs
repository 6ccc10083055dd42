//! Connections on each driver: timeouts that the driver keeps, accepting, sends without copies.
#![forbid(unsafe_code)]

mod on_each_driver;

use std::io::IoSlice;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use lunette_runtime::arena::SharedMemory;
use lunette_runtime::net::{Message, TcpListener, TcpStream, ThreadStream};
use lunette_runtime::vectored::Scatter;
use lunette_runtime::{OpError, arena, spawn_local, time};
use lunette_runtime_core::checksum::{Crc32c, crc32c};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketType};

use on_each_driver::run;

const WORLDS: u64 = 10;

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

#[test]
fn a_connect_that_nobody_answers_ends_at_its_timeout() {
    run(0, || async {
        // A listener whose backlog is full drops what else comes.
        let listener =
            net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        net::bind(&listener, &loopback()).expect("a port");
        net::listen(&listener, 0).expect("listening");
        let address = SocketAddr::try_from(net::getsockname(&listener).expect("bound"));
        let address = address.expect("an address");
        let mut connected = Vec::new();
        let timeout = Duration::from_millis(100);
        let began = time::now();
        let error = loop {
            assert!(connected.len() < 10, "a backlog of none is soon full");
            match TcpStream::connect_timeout(address, timeout).await {
                Ok(stream) => connected.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(error, OpError::Os(Errno::TIMEDOUT));
        let took = time::now().since(began);
        assert!(took >= timeout && took < timeout * 20, "{took:?}");
    });
}

#[test]
fn a_connect_in_time_is_not_disturbed_by_its_timeout() {
    run(WORLDS, || async {
        let listener = TcpListener::bind(loopback()).expect("a port");
        let timeout = Duration::from_millis(30);
        let client = TcpStream::connect_timeout(listener.local_addr(), timeout).await;
        let client = client.expect("connected");
        let server = listener.accept().await.expect("accepted");
        time::sleep(timeout * 2).await;
        let (sent, _) = client.send_all(b"late".to_vec(), 0, 4).await;
        sent.expect("the connection lives");
        let (got, bytes) = server.recv(vec![0; 4], 0, 4).await;
        assert_eq!((got, &bytes[..]), (Ok(4), &b"late"[..]));
        // Nobody listens there any more.
        let address = listener.local_addr();
        drop(listener);
        let refused = TcpStream::connect_timeout(address, timeout).await;
        assert_eq!(
            refused.expect_err("refused"),
            OpError::Os(Errno::CONNREFUSED)
        );
    });
}

#[test]
fn several_tasks_accept_from_one_listener_and_each_connection_goes_to_one() {
    const CONNECTIONS: usize = 600;
    run(WORLDS, || async {
        let listener = std::rc::Rc::new(TcpListener::bind(loopback()).expect("a port"));
        let address = listener.local_addr();
        let mut acceptors = Vec::new();
        for _ in 0..3 {
            let listener = std::rc::Rc::clone(&listener);
            acceptors.push(spawn_local(async move {
                let mut got = Vec::new();
                for _ in 0..CONNECTIONS / 3 {
                    let stream = listener.accept().await.expect("accepted");
                    let (count, bytes) = stream.recv(vec![0; 8], 0, 8).await;
                    assert_eq!(count, Ok(8));
                    got.push(u64::from_le_bytes(bytes.try_into().expect("8 bytes")));
                }
                got
            }));
        }
        for number in 0..CONNECTIONS as u64 {
            let stream = TcpStream::connect(address).await.expect("connected");
            let (sent, _) = stream.send_all(number.to_le_bytes().to_vec(), 0, 8).await;
            sent.expect("sent");
        }
        let mut all = Vec::new();
        for acceptor in acceptors {
            all.extend(acceptor.await.expect("task"));
        }
        all.sort_unstable();
        assert_eq!(all, (0..CONNECTIONS as u64).collect::<Vec<_>>());
    });
}

#[test]
fn connections_that_nobody_asked_for_are_closed_with_their_listener() {
    run(WORLDS, || async {
        let listener = TcpListener::bind(loopback()).expect("a port");
        let address = listener.local_addr();
        let first = TcpStream::connect(address).await.expect("connected");
        drop(listener.accept().await.expect("accepted"));
        // Accepted ahead of being asked for.
        let second = TcpStream::connect(address).await.expect("connected");
        time::sleep(Duration::from_millis(5)).await;
        drop(listener);
        for stream in [first, second] {
            let (end, _) = stream.recv(vec![0; 1], 0, 1).await;
            assert!(
                matches!(end, Ok(0) | Err(OpError::Os(Errno::CONNRESET))),
                "{end:?}"
            );
        }
    });
}

#[test]
fn a_send_without_copies_keeps_its_memory_until_the_notice_and_arrives_whole() {
    const LEN: usize = 2 << 20;
    run(WORLDS, || async {
        let listener = TcpListener::bind(loopback()).expect("a port");
        let mut client = TcpStream::connect(listener.local_addr())
            .await
            .expect("connected");
        let server = listener.accept().await.expect("accepted");
        client.set_zero_copy(Some(1));
        for round in 0..4_u8 {
            let mut region = arena().alloc(LEN).expect("room");
            region.as_mut_slice().fill(round);
            let mut message = Message::new();
            message.control(|out| out.push(round));
            message.payload(region.freeze());
            let sending = client.clone();
            let sender = spawn_local(async move { sending.send_message(message).await });
            let mut got = 0;
            let mut buffer = vec![0; 1 << 16];
            while got < LEN + 1 {
                let (count, back) = server.recv(buffer, 0, 1 << 16).await;
                buffer = back;
                let count = count.expect("received");
                assert!(buffer[..count].iter().all(|&byte| byte == round));
                got += count;
            }
            let (sent, mut message) = sender.await.expect("task");
            sent.expect("sent");
            assert!(message.is_empty());
            message.clear();
        }
        assert_eq!(arena().used_bytes(), 0);
    });
}

#[test]
fn a_send_without_copies_to_a_peer_that_has_gone_fails_and_gives_the_message_back() {
    run(WORLDS, || async {
        let listener = TcpListener::bind(loopback()).expect("a port");
        let mut client = TcpStream::connect(listener.local_addr())
            .await
            .expect("connected");
        drop(listener.accept().await.expect("accepted"));
        client.set_zero_copy(Some(1));
        let deadline = time::now() + Duration::from_secs(5);
        loop {
            assert!(time::now() < deadline, "the peer has gone");
            let mut message = Message::new();
            message.payload(arena().alloc(4096).expect("room").freeze());
            let (sent, message) = client.send_message(message).await;
            drop(message);
            match sent {
                Ok(()) => time::sleep(Duration::from_millis(1)).await,
                Err(OpError::Os(Errno::PIPE | Errno::CONNRESET)) => break,
                Err(error) => panic!("{error}"),
            }
        }
        // The notice of the failed send came, too: nothing is in flight that holds memory.
        assert_eq!(arena().used_bytes(), 0);
    });
}

#[test]
fn a_connection_that_is_closed_is_closed_for_its_peer_while_others_are_silent() {
    run(WORLDS, || async {
        let listener = TcpListener::bind(loopback()).expect("a port");
        let address = listener.local_addr();
        let silent = TcpStream::connect(address).await.expect("connected");
        let waits = spawn_local(async move { silent.recv(vec![0; 1], 0, 1).await.0 });
        let _other_end = listener.accept().await.expect("accepted");
        // The receive above is under way before the next connection is made and closed.
        time::sleep(Duration::from_millis(2)).await;
        let closed = TcpStream::connect(address).await.expect("connected");
        let peer = listener.accept().await.expect("accepted");
        drop(closed);
        let end = time::timeout(Duration::from_secs(5), peer.recv(vec![0; 1], 0, 1)).await;
        assert_eq!(end.expect("the peer is told").0, Ok(0));
        waits.abort();
    });
}

#[test]
fn a_list_is_filled_in_order_and_exposed_memory_is_sent_and_received() {
    const PARTS: usize = 100;
    const PART: usize = 700;
    run(WORLDS, || async {
        let listener = TcpListener::bind(loopback()).expect("a port");
        let client = TcpStream::connect(listener.local_addr()).await;
        let (client, server) = (
            client.expect("connected"),
            listener.accept().await.expect("accepted"),
        );
        let source = arena().alloc(PARTS * PART).expect("room").expose();
        let pattern: Vec<u8> = (0..=250).cycle().take(PARTS * PART).collect();
        source.copy_in(0, &pattern);
        spawn_local(async move {
            let mut message = Message::new();
            message.control(|out| out.push(b'!'));
            for part in 0..PARTS {
                message.exposed(source.slice(part * PART, PART));
            }
            let (sent, _) = client.send_message(message).await;
            sent.expect("sent");
            // One more byte stays away: the receive of it is stopped.
            time::sleep(Duration::from_secs(1)).await;
        });
        let target = arena().alloc(PARTS * PART).expect("room").expose();
        let mark = arena().alloc(1).expect("room");
        let mut list = Scatter::new();
        list.push(mark, 0, 1).expect("room in the list");
        // From the back to the front, so that order shows.
        for part in (0..PARTS).rev() {
            let part = target.slice(part * PART, PART);
            list.push_exposed(part).expect("room in the list");
        }
        while !list.is_empty() {
            let never = std::future::pending();
            let (got, back) = server.recv_list_until(list, never).await;
            assert!(got.expect("bytes") > 0, "the peer is there");
            list = back;
        }
        assert_eq!(list.into_regions()[0].as_slice(), b"!");
        for part in 0..PARTS {
            let from = (PARTS - 1 - part) * PART;
            let got = target.slice(part * PART, PART).to_vec();
            assert_eq!(got, pattern[from..from + PART], "part {part}");
        }
        let mut list = Scatter::new();
        list.push_exposed(target).expect("room in the list");
        let soon = time::sleep(Duration::from_millis(5));
        let (stopped, list) = server.recv_list_until(list, soon).await;
        assert_eq!(stopped, Err(OpError::Cancelled));
        assert_eq!(list.len(), PARTS * PART);
    });
}

/// What a core has connected and somebody else has still, or what is under way, is no thread's.
#[test]
fn a_thread_takes_a_connection_that_is_nobody_elses() {
    run(0, || async {
        let listener = TcpListener::bind(loopback()).expect("a port");
        let client = TcpStream::connect(listener.local_addr()).await;
        let client = client.expect("connected");
        let server = listener.accept().await.expect("accepted");
        let other = client.clone();
        assert!(client.into_thread().is_none(), "there is another handle");
        // It has been used, by whatever the driver keeps for that.
        let (sent, _) = server.send_all(b"before".to_vec(), 0, 6).await;
        sent.expect("it is open");
        let (got, bytes) = other.recv(vec![0; 6], 0, 6).await;
        assert_eq!((got, &bytes[..]), (Ok(6), &b"before"[..]));
        let stream = other.into_thread().expect("the last handle");
        let thread = thread::spawn(move || ask(&stream));
        let (got, bytes) = server.recv(vec![0; 16], 0, 16).await;
        assert_eq!((got, &bytes[..8]), (Ok(8), &b"question"[..]));
        let (sent, _) = server.send_all(b"answer".to_vec(), 0, 6).await;
        sent.expect("it is open");
        // The next one is for the thread to find, wherever it is then.
        drop(server);
        assert!(thread.join().expect("no panic"), "it ends for the thread");
    });
}

/// What a thread receives straight to memory lies where it was to, and nowhere else.
#[test]
fn a_thread_receives_to_memory_that_others_reach() {
    run(0, || async {
        let listener = TcpListener::bind(loopback()).expect("a port");
        let client = TcpStream::connect(listener.local_addr()).await;
        let server = listener.accept().await.expect("accepted");
        let stream = client.expect("connected").into_thread();
        let stream = stream.expect("the only handle");
        let memory = SharedMemory::owned(vec![1; 64]);
        let nothing = stream.try_recv_to(&memory, 8..16);
        assert_eq!(nothing, Ok(None), "nothing is there");
        let (sent, _) = server.send_all(b"a dozen long".to_vec(), 0, 12).await;
        sent.expect("it is open");
        let thread = thread::spawn(move || {
            let mut got = 0;
            while got < 12 {
                stream.sleep(false, Duration::MAX).expect("memory");
                let place = 8 + got..(16 + got).min(20);
                got += stream
                    .try_recv_to(&memory, place)
                    .expect("open")
                    .expect("bytes");
            }
            let mut sum = Crc32c::new();
            memory.fold(8..20, &mut sum);
            assert_eq!(sum.value(), crc32c(b"a dozen long"));
            for (start, end) in [(60, 65), (65, 66), (usize::MAX - 1, usize::MAX)] {
                let outside = AssertUnwindSafe(|| stream.try_recv_to(&memory, start..end));
                assert!(catch_unwind(outside).is_err(), "{start}..{end}");
                let outside = AssertUnwindSafe(|| memory.fold(start..end, &mut Crc32c::new()));
                assert!(catch_unwind(outside).is_err(), "{start}..{end}");
            }
            stream.sleep(false, Duration::MAX).expect("memory");
            assert_eq!(stream.try_recv_to(&memory, 0..8), Ok(Some(0)), "it ends");
            memory.into_bytes().expect("the only handle")
        });
        drop(server);
        while !thread.is_finished() {
            time::sleep(Duration::from_millis(1)).await;
        }
        let bytes = thread.join().expect("no panic");
        assert_eq!(bytes, [&[1; 8][..], b"a dozen long", &[1; 44]].concat());
    });
}

/// Asks, and is answered; whether the connection ends then.
fn ask(stream: &ThreadStream) -> bool {
    let mut bytes = [0; 16];
    assert_eq!(stream.try_recv(&mut bytes), Ok(None), "nothing is there");
    stream
        .sleep(false, Duration::from_millis(1))
        .expect("memory");
    let (first, second) = (IoSlice::new(b"ques"), IoSlice::new(b"tion"));
    assert_eq!(stream.try_send(&[first, second]), Ok(8));
    let mut next = || {
        loop {
            match stream.try_recv(&mut bytes).expect("it is open") {
                Some(count) => break bytes[..count].to_vec(),
                None => stream.sleep(false, Duration::MAX).expect("memory"),
            }
        }
    };
    assert_eq!(next(), b"answer");
    next().is_empty()
}

/// A peer that takes nothing costs a thread no time: it is told how much has been taken, and may sleep until there is room.
#[test]
fn a_thread_sends_what_the_system_takes() {
    run(0, || async {
        let listener = TcpListener::bind(loopback()).expect("a port");
        let client = TcpStream::connect(listener.local_addr()).await;
        let server = listener.accept().await.expect("accepted");
        let stream = client.expect("connected").into_thread();
        let stream = stream.expect("the only handle");
        let piece = vec![7; 1 << 20];
        let mut sent = 0;
        loop {
            match stream.try_send(&[IoSlice::new(&piece)]).expect("open") {
                0 => break,
                count => sent += count,
            }
            assert!(sent < 1 << 30, "the system takes no end of bytes");
        }
        // It returns for what comes as well, and else when it is told to.
        stream
            .sleep(true, Duration::from_millis(1))
            .expect("memory");
        let thread = thread::spawn(move || {
            stream.sleep(true, Duration::MAX).expect("memory");
            stream.try_send(&[IoSlice::new(&[9])])
        });
        let mut got = 0;
        while got < sent {
            let (count, _) = server.recv(vec![0; 1 << 20], 0, 1 << 20).await;
            got += count.expect("it sends");
        }
        assert_eq!(thread.join().expect("no panic"), Ok(1));
    });
}
