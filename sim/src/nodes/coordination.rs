//! A coordinator on a drive, and members that ask it, beside the store.
//!
//! Each member is in the cluster's map, and keeps an account: it counts up in keys of the coordinator
//! and reads them, and reports every answer to the oracle. Who operates the coordinator starts it again
//! when it has failed, and takes a new file where the old one is refused.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use lunette_auth::Secrets;
use lunette_cluster::proto::coordination::{
    Ask, CoordinationFault, KeyRange, KeyValue, Op, OpOutcome, Outcome, Revision,
};
use lunette_cluster::proto::map::MapMember;
use lunette_cluster::proto::member::MemberOptions;
use lunette_cluster::{Client, ClientOptions, Hosted, Membership, OpenError, Security, serve};
use lunette_generate::coordination::{KEYS, Step};
use lunette_runtime::net::TcpListener;
use lunette_runtime::sim::Log;
use lunette_runtime::{spawn_local, time};
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::random::SplitMix64;

use super::oracle::Oracle;
use super::plan::Plan;

/// Where the coordinator listens.
const PORT: u16 = 2379;
/// Length of the lease of a member: what is lost shows soon.
const TTL_S: u32 = 1;
/// How long members wait for each other when all leases have expired.
const REJOIN_WAIT: Duration = Duration::from_secs(1);
/// Deadline of a question.
const TIMEOUT: Duration = Duration::from_millis(500);
/// How often a member says which map it knows.
const LOOK: Duration = Duration::from_millis(100);
/// Digits that each value begins with.
const DIGITS: usize = 10;

/// What the coordinator's operator knows.
#[derive(Debug, Default)]
pub(crate) struct Operator {
    /// It is to be started again.
    pub(crate) is_needed: Cell<bool>,
    /// How many files were refused, and given up.
    pub(crate) refused: Cell<u32>,
}

/// What the processes of the coordination share.
#[derive(Clone)]
pub(crate) struct Coordination {
    pub(crate) host: IpAddr,
    pub(crate) plan: Rc<Plan>,
    pub(crate) oracle: Rc<RefCell<Oracle>>,
    pub(crate) operator: Rc<Operator>,
    pub(crate) log: Log,
}

impl Coordination {
    fn security(&self, draw: SplitMix64) -> Option<Security> {
        let draw = RefCell::new(draw);
        self.plan.is_sealed.then(|| Security {
            secrets: Secrets::parse(&[b's'; 32]).expect("it is long enough"),
            entropy: Rc::new(move || {
                let mut bytes = [0; 32];
                for piece in bytes.chunks_exact_mut(8) {
                    piece.copy_from_slice(&draw.borrow_mut().next().to_le_bytes());
                }
                bytes
            }),
        })
    }

    /// The life of a coordinator.
    pub(crate) async fn coordinate(self, random: SplitMix64) {
        let file = PathBuf::from(format!("coordinator.{}", self.operator.refused.get()));
        let opened = Hosted::open(&file).await;
        let has_lied = self.log.fault_counts().lies() > 0;
        let hosted = match opened {
            Ok(hosted) => hosted,
            Err(error) => return self.on_refused(&error, has_lied),
        };
        self.log.note("the coordinator has started");
        self.oracle.borrow_mut().ledger.on_start(has_lied);
        let listener = TcpListener::bind(SocketAddr::new(self.host, PORT));
        let listener = listener.expect("the port is free");
        serve(listener, hosted, self.security(random), pending()).await;
    }

    /// It does not start. A file that is damaged is given up, which only a drive that lies explains.
    fn on_refused(&self, error: &OpenError, has_lied: bool) {
        self.log
            .note(&format!("the coordinator is refused: {error}"));
        if error.is_corruption() {
            self.operator.refused.set(self.operator.refused.get() + 1);
            if !has_lied {
                let text = format!("a drive that never lied holds nothing any more: {error}");
                self.oracle.borrow_mut().on_fault(&text, self.log.now());
            }
        }
        self.operator.is_needed.set(true);
    }

    fn client(&self, random: &mut SplitMix64) -> Client {
        Client::new(ClientOptions {
            endpoints: vec![SocketAddr::new(self.host, PORT)],
            security: self.security(SplitMix64::new(random.next())),
            silence_max: Duration::from_secs(1),
        })
    }

    /// The life of a member.
    pub(crate) async fn live(self, own: IpAddr, id: u64, mut random: SplitMix64) {
        let options = MemberOptions {
            cluster: "world".into(),
            prefix: "world".into(),
            member: MapMember::new(NodeId(id), random.next() | 1, SocketAddr::new(own, 7000)),
            versions: (1, 1),
            former: Vec::new(),
            lease_ttl_s: TTL_S,
            rejoin_wait: REJOIN_WAIT,
            seed: random.next(),
        };
        let incarnation = options.member.incarnation;
        let membership = Membership::start(self.client(&mut random), options);
        let membership = membership.expect("there is room");
        drop(spawn_local(self.clone().account(random)));
        loop {
            if let Some(map) = membership.map() {
                let judged = self.oracle.borrow_mut().ledger.on_map(incarnation, &map);
                self.judge(judged);
            }
            time::sleep(LOOK).await;
        }
    }

    /// Counts up and reads, for ever.
    async fn account(self, mut random: SplitMix64) {
        let client = self.client(&mut random);
        let pause_ms = u32::try_from(self.plan.account_pause.as_millis()).expect("short") * 2;
        loop {
            time::sleep(Duration::from_millis(random.below(pause_ms).into())).await;
            let step = Step::draw_ask(&mut random);
            let done = self.take(step, &client, &mut random).await;
            if let Err(CoordinationFault::Unavailable { .. }) = done {
                self.operator.is_needed.set(true);
            }
        }
    }

