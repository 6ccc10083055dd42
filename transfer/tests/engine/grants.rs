//! Segments that are reached by capability: by whom, how far, and until when.

use std::future::pending;
use std::ops::Range;
use std::time::Duration;

use lunette_auth::Policy;
use lunette_runtime::arena::Exposed;
use lunette_runtime::sim::{ProcessId, World};
use lunette_runtime::time;
use lunette_transfer::engine::{
    Access, Batch, BatchError, Cause, Effect, Engine, EngineOptions, GRANTS_MAX, GrantError,
    OpenError, Peer, PostOptions, Refusal, RegisterOptions, RemoteSegment, Rights, SegmentId,
    Token, TransferError, Way,
};

use super::on_each_driver::run;
use super::raw::{Raw, WRITTEN};
use super::scene::{KIB, MIB, full_of, guarded, memory, options};
use super::worlds::rails::{HERE, Processes, RAILS, addresses, world};

const WORLDS: u64 = 4;
/// What is granted of [`LEN`] bytes.
const RANGE: Range<u64> = 1000..3000;
const LEN: usize = 4 * KIB;

/// One that listens here and takes a secret.
fn guarded_here() -> EngineOptions {
    EngineOptions {
        listen: options().listen,
        ..guarded()
    }
}

fn engine() -> Engine {
    Engine::start(guarded_here()).expect("an engine")
}

fn by_capability(name: &str) -> RegisterOptions {
    RegisterOptions {
        by_capability: true,
        by_address: true,
        ..RegisterOptions::named(name)
    }
}

async fn post(
    peer: &Peer,
    remote: &RemoteSegment,
    way: Way,
    offset: u64,
    local: Exposed,
) -> Result<(), TransferError> {
    let mut batch = Batch::new();
    match way {
        Way::Read => batch.read(local, remote, offset).expect("a read"),
        Way::Write => batch.write(local, remote, offset).expect("a write"),
    }
    let posted = peer.post(&batch, PostOptions::default()).expect("posted");
    posted.await.map(drop)
}

fn refused(error: &TransferError) -> Refusal {
    match error.failures[0].cause {
        Cause::Refused(refusal) => refusal,
        cause => unreachable!("{cause}"),
    }
}

fn refusal(redeemed: Result<RemoteSegment, OpenError>) -> Refusal {
    match redeemed {
        Err(OpenError::Refused(refusal)) => refusal,
        other => unreachable!("{other:?}"),
    }
}

/// An engine that owns a segment, and one that it is to be granted to.
struct Pair {
    owner: Engine,
    holder: Engine,
    peer: Peer,
    segment: SegmentId,
    memory: Exposed,
}

impl Pair {
    async fn new() -> Self {
        let (owner, holder) = (engine(), engine());
        let memory = full_of(1, LEN);
        let segment = owner.register(memory.clone(), &by_capability("kv"));
        let peer = holder.open(owner.addresses()).await.expect("open");
        Self {
            segment: segment.expect("registered"),
            owner,
            holder,
            peer,
            memory,
        }
    }

    fn grant(&self, rights: Rights) -> Token {
        let granted = self
            .owner
            .grant(self.segment, self.holder.epoch(), rights, RANGE);
        granted.expect("granted")
    }

    async fn read(&self, remote: &RemoteSegment) -> Result<(), TransferError> {
        post(&self.peer, remote, Way::Read, 1000, memory(2000)).await
    }
}

fn open_engine() -> Engine {
    let options = EngineOptions {
        policy: Policy::LoopbackOnly,
        ..guarded_here()
    };
    Engine::start(options).expect("an engine")
}

