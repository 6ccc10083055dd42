//! Operations that are dropped, timed out and completed in any order, against a model of who owns which
//! buffer: none is written after it was freed, none is leaked, no byte is delivered twice; what arrives
//! for nobody is given back, and no operation is left.
#![forbid(unsafe_code)]

mod accepting;
mod pooling;
mod reading;

use std::cell::{Cell, RefCell};
use std::fs;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use lunette_runtime::arena::{AllocError, Region};
use lunette_runtime::net::{TcpListener, TcpStream};
use lunette_runtime::vectored::Message;
use lunette_runtime::{
    CoreOptions, DriverChoice, JoinHandle, ProbeError, StartError, arena, block_on, core_counts,
    spawn_local, time,
};
use proptest::prelude::*;

use accepting::Accepting;
use pooling::{Pooling, RECEIVERS};
use reading::{BLOCKS, Reading};

const PAIRS: usize = 3;
/// How long anything may take to come back.
const DEADLINE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
enum Step {
    /// Receives into a region of its own.
    Receive { pair: usize, len: usize },
    /// As `Receive`, given up after so many microseconds.
    ReceiveFor { pair: usize, len: usize, us: u64 },
    /// As `Receive`, cancelled after so many microseconds and awaited to its end.
    ReceiveUntil { pair: usize, len: usize, us: u64 },
    /// Sends bytes that the receives of the pair share among them.
    Send { pair: usize, len: usize },
    /// As `Send`, without copies where the driver can, and given up after so many microseconds.
    SendWithoutCopies {
        pair: usize,
        len: usize,
        us: Option<u64>,
    },
    /// Reads blocks of a file, and may be given up after so many microseconds.
    Read {
        first: u8,
        blocks: u8,
        us: Option<u64>,
    },
    /// Waits for a connection, and may give up after so many microseconds.
    Accept { us: Option<u64> },
    /// Connects, and waits for the connection's end.
    Connect,
    /// Closes the listener with whoever waits for it, that many turns after so many have begun to
    /// connect, and opens another one.
    CloseListener { peers: usize, turns: usize },
    /// Sends to a receiver that has a pool.
    PoolSend { which: usize, len: usize },
    /// Receives into the pool, and may be given up after so many microseconds.
    PoolReceive { which: usize, us: Option<u64> },
    /// Drops a receiver that has a pool.
    PoolStop { which: usize },
    /// Gives bytes of the pool back.
    PoolGiveBack { which: usize },
    /// Drops a task with whatever it has in flight.
    Abort { which: usize },
    /// Takes memory and writes it: what was freed too early would be written by the device later.
    Guard { len: usize },
    /// Frees such memory, having looked at it.
    CheckGuard { which: usize },
    /// Lets others run.
    Yield,
    /// Lets the device catch up.
    Sleep { us: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![4 => of_connections(), 2 => of_others(), 3 => of_memory_and_time()]
}

fn of_connections() -> impl Strategy<Value = Step> {
    let (pair, len, us) = (0..PAIRS, 1..20_000_usize, 0..300_u64);
    prop_oneof![
        3 => (pair.clone(), len.clone()).prop_map(|(pair, len)| Step::Receive { pair, len }),
        2 => (pair.clone(), len.clone(), us.clone())
            .prop_map(|(pair, len, us)| Step::ReceiveFor { pair, len, us }),
        2 => (pair.clone(), len.clone(), us.clone())
            .prop_map(|(pair, len, us)| Step::ReceiveUntil { pair, len, us }),
        3 => (pair.clone(), len.clone()).prop_map(|(pair, len)| Step::Send { pair, len }),
        3 => (pair, len, prop::option::of(us))
            .prop_map(|(pair, len, us)| Step::SendWithoutCopies { pair, len, us }),
    ]
}

fn of_others() -> impl Strategy<Value = Step> {
    let (which, len) = (0..RECEIVERS, 1..5_000_usize);
    let us = || prop::option::of(0..300_u64);
    prop_oneof![
        3 => (0..BLOCKS, 1..8_u8, us())
            .prop_map(|(first, blocks, us)| Step::Read { first, blocks, us }),
        2 => us().prop_map(|us| Step::Accept { us }),
        3 => Just(Step::Connect),
        2 => (0..4_usize, 0..4_usize)
            .prop_map(|(peers, turns)| Step::CloseListener { peers, turns }),
        3 => (which.clone(), len).prop_map(|(which, len)| Step::PoolSend { which, len }),
        3 => (which.clone(), us()).prop_map(|(which, us)| Step::PoolReceive { which, us }),
        1 => which.prop_map(|which| Step::PoolStop { which }),
        3 => (0..100_usize).prop_map(|which| Step::PoolGiveBack { which }),
    ]
}

fn of_memory_and_time() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..100_usize).prop_map(|which| Step::Abort { which }),
        3 => (1..20_000_usize).prop_map(|len| Step::Guard { len }),
        2 => (0..100_usize).prop_map(|which| Step::CheckGuard { which }),
        2 => Just(Step::Yield),
        2 => (0..300_u64).prop_map(|us| Step::Sleep { us }),
    ]
}

