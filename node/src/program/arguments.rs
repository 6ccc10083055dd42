//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use lunette::runtime::Idle;
use lunette::trace::generator::REQUESTS_DEFAULT;
use lunette_kvstore_proto::retention::Pin;
use lunette_kvstore_proto::tenant::Tenant;
use lunette_kvstore_proto::version::COPIES_WANTED_MAX;

use super::address::NodeAddress;
use super::cache_sim::CacheSimArguments;
use super::failure::Failure;
use super::logs::LogArguments;
use super::membership::{JoinArguments, MembershipArguments};
use super::nvme::NvmeArguments;
use super::p2p::P2pArguments;
use super::simulate::SimulateArguments;
use super::size::Size;
use super::top::TopArguments;
use super::transfer::TransferArguments;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  the operation failed
  2  the command line is wrong
  3  no such key (get, rm, stat KEY)
  4  a node cannot be reached

Environment:
  LUNETTE_NODES     nodes of the cluster, for want of --nodes
  LUNETTE_INSECURE  1: let `serve` listen beyond loopback, although nobody is authenticated
  LUNETTE_SECRET_FILE  the file of the secret that members of a cluster, clients, coordinators and
                    transfer engines prove to each other
  LUNETTE_COORDINATORS, LUNETTE_ETCD  for want of `serve --coordinators` or `--etcd`
  LUNETTE_LOG       what to log to standard error: error, warn (default), info, debug, trace; or by
                    part of the program, like warn,lunette_kvstore=debug";

const FIRST_STEPS: &str = "\
First steps:
  lunette serve --listen 127.0.0.1:7400 --memory 256MiB &
  export LUNETTE_NODES=127.0.0.1:7400
  echo hello | lunette put greeting
  lunette get greeting
  lunette stat
  lunette replay --requests 1000 --capacity-blocks 2000 --block-bytes 4KiB";

/// A store for KV caches: nodes lend memory, clients put and get objects by key.
///
/// An object is immutable: bytes under a key, at most 16 GiB, or 64 MiB in nodes that are alone. When a
/// node's memory is full, the objects least likely to be used again make room. Nodes are members of a cluster,
/// and come and go: clients name some of them. Or they are alone: then every client is given the whole
/// list, and finds by itself which core of which node holds a key.
#[derive(Debug, Parser)]
#[command(version, after_help = format!("{FIRST_STEPS}\n\n{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Answer in JSON: one object on standard output, also when the command fails.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(Box<ServeArguments>),
    Put(PutArguments),
    Get(GetArguments),
    Rm(RemoveArguments),
    Ls(ListArguments),
    Stat(StatArguments),
    Top(TopArguments),
    Replay(ReplayArguments),
    Simulate(SimulateArguments),
    CacheSim(CacheSimArguments),
    Transfer(TransferArguments),
    P2p(P2pArguments),
    Nvme(NvmeArguments),
    Cluster(MembershipArguments),
    Doctor(DoctorArguments),
    Topo(TopoArguments),
}

impl Command {
    /// How the command logs, if that can be said on its command line.
    pub(crate) fn log(&self) -> Option<&LogArguments> {
        match self {
            Self::Serve(arguments) => Some(&arguments.log),
            Self::Cluster(arguments) => arguments.log(),
            _ => None,
        }
    }
}

/// Run a node, until SIGINT or SIGTERM.
///
/// Prints one line when it serves, and its statistics when it ends. With --json each is one object
/// on a line of its own.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lunette serve --memory 1GiB
  lunette serve --listen 127.0.0.1:7401 --memory 64GiB --cores 2,3 --huge-pages --lock-memory
  lunette serve --listen 127.0.0.1:0 --memory 1GiB --json    # the system chooses the port
  lunette serve --memory 1GiB --cluster prod --coordinators 127.0.0.1:7300
  lunette serve --memory 64GiB --cluster prod --coordinators 127.0.0.1:7300 --drive /nvme0/lunette --drive-size 1TiB
  lunette serve --memory 64GiB --cluster prod --coordinators 127.0.0.1:7300 --drive 'nvme://10.0.0.9:4420/nqn.2026-01.lunette:disk?nsid=1' --drive-size 1TiB
  lunette serve --memory 1GiB --metrics 127.0.0.1:7480 --log info --log-format json")]
