//! Receives that are dropped, timed out and completed in any order, against a model of who owns which
//! buffer: none is written after it was freed, none is leaked, no byte is delivered twice.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use lunette_runtime::arena::{AllocError, Region};
use lunette_runtime::net::{TcpListener, TcpStream};
use lunette_runtime::{
    CoreOptions, DriverChoice, JoinHandle, ProbeError, StartError, arena, block_on, spawn_local,
    time,
};
use proptest::prelude::*;

const PAIRS: usize = 3;

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
    let (pair, len, us) = (0..PAIRS, 1..20_000_usize, 0..300_u64);
    prop_oneof![
        3 => (pair.clone(), len.clone()).prop_map(|(pair, len)| Step::Receive { pair, len }),
        2 => (pair.clone(), len.clone(), us.clone())
            .prop_map(|(pair, len, us)| Step::ReceiveFor { pair, len, us }),
        2 => (pair.clone(), len.clone(), us.clone())
            .prop_map(|(pair, len, us)| Step::ReceiveUntil { pair, len, us }),
        4 => (pair, len.clone()).prop_map(|(pair, len)| Step::Send { pair, len }),
        3 => (0..100_usize).prop_map(|which| Step::Abort { which }),
        3 => len.prop_map(|len| Step::Guard { len }),
        2 => (0..100_usize).prop_map(|which| Step::CheckGuard { which }),
        2 => Just(Step::Yield),
        2 => us.prop_map(|us| Step::Sleep { us }),
    ]
}

/// What the device writes, and what guards are filled with.
const SENT: u8 = 0xaa;
const GUARD: u8 = 0x55;

struct World {
    pairs: Vec<(TcpStream, TcpStream)>,
    tasks: Vec<JoinHandle<()>>,
    guards: Vec<Region>,
    sent: usize,
    received: Rc<Cell<usize>>,
    faults: Rc<RefCell<Vec<String>>>,
}

impl World {
    async fn open() -> Self {
        let mut pairs = Vec::new();
        for _ in 0..PAIRS {
            let address = "127.0.0.1:0".parse().expect("an address");
            let listener = TcpListener::bind(address).expect("a port");
            let address = listener.local_addr();
            let accepted = spawn_local(async move { listener.accept().await });
            let client = TcpStream::connect(address).await.expect("connected");
            pairs.push((client, accepted.await.expect("ran").expect("accepted")));
        }
        Self {
            pairs,
            tasks: Vec::new(),
            guards: Vec::new(),
            sent: 0,
            received: Rc::default(),
            faults: Rc::default(),
        }
    }

    async fn apply(&mut self, step: &Step) {
        match *step {
            Step::Receive { pair, len } => self.receive(pair, len, None, false),
            Step::ReceiveFor { pair, len, us } => self.receive(pair, len, Some(us), false),
            Step::ReceiveUntil { pair, len, us } => self.receive(pair, len, Some(us), true),
            Step::Send { pair, len } => {
                let stream = self.pairs[pair].0.clone();
                self.sent += len;
                self.tasks.push(spawn_local(async move {
                    let (sent, _) = stream.send_all(vec![SENT; len], 0, len).await;
                    sent.expect("the peer is there");
                }));
            }
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
                if got.iter().any(|&byte| byte != SENT) || rest.iter().any(|&byte| byte != 0) {
                    faults
                        .borrow_mut()
                        .push(format!("{count} of {len} bytes are not as sent"));
                }
            }
        }));
    }

    /// Ends everything; whatever is in use afterwards has been leaked.
    async fn end(mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
        }
        self.pairs.clear();
        let guards = std::mem::take(&mut self.guards);
        let held: usize = guards
            .iter()
            .map(|guard| guard.len().next_multiple_of(512))
            .sum();
        let deadline = time::now() + Duration::from_secs(10);
        while arena().used_bytes() > held {
            assert!(
                time::now() < deadline,
                "{} bytes are leaked",
                arena().used_bytes() - held
            );
            time::sleep(Duration::from_micros(100)).await;
        }
        guards.iter().for_each(check);
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
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn buffers_belong_to_one_side_at_a_time(steps in prop::collection::vec(step(), 1..120)) {
        for driver in [DriverChoice::Uring, DriverChoice::Epoll] {
            let steps = steps.clone();
            let options = CoreOptions { driver, ..CoreOptions::default() };
            let ran = block_on(None, options, move || async move {
                let mut world = World::open().await;
                for step in &steps {
                    world.apply(step).await;
                }
                world.end().await;
            });
            match ran {
                Ok(()) | Err(StartError::Driver(ProbeError::Forbidden(_))) => {}
                Err(error) => prop_assert!(false, "{error}"),
            }
        }
    }
}