    /// Asks what a step asks. What its puts say is the account's, and they outlive every lease.
    async fn take(
        &self,
        step: Step,
        client: &Client,
        random: &mut SplitMix64,
    ) -> Result<(), CoordinationFault> {
        match step {
            Step::Put { key, .. } => self.put(client, key, random).await,
            Step::Swap { keys, is_right, .. } => self.swap(client, keys, is_right, random).await,
            Step::Read(key) | Step::Delete { from: key, .. } => self.get(client, key).await,
            Step::Grant(_) | Step::KeepAlive(_) | Step::Revoke(_) => {
                let ask = step.ask(name, |_| Vec::new(), TTL_S, Revision(0));
                let answer = client.ask(&ask.expect("it asks"), TIMEOUT).await;
                self.log.note(&format!("account: {step:?}: {answer:?}"));
                match answer {
                    // The other member has it, or ended it.
                    Err(CoordinationFault::LeaseExists | CoordinationFault::LeaseNotFound) => {
                        Ok(())
                    }
                    answer => answer.map(drop),
                }
            }
            Step::Pass { .. } | Step::Compact | Step::Restart => Ok(()),
        }
    }

    fn judge(&self, judged: Result<(), String>) {
        if let Err(text) = judged {
            self.oracle.borrow_mut().on_fault(&text, self.log.now());
        }
    }

    /// The value of a put, which its number begins.
    fn value(&self, number: u64, random: &mut SplitMix64) -> Vec<u8> {
        let len = DIGITS + random.below(1 + self.plan.account_bytes_max) as usize;
        let mut value = format!("{number:0DIGITS$}").into_bytes();
        value.resize(len, b'.');
        value
    }

    async fn put(
        &self,
        client: &Client,
        key: u8,
        random: &mut SplitMix64,
    ) -> Result<(), CoordinationFault> {
        let asked = self.oracle.borrow().ledger.on_ask(key);
        let number = self.oracle.borrow_mut().ledger.next_put();
        let value = self.value(number, random);
        let put = Ask::Op(Op::Put {
            key: name(key),
            value,
            lease: None,
        });
        let answer = client.ask(&put, TIMEOUT).await;
        self.log
            .note(&format!("account {key}: put {number}: {answer:?}"));
        let revision = answer?.revision.0;
        let judged = (self.oracle.borrow_mut().ledger).on_put(key, number, asked, revision);
        self.judge(judged);
        Ok(())
    }

    /// Sets two keys, if the first is as it was last known, or else expects to be refused.
    async fn swap(
        &self,
        client: &Client,
        (first, second): (u8, u8),
        is_right: bool,
        random: &mut SplitMix64,
    ) -> Result<(), CoordinationFault> {
        let asked = [first, second].map(|key| self.oracle.borrow().ledger.on_ask(key));
        let number = self.oracle.borrow_mut().ledger.next_put();
        let (value, step) = (
            self.value(number, random),
            Step::Swap {
                keys: (first, second),
                value: 0,
                is_right,
            },
        );
        let known = asked[0].known_revision();
        let ask = step.ask(name, |_| value.clone(), TTL_S, Revision(known));
        let answer = client.ask(&ask.expect("it asks"), TIMEOUT).await;
        self.log.note(&format!(
            "account {first}, {second}: swap {number}: {answer:?}"
        ));
        let answer = match answer {
            // One key is not set twice in a transaction.
            Err(CoordinationFault::Refused { .. }) if first == second => return Ok(()),
            answer => answer?,
        };
        if let Outcome::Txn {
            succeeded: true, ..
        } = answer.outcome
        {
            let mut oracle = self.oracle.borrow_mut();
            let judged = [(first, asked[0]), (second, asked[1])]
                .map(|(key, asked)| oracle.ledger.on_put(key, number, asked, answer.revision.0));
            drop(oracle);
            judged.into_iter().for_each(|judged| self.judge(judged));
        }
        Ok(())
    }

    async fn get(&self, client: &Client, key: u8) -> Result<(), CoordinationFault> {
        let asked = self.oracle.borrow().ledger.on_ask(key);
        let get = Ask::Op(Op::Range(KeyRange::one(name(key))));
        let answer = client.ask(&get, TIMEOUT).await?;
        let Outcome::Op(OpOutcome::Range(pairs)) = answer.outcome else {
            unreachable!("a range was asked, and the client checks answers");
        };
        let found = pairs.first().map(|pair| (pair.modified.0, number_of(pair)));
        let revision = answer.revision.0;
        self.log
            .note(&format!("account {key}: {found:?} at {revision}"));
        let judged = (self.oracle.borrow_mut().ledger).on_get(key, found, asked, revision);
        self.judge(judged);
        Ok(())
    }

    /// When all faults are over: a fresh client puts and gets.
    pub(crate) async fn check(self, mut random: SplitMix64) {
        let client = self.client(&mut random);
        for key in 0..KEYS {
            let put = self.put(&client, key, &mut random).await;
            let got = self.get(&client, key).await;
            if let Err(fault) = put.and(got) {
                let text = format!("the coordinator failed although all faults were over: {fault}");
                self.oracle.borrow_mut().on_fault(&text, self.log.now());
            }
        }
    }
}

fn name(key: u8) -> Vec<u8> {
    format!("account/{key}").into_bytes()
}

/// The number that a value begins with; one that was never put if it is none.
fn number_of(pair: &KeyValue) -> u64 {
    let digits = pair.value.get(..DIGITS);
    let text = digits.and_then(|digits| std::str::from_utf8(digits).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(u64::MAX)
}
