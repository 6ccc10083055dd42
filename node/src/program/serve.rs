//! `lunette serve`: a node in this process.

use std::env;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use lunette::kvstore::{Node, NodeError, NodeOptions, Prefault};
use lunette::runtime::arena::HugePages;
use lunette::runtime::{ControlHere, NodeId, Placement, StartError};
use lunette_cluster::proto::map::ClusterMap;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use super::arguments::ServeArguments;
use super::failure::Failure;
use super::observe::{Observation, Subject};
use super::size::Size;
use super::{output, stat};

/// Lets nodes listen beyond loopback if it is 1.
const INSECURE: &str = "LUNETTE_INSECURE";

/// How often it is looked whether the node is to end, or has joined.
const LOOK: Duration = Duration::from_millis(20);
/// How long connections may take to end in good order.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn serve(arguments: &ServeArguments, as_json: bool) -> Result<(), Failure> {
    // A node at a port that the system chooses is another one after a restart.
    let is_lasting = arguments.node_id.is_some() || arguments.listen.port() != 0;
    let lasting_id = is_lasting.then(|| id_of(arguments));
    let cluster = arguments.join.options(lasting_id)?;
    let is_guarded = cluster
        .as_ref()
        .is_some_and(|cluster| cluster.secrets.is_some());
    check_listen(arguments.listen, is_guarded)?;
    if let Some(metrics) = arguments.metrics {
        let refused = |_| Failure::MetricsNotLoopback(metrics);
        check_listen(metrics, false).map_err(refused)?;
    }
    // Before anything is started, so that a signal never finds the process unprepared.
    let end = End::on_signals().map_err(|error| Failure::file("signals", error))?;
    let options = NodeOptions {
        cluster,
        tier: arguments.join.tier()?,
        ..node_options(arguments, place(arguments))
    };
    let is_member = options.cluster.is_some();
    let (id, cores) = (options.id, options.placement.cores());
    let node = start(options)?;
    if arguments.until_stdin_ends {
        end_with_stdin(Arc::clone(&end.input));
    }
    let subject = Subject {
        node_id: id.0,
        cores,
    };
    let observing = arguments.metrics;
    let observing = observing.map(|listen| Observation::start(listen, subject, node.watch()));
    let observation = observing.transpose()?;
    let metrics = observation.as_ref().map(Observation::address);
    announce(&node, (subject, metrics), arguments.memory, as_json)?;
    let refused = if is_member {
        be_member(&node, &end, as_json)?
    } else {
        let why = end.wait_unless(|| false);
        tracing::info!(node = id.0, why, "shutting down");
        None
    };
    if !node.drain(DRAIN_TIMEOUT) {
        tracing::warn!("some connections did not end in time");
    }
    let stat = node.stat()?;
    drop(observation);
    node.shut_down()?;
    tracing::info!(node = id.0, "ended");
    if let Some(refusal) = refused {
        return Err(refusal.into());
    }
    if as_json {
        let mut object = stat::object(&stat);
        object["stopped"] = json!(true);
        output::line(&object.to_string())
    } else {
        output::line(&format!("stopped: {}", stat::sentence(&stat)))
    }
}

/// Who listens beyond loopback proves who it is, or was told that it need not.
pub(super) fn check_listen(listen: SocketAddr, is_guarded: bool) -> Result<(), Failure> {
    let insecure = env::var_os(INSECURE).is_some_and(|value| value == "1");
    if listen.ip().is_loopback() || is_guarded || insecure {
        Ok(())
    } else {
        Err(Failure::NotLoopback(listen))
    }
}

/// Says when the node is a member of its cluster, waits for the end, and leaves. Why it cannot be a
/// member, if it was refused.
fn be_member(node: &Node, end: &End, as_json: bool) -> Result<Option<NodeError>, Failure> {
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        scope.spawn(move || {
            let joined = node.joined();
            if tell.send(joined).is_err() {
                tracing::debug!("the node ends before it is a member");
            }
        });
        let mut refused = None;
        let why = end.wait_unless(|| match told.try_recv() {
            Ok(Ok(map)) => {
                if let Err(error) = announce_member(&map, as_json) {
                    // A node does not end because nobody listens to it any more.
                    tracing::warn!(%error, "a member of the cluster");
                }
                false
            }
            // It has left, below.
            Ok(Err(NodeError::NoCluster)) | Err(_) => false,
            Ok(Err(refusal)) => {
                refused = Some(refusal);
                true
            }
        });
        let Some(why) = why else {
            return Ok(refused);
        };
        tracing::info!(why, "leaving the cluster");
        if let Err(error) = node.leave() {
            tracing::warn!(%error, "leaving the cluster");
        }
        Ok(None)
    })
}

fn announce_member(map: &ClusterMap, as_json: bool) -> Result<(), Failure> {
    let (epoch, members) = (map.epoch().0, map.members().len());
    if as_json {
        let joined = json!({ "joined": true, "epoch": epoch, "members": members });
        return output::line(&joined.to_string());
    }
    output::line(&format!(
        "member of the cluster: epoch {epoch}, {members} members"
    ))
}