#[test]
fn what_is_granted_is_reached_and_never_mapped() {
    run(WORLDS, || async {
        let pair = Pair::new().await;
        let remote = pair.peer.redeem(&pair.grant(Rights::READ_WRITE)).await;
        let remote = remote.expect("redeemed");
        assert_eq!((remote.len_bytes(), remote.id()), (3000, pair.segment));
        assert_eq!(remote.access(), Access::ReadWrite);
        assert!(remote.is_granted());
        // Memory that could be lent, were it for a segment that may be mapped.
        let local = full_of(7, 2000);
        let lendable = RegisterOptions::named("source");
        let registered = pair.holder.register(local.clone(), &lendable);
        registered.expect("registered");
        for _ in 0..10 {
            post(&pair.peer, &remote, Way::Write, 1000, local.clone())
                .await
                .expect("written");
            time::sleep(Duration::from_millis(1)).await;
        }
        let target = memory(2000);
        post(&pair.peer, &remote, Way::Read, 1000, target.clone())
            .await
            .expect("read");
        assert_eq!(target.to_vec(), vec![7; 2000]);
        assert_eq!(pair.memory.slice(0, 1000).to_vec(), vec![1; 1000]);
        assert_eq!(pair.memory.slice(3000, 1096).to_vec(), vec![1; 1096]);
        assert_eq!(pair.holder.statistics().same_host_bytes, 0);
        assert_eq!(pair.owner.statistics().served_read_bytes, 2000);
        assert_eq!(pair.owner.statistics().served_written_bytes, 20_000);
    });
}

#[test]
fn nobody_is_told_of_a_segment_that_is_reached_by_capability() {
    run(WORLDS, || async {
        let pair = Pair::new().await;
        assert_eq!(
            refusal(pair.peer.segment("kv").await),
            Refusal::NoCapability
        );
        let start = pair.memory.start() as u64;
        let found = pair.peer.segment_at(start, 10).await;
        assert_eq!(
            refusal(found.map(|(found, _)| found)),
            Refusal::NoCapability
        );
        assert_eq!(pair.owner.find(start, 10), Some((pair.segment, 0)));

        let owner = open_engine();
        let segment = owner.register(full_of(1, LEN), &by_capability("kv"));
        let segment = segment.expect("registered");
        let raw = Raw::new(owner.addresses()[0], 5).await;
        // The same for what it holds and for what it does not: who has no capability learns neither.
        for (way, at) in [(Way::Read, 0), (Way::Write, 0), (Way::Read, 1 << 40)] {
            let reached = raw.reach(way, segment, at, 10).await;
            assert_eq!(reached, Some(Refusal::NoCapability));
        }
        assert_eq!(owner.statistics().refused, 3);
    });
}

#[test]
fn the_owner_keeps_to_rights_and_range_whatever_is_asked() {
    run(WORLDS, || async {
        let owner = open_engine();
        let there = full_of(1, LEN);
        let segment = owner.register(there.clone(), &by_capability("kv"));
        let segment = segment.expect("registered");
        let raw = Raw::new(owner.addresses()[0], 5).await;
        let grant = |rights, range| owner.grant(segment, 5, rights, range).expect("granted");
        let read = grant(Rights::READ, RANGE);
        assert_eq!(raw.redeem(read.as_bytes()).await, None);
        assert_eq!(
            raw.redeem(read.as_bytes()).await,
            None,
            "as often as it likes"
        );
        for (at, len) in [(1000, 2000), (1000, 1), (2999, 1), (3000, 0)] {
            assert_eq!(raw.reach(Way::Read, segment, at, len).await, None);
        }
        for (at, len) in [
            (999, 1),
            (999, 2000),
            (1000, 2001),
            (3000, 1),
            (u64::MAX, 2),
        ] {
            let reached = raw.reach(Way::Read, segment, at, len).await;
            assert_eq!(reached, Some(Refusal::OutOfRange), "{len} at {at}");
        }
        let reached = raw.reach(Way::Write, segment, 1000, 1).await;
        assert_eq!(reached, Some(Refusal::Forbidden));
        assert_eq!(there.to_vec(), vec![1; LEN]);

        let write = grant(Rights::WRITE, 3000..3100);
        assert_eq!(raw.redeem(write.as_bytes()).await, None);
        assert_eq!(raw.reach(Way::Write, segment, 3000, 100).await, None);
        assert_eq!(there.slice(3000, 100).to_vec(), vec![WRITTEN; 100]);
        for (way, at) in [(Way::Read, 3050), (Way::Read, 2999), (Way::Write, 2999)] {
            let reached = raw.reach(way, segment, at, 2).await;
            assert_eq!(reached, Some(Refusal::OutOfRange));
        }
    });
}

