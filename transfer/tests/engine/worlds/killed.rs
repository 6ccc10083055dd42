//! Who asks, and who owns the memory, killed at every step of a transfer: its peer is told by a typed error
//! what became of its bytes, what others move goes on, and nothing is kept for who is gone.
//!
//! A step is whatever happens next in the world: a turn of a core, an arrival, the end of an operation. The
//! transfer begins with the connection, so its handshakes have their steps too. Bytes go by streams, or by adapters,
//! of which an owner does not know what they write.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use lunette_runtime::arena::Exposed;
use lunette_runtime::sim::{Kill, Outcome, ProcessId, World, WorldOptions};
use lunette_runtime::{CoreOptions, time};
use lunette_transfer::engine::{
    Batch, Cause, Done, Effect, Engine, EngineOptions, OpenError, PostOptions, RailOptions,
    RegisterOptions, SchedulerOptions, SegmentId, TransferError,
};
use lunette_verbs::Context;
use lunette_verbs::sim::{Fabric, Speed};

use super::rails::{HERE, RAILS, addresses, finish};
use crate::scene::{full_of, guarded, memory};

/// More than a connection holds, so that writes can be torn.
const LEN: usize = 400_000;
const WRITTEN: u8 = 1;
const STORED: u8 = 2;
const UNREAD: u8 = 0xEE;
const NOTE: &[u8] = b"after all bytes";
const OTHERS: usize = 4096;
const OTHER_OWNER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 2));
const BYSTANDER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 3, 1));
/// Longer than an owner keeps a connection on which nobody answers (`EngineOptions::stall_timeout`).
const FORGOTTEN: Duration = Duration::from_secs(7);
/// Longer than any transfer here lasts, or its settling.
const OVER_SECONDS: u64 = 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Owner,
    Asker,
}

/// How bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Streams,
    Adapters,
}

/// As slow as the streams, so that there are steps between the first byte and the last one.
const SPEED: Speed = Speed {
    bytes_per_second: 50_000_000,
    latency: Duration::from_micros(100),
};
/// The adapters of a fabric.
const OF_OWNER: usize = 0;
const OF_ASKER: usize = 1;

/// The adapter of a process, if it has one.
type Adapter = Option<(Fabric, usize)>;

fn contexts(adapter: &Adapter) -> Vec<Context> {
    let open = |(fabric, index): &(Fabric, usize)| Context::simulated(fabric, *index);
    let opened = adapter.iter().map(open);
    opened.map(|opened| opened.expect("it was added")).collect()
}

/// What an owner has, as seen from outside of its process.
#[derive(Clone)]
struct Owned {
    engine: Engine,
    id: SegmentId,
    /// The first half is written to, the second one read.
    memory: Exposed,
    notes: Rc<RefCell<Vec<Vec<u8>>>>,
}

/// How the transfer ended.
enum Ended {
    Opening(OpenError),
    Posted(Result<Done, TransferError>),
}

/// A transfer from `asker` to `owner`, beside which others go on that have nothing to do with the victim.
struct Scene {
    world: World,
    fabric: Option<Fabric>,
    owner: ProcessId,
    asker: ProcessId,
    owned: Owned,
    /// Where what is read goes.
    target: Exposed,
    ended: Outcome<Ended>,
    /// How often the others have moved something.
    others: Rc<Cell<u32>>,
}

impl Scene {
    fn new(seed: u64, victim: Victim, by: By) -> Self {
        let options = WorldOptions {
            bytes_per_second: 50_000_000,
            losses_per_mille: 0,
            ..WorldOptions::default()
        };
        let mut world = World::new(seed, options);
        let fabric = (by == By::Adapters).then(|| Fabric::new(seed));
        if let Some(fabric) = &fabric {
            for _ in [OF_OWNER, OF_ASKER] {
                fabric.set_speed(fabric.add_device(), SPEED);
            }
        }
        let adapter = |index| fabric.clone().map(|fabric| (fabric, index));
        let owner = world.start(RAILS[0], 1, CoreOptions::default());
        world.add_address(RAILS[0], RAILS[1]);
        let owned = own(&mut world, owner, addresses(), adapter(OF_OWNER));
        let asker = world.start(HERE, 1, CoreOptions::default());
        let engine = started(&mut world, asker, adapter(OF_ASKER));
        let others = Rc::default();
        match victim {
            Victim::Owner => {
                let other_owner = world.start(OTHER_OWNER, 1, CoreOptions::default());
                let to = vec![SocketAddr::from((OTHER_OWNER, 700))];
                own(&mut world, other_owner, to.clone(), None);
                carry_on(&mut world, asker, engine.clone(), to, &others);
            }
            Victim::Asker => {
                let bystander = world.start(BYSTANDER, 1, CoreOptions::default());
                let engine = started(&mut world, bystander, None);
                carry_on(&mut world, bystander, engine, addresses(), &others);
            }
        }
        world.run_for(Duration::from_millis(3));
        assert!(others.get() > 0, "seed {seed}: they have not begun");
        let target = full_of(UNREAD, LEN);
        let ended = ask(&mut world, asker, engine, target.clone());
        Self {
            world,
            fabric,
            owner,
            asker,
            owned,
            target,
            ended,
            others,
        }
    }

