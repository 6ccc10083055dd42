//! Names of hosts, and connections from an address of choice: on each driver, and in worlds.
#![forbid(unsafe_code)]

mod on_each_driver;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use lunette_runtime::net::{ConnectOptions, ResolveError, TcpListener, TcpStream, resolve};
use lunette_runtime::sim::{World, WorldOptions};
use lunette_runtime::{CoreOptions, OpError, spawn_local, time};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketType};

use on_each_driver::run;

const SECOND: Duration = Duration::from_secs(1);

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn from(source: &str) -> ConnectOptions {
    ConnectOptions {
        source: Some(ip(source)),
        timeout: Some(SECOND),
    }
}

#[test]
fn a_connection_comes_from_the_address_that_it_is_given() {
    run(0, || async {
        let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None);
        let listener = socket.expect("a socket");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        net::bind(&listener, &any).expect("a port");
        net::listen(&listener, 8).expect("listening");
        let address = net::getsockname(&listener).expect("bound");
        let address = SocketAddr::try_from(address).expect("an address");
        for source in ["127.0.0.2", "127.0.0.3"] {
            let connected = TcpStream::connect_with(address, from(source)).await;
            let _client = connected.expect("connected");
            let (_server, peer) = net::acceptfrom(&listener).expect("accepted");
            let peer = SocketAddr::try_from(peer.expect("a peer")).expect("an address");
            assert_eq!(peer.ip(), ip(source));
        }
        // Of documentation, and of no host.
        let refused = TcpStream::connect_with(address, from("192.0.2.1")).await;
        let error = refused.expect_err("not an address of this host");
        assert_eq!(error, OpError::Os(Errno::ADDRNOTAVAIL));
        let refused = TcpStream::connect_with(address, from("::1")).await;
        let error = refused.expect_err("another family");
        let known = [Errno::AFNOSUPPORT, Errno::INVAL].map(OpError::Os);
        assert!(known.contains(&error), "{error}");
    });
}

#[test]
fn in_a_world_links_are_between_the_addresses_that_are_used() {
    let mut world = World::new(1, WorldOptions::default());
    let (here, second) = (ip("10.0.0.1"), ip("10.0.1.1"));
    let server = SocketAddr::new(ip("10.0.0.2"), 80);
    let client = world.start(here, 1, CoreOptions::default());
    world.add_address(here, second);
    let serving = world.start(server.ip(), 1, CoreOptions::default());
    drop(world.spawn(serving, 0, move || async move {
        let listener = TcpListener::bind(server).expect("a port");
        loop {
            drop(listener.accept().await.expect("accepted"));
        }
    }));
    world.cut(here, server.ip());
    let done = world.spawn(client, 0, move || async move {
        time::sleep(SECOND).await;
        let first = TcpStream::connect_with(server, from("10.0.0.1")).await;
        let second = TcpStream::connect_with(server, from("10.0.1.1")).await;
        let other = TcpStream::connect_with(server, from("10.0.0.2")).await;
        (first.err(), second.err(), other.err())
    });
    let until = world.now() + SECOND * 60;
    assert!(world.run_until(until, || done.is_there()));
    let expected = (
        Some(OpError::Os(Errno::TIMEDOUT)),
        None,
        Some(OpError::Os(Errno::ADDRNOTAVAIL)),
    );
    assert_eq!(done.take(), Some(expected));
}

#[test]
fn addresses_are_not_asked_for_and_names_that_nobody_has_say_so() {
    run(3, || async {
        let literal = resolve("127.0.0.7", 80).await.expect("an address");
        assert_eq!(literal, [SocketAddr::new(ip("127.0.0.7"), 80)]);
        let literal = resolve("::1", 0).await.expect("an address");
        assert_eq!(literal, [SocketAddr::new(ip("::1"), 0)]);
        let refused = resolve("no-such-host.invalid", 80).await;
        let error = refused.expect_err("reserved for names that are none");
        let ResolveError::Unknown { name, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(name, "no-such-host.invalid");
        assert!(!error.is_backpressure());
    });
    run(0, || async {
        let found = resolve("localhost", 80).await.expect("each host has it");
        assert!(found.iter().all(|address| address.ip().is_loopback()));
        assert!(!found.is_empty());
    });
}

#[test]
fn the_loop_goes_on_while_the_system_is_asked() {
    run(0, || async {
        // The control thread is busy; the core is not.
        let (begun, busy) = std::sync::mpsc::channel();
        let (finish, finished) = std::sync::mpsc::channel::<()>();
        let blocked = lunette_runtime::control(move || {
            begun.send(()).expect("the test waits");
            finished.recv().expect("the test ends it");
        });
        busy.recv().expect("it begins");
        let resolving = spawn_local(async { resolve("localhost", 80).await });
        for _ in 0..3 {
            time::sleep(Duration::from_millis(1)).await;
        }
        finish.send(()).expect("it waits");
        blocked.await.expect("the control thread lives");
        let found = resolving.await.expect("task").expect("each host has it");
        assert!(!found.is_empty());
    });
}

#[test]
fn a_world_has_the_names_that_it_is_given() {
    let mut world = World::new(1, WorldOptions::default());
    let host = ip("10.0.0.1");
    let process = world.start(host, 1, CoreOptions::default());
    let ask = |world: &mut World| {
        let done = world.spawn(process, 0, || resolve("store", 7600));
        let until = world.now() + SECOND;
        assert!(world.run_until(until, || done.is_there()));
        done.take().expect("it is there")
    };
    assert!(ask(&mut world).is_err());
    let addresses = [ip("10.0.0.2"), ip("fd00::2")];
    world.set_name("store", &addresses);
    let expected = addresses.map(|ip| SocketAddr::new(ip, 7600));
    assert_eq!(ask(&mut world).expect("it is known"), expected);
    world.set_name("store", &[]);
    assert!(ask(&mut world).is_err());
}