#[test]
fn a_holder_is_told_at_once_what_its_capability_does_not_give() {
    run(WORLDS, || async {
        let pair = Pair::new().await;
        let remote = pair.peer.redeem(&pair.grant(Rights::READ)).await;
        let remote = remote.expect("redeemed");
        let mut batch = Batch::new();
        let refused = batch.write(memory(10), &remote, 1000);
        assert_eq!(refused, Err(BatchError::Forbidden));
        let refused = batch.read(memory(10), &remote, 2991);
        assert!(matches!(refused, Err(BatchError::OutOfRange { .. })));
        let below = post(&pair.peer, &remote, Way::Read, 999, memory(10)).await;
        let below = below.expect_err("refused");
        assert_eq!(self::refused(&below), Refusal::OutOfRange);
        assert!(!below.is_retryable());
        pair.read(&remote).await.expect("read");
    });
}

#[test]
fn a_token_is_worth_nothing_to_another_engine_or_with_a_bit_changed() {
    run(1, || async {
        let pair = Pair::new().await;
        let token = pair.grant(Rights::READ);
        let thief = engine();
        let to_owner = thief.open(pair.owner.addresses()).await.expect("open");
        let stolen = to_owner.redeem(&token).await;
        assert_eq!(refusal(stolen), Refusal::BadCapability);
        // Nor at another owner, who has granted nothing or something else.
        let to_thief = pair.holder.open(thief.addresses()).await.expect("open");
        let replayed = to_thief.redeem(&token).await;
        assert_eq!(refusal(replayed), Refusal::BadCapability);
        let other = thief.register(full_of(2, LEN), &by_capability("kv"));
        let other = other.expect("registered");
        let granted = thief.grant(other, pair.holder.epoch(), Rights::READ, RANGE);
        assert_ne!(granted, Ok(token));
        let replayed = to_thief.redeem(&token).await;
        assert_eq!(refusal(replayed), Refusal::BadCapability);

        for bit in 0..8 * token.as_bytes().len() {
            let mut bytes = *token.as_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let forged = pair.peer.redeem(&Token::from_bytes(bytes)).await;
            let refusal = refusal(forged);
            let is_named = matches!(
                refusal,
                Refusal::BadCapability | Refusal::Malformed | Refusal::Stale
            );
            assert!(is_named, "bit {bit}: {refusal}");
        }
        let remote = pair.peer.redeem(&token).await.expect("redeemed");
        pair.read(&remote).await.expect("read");
        let raw_body = [token.as_bytes().as_slice(), &[0]].concat();
        let open = open_engine();
        let raw = Raw::new(open.addresses()[0], 5).await;
        for body in [&raw_body[..], &raw_body[..87], &[]] {
            assert_eq!(raw.redeem(body).await, Some(Refusal::Malformed));
        }
        // Who is no engine has no session.
        let none = Raw::greeting(open.addresses()[0], 5, &[]).await;
        let redeemed = none.redeem(token.as_bytes()).await;
        assert_eq!(redeemed, Some(Refusal::Session));
    });
}

#[test]
fn what_is_revoked_or_unregistered_is_dead_at_once() {
    run(WORLDS, || async {
        let pair = Pair::new().await;
        let (first, second) = (pair.grant(Rights::READ), pair.grant(Rights::WRITE));
        let remote = pair.peer.redeem(&first).await.expect("redeemed");
        pair.read(&remote).await.expect("read");
        assert!(pair.owner.revoke(pair.segment));
        let error = pair.read(&remote).await.expect_err("revoked");
        assert_eq!(refused(&error), Refusal::Revoked);
        for token in [first, second] {
            assert_eq!(refusal(pair.peer.redeem(&token).await), Refusal::Revoked);
        }
        let again = pair.grant(Rights::READ);
        let remote = pair.peer.redeem(&again).await.expect("redeemed");
        pair.read(&remote).await.expect("read");

        assert!(pair.owner.unregister(pair.segment).await.is_some());
        assert!(!pair.owner.revoke(pair.segment));
        let error = pair.read(&remote).await.expect_err("unregistered");
        assert_eq!(refused(&error), Refusal::Stale);
        assert_eq!(refusal(pair.peer.redeem(&again).await), Refusal::Stale);
        // The same memory, in the same place of the table.
        let registered = pair
            .owner
            .register(pair.memory.clone(), &by_capability("kv"));
        assert_eq!(
            registered.expect("registered").index(),
            pair.segment.index()
        );
        assert_eq!(refusal(pair.peer.redeem(&again).await), Refusal::Stale);
        let error = pair.read(&remote).await.expect_err("unregistered");
        assert_eq!(refused(&error), Refusal::Stale);
    });
}