pub(crate) struct ServeArguments {
    /// Address and port to listen on; port 0 lets the system choose. Further cores take ports that
    /// the system chooses.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7400")]
    pub(crate) listen: SocketAddr,
    /// Memory for objects, over all cores, like 512MiB or 64GiB. The process uses some more.
    #[arg(long, value_name = "SIZE", value_parser = Size::parse)]
    pub(crate) memory: Size,
    /// CPUs to run on, one core of the node pinned to each, like 0,1.
    #[arg(
        long,
        value_name = "CPU,...",
        value_delimiter = ',',
        conflicts_with = "core_count"
    )]
    pub(crate) cores: Vec<usize>,
    /// Cores of the node, each pinned to a CPU that no other node has chosen, one per physical core
    /// as far as they go; not pinned, with a warning, if this process may use too few.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) core_count: u16,
    /// Identity in the cluster, a number that no other node has. Which keys a node holds depends
    /// on it. Default: made from the address, or from the process where the port is 0.
    #[arg(long, value_name = "ID")]
    pub(crate) node_id: Option<u64>,
    /// Share of the keys, relative to the other nodes' weights.
    #[arg(long, value_name = "W", default_value_t = 1)]
    pub(crate) weight: u32,
    /// What a core does when it has nothing to do.
    #[arg(long, value_enum, default_value_t = IdleChoice::Adaptive)]
    pub(crate) idle: IdleChoice,
    /// Back the memory with huge pages where the system has them.
    #[arg(long)]
    pub(crate) huge_pages: bool,
    /// Find all pages of the memory before serving; without, those that are needed next are found beside it.
    #[arg(long)]
    pub(crate) prefault: bool,
    /// Lock the memory, so that it is never swapped out.
    #[arg(long)]
    pub(crate) lock_memory: bool,
    #[command(flatten)]
    pub(crate) join: JoinArguments,
    /// Address and port at which to answer GET /metrics, for Prometheus, and GET /health; port 0 lets
    /// the system choose. Whoever asks is not authenticated.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) log: LogArguments,
    /// End as well when standard input does, so that the node does not outlive its starter.
    #[arg(long)]
    pub(crate) until_stdin_ends: bool,
}

/// What a core does when it has nothing to do.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum IdleChoice {
    /// Spin shortly while requests come fast, else sleep.
    Adaptive,
    /// Never sleep: fastest answers, at the price of a whole CPU.
    Latency,
    /// Always sleep.
    Efficient,
}

impl IdleChoice {
    pub(crate) fn policy(self) -> Idle {
        match self {
            Self::Adaptive => Idle::default(),
            Self::Latency => Idle::Latency,
            Self::Efficient => Idle::Efficient,
        }
    }

    /// The word on the command line.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Latency => "latency",
            Self::Efficient => "efficient",
        }
    }
}

/// The cluster that a command talks to.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClusterArguments {
    /// Some members of the cluster; or all nodes, if they are members of none.
    #[arg(
        long,
        value_name = "HOST:PORT,...",
        value_delimiter = ',',
        value_parser = NodeAddress::parse,
        env = "LUNETTE_NODES",
        required = true
    )]
    nodes: Vec<NodeAddress>,
    /// How long an operation may take, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    timeout_ms: u64,
}

impl ClusterArguments {
    pub(crate) fn addresses(&self) -> Result<Vec<SocketAddr>, Failure> {
        self.nodes.iter().map(NodeAddress::resolve).collect()
    }

    /// The same cluster, of which no operation may take longer than this.
    pub(crate) fn within(&self, timeout: Duration) -> Self {
        let bound_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        Self {
            nodes: self.nodes.clone(),
            timeout_ms: self.timeout_ms.min(bound_ms),
        }
    }

