//! `lunette replay`: a trace against a cluster.
//!
//! | module | subject |
//! |---|---|
//! | `source` | where requests come from |
//! | `driver` | one request after the other: look up, get, put, verify |
//! | `tally` | what is counted and timed |
//! | `report` | what is said about it at the end |

mod driver;
mod report;
mod source;
mod tally;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use indicatif::{ProgressBar, ProgressStyle};
use lunette::kvstore::extent_bytes;
use lunette::runtime::{CoreOptions, block_on, topology};
use lunette::trace::block;
use lunette_runtime_core::limits::PAYLOAD_BYTES_MAX;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::address::NodeAddress;
use super::arguments::ReplayArguments;
use super::cluster::{ClusterPlan, ClusterProcesses};
use super::failure::Failure;
use super::output;
use driver::DriverOptions;
use report::Report;
use source::Source;
pub(super) use source::read_trace;
use tally::Tally;

pub(super) fn replay(arguments: &ReplayArguments, as_json: bool) -> Result<(), Failure> {
    let block_bytes = block_len(arguments)?;
    let interrupted = on_interrupt().map_err(|error| Failure::file("signals", error))?;
    let source = Source::open(arguments)?;
    if arguments.trace.is_none() {
        eprintln!(
            "lunette: no --trace: replaying a generated workload, seed {}",
            arguments.seed
        );
    }
    let name = source.name().to_owned();
    // Before this thread is pinned: children would inherit that.
    let cpus = assign_cpus(arguments);
    let cluster = if arguments.connect.is_empty() {
        let plan = plan(arguments, block_bytes, &cpus);
        Some(ClusterProcesses::start(&plan, &interrupted)?)
    } else {
        None
    };
    let nodes = match &cluster {
        Some(cluster) => cluster.addresses().to_vec(),
        None => resolve(&arguments.connect)?,
    };
    let node_count = nodes.len();
    let tally = drive(arguments, block_bytes, &cpus, source, nodes, interrupted)?;
    drop(cluster);
    let report = Report {
        trace: name,
        nodes: node_count,
        capacity_blocks: arguments
            .connect
            .is_empty()
            .then_some(arguments.capacity_blocks),
        block_bytes,
        tally,
    };
    if as_json {
        output::line(&report.object().to_string())?;
    } else {
        output::line(&report.table())?;
    }
    match report.tally.verify_errors {
        0 => Ok(()),
        errors => Err(Failure::Verify(errors)),
    }
}

fn drive(
    arguments: &ReplayArguments,
    block_bytes: usize,
    cpus: &Cpus,
    source: Source,
    nodes: Vec<SocketAddr>,
    interrupted: Arc<AtomicBool>,
) -> Result<Tally, Failure> {
    let progress = progress(arguments);
    let options = DriverOptions {
        block_bytes,
        progress: progress.clone(),
        interrupted,
    };
    let core = CoreOptions {
        idle: arguments.idle.policy(),
        arena: driver::arena_options(block_bytes),
        ..CoreOptions::default()
    };
    let driven = block_on(cpus.client, core, move || {
        driver::drive(nodes, source, options)
    });
    // Whatever came of it, what is said next begins on a line of its own.
    progress.finish_and_clear();
    driven?
}

fn block_len(arguments: &ReplayArguments) -> Result<usize, Failure> {
    usize::try_from(arguments.block_bytes.0)
        .ok()
        .filter(|&len| len <= PAYLOAD_BYTES_MAX)
        .ok_or(Failure::Usage("--block-bytes: a block has at most 64MiB"))
}

/// A flag that SIGINT and SIGTERM raise. A second signal ends the process at once; its nodes then
/// end because their standard input does.
fn on_interrupt() -> io::Result<Arc<AtomicBool>> {
    let raised = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 1, Arc::clone(&raised))?;
        flag::register(signal, Arc::clone(&raised))?;
    }
    Ok(raised)
}

fn resolve(addresses: &[NodeAddress]) -> Result<Vec<SocketAddr>, Failure> {
    addresses.iter().map(NodeAddress::resolve).collect()
}