    /// Lets so many things happen, at most until the transfer has ended. How many did.
    fn step(&mut self, count: u32) -> u32 {
        let until = self.world.now() + Duration::from_secs(OVER_SECONDS);
        let happened = Cell::new(0);
        let ended = &self.ended;
        self.world.run_until(until, || {
            let is_over = happened.get() == count || ended.is_there();
            happened.set(happened.get() + u32::from(!is_over));
            is_over
        });
        happened.get()
    }
}

/// One that asks for [`LEN`] bytes in one slice: what lies in memory in part is a write that was torn.
fn started(world: &mut World, process: ProcessId, adapter: Adapter) -> Engine {
    let engine = world.spawn(process, 0, move || async move {
        let rail = RailOptions {
            slice_bytes_min: 512 * 1024,
            ..RailOptions::default()
        };
        let scheduler = SchedulerOptions {
            rail,
            ..SchedulerOptions::default()
        };
        let options = EngineOptions {
            scheduler,
            ..guarded()
        };
        Engine::start_with(options, contexts(&adapter)).expect("an engine")
    });
    finish(world, 1, &engine)
}

fn own(world: &mut World, process: ProcessId, listen: Vec<SocketAddr>, adapter: Adapter) -> Owned {
    let owned = world.spawn(process, 0, move || async move {
        let options = EngineOptions {
            listen,
            // Those who ask and those who go on: who comes later needs the place of who is gone.
            connections_max: 2,
            ..guarded()
        };
        let engine = Engine::start_with(options, contexts(&adapter));
        let engine = engine.expect("an engine");
        let register = |memory: &Exposed, name: &str| {
            let registered = engine.register(memory.clone(), &RegisterOptions::named(name));
            registered.expect("registered")
        };
        let memory = memory(2 * LEN);
        memory.copy_in(LEN, &[STORED; LEN]);
        register(&full_of(0, OTHERS), "other");
        Owned {
            id: register(&memory, "kv"),
            engine: engine.clone(),
            memory,
            notes: Rc::default(),
        }
    });
    let owned = finish(world, 1, &owned);
    let (engine, notes) = (owned.engine.clone(), Rc::clone(&owned.notes));
    drop::<Outcome<()>>(world.spawn(process, 0, || async move {
        loop {
            let notification = engine.notified().await;
            notes.borrow_mut().push(notification.bytes);
        }
    }));
    owned
}

/// Writes and reads back without end, first often and then, so that worlds stay small, seldom.
fn carry_on(
    world: &mut World,
    process: ProcessId,
    engine: Engine,
    to: Vec<SocketAddr>,
    rounds: &Rc<Cell<u32>>,
) {
    let rounds = Rc::clone(rounds);
    drop::<Outcome<()>>(world.spawn(process, 0, || async move {
        let peer = engine.open(&to).await.expect("a peer");
        let remote = peer.segment("other").await.expect("a segment");
        let began = time::now();
        for byte in (0..=u8::MAX).cycle() {
            let target = full_of(!byte, OTHERS);
            let (mut write, mut read) = (Batch::new(), Batch::new());
            let written = write.write(full_of(byte, OTHERS), &remote, 0);
            written.expect("a write");
            read.read(target.clone(), &remote, 0).expect("a read");
            for batch in [write, read] {
                let posted = peer.post(&batch, PostOptions::default());
                posted.expect("posted").await.expect("others are unharmed");
            }
            assert_eq!(share(&target, !byte, byte), Share::All);
            rounds.set(rounds.get() + 1);
            let is_early = time::now().since(began) < Duration::from_millis(10);
            time::sleep(Duration::from_micros(if is_early { 300 } else { 200_000 })).await;
        }
    }));
}