#[test]
fn only_what_can_be_granted_is() {
    run(0, || async {
        let owner = engine();
        let open = owner.register(memory(LEN), &RegisterOptions::named("open"));
        let open = open.expect("registered");
        let read_only = RegisterOptions {
            access: Access::Read,
            ..by_capability("read only")
        };
        let segment = owner.register(memory(LEN), &read_only);
        let segment = segment.expect("registered");
        let grant = |segment, rights, range| owner.grant(segment, 5, rights, range);
        assert_eq!(grant(open, Rights::READ, 0..1), Err(GrantError::Open));
        assert!(!owner.revoke(open));
        for rights in [Rights::WRITE, Rights::READ_WRITE] {
            let refused = grant(segment, rights, 0..1);
            assert_eq!(refused, Err(GrantError::Forbidden(rights)));
        }
        let len = LEN as u64;
        for (start, end) in [(0, len), (len - 1, len)] {
            assert!(grant(segment, Rights::READ, start..end).is_ok());
        }
        let segment_bytes = len;
        for (start, end) in [(0, len + 1), (len, len), (5, 4), (0, 0), (0, u64::MAX)] {
            let refused = grant(segment, Rights::READ, start..end);
            let expected = GrantError::OutOfRange {
                start,
                end,
                segment_bytes,
            };
            assert_eq!(refused, Err(expected));
        }
        drop(owner.unregister(segment).await);
        let refused = grant(segment, Rights::READ, 0..1);
        assert_eq!(refused, Err(GrantError::NoSegment));
    });
}

#[test]
fn a_session_redeems_so_many_and_revoked_ones_make_room() {
    run(1, || async {
        let pair = Pair::new().await;
        let holder = pair.holder.epoch();
        let doomed = pair
            .owner
            .register(full_of(1, LEN), &by_capability("doomed"));
        let doomed = doomed.expect("registered");
        let grant = |segment, start| {
            let granted = pair.owner.grant(segment, holder, Rights::READ, start..4000);
            granted.expect("granted")
        };
        let max = GRANTS_MAX as u64;
        for start in 0..max {
            let segment = if start % 2 == 0 { pair.segment } else { doomed };
            let redeemed = pair.peer.redeem(&grant(segment, start)).await;
            redeemed.expect("redeemed");
        }
        let one_more = grant(pair.segment, max);
        let again = pair.holder.open(pair.owner.addresses()).await;
        let again = again.expect("open");
        // The first peer knows that it has no room, the owner tells the second.
        for peer in [&pair.peer, &again] {
            let full = peer.redeem(&one_more).await.expect_err("full");
            assert!(full.is_retryable(), "{full}");
            assert!(matches!(full, OpenError::Refused(Refusal::Busy)));
        }
        assert!(pair.peer.redeem(&grant(pair.segment, 0)).await.is_ok());
        assert!(pair.owner.revoke(doomed));
        for peer in [&pair.peer, &again] {
            let remote = peer.redeem(&one_more).await.expect("there is room");
            post(peer, &remote, Way::Read, max, memory(10))
                .await
                .expect("read");
        }
    });
}

#[test]
fn an_engine_needs_no_capability_for_its_own() {
    run(WORLDS, || async {
        let owner = engine();
        let segment = owner.register(full_of(4, LEN), &by_capability("kv"));
        let segment = segment.expect("registered");
        let token = owner.grant(segment, owner.epoch(), Rights::READ, RANGE);
        let peer = owner.open(owner.addresses()).await.expect("open");
        assert!(peer.is_self());
        let remote = peer.redeem(&token.expect("granted")).await;
        let remote = remote.expect("redeemed");
        assert!(owner.revoke(segment));
        let target = memory(10);
        post(&peer, &remote, Way::Read, 1000, target.clone())
            .await
            .expect("read");
        assert_eq!(target.to_vec(), vec![4; 10]);
    });
}

/// A world in which an owner, on two addresses, grants all of a segment to the engine of epoch 77, hands
/// the token over in a file of sorts, and revokes after a while.
fn granting(seed: u64, revokes_after: Option<Duration>) -> (World, ProcessId) {
    let (world, Processes { client, .. }) = world(seed, move |engine| async move {
        let segment = engine.register(memory(8 * MIB), &by_capability("kv"));
        let segment = segment.expect("registered");
        let range = 0..8 * MIB as u64;
        let token = engine.grant(segment, 77, Rights::READ_WRITE, range);
        let letter = memory(88);
        letter.copy_in(0, token.expect("granted").as_bytes());
        let registered = engine.register(letter, &RegisterOptions::named("letter"));
        registered.expect("registered");
        match revokes_after {
            None => pending().await,
            Some(after) => time::sleep(after).await,
        }
        assert!(engine.revoke(segment));
        pending::<()>().await;
    });
    (world, client)
}

