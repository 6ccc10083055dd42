//! Two adapters of a fabric, as most tests want them.

use lunette_verbs::sim::Fabric;
use lunette_verbs::{Context, QueueSizes};

/// A fabric with two adapters, opened.
pub(crate) fn two_adapters(seed: u64) -> (Fabric, Context, Context) {
    let fabric = Fabric::new(seed);
    let open = |index| Context::simulated(&fabric, index).expect("added here");
    let (a, b) = (fabric.add_device(), fabric.add_device());
    let (a, b) = (open(a), open(b));
    (fabric, a, b)
}

/// The usual sizes, with so many requests in flight.
pub(crate) fn sizes(sends: u32) -> QueueSizes {
    QueueSizes {
        sends,
        ..QueueSizes::default()
    }
}
