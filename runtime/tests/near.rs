//! Cores and threads that share a processor with whom they wait for.
#![forbid(unsafe_code)]

use std::io::IoSlice;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use lunette_runtime::net::{TcpListener, TcpStream, ThreadStream};
use lunette_runtime::{
    CoreOptions, Idle, Placement, Runtime, asked_from, block_on, core_counts, spawn_local,
    spawn_on, this_processor, time,
};
use lunette_runtime_core::ids::CoreIndex;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Long enough to be told from none, however slow the machine is.
const SPIN: Duration = Duration::from_millis(1);
const ROUNDS: u32 = 200;

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

/// Runs on a thread of its own that has one processor, and so do threads that it starts.
fn on_one_processor<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    let on_one = || {
        let all = sched_getaffinity(None).expect("told");
        let first = (0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu));
        let mut one = CpuSet::new();
        one.set(first.expect("one at least"));
        sched_setaffinity(None, &one).expect("it is ours");
        what()
    };
    thread::spawn(on_one).join().expect("no panic")
}

fn spinning() -> CoreOptions {
    CoreOptions {
        idle: Idle::Adaptive(SPIN),
        ..CoreOptions::default()
    }
}

/// Answers what comes with the same.
async fn echo(listener: TcpListener) {
    let stream = listener.accept().await.expect("accepted");
    let mut buffer = vec![0; 64];
    loop {
        let (count, back) = stream.recv(buffer, 0, 64).await;
        let count = count.expect("received");
        if count == 0 {
            return;
        }
        let (sent, back) = stream.send_all(back, 0, count).await;
        sent.expect("sent");
        buffer = back;
    }
}

async fn ask(stream: &TcpStream) {
    let (sent, _) = stream.send_all(vec![7; 8], 0, 8).await;
    sent.expect("sent");
    let (count, _) = stream.recv(vec![0; 8], 0, 8).await;
    assert_eq!(count, Ok(8));
}

/// Turns of the calling core since `before`, for each round.
fn turns_each(before: u64) -> u64 {
    (core_counts().turns - before) / u64::from(ROUNDS)
}

/// A turn of a core that spins takes some microseconds: it would be hundreds in a spin.
const FEW_TURNS: u64 = 50;

#[test]
fn cores_that_ask_each_other_on_one_processor_let_each_other_run() {
    on_one_processor(|| {
        let runtime = Runtime::start(&Placement::Anywhere(2), spinning()).expect("two cores");
        let server = CoreIndex(0);
        let served = runtime.spawn_on(server, || async {
            let listener = TcpListener::bind(loopback()).expect("a port");
            let address = listener.local_addr();
            spawn_local(echo(listener));
            address
        });
        let address = served.expect("started").wait().expect("bound");
        let asked = runtime.spawn_on(CoreIndex(1), move || async move {
            let stream = TcpStream::connect(address).await.expect("connected");
            // From here on: while nobody was connected yet, each of them looked for as long as it may.
            ask(&stream).await;
            let others_before = spawn_on(server, || async { core_counts().turns });
            let others_before = others_before.await.expect("it runs");
            let own_before = core_counts().turns;
            for _ in 0..ROUNDS {
                ask(&stream).await;
            }
            let own = turns_each(own_before);
            let others = spawn_on(server, move || async move { turns_each(others_before) });
            [own, others.await.expect("it runs")]
        });
        let turns = asked.expect("started").wait().expect("asked");
        assert!(turns.iter().all(|&turns| turns < FEW_TURNS), "{turns:?}");
        runtime.shut_down().expect("no panic");
    });
}

#[test]
fn a_core_that_was_asked_from_its_own_processor_sleeps_when_it_has_nothing_to_do() {
    on_one_processor(|| {
        let turns_when_asked_from = |processor: usize| {
            block_on(None, spinning(), move || async move {
                // It spins, as what it waits for comes soon.
                for _ in 0..20 {
                    time::sleep(SPIN / 4).await;
                }
                let before = core_counts().turns;
                for _ in 0..ROUNDS {
                    asked_from(processor);
                    time::sleep(SPIN / 4).await;
                }
                turns_each(before)
            })
            .expect("a core")
        };
        let here = this_processor();
        let (near, far) = (turns_when_asked_from(here), turns_when_asked_from(here + 1));
        assert!(near < FEW_TURNS / 5 && far > near * 2, "{near} and {far}");
    });
}

#[test]
fn a_thread_is_in_the_way_of_who_has_sent_from_its_processor() {
    let listening = || async {
        let listener = TcpListener::bind(loopback()).expect("a port");
        let address = listener.local_addr();
        let accepted = spawn_local(async move { listener.accept().await });
        let taken = TcpStream::connect(address).await.expect("connected");
        let peer = accepted.await.expect("a task").expect("accepted");
        let taken = taken.into_thread().expect("nothing is under way");
        (taken, peer.into_thread().expect("nothing is under way"))
    };
    let (taken, peer): (ThreadStream, ThreadStream) = on_one_processor(move || {
        let pair = block_on(None, CoreOptions::default(), listening).expect("a core");
        pair.1.try_send(&[IoSlice::new(b"here")]).expect("sent");
        assert!(pair.0.is_in_the_way());
        pair
    });
    let all = sched_getaffinity(None).expect("told");
    let others = (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu));
    if let Some(other) = others.skip(1).last() {
        let is_in_the_way = thread::spawn(move || {
            let mut one = CpuSet::new();
            one.set(other);
            sched_setaffinity(None, &one).expect("it is ours");
            taken.is_in_the_way()
        });
        assert!(!is_in_the_way.join().expect("no panic"));
    }
    drop(peer);
}