    pub(crate) const fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

/// Whose keys a command names.
#[derive(Args, Clone, Debug)]
pub(crate) struct TenantArguments {
    /// The tenant whose key it is, `default` if none is named. Tenants of a cluster do not see each other's objects.
    #[arg(long, value_name = "NAME", env = "LUNETTE_TENANT", value_parser = parse_tenant)]
    pub(crate) tenant: Option<Tenant>,
}

pub(crate) fn parse_tenant(text: &str) -> Result<Tenant, String> {
    Tenant::named(text).map_err(|fault| fault.to_string())
}

/// Put an object.
///
/// Objects are immutable: if the key is there already, its old bytes stay, and it counts as used.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lunette put --nodes 127.0.0.1:7400 model/shard-0 shard-0.bin
  echo hello | lunette put --nodes 127.0.0.1:7400,127.0.0.1:7401 greeting")]
pub(crate) struct PutArguments {
    #[command(flatten)]
    pub(crate) cluster: ClusterArguments,
    #[command(flatten)]
    pub(crate) of: TenantArguments,
    /// The key: 1 to 1024 bytes.
    pub(crate) key: OsString,
    /// The file that holds the bytes; - is standard input.
    #[arg(default_value = "-")]
    pub(crate) file: PathBuf,
    /// Copies to keep, on as many members of the cluster. Nodes that are members of none keep one.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=i64::from(COPIES_WANTED_MAX)))]
    pub(crate) copies: u8,
    /// For how many seconds it is to outlast others in memory, or `forever`. Members of a cluster do that.
    #[arg(long, value_name = "SECONDS", value_parser = parse_pin)]
    pub(crate) pin: Option<Pin>,
    /// A name for objects that are of use together only: when one leaves memory to make room, the others leave before
    /// what is in no such group. Members of a cluster do that.
    #[arg(long, value_name = "NAME")]
    pub(crate) group: Option<OsString>,
    /// The key of an object that it is of no use without: when that is gone, it leaves memory before what is of use. Members
    /// of a cluster do that.
    #[arg(long, value_name = "KEY")]
    pub(crate) behind: Option<OsString>,
}

fn parse_pin(text: &str) -> Result<Pin, String> {
    if text == "forever" {
        return Ok(Pin::Hard);
    }
    match text.parse() {
        Ok(seconds @ 1..) => Ok(Pin::soft(Some(Duration::from_secs(seconds)))),
        _ => Err("write a number of seconds above zero, or `forever`".to_owned()),
    }
}

/// Get an object.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lunette get --nodes 127.0.0.1:7400 greeting
  lunette get --nodes 127.0.0.1:7400 model/shard-0 --output shard-0.bin")]
pub(crate) struct GetArguments {
    #[command(flatten)]
    pub(crate) cluster: ClusterArguments,
    #[command(flatten)]
    pub(crate) of: TenantArguments,
    /// The key.
    pub(crate) key: OsString,
    /// The file to write the bytes to. Default: standard output; --json needs a file.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Remove objects.
///
/// Ends with 3 if one of the keys was not there; the others are removed all the same.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  lunette rm --nodes 127.0.0.1:7400 greeting model/shard-0")]
pub(crate) struct RemoveArguments {
    #[command(flatten)]
    pub(crate) cluster: ClusterArguments,
    #[command(flatten)]
    pub(crate) of: TenantArguments,
    /// The keys.
    #[arg(required = true, value_name = "KEY")]
    pub(crate) keys: Vec<OsString>,
}

/// Show which keys there are.
///
/// A key a line, in no order; with --json each is one object on a line of its own. Each member of the cluster is asked,
/// and looks through what it has: in memory, and on its drives.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lunette ls --nodes 127.0.0.1:7400
  lunette ls --nodes 127.0.0.1:7400 model/ | xargs lunette rm --nodes 127.0.0.1:7400")]
pub(crate) struct ListArguments {
    #[command(flatten)]
    pub(crate) cluster: ClusterArguments,
    #[command(flatten)]
    pub(crate) of: TenantArguments,
    /// How the keys begin. Default: all.
    pub(crate) prefix: Option<OsString>,
}

/// Show what each node holds and has counted, or whether a key is there.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lunette stat --nodes 127.0.0.1:7400,127.0.0.1:7401
  lunette stat --nodes 127.0.0.1:7400 greeting && echo it is there")]
pub(crate) struct StatArguments {
    #[command(flatten)]
    pub(crate) cluster: ClusterArguments,
    #[command(flatten)]
    pub(crate) of: TenantArguments,
    /// A key to look up.
    pub(crate) key: Option<OsString>,
}

/// Say what this machine offers, what is missing, and what to do about it.
///
/// Ends with 1 if something is missing without which nodes do not run; what makes them slower is a
/// warning.
#[derive(Args, Debug)]
pub(crate) struct DoctorArguments {}

/// Show cores, caches, memory and devices, what is next to what, and which network adapters transfers
/// use for which memory.
///
/// With --json the latter is there twice: `adapters`, and `priority_matrix`, which is what Mooncake
/// publishes and takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lunette topo
  lunette topo --matrix topology.json       # check an override file
  lstopo other.xml && lunette topo --xml other.xml --json

An override file is Mooncake's matrix, with rows for some places or none, and optional filters:
  {\"allow\": [\"mlx5_*\"], \"deny\": [\"mlx5_2\"], \"cpu:0\": [[\"mlx5_0\"], [\"mlx5_1\"]]}")]
pub(crate) struct TopoArguments {
    /// A topology saved by hwloc 2 (lstopo FILE.xml), to be shown instead of this machine's.
    #[arg(long, value_name = "FILE")]
    pub(crate) xml: Option<PathBuf>,
    /// An override file: what is said there instead of what was found.
    #[arg(long, value_name = "FILE")]
    pub(crate) matrix: Option<PathBuf>,
    /// A peer's matrix: show which of its adapters each of ours talks to.
    #[arg(long, value_name = "FILE")]
    pub(crate) peer: Option<PathBuf>,
}

/// Replay a trace of requests against a cluster, and measure.
///
/// Each request looks up all blocks of its prompt, gets the leading ones that are there, and puts
/// all the others, as an inference engine does with its prefix cache. Every byte that comes back is
/// verified. Requests follow each other at full speed; the trace's times are not waited for.
///
/// Unless --connect names a cluster, nodes are started for the replay and ended with it.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lunette replay --requests 1000 --capacity-blocks 2000 --block-bytes 4KiB
  lunette replay --trace conversation_trace.jsonl --capacity-blocks 10000 --nodes 2
  lunette replay --connect 127.0.0.1:7400,127.0.0.1:7401 --block-bytes 1MiB --json

A trace is a file with one JSON object a line, in Mooncake's format:
  {\"timestamp\": ms, \"input_length\": tokens, \"output_length\": tokens, \"hash_ids\": [...]}")]