fn node_options(arguments: &ServeArguments, placement: Placement) -> NodeOptions {
    let id = NodeId(id_of(arguments));
    let huge_pages = if arguments.huge_pages {
        HugePages::Prefer
    } else {
        HugePages::Transparent
    };
    NodeOptions {
        weight: arguments.weight,
        placement,
        idle: arguments.idle.policy(),
        huge_pages,
        lock_memory: arguments.lock_memory,
        prefault: if arguments.prefault {
            Prefault::All
        } else {
            Prefault::default()
        },
        one_sided: !arguments.join.no_one_sided,
        rdma: arguments.join.rdma(),
        ..NodeOptions::new(id, arguments.listen, arguments.memory.0)
    }
}

/// Where the node's cores are to run.
fn place(arguments: &ServeArguments) -> Placement {
    if arguments.cores.is_empty() {
        Placement::Claimed(usize::from(arguments.core_count))
    } else {
        Placement::Pinned(arguments.cores.clone())
    }
}

/// Starts the node: on CPUs of its own, or where there are too few of them wherever the system runs
/// it, and says so.
fn start(mut options: NodeOptions) -> Result<Node, NodeError> {
    match Node::start(options.clone()) {
        Err(NodeError::Start(StartError::TooFewCpus(why))) => {
            tracing::warn!(%why, "cores are not pinned");
            options.placement = Placement::Anywhere(options.placement.cores());
            Node::start(options)
        }
        other => other,
    }
}

fn id_of(arguments: &ServeArguments) -> u64 {
    let given = arguments.node_id;
    given.unwrap_or_else(|| default_id(arguments.listen))
}

/// An identity that nodes of one cluster do not share: the address, which is stable, or the process
/// where the system chooses the port.
fn default_id(listen: SocketAddr) -> u64 {
    if listen.port() == 0 {
        return u64::from(process::id());
    }
    let host = match listen.ip() {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => {
            let [high @ .., l0, l1, l2, l3, l4, l5, l6, l7] = ip.octets();
            u64::from_be_bytes(high) ^ u64::from_be_bytes([l0, l1, l2, l3, l4, l5, l6, l7])
        }
    };
    host << 16 ^ u64::from(listen.port())
}

fn announce(
    node: &Node,
    (subject, metrics): (Subject, Option<SocketAddr>),
    memory: Size,
    as_json: bool,
) -> Result<(), Failure> {
    let address = node.address();
    let Subject { node_id, cores } = subject;
    if as_json {
        let mut ready = json!({
            "ready": true,
            "address": address.to_string(),
            "node_id": node_id,
            "cores": cores,
            "memory_bytes": memory.0,
        });
        if let Some(metrics) = metrics {
            ready["metrics"] = json!(metrics.to_string());
        }
        return output::line(&ready.to_string());
    }
    let metrics = metrics.map(|metrics| format!(", metrics at http://{metrics}/metrics"));
    output::line(&format!(
        "serving on {address}: node {node_id}, {cores} core{}, {memory}{}",
        if cores == 1 { "" } else { "s" },
        metrics.unwrap_or_default(),
    ))
}

/// Calls `end` once, when the process is asked to end.
pub(super) fn end_on_signals(end: impl FnOnce(&'static str) + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            if signals.forever().next().is_some() {
                end("signal");
            }
        })?;
    Ok(())
}

/// Why a node is to end.
struct End {
    signal: Arc<AtomicBool>,
    input: Arc<AtomicBool>,
}

impl End {
    /// From now on signals ask for it.
    fn on_signals() -> io::Result<Self> {
        let signal = Arc::default();
        for number in [SIGINT, SIGTERM] {
            flag::register(number, Arc::clone(&signal))?;
        }
        let input = Arc::default();
        Ok(Self { signal, input })
    }

    fn why(&self) -> Option<&'static str> {
        if self.signal.load(Ordering::Relaxed) {
            Some("signal")
        } else if self.input.load(Ordering::Relaxed) {
            Some("standard input ended")
        } else {
            None
        }
    }

    /// Waits until there is a reason, or `is_over`, which is asked from time to time. Meanwhile this thread does what blocks
    /// for the node's cores: a node has no thread that only waits.
    fn wait_unless(&self, mut is_over: impl FnMut() -> bool) -> Option<&'static str> {
        let mut control = ControlHere::take();
        loop {
            if is_over() {
                return None;
            }
            if let Some(why) = self.why() {
                return Some(why);
            }
            match &mut control {
                Ok(control) => control.serve_for(LOOK),
                Err(_gone) => thread::sleep(LOOK),
            }
        }
    }
}

/// Says when standard input has ended.
fn end_with_stdin(ended: Arc<AtomicBool>) {
    thread::spawn(move || {
        let mut buffer = [0; 512];
        let mut stdin = io::stdin().lock();
        while matches!(stdin.read(&mut buffer), Ok(count) if count > 0) {}
        ended.store(true, Ordering::Relaxed);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_identities_differ_by_host_and_by_port() {
        let id = |address: &str| default_id(address.parse().expect("an address"));
        assert_eq!(id("127.0.0.1:7400"), id("127.0.0.1:7400"));
        assert_ne!(id("127.0.0.1:7400"), id("127.0.0.1:7401"));
        assert_ne!(id("127.0.0.1:7400"), id("127.0.0.2:7400"));
        assert_ne!(id("[::1]:7400"), id("[::2]:7400"));
        assert_eq!(id("127.0.0.1:0"), u64::from(process::id()));
    }
}