/// In each byte that is sent, and in none that guards are filled with. The other bits tell sends apart.
const SENT: u8 = 0x80;
const GUARD: u8 = 0x55;

const fn is_sent(byte: u8) -> bool {
    byte & SENT != 0
}

/// What a task has seen that is not to be.
type Faults = Rc<RefCell<Vec<String>>>;

/// The outcome, unless it takes longer than so many microseconds.
async fn given<F: Future>(us: Option<u64>, future: F) -> Option<F::Output> {
    match us {
        Some(us) => {
            let outcome = time::timeout(Duration::from_micros(us), future).await;
            outcome.ok()
        }
        None => Some(future.await),
    }
}

fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0".parse().expect("an address")).expect("a port")
}

/// The two ends of a connection.
async fn connected() -> (TcpStream, TcpStream) {
    let listener = listen();
    let address = listener.local_addr();
    let accepted = spawn_local(async move { listener.accept().await });
    let client = TcpStream::connect(address).await.expect("connected");
    (client, accepted.await.expect("ran").expect("accepted"))
}

/// What there is before a world, and is to be left of it.
#[derive(Clone, Copy, Debug)]
struct Left {
    operations: usize,
    descriptors: usize,
}

impl Left {
    fn now() -> Self {
        let descriptors = fs::read_dir("/proc/self/fd").expect("procfs");
        Self {
            operations: core_counts().operations,
            descriptors: descriptors.count(),
        }
    }

    /// What closes elsewhere, as files do, may have been counted before.
    const fn is_within(self, before: Self) -> bool {
        self.operations == before.operations && self.descriptors <= before.descriptors
    }
}

struct World {
    pairs: Vec<(TcpStream, TcpStream)>,
    accepting: Accepting,
    pooling: Pooling,
    reading: Reading,
    tasks: Vec<JoinHandle<()>>,
    guards: Vec<Region>,
    sends: usize,
    sent: usize,
    received: Rc<Cell<usize>>,
    faults: Faults,
}

impl World {
    async fn open() -> Self {
        let faults = Faults::default();
        let mut pairs = Vec::new();
        for _ in 0..PAIRS {
            pairs.push(connected().await);
        }
        Self {
            pairs,
            accepting: Accepting::open(),
            pooling: Pooling::open(&faults).await,
            reading: Reading::open().await,
            tasks: Vec::new(),
            guards: Vec::new(),
            sends: 0,
            sent: 0,
            received: Rc::default(),
            faults,
        }
    }

    async fn apply(&mut self, step: &Step) {
        match *step {
            Step::Receive { pair, len } => self.receive(pair, len, None, false),
            Step::ReceiveFor { pair, len, us } => self.receive(pair, len, Some(us), false),
            Step::ReceiveUntil { pair, len, us } => self.receive(pair, len, Some(us), true),
            Step::Send { pair, len } => {
                let (stream, byte) = (self.pairs[pair].0.clone(), self.next_byte());
                self.sent += len;
                self.tasks.push(spawn_local(async move {
                    let (sent, _) = stream.send_all(vec![byte; len], 0, len).await;
                    sent.expect("the peer is there");
                }));
            }
            Step::SendWithoutCopies { pair, len, us } => self.send_without_copies(pair, len, us),
            Step::Read { first, blocks, us } => {
                let read = self.reading.read(first, blocks, us, &self.faults);
                self.tasks.extend(read);
            }
            Step::Accept { us } => self.accepting.accept(us),
            Step::Connect => self.accepting.connect(),
            Step::CloseListener { peers, turns } => {
                for _ in 0..peers {
                    self.accepting.connect();
                }
                for _ in 0..turns {
                    time::yield_now().await;
                }
                self.accepting.close();
            }
            Step::PoolSend { which, len } => {
                let bytes = vec![self.next_byte(); len];
                self.tasks.push(self.pooling.send(which, bytes));
            }
            Step::PoolReceive { which, us } => self.pooling.receive(which, us),
            Step::PoolStop { which } => self.pooling.stop(which),
            Step::PoolGiveBack { which } => self.pooling.give_back(which),
            Step::Abort { which } => {
                if !self.tasks.is_empty() {
                    let index = which % self.tasks.len();
                    self.tasks.swap_remove(index).abort();
                }
            }
            Step::Guard { len } => match arena().alloc(len) {
                Ok(mut region) => {
                    region.as_mut_slice().fill(GUARD);
                    self.guards.push(region.freeze());
                }
                Err(error) => assert!(matches!(error, AllocError::Full { .. }), "{error}"),
            },
            Step::CheckGuard { which } => {
                if !self.guards.is_empty() {
                    let guard = self.guards.swap_remove(which % self.guards.len());
                    check(&guard);
                }
            }
            Step::Yield => time::yield_now().await,
            Step::Sleep { us } => time::sleep(Duration::from_micros(us)).await,
        }
    }

