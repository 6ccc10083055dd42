//! RDMA adapters of members and clients, on one fabric, and what befalls them.

use std::cell::RefCell;
use std::time::Duration;

use lunette_kvstore::{AdapterGets, NodeCore};
use lunette_runtime::sim::Log;
use lunette_runtime::time;
use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;
use lunette_verbs::Context;
use lunette_verbs::sim::{Fabric, Fault, Speed};

use super::plan::{CLIENTS, FAULTS_UNTIL, LOAD_FROM};

/// Of each member and each client.
const EACH: usize = 2;
/// Adapter faults of a world, but for what ends some of them.
const FAULTS_MAX: u32 = 40;
/// How often a member's core is looked for.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// What befalls an adapter.
#[derive(Clone, Debug)]
pub(super) struct Fails {
    pub(super) at: Time,
    fabric: Fabric,
    device: usize,
    fault: Fault,
}

impl Fails {
    pub(super) fn happen(&self, log: &Log) {
        let Self { device, fault, .. } = self;
        log.note(&format!("adapter {device}: {fault:?}"));
        self.fabric.inject(*device, *fault);
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Adapters {
    fabric: Fabric,
    nodes: usize,
    faults: Vec<Fails>,
    counted: RefCell<AdapterGets>,
}

impl Adapters {
    /// Those of a world of so many members, and what this seed has befall them.
    pub(super) fn of(seed: u64, nodes: u8) -> Self {
        let mut random = SplitMix64::new(seed ^ 0x6661_6272);
        let fabric = Fabric::new(seed);
        let (nodes, clients) = (usize::from(nodes), usize::from(CLIENTS));
        let devices = EACH * (nodes + clients);
        for _ in 0..devices {
            let device = fabric.add_device();
            let speed = Speed {
                bytes_per_second: 12_500_000_000,
                latency: Duration::from_micros(2),
            };
            fabric.set_speed(device, speed);
        }
        let mut faults = Vec::new();
        for _ in 0..random.below(FAULTS_MAX) {
            let device = random.below(u32::try_from(devices).expect("few")) as usize;
            plan(&mut random, &fabric, device, &mut faults);
        }
        faults.sort_by_key(|fails| fails.at);
        Self {
            fabric,
            nodes,
            faults,
            counted: RefCell::default(),
        }
    }

    pub(super) fn faults(&self) -> impl Iterator<Item = Fails> {
        self.faults.iter().cloned()
    }

    pub(super) fn trace_hash(&self) -> u64 {
        self.fabric.trace().1
    }

    fn open(&self, owner: usize) -> Vec<Context> {
        let first = EACH * owner;
        let open = |device| Context::simulated(&self.fabric, device).expect("it was added");
        (first..first + EACH).map(open).collect()
    }

    /// Gives the current core its member's adapters, once that serves there.
    pub(super) async fn equip(&self, node: u8) {
        loop {
            if let Some(core) = NodeCore::here().pop() {
                return core.use_adapters(self.open(node.into()));
            }
            time::sleep(LOOK_PAUSE).await;
        }
    }

    /// The adapters of a client.
    pub(super) fn of_client(&self, client: u8) -> Vec<Context> {
        self.open(self.nodes + usize::from(client))
    }

    /// A client has ended, and has got so much by them.
    pub(super) fn count(&self, gets: AdapterGets) {
        let mut counted = self.counted.borrow_mut();
        counted.written += gets.written;
        counted.read += gets.read;
        counted.read_unasked += gets.read_unasked;
        counted.fallbacks += gets.fallbacks;
    }

    pub(super) fn counted(&self) -> [(&'static str, u64); 4] {
        let counted = self.counted.borrow();
        [
            ("gets_written", counted.written),
            ("gets_read", counted.read),
            ("gets_read_unasked", counted.read_unasked),
            ("gets_asked_again", counted.fallbacks),
        ]
    }
}

/// A fault of an adapter, and its end, if it does not end by itself.
fn plan(random: &mut SplitMix64, fabric: &Fabric, device: usize, faults: &mut Vec<Fails>) {
    let window = FAULTS_UNTIL.since(LOAD_FROM);
    let window_ms = u32::try_from(window.as_millis()).expect("seconds");
    let mut at = |ms: u32, fault| {
        let at = (LOAD_FROM + Duration::from_millis(ms.into())).min(FAULTS_UNTIL);
        faults.push(Fails {
            at,
            fabric: fabric.clone(),
            device,
            fault,
        });
    };
    let (from, lasts) = (random.below(window_ms), 1 + random.below(1000));
    let (begins, ends) = match random.below(9) {
        0 => (Fault::ReceiverNotReady, None),
        1 => (Fault::RetryExceeded, None),
        2 => (Fault::Flush, None),
        3 => (Fault::RemoteAccess, None),
        4 => (Fault::Code(random.below(32)), None),
        5 => (Fault::CompletionOverrun, None),
        6 => {
            let taken = random.below(3);
            (Fault::PartialPost { taken }, None)
        }
        7 => (Fault::LinkDown, Some(Fault::LinkUp)),
        _ => {
            let steps = 2 + random.below(2000);
            (Fault::Slow { steps }, Some(Fault::Slow { steps: 1 }))
        }
    };
    at(from, begins);
    if let Some(ends) = ends {
        at(from + lasts, ends);
    }
}
