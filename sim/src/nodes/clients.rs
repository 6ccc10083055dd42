//! The load: operations on the store, each reported to the oracle.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use lunette_generate::store::{Request, Step};
use lunette_kvstore::{Client, ClientOptions, Get, Put, StoreError, Value};
use lunette_runtime::sim::Log;
use lunette_runtime::{arena, spawn_local, time};
use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;
use lunette_transfer::Room;

use super::oracle::{Answer, Oracle, PutOutcome, Span};
use super::plan::{FAULTS_UNTIL, KEYS, Plan};
use super::value::{VALUE_BYTES_MIN, fill, put_of};

/// What an operation may take beyond its deadlines: the turns of its core.
const SLACK: Duration = Duration::from_millis(20);
/// How long a client that reaches nobody waits before it tries again.
const RETRY: Duration = Duration::from_millis(50);

/// The name of a key.
pub(crate) fn name(key: u32) -> Vec<u8> {
    format!("block/{key:08x}").into_bytes()
}

/// What the tasks of one client process share.
#[derive(Clone)]
pub(crate) struct Load {
    /// Which client it is.
    pub(crate) client: usize,
    pub(crate) nodes: Vec<SocketAddr>,
    pub(crate) oracle: Rc<RefCell<Oracle>>,
    pub(crate) log: Log,
    pub(crate) plan: Rc<Plan>,
    /// Until when the process has been disturbed, so that its deadlines say nothing.
    pub(crate) disturbed_until: Rc<Cell<Time>>,
}

impl Load {
    /// Runs the tasks of a process, for ever.
    pub(crate) async fn run(self, mut random: SplitMix64) {
        let tasks = self.plan.tasks;
        let all: Vec<_> = (0..tasks)
            .map(|_| {
                let (load, random) = (self.clone(), SplitMix64::new(random.next()));
                spawn_local(load.work(random))
            })
            .collect();
        for task in all {
            task.await.expect("it works for ever");
        }
    }

    async fn work(self, mut random: SplitMix64) {
        loop {
            let client = self.connect().await;
            loop {
                let pause_us = u32::try_from(self.plan.pause.as_micros()).expect("short") * 2;
                time::sleep(Duration::from_micros(random.below(pause_us).into())).await;
                let reaches = self.operate(&client, &mut random).await;
                // The node may be another one now, on other ports, which a client does not learn by
                // itself. While there are faults it may try on; afterwards it does not fail for that.
                let is_over = self.log.now() >= Time::ZERO + FAULTS_UNTIL;
                if !reaches && (random.below(2) == 0 || is_over) {
                    break;
                }
            }
        }
    }

    pub(crate) async fn connect(&self) -> Client {
        let options = ClientOptions {
            timeout: self.plan.timeout,
            connect_timeout: self.plan.timeout,
            ..ClientOptions::default()
        };
        loop {
            match Client::connect(&self.nodes, options).await {
                Ok(client) => return client,
                Err(_unreachable) => time::sleep(RETRY).await,
            }
        }
    }

    /// One operation. Whether its node was reached.
    async fn operate(&self, client: &Client, random: &mut SplitMix64) -> bool {
        let Step { key, request } = Step::draw(random, KEYS);
        let key = u32::from(key);
        let start = self.log.now();
        // A new connection, then the operation, then the end of what it cancels.
        let limit = self.plan.timeout * 2 + self.plan.cancel_max + SLACK;
        let ends_by = start.max(self.disturbed_until.get()) + limit;
        let number = self.oracle.borrow_mut().on_begin(self.client, ends_by);
        let (what, done) = match request {
            Request::Get => ("a get", self.get(client, key).await),
            Request::Put { .. } => {
                let least = u32::try_from(VALUE_BYTES_MIN).expect("small");
                let len = request.len_between(least, self.plan.value_bytes_max);
                ("a put", self.put(client, key, len).await)
            }
            Request::Exists => ("a look-up", self.exists(client, key).await),
            Request::Remove => ("a removal", self.remove(client, key).await),
        };
        let span = self.since(start);
        let limit = Some(limit).filter(|_| self.disturbed_until.get() < start);
        self.oracle.borrow_mut().on_end(number, what, limit, span);
        match done {
            Ok(()) => true,
            Err(error) => {
                self.oracle.borrow_mut().on_error(&error, span);
                !error.is_unreachable() && error.is_retryable()
            }
        }
    }

    fn since(&self, start: Time) -> Span {
        let end = self.log.now();
        Span { start, end }
    }

    async fn get(&self, client: &Client, key: u32) -> Result<(), StoreError> {
        let start = self.log.now();
        let len = self.plan.value_bytes_max as usize;
        let Ok(region) = arena().alloc(len) else {
            return Ok(());
        };
        let got = client.get(&name(key), Room::of(region, 0..len)).await;
        let answer = match got {
            Ok(Get::Hit {
                room,
                len_bytes,
                version,
            }) => Answer::Hit {
                put: put_of(key, &room.as_slice()[..len_bytes]),
                version,
            },
            Ok(Get::Miss { .. }) => Answer::Miss,
            Err(failure) => return Err(failure.error),
        };
        self.log.note(&format!("get {key}: {answer:?}"));
        let span = self.since(start);
        self.oracle.borrow_mut().on_get(key, answer, span);
        Ok(())
    }

    async fn put(&self, client: &Client, key: u32, len: u32) -> Result<(), StoreError> {
        let Ok(mut region) = arena().alloc(len as usize) else {
            return Ok(());
        };
        let start = self.log.now();
        let number = self.oracle.borrow_mut().on_put(key, start);
        fill(number, key, region.as_mut_slice());
        let done = client.put(&name(key), Value::new(region.freeze())).await;
        let end = match done {
            Ok(Put::Written { version }) => PutOutcome::Written(version),
            Ok(Put::Touched { version }) => PutOutcome::Touched(version),
            Err(_) => PutOutcome::Failed,
        };
        self.log.note(&format!("put {number} of {key}: {end:?}"));
        let span = self.since(start);
        self.oracle.borrow_mut().on_put_end(key, number, end, span);
        done.map(|_| ())
    }

    async fn exists(&self, client: &Client, key: u32) -> Result<(), StoreError> {
        let start = self.log.now();
        let found = client.exists(&[name(key)]).await?;
        let span = self.since(start);
        self.oracle.borrow_mut().on_exists(key, found[0], span);
        Ok(())
    }

    async fn remove(&self, client: &Client, key: u32) -> Result<(), StoreError> {
        let start = self.log.now();
        let number = self.oracle.borrow_mut().on_remove(key, start);
        let done = client.remove(&[name(key)]).await;
        self.log.note(&format!("remove {key}: {done:?}"));
        let now = self.log.now();
        let mut oracle = self.oracle.borrow_mut();
        let found = done.as_ref().ok().map(|found| found[0]);
        oracle.on_remove_end(key, number, found, now);
        done.map(|_| ())
    }

    /// When all faults are over: a fresh client puts and gets at every node.
    pub(crate) async fn check(self, keys: Vec<u32>, mut random: SplitMix64) {
        let least = u32::try_from(VALUE_BYTES_MIN).expect("small");
        let client = self.connect().await;
        for key in keys {
            for is_put in [true, false] {
                let start = self.log.now();
                let done = if is_put {
                    let len = least + random.below(self.plan.value_bytes_max - least);
                    self.put(&client, key, len).await
                } else {
                    self.get(&client, key).await
                };
                if let Err(error) = done {
                    let span = self.since(start);
                    self.oracle.borrow_mut().on_error(&error, span);
                }
            }
        }
    }
}
