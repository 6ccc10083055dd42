//! Members of a cluster: one seed from beginning to end.
//!
//! Three to seven members and their clients, in processes of their own and beside a member's cores; a
//! coordinator, which in some worlds does nothing for a while. Each world has a kill, a partition, and so a change of the
//! map. In worlds with adapters members and clients have two each, of one fabric.

mod adapters;
mod copies;
mod history;
mod ledger;
mod load;
mod plan;
#[cfg(test)]
mod tests;
mod town;

use std::cell::RefCell;
use std::rc::Rc;

use lunette_runtime_core::mutant::Mutant;
use lunette_runtime_core::time::Time;

use self::adapters::Adapters;
pub use self::ledger::Cause;
use self::plan::Plan;
use self::town::Town;
use crate::hearing::Hearing;
use crate::report::Report;

/// Bugs that are to be found here: those of pins and of the choice of nodes for replicas, and those of the home protocol, but for copies that are dropped although they
/// are no surplus. There are seldom too many here; that bug is left to the protocol's own worlds.
pub const MUTANTS: [(&str, Mutant); 12] = [
    ("claim-unchecked", Mutant::ClaimUnchecked),
    ("publish-unclaimed", Mutant::PublishUnclaimed),
    ("retract-unrecorded", Mutant::RetractUnrecorded),
    ("barrier-skipped", Mutant::BarrierSkipped),
    ("tombstone-lost", Mutant::TombstoneLost),
    ("upsert-let-go", Mutant::UpsertLetGo),
    ("fence-ignored", Mutant::FenceIgnored),
    ("hold-ignored", Mutant::HoldIgnored),
    ("hard-pin-ignored", Mutant::HardPinIgnored),
    ("repair-forgotten", Mutant::RepairForgotten),
    ("replica-doubled", Mutant::ReplicaDoubled),
    ("generation-ignored", Mutant::GenerationIgnored),
];

/// Whether a fault is brought about here. Connections are not sealed, so that nothing may be damaged; where members have
/// drives, these fail and do less than they are asked.
#[must_use]
pub fn has_fault(fault: &str) -> bool {
    [
        "short_receives",
        "losses",
        "cuts",
        "held_by_a_cut",
        "resets",
        "refusals",
        "cancels_lost",
        "crashes",
        "power_losses",
        "half_open",
        "pauses",
        "slowed",
        "clock_jumps",
        "io_errors",
        "short_operations",
        "failed_syncs",
    ]
    .contains(&fault)
}

/// Runs the world of a seed, in which everybody may have adapters.
pub(crate) fn run(seed: u64, keeps_log: bool, has_adapters: bool, report: &RefCell<Report>) {
    let _hearing = Hearing::begin();
    let plan = Plan::of(seed);
    let adapters = has_adapters.then(|| Rc::new(Adapters::of(seed, plan.nodes)));
    let mut town = Town::start(seed, plan, adapters, keeps_log);
    town.live();
    let mut report = report.borrow_mut();
    let mut ledger = town.ledger.borrow_mut();
    report.failures = std::mem::take(&mut ledger.failures);
    report.answers = ledger.answers.clone();
    report.answers.extend(&ledger.copies.moves);
    if let Some(adapters) = &town.adapters {
        report.answers.extend(adapters.counted());
    }
    report.misses = ledger.misses.clone();
    report.errors = ledger.errors.clone();
    drop(ledger);
    report.faults = town.world.fault_counts();
    report.trace_hash = town.world.trace_hash() ^ town.adapters_hash();
    report.log = town.world.take_log();
    report.simulated = town.world.now().since(Time::ZERO);
}
