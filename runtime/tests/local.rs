//! Packets with descriptors between processes of one host, on each driver.
#![forbid(unsafe_code)]

mod on_each_driver;

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::time::Duration;

use lunette_runtime::arena::{Exposed, HugePages, View};
use lunette_runtime::net::{LocalChannel, LocalListener, PACKET_BYTES_MAX, PACKET_DESCRIPTORS_MAX};
use lunette_runtime::sim::{World, WorldOptions};
use lunette_runtime::{CoreOptions, boot_id, entropy, spawn_local, time};

use on_each_driver::run;

fn name() -> [u8; 16] {
    let mut name = [0; 16];
    name[..8].copy_from_slice(&entropy().to_le_bytes());
    name[8..].copy_from_slice(&entropy().to_le_bytes());
    name
}

/// Both ends of a connection.
async fn pair() -> (LocalChannel, LocalChannel) {
    let name = name();
    let listener = LocalListener::bind(&name).expect("a fresh name");
    let asking = LocalChannel::connect(&name).expect("somebody listens");
    let answering = listener.accept().await.expect("somebody connected");
    (asking, answering)
}

#[test]
fn memory_goes_from_hand_to_hand() {
    run(0, || async {
        let (asking, answering) = pair().await;
        let memory = Exposed::map(8192, HugePages::Never, &mut Vec::new()).expect("memory");
        memory.copy_in(5000, b"shared");
        let share = memory.share().expect("a file");
        answering
            .send(b"here", &[share.memfd.as_fd()])
            .expect("room");
        let mut packet = asking.recv().await.expect("a packet").expect("not gone");
        assert_eq!(packet.bytes, b"here");
        let memfd = packet.descriptors.pop().expect("one descriptor");
        let view = View::map(memfd, 0, 8192).expect("sealed");
        let copy = Exposed::map(6, HugePages::Never, &mut Vec::new()).expect("memory");
        view.copy_out(5000, &copy);
        assert_eq!(copy.to_vec(), b"shared");
    });
}

#[test]
fn who_waits_for_a_packet_is_woken_and_packets_stay_apart() {
    run(0, || async {
        let (asking, answering) = pair().await;
        let waits = spawn_local(async move {
            let mut lengths = Vec::new();
            while let Some(packet) = asking.recv().await.expect("a packet") {
                lengths.push(packet.bytes.len());
            }
            lengths
        });
        for len in [1, PACKET_BYTES_MAX, 7] {
            time::sleep(Duration::from_millis(1)).await;
            answering.send(&vec![0; len], &[]).expect("room");
        }
        answering.send(&[0; 3], &[]).expect("room");
        answering.send(&[0; 2], &[]).expect("room");
        drop(answering);
        let lengths = waits.await.expect("no panic");
        assert_eq!(lengths, [1, PACKET_BYTES_MAX, 7, 3, 2]);
    });
}

#[test]
fn threads_send_on_a_channel_whose_end_is_seen_when_they_have_ended_too() {
    run(0, || async {
        let (asking, answering) = pair().await;
        let sender = asking.sender().expect("a descriptor");
        let thread = std::thread::spawn(move || {
            sender.send(b"from a thread").expect("room");
            sender
        });
        let packet = answering.recv().await.expect("a packet");
        assert_eq!(packet.expect("not gone").bytes, b"from a thread");
        drop(asking);
        let sender = thread.join().expect("no panic");
        sender.send(b"still").expect("room");
        let packet = answering.recv().await.expect("a packet");
        assert_eq!(packet.expect("not gone").bytes, b"still");
        drop(sender);
        assert!(answering.recv().await.expect("its end").is_none());
    });
}

#[test]
fn a_side_that_takes_nothing_does_not_block_the_other() {
    run(0, || async {
        let (asking, answering) = pair().await;
        let mut sent = 0;
        let error = loop {
            match answering.send(&[0; PACKET_BYTES_MAX], &[]) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        for _ in 0..sent {
            asking.recv().await.expect("a packet").expect("not gone");
        }
        answering.send(b"again", &[]).expect("room again");
    });
}

#[test]
fn nobody_there_a_name_that_is_taken_and_too_many_descriptors() {
    run(0, || async {
        let taken = name();
        let error = LocalChannel::connect(&taken).expect_err("nobody listens");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let listener = LocalListener::bind(&taken).expect("a fresh name");
        let error = LocalListener::bind(&taken).expect_err("taken");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);

        let asking = LocalChannel::connect(&taken).expect("somebody listens");
        let answering = listener.accept().await.expect("somebody connected");
        let fd = asking.recv();
        let some = [io::stdin(), io::stdin(), io::stdin(), io::stdin()];
        let some: Vec<_> = some.iter().map(AsFd::as_fd).collect();
        assert_eq!(some.len(), PACKET_DESCRIPTORS_MAX);
        answering.send(b"many", &some).expect("room");
        let packet = fd.await.expect("a packet").expect("not gone");
        assert_eq!(packet.descriptors.len(), PACKET_DESCRIPTORS_MAX);
        // The listener's end does not end its connections; the channel's does.
        drop(listener);
        answering.send(b"on", &[]).expect("room");
        drop(answering);
        assert!(asking.recv().await.expect("the last packet").is_some());
        assert!(asking.recv().await.expect("its end").is_none());
        assert!(asking.send(b"?", &[]).is_err(), "nobody is there");
    });
}

#[test]
fn a_listener_is_a_file_as_long_as_it_lasts() {
    run(0, || async {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("socket");
        let error = LocalChannel::connect_at(&file).expect_err("no such file");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let listener = LocalListener::bind_at(&file).expect("a fresh path");
        let error = LocalListener::bind_at(&file).expect_err("taken");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(file.exists(), "who was refused removes nothing");
        let asking = LocalChannel::connect_at(&file).expect("somebody listens");
        let answering = listener.accept().await.expect("somebody connected");
        asking.send(b"hello", &[]).expect("room");
        let packet = answering.recv().await.expect("a packet").expect("not gone");
        assert_eq!(packet.bytes, b"hello");
        drop(listener);
        assert!(!file.exists());
        let long = folder.path().join("l".repeat(108));
        assert!(LocalListener::bind_at(&long).is_err(), "no such address");
    });
}

#[test]
fn worlds_have_neither_such_sockets_nor_a_kernel_in_common() {
    let mut world = World::new(1, WorldOptions::default());
    let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let process = world.start(host, 1, CoreOptions::default());
    let tried = world.spawn(process, 0, || async {
        let bound = LocalListener::bind(b"x").map(|_| ()).map_err(|e| e.kind());
        let connected = LocalChannel::connect(b"x")
            .map(|_| ())
            .map_err(|e| e.kind());
        (bound, connected, boot_id())
    });
    world.run_for(Duration::from_millis(1));
    let unsupported = Err(io::ErrorKind::Unsupported);
    assert_eq!(tried.take(), Some((unsupported, unsupported, None)));
}