/// Which CPU is whose.
#[derive(Debug, PartialEq, Eq)]
struct Cpus {
    client: Option<usize>,
    nodes: Vec<Option<usize>>,
}

fn assign_cpus(arguments: &ReplayArguments) -> Cpus {
    let usable: Vec<usize> = topology::cpus().iter().map(|cpu| cpu.os_index).collect();
    let nodes = if arguments.connect.is_empty() {
        usize::from(arguments.nodes)
    } else {
        0
    };
    share_cpus(&usable, arguments.client_core, nodes)
}

/// A CPU for each of `nodes` nodes where there are as many, then one for the client if one is left;
/// else they run where the system likes. A client that was given its CPU keeps it, and shares it
/// with a node only if the nodes need all CPUs.
fn share_cpus(usable: &[usize], client: Option<usize>, nodes: usize) -> Cpus {
    // Without nodes of its own, it cannot know which CPUs the cluster needs.
    if nodes == 0 || usable.len() < nodes {
        let nodes = vec![None; nodes];
        return Cpus { client, nodes };
    }
    let mut free = usable.to_vec();
    free.sort_by_key(|&cpu| Some(cpu) == client);
    let client = match client {
        None if free.len() > nodes => Some(free.remove(0)),
        given => given,
    };
    Cpus {
        client,
        nodes: free.into_iter().take(nodes).map(Some).collect(),
    }
}

fn plan(arguments: &ReplayArguments, block_bytes: usize, cpus: &Cpus) -> ClusterPlan {
    // Keys of all blocks are so short that their objects cost the same.
    let object_bytes = extent_bytes(block::key(u64::MAX).len(), block_bytes);
    let bytes = arguments.capacity_blocks.saturating_mul(object_bytes);
    ClusterPlan {
        cpus: cpus.nodes.clone(),
        node_memory_bytes: bytes.div_ceil(u64::from(arguments.nodes)),
        idle: arguments.idle,
    }
}

fn progress(arguments: &ReplayArguments) -> ProgressBar {
    let bounded = arguments.requests_max();
    let (bar, template) = if bounded == u64::MAX {
        let template = "{spinner} {human_pos} requests, {elapsed}";
        (ProgressBar::new_spinner(), template)
    } else {
        let template = "{wide_bar} {human_pos}/{human_len} requests, {eta} left";
        (ProgressBar::new(bounded), template)
    };
    bar.with_style(ProgressStyle::with_template(template).expect("a good template"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(client: Option<usize>, nodes: &[Option<usize>]) -> Cpus {
        let nodes = nodes.to_vec();
        Cpus { client, nodes }
    }

    #[test]
    fn nodes_come_first_then_the_client() {
        let all = cpus(Some(0), &[Some(1), Some(2)]);
        assert_eq!(share_cpus(&[0, 1, 2], None, 2), all);
        let nodes_only = cpus(None, &[Some(0), Some(1)]);
        assert_eq!(share_cpus(&[0, 1], None, 2), nodes_only);
        assert_eq!(share_cpus(&[0], None, 2), cpus(None, &[None, None]));
    }

    #[test]
    fn a_client_keeps_its_cpu_and_to_itself_if_nodes_can_do_without() {
        let all = cpus(Some(1), &[Some(0), Some(2)]);
        assert_eq!(share_cpus(&[0, 1, 2], Some(1), 2), all);
        let shared = cpus(Some(0), &[Some(1), Some(0)]);
        assert_eq!(share_cpus(&[0, 1], Some(0), 2), shared);
        let unpinned = cpus(Some(1), &[None, None, None]);
        assert_eq!(share_cpus(&[0, 1], Some(1), 3), unpinned);
        assert_eq!(share_cpus(&[0, 1], Some(1), 0), cpus(Some(1), &[]));
        assert_eq!(share_cpus(&[0, 1], None, 0), cpus(None, &[]));
    }

    #[test]
    fn all_keys_cost_the_same() {
        for len in [1, 512, 65_536] {
            let cost = |hash_id| extent_bytes(block::key(hash_id).len(), len);
            assert_eq!(cost(0), cost(u64::MAX));
        }
    }
}