/// The transfer: a write, a read, and a notification behind both.
fn ask(world: &mut World, process: ProcessId, engine: Engine, target: Exposed) -> Outcome<Ended> {
    world.spawn(process, 0, move || async move {
        let opened = async {
            let peer = engine.open(&addresses()).await?;
            let remote = peer.segment("kv").await?;
            Ok((peer, remote))
        };
        let (peer, remote) = match opened.await {
            Ok(opened) => opened,
            Err(error) => return Ended::Opening(error),
        };
        let mut batch = Batch::new();
        let written = batch.write(full_of(WRITTEN, LEN), &remote, 0);
        written.expect("a write");
        let read = batch.read(target, &remote, LEN as u64);
        read.expect("a read");
        let options = PostOptions {
            timeout: Duration::from_secs(1),
            notification: Some(NOTE.to_vec()),
            ..PostOptions::default()
        };
        Ended::Posted(peer.post(&batch, options).expect("posted").await)
    })
}

/// How much of some memory is of one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    Nothing,
    Part,
    All,
}

/// How much of `memory`, which was full of `before`, is of `byte` now.
fn share(memory: &Exposed, before: u8, byte: u8) -> Share {
    let found = memory.to_vec();
    if found == vec![byte; found.len()] {
        Share::All
    } else if found == vec![before; found.len()] {
        Share::Nothing
    } else {
        Share::Part
    }
}

/// How much of the first half was written.
fn landed(memory: &Exposed) -> Share {
    share(&memory.slice(0, LEN), 0, WRITTEN)
}

/// Kills the owner, and judges what the asker is told by what there is in both memories.
fn judge_the_asker(mut scene: Scene, how: Kill, at: &str) -> &'static str {
    scene.world.kill(scene.owner, how);
    let ended = finish(&mut scene.world, OVER_SECONDS, &scene.ended);
    let before = scene.others.get();
    let written = landed(&scene.owned.memory);
    let read = share(&scene.target, UNREAD, STORED);
    let reached = match ended {
        Ended::Opening(error) => {
            assert!(error.is_retryable(), "{at}: {error}");
            assert_eq!((written, read), (Share::Nothing, Share::Nothing), "{at}");
            "not opened"
        }
        Ended::Posted(Ok(_)) => {
            assert_eq!((written, read), (Share::All, Share::All), "{at}");
            "done"
        }
        Ended::Posted(Err(error)) => {
            assert!(error.is_retryable(), "{at}: {error}");
            for (request, share) in (0..).zip([written, read]) {
                let mut failures = error.failures.iter();
                let failure = failures.find(|failure| failure.request == Some(request));
                let Some(failure) = failure else {
                    assert_eq!(share, Share::All, "{at}: request {request}: {error}");
                    continue;
                };
                let is_typed =
                    matches!(failure.cause, Cause::Unreachable | Cause::DeadlineExceeded);
                assert!(is_typed, "{at}: {error}");
                let is_honest = failure.effect != Effect::Untouched || share == Share::Nothing;
                assert!(is_honest, "{at}: request {request}: {failure:?}");
            }
            "failed"
        }
    };
    // What has failed does not land any more.
    scene.target.copy_in(0, &[UNREAD; LEN]);
    scene.world.run_for(Duration::from_secs(1));
    let late = share(&scene.target, UNREAD, STORED);
    assert_eq!(late, Share::Nothing, "{at}: late");
    assert!(scene.others.get() > before, "{at}: the others stand still");
    reached
}