/// The holder's engine, and what it was granted.
async fn holder() -> (Engine, Peer, RemoteSegment) {
    let options = EngineOptions {
        epoch: Some(77),
        ..guarded()
    };
    let engine = Engine::start(options).expect("an engine");
    let peer = engine.open(&addresses()).await.expect("a peer");
    let letter = peer.segment("letter").await.expect("a segment");
    let read = memory(88);
    post(&peer, &letter, Way::Read, 0, read.clone())
        .await
        .expect("read");
    let bytes = read.to_vec().try_into().expect("as long as a token");
    let remote = peer.redeem(&Token::from_bytes(bytes)).await;
    (engine, peer, remote.expect("redeemed"))
}

#[test]
fn a_capability_holds_over_rails_that_are_reset_and_connected_again() {
    for seed in 0..8 {
        let (mut world, client) = granting(seed, None);
        let outcome = world.spawn(client, 0, || async {
            let (engine, peer, remote) = holder().await;
            let (source, target) = (full_of(3, 8 * MIB), memory(8 * MIB));
            post(&peer, &remote, Way::Write, 0, source)
                .await
                .expect("written");
            post(&peer, &remote, Way::Read, 0, target.clone())
                .await
                .expect("read");
            assert!(target.to_vec().iter().all(|&byte| byte == 3));
            (peer.rails(), engine.statistics())
        });
        let mut resets = 0;
        while !outcome.is_there() && resets < 200 {
            world.run_for(Duration::from_millis(23));
            // Both at once now and then: the owner then forgets what was redeemed.
            for (index, rail) in RAILS.into_iter().enumerate() {
                if resets % 3 == 0 || resets % 2 == index {
                    world.reset_connections(HERE, rail);
                }
            }
            resets += 1;
        }
        let until = world.now() + Duration::from_secs(60);
        assert!(world.run_until(until, || outcome.is_there()), "seed {seed}");
        let (rails, statistics) = outcome.take().expect("it is there");
        assert!(rails.iter().all(|rail| rail.connections > 1), "{rails:?}");
        assert!(statistics.slices_resent > 0, "seed {seed}");
        assert_eq!(statistics.transfers_failed, 0, "seed {seed}");
    }
}

#[test]
fn a_capability_outlives_idle_rails() {
    let (mut world, client) = granting(1, None);
    let outcome = world.spawn(client, 0, || async {
        let (_engine, peer, remote) = holder().await;
        let write = || post(&peer, &remote, Way::Write, 0, full_of(3, MIB));
        write().await.expect("written");
        time::sleep(Duration::from_secs(400)).await;
        let up = peer.rails().iter().filter(|rail| rail.is_up).count();
        (up, write().await)
    });
    let until = world.now() + Duration::from_secs(500);
    assert!(world.run_until(until, || outcome.is_there()));
    let (up, written) = outcome.take().expect("it is there");
    assert_eq!((up, written), (0, Ok(())));
}

#[test]
fn what_is_revoked_in_the_middle_of_a_transfer_says_what_it_left() {
    for seed in 0..8 {
        let (mut world, client) = granting(seed, Some(Duration::from_millis(60)));
        let outcome = world.spawn(client, 0, || async {
            let (_engine, peer, remote) = holder().await;
            let write = post(&peer, &remote, Way::Write, 0, full_of(3, 8 * MIB)).await;
            let later = post(&peer, &remote, Way::Write, 0, full_of(4, MIB)).await;
            (write, later)
        });
        let until = world.now() + Duration::from_secs(60);
        assert!(world.run_until(until, || outcome.is_there()), "seed {seed}");
        let (write, later) = outcome.take().expect("it is there");
        for error in [write, later] {
            let error = error.expect_err("revoked");
            assert_eq!(refused(&error), Refusal::Revoked, "seed {seed}: {error}");
            // What was sent may be anywhere; nothing of it lands any more.
            assert_eq!(error.failures[0].effect, Effect::Partly, "seed {seed}");
            assert!(!error.is_retryable() && !error.is_backpressure());
        }
    }
}