pub(crate) struct ReplayArguments {
    /// The trace file. Default: a generated workload like Mooncake's conversation trace.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Seed of the generated workload.
    #[arg(
        long,
        value_name = "SEED",
        default_value_t = 1,
        conflicts_with = "trace"
    )]
    pub(crate) seed: u64,
    /// Most requests to replay. Default: all of the trace; of the generated workload, as many as
    /// the conversation trace has.
    #[arg(long, value_name = "N")]
    pub(crate) requests: Option<u64>,
    /// Blocks that the nodes hold together.
    #[arg(long, value_name = "N", default_value_t = 10_000, conflicts_with = "connect",
          value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub(crate) capacity_blocks: u64,
    /// Size of a block, at most 64MiB.
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = Size::parse)]
    pub(crate) block_bytes: Size,
    /// Nodes to start, of one core each.
    #[arg(long, value_name = "K", default_value_t = 2, conflicts_with = "connect",
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) nodes: u16,
    /// A cluster that is running already, to be used instead.
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',',
          value_parser = NodeAddress::parse)]
    pub(crate) connect: Vec<NodeAddress>,
    /// CPU to pin the client to. Default: one of its own, if the nodes leave one; else not pinned.
    #[arg(long, value_name = "CPU")]
    pub(crate) client_core: Option<usize>,
    /// What the client and the nodes started do when they have nothing to do.
    #[arg(long, value_enum, default_value_t = IdleChoice::Adaptive)]
    pub(crate) idle: IdleChoice,
}

impl ReplayArguments {
    /// Most requests, where none are said to be enough.
    pub(crate) fn requests_max(&self) -> u64 {
        let unsaid = if self.trace.is_some() {
            u64::MAX
        } else {
            REQUESTS_DEFAULT
        };
        self.requests.unwrap_or(unsaid)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn idle_words_are_the_ones_the_command_line_knows() {
        for choice in IdleChoice::value_variants() {
            let value = choice.to_possible_value().expect("none is hidden");
            assert_eq!(choice.word(), value.get_name());
        }
    }
}