/// Kills the asker, and judges what the owner keeps of it, and for it.
fn judge_the_owner(mut scene: Scene, how: Kill, at: &str) -> &'static str {
    scene.world.kill(scene.asker, how);
    let before = scene.others.get();
    scene.world.run_for(FORGOTTEN);
    assert!(scene.others.get() > before, "{at}: the others stand still");
    let Owned {
        engine,
        id,
        memory,
        notes,
    } = scene.owned.clone();
    assert_eq!(engine.accepted_sessions(), 1, "{at}: the bystander's");
    assert_eq!(
        engine.accepted_queue_pairs(),
        0,
        "{at}: the bystander has none"
    );
    let written = landed(&memory);
    let is_torn = written == Share::Part;
    let is_known = scene.fabric.is_none();
    let known_torn = engine.statistics().torn > 0;
    assert_eq!(known_torn, is_torn && is_known, "{at}: {written:?}");
    let is_told = notes.borrow().as_slice() == [NOTE];
    assert!(is_told || notes.borrow().is_empty(), "{at}");
    assert!(!is_told || written == Share::All, "{at}: {written:?}");
    let reached = match (is_told, is_torn) {
        (true, _) => "told",
        (_, true) => "torn",
        _ if written == Share::All => "written",
        _ => "untouched",
    };
    // Another one comes in its place, and has what the first one asked for.
    let asker = scene.world.start(HERE, 1, CoreOptions::default());
    let adapter = scene.fabric.clone().map(|fabric| (fabric, OF_ASKER));
    let another = started(&mut scene.world, asker, adapter);
    let target = full_of(UNREAD, LEN);
    let ended = ask(&mut scene.world, asker, another, target.clone());
    match finish(&mut scene.world, OVER_SECONDS, &ended) {
        Ended::Posted(Ok(_)) => {}
        Ended::Posted(Err(error)) => unreachable!("{at}: {error}"),
        Ended::Opening(error) => unreachable!("{at}: {error}"),
    }
    assert_eq!(landed(&memory), Share::All, "{at}");
    assert_eq!(share(&target, UNREAD, STORED), Share::All, "{at}");
    let given_back = scene.world.spawn(scene.owner, 0, move || async move {
        engine.unregister(id).await.is_some()
    });
    assert!(finish(&mut scene.world, 1, &given_back), "{at}");
    memory.copy_in(0, &[UNREAD; 2 * LEN]);
    scene.world.run_for(Duration::from_secs(1));
    let late = share(&memory, UNREAD, WRITTEN);
    assert_eq!(late, Share::Nothing, "{at}: late");
    reached
}

/// Kills at each step in turn, and says how often what was reached.
fn sweep(seed: u64, victim: Victim, by: By, how: Kill) -> Vec<(&'static str, u32)> {
    let steps = Scene::new(seed, victim, by).step(u32::MAX);
    let mut all: Vec<(&'static str, u32)> = Vec::new();
    for step in 0..=steps {
        let at = format!("seed {seed}, {by:?}, {victim:?} by {how:?} at step {step} of {steps}");
        let mut scene = Scene::new(seed, victim, by);
        assert_eq!(scene.step(step), step, "{at}");
        let reached = match victim {
            Victim::Owner => judge_the_asker(scene, how, &at),
            Victim::Asker => judge_the_owner(scene, how, &at),
        };
        match all.iter_mut().find(|(known, _)| *known == reached) {
            Some((_, times)) => *times += 1,
            None => all.push((reached, 1)),
        }
    }
    println!("seed {seed}, {by:?}, {victim:?} by {how:?}, {steps} steps: {all:?}");
    all
}

fn assert_all(reached: &[(&str, u32)], wanted: &[&str]) {
    for wanted in wanted {
        let is_reached = reached.iter().any(|(found, _)| found == wanted);
        assert!(is_reached, "no step at which it is {wanted}: {reached:?}");
    }
}

#[test]
fn an_owner_that_is_killed_at_any_step_leaves_an_honest_answer() {
    for (seed, how) in [(1, Kill::Crash), (2, Kill::PowerLoss)] {
        let reached = sweep(seed, Victim::Owner, By::Streams, how);
        assert_all(&reached, &["not opened", "failed", "done"]);
    }
}

#[test]
fn an_asker_that_is_killed_at_any_step_leaves_nothing_behind() {
    for (seed, how) in [(1, Kill::Crash), (2, Kill::PowerLoss)] {
        let reached = sweep(seed, Victim::Asker, By::Streams, how);
        assert_all(&reached, &["untouched", "torn", "written", "told"]);
    }
}

#[test]
fn an_owner_that_is_killed_at_any_step_leaves_an_honest_answer_by_adapters() {
    for (seed, how) in [(1, Kill::Crash), (2, Kill::PowerLoss)] {
        let reached = sweep(seed, Victim::Owner, By::Adapters, how);
        assert_all(&reached, &["not opened", "failed", "done"]);
    }
}

#[test]
fn an_asker_that_is_killed_at_any_step_leaves_nothing_behind_by_adapters() {
    for (seed, how) in [(1, Kill::Crash), (2, Kill::PowerLoss)] {
        let reached = sweep(seed, Victim::Asker, By::Adapters, how);
        assert_all(&reached, &["untouched", "torn", "written", "told"]);
    }
}