    /// What the next send sends.
    fn next_byte(&mut self) -> u8 {
        self.sends += 1;
        SENT | u8::try_from(self.sends % usize::from(SENT)).expect("less")
    }

    fn send_without_copies(&mut self, pair: usize, len: usize, us: Option<u64>) {
        let mut stream = self.pairs[pair].0.clone();
        stream.set_zero_copy(Some(1));
        let Ok(mut region) = arena().alloc(len) else {
            return;
        };
        region.as_mut_slice().fill(self.next_byte());
        let mut message = Message::new();
        message.payload(region.freeze());
        self.sent += len;
        self.tasks.push(spawn_local(async move {
            if let Some((sent, _)) = given(us, stream.send_message(message)).await {
                sent.expect("the peer is there");
            }
        }));
    }

    fn receive(&mut self, pair: usize, len: usize, us: Option<u64>, awaited: bool) {
        let stream = self.pairs[pair].1.clone();
        let (received, faults) = (Rc::clone(&self.received), Rc::clone(&self.faults));
        let Ok(mut region) = arena().alloc(len) else {
            return;
        };
        region.as_mut_slice().fill(0);
        self.tasks.push(spawn_local(async move {
            let delay = Duration::from_micros(us.unwrap_or(u64::from(u32::MAX)));
            let outcome = if awaited {
                Ok(stream.recv_until(region, 0, len, time::sleep(delay)).await)
            } else {
                time::timeout(delay, stream.recv(region, 0, len)).await
            };
            if let Ok((Ok(count), region)) = outcome {
                received.set(received.get() + count);
                let (got, rest) = region.as_slice().split_at(count);
                if !got.iter().all(|&byte| is_sent(byte)) || rest.iter().any(|&byte| byte != 0) {
                    faults
                        .borrow_mut()
                        .push(format!("{count} of {len} bytes are not as sent"));
                }
            }
        }));
    }

    /// Ends everything; whatever is in use afterwards has been leaked.
    async fn end(mut self, before: Left) {
        for task in self.tasks.drain(..) {
            task.abort();
        }
        self.pairs.clear();
        self.accepting.end().await;
        self.pooling.end().await;
        drop(self.reading);
        let held: usize = self
            .guards
            .iter()
            .map(|guard| guard.len().next_multiple_of(512))
            .sum();
        let deadline = time::now() + DEADLINE;
        while arena().used_bytes() > held || !Left::now().is_within(before) {
            assert!(
                time::now() < deadline,
                "leaked: {} bytes, and {:?} were {before:?}",
                arena().used_bytes() - held,
                Left::now()
            );
            time::sleep(Duration::from_micros(100)).await;
        }
        self.guards.iter().for_each(check);
        assert!(
            self.received.get() <= self.sent,
            "no byte is delivered twice"
        );
        assert_eq!(*self.faults.borrow(), Vec::<String>::new());
    }
}

fn check(guard: &Region) {
    assert!(
        guard.as_slice().iter().all(|&byte| byte == GUARD),
        "written by somebody else"
    );
}

proptest! {
    // What has been leaked is waited for at each step of the search for a smaller case.
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_time: 60_000, ..ProptestConfig::default() })]

    #[test]
    fn buffers_belong_to_one_side_at_a_time(steps in prop::collection::vec(step(), 1..120)) {
        for driver in [DriverChoice::Uring, DriverChoice::Epoll] {
            let steps = steps.clone();
            let options = CoreOptions { driver, ..CoreOptions::default() };
            let ran = block_on(None, options, move || async move {
                // The arena's first chunk has a descriptor, and stays.
                drop(arena().alloc(1));
                let before = Left::now();
                let mut world = World::open().await;
                for step in &steps {
                    world.apply(step).await;
                }
                world.end(before).await;
            });
            match ran {
                Ok(()) | Err(StartError::Driver(ProbeError::Forbidden(_))) => {}
                Err(error) => prop_assert!(false, "{error}"),
            }
        }
    }
}
