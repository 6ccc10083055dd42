//! Connections whose bytes are sealed: they carry the same, nobody on the way reads it, and what is changed
//! on its way is sent again.

use std::net::SocketAddr;
use std::time::Duration;

use lunette_auth::{Encryption, Policy};
use lunette_runtime::{CoreOptions, block_on, time};
use lunette_transfer::engine::{
    Batch, Cause, Engine, EngineOptions, PostOptions, RegisterOptions, StartError,
};

use super::between::{Between, Harm};
use super::on_each_driver::run;
use super::scene::{KIB, guarded, memory, options, pattern};

const WORLDS: u64 = 8;

fn sealing(encryption: Encryption) -> EngineOptions {
    EngineOptions {
        listen: options().listen,
        same_host: false,
        encryption,
        ..guarded()
    }
}

fn engine(encryption: Encryption) -> Engine {
    Engine::start(sealing(encryption)).expect("an engine")
}

/// Writes `len` bytes over a connection to `address` and reads them back; how many slices were sent again.
async fn there_and_back(here: &Engine, address: SocketAddr, len: usize, seed: u8) -> u64 {
    let peer = here.open(&[address]).await.expect("a peer");
    let remote = peer.segment("kv").await.expect("a segment");
    let source = memory(len);
    source.copy_in(0, &pattern(len, seed));
    let mut batch = Batch::new();
    batch.write(source, &remote, 3).expect("a write");
    let written = peer.post(&batch, PostOptions::default()).expect("posted");
    let written = written.await.expect("written");
    let target = memory(len);
    let mut batch = Batch::new();
    // Scattered, so that pieces are filled from the middle of records.
    for (start, piece) in [(0, len / 3), (len / 3, len - len / 3)] {
        let local = target.slice(start, piece);
        batch
            .read(local, &remote, 3 + start as u64)
            .expect("a read");
    }
    let read = peer.post(&batch, PostOptions::default()).expect("posted");
    let read = read.await.expect("read");
    assert_eq!(target.to_vec(), pattern(len, seed));
    written.resent + read.resent
}

#[test]
fn sealed_connections_carry_the_same_whichever_side_wants_it() {
    use Encryption::{Optional, Required};
    for (ours, theirs) in [
        (Required, Optional),
        (Optional, Required),
        (Required, Required),
    ] {
        run(WORLDS, move || async move {
            let (here, there) = (engine(ours), engine(theirs));
            let kept = memory(3_000 * KIB);
            let registered = there.register(kept, &RegisterOptions::named("kv"));
            registered.expect("registered");
            for (seed, len) in [(1, 4), (2, 4096), (3, 64 * KIB), (4, 2_900 * KIB)] {
                let resent = there_and_back(&here, there.addresses()[0], len, seed).await;
                assert_eq!(resent, 0, "{len} bytes");
            }
        });
    }
}

#[test]
fn what_is_given_up_does_not_land_any_more() {
    run(WORLDS, || async {
        let (here, there) = (engine(Encryption::Required), engine(Encryption::Optional));
        let len = 2_000 * KIB;
        let registered = there.register(memory(len), &RegisterOptions::named("kv"));
        registered.expect("registered");
        let peer = here.open(there.addresses()).await.expect("a peer");
        let remote = peer.segment("kv").await.expect("a segment");
        let mut given_up = 0;
        for pause_us in [0, 50, 200, 800, 3_000] {
            let target = memory(len);
            let mut batch = Batch::new();
            batch.read(target.clone(), &remote, 0).expect("a read");
            let transfer = peer.post(&batch, PostOptions::default()).expect("posted");
            time::sleep(Duration::from_micros(pause_us)).await;
            transfer.cancel();
            if let Err(error) = transfer.await {
                assert_eq!(error.failures[0].cause, Cause::Cancelled);
                given_up += 1;
            }
            target.copy_in(0, &vec![7; len]);
            time::sleep(Duration::from_millis(20)).await;
            assert!(target.to_vec().iter().all(|&byte| byte == 7));
        }
        assert!(given_up > 0, "some are given up in time");
        there_and_back(&here, there.addresses()[0], len - 8, 9).await;
    });
}

#[test]
fn without_a_secret_there_is_nothing_to_seal_with() {
    run(1, || async {
        let options = EngineOptions {
            policy: Policy::LoopbackOnly,
            ..sealing(Encryption::Required)
        };
        let refused = Engine::start(options);
        assert!(matches!(refused, Err(StartError::NoSecret)));
    });
}

/// Moves bytes over somebody on the way. What they saw, and how often bytes were sent again.
fn through(encryption: Encryption, harm: Harm, times: usize) -> (Vec<u8>, u64) {
    let moved = block_on(None, CoreOptions::default(), move || async move {
        let impatient = || {
            Engine::start(EngineOptions {
                stall_timeout: Duration::from_millis(300),
                ..sealing(encryption)
            })
        };
        let (here, there) = (impatient().expect("one"), impatient().expect("another"));
        let registered = there.register(memory(2_100 * KIB), &RegisterOptions::named("kv"));
        registered.expect("registered");
        let between = Between::start(there.addresses()[0], harm, times);
        let resent = there_and_back(&here, between.address, 2_000 * KIB, 1).await;
        assert_eq!(between.left(), 0, "all was done");
        (between.seen(), resent)
    });
    moved.expect("a core")
}

fn shows(seen: &[u8]) -> bool {
    let bytes = pattern(64, 1);
    seen.windows(bytes.len()).any(|window| window == bytes)
}

#[test]
fn who_is_on_the_way_reads_nothing() {
    let (plain, _) = through(Encryption::Optional, Harm::Change, 0);
    assert!(shows(&plain), "authenticated bytes go as they are");
    let (sealed, resent) = through(Encryption::Required, Harm::Change, 0);
    assert!(!shows(&sealed) && sealed.len() > 4_000 * KIB);
    assert_eq!(resent, 0);
}

#[test]
fn what_was_changed_on_its_way_is_sent_again_over_a_new_connection() {
    let (_, resent) = through(Encryption::Required, Harm::Change, 3);
    assert!(resent > 0, "a changed record ends its connection");
}

#[test]
fn a_connection_that_stalls_in_the_middle_of_a_payload_ends_and_another_takes_over() {
    for encryption in [Encryption::Optional, Encryption::Required] {
        for harm in [Harm::HoldBackWrites, Harm::HoldBackReads] {
            let (_, resent) = through(encryption, harm, 2);
            assert!(resent > 0, "{encryption:?}, {harm:?}");
        }
    }
}
