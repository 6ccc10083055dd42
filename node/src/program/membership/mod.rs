//! Clusters whose nodes come and go: `lunette cluster`, and which cluster a node of `lunette serve` is
//! to be a member of.
//!
//! | file | subject |
//! |---|---|
//! | `coordinator` | the embedded coordinator, in a process of its own |
//! | `status` | the map, and what each member holds |
//! | `clear` | "remove all" |
//! | `retire` | to empty a member |
//! | `quota` | how much memory tenants may have |

mod clear;
mod coordinator;
mod quota;
mod retire;
mod status;

use std::env;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use lunette::kvstore::{ClusterOptions, TierOptions, TierPlace};
use lunette::runtime::topology::user_folder;
use lunette::transfer::adapters::RdmaOptions;
use lunette_auth::Secrets;
use lunette_auth::policy::SECRET_FILE_SETTING;
use lunette_cluster::proto::rack::Rack;
use lunette_cluster::read_secrets;
use lunette_kvstore_proto::tenant::Tenant;

use super::address::NodeAddress;
use super::arguments::{ClusterArguments, parse_tenant};
use super::coordination::CoordinationArguments;
use super::failure::Failure;
use super::logs::LogArguments;
use super::nvme::{HostArguments, NamespaceUrl, UrlFault};
use super::size::Size;
use super::transfer::rdma_options;

/// Clusters whose nodes come and go.
#[derive(Args, Debug)]
pub(crate) struct MembershipArguments {
    #[command(subcommand)]
    command: MembershipCommand,
}

impl MembershipArguments {
    pub(crate) const fn log(&self) -> Option<&LogArguments> {
        match &self.command {
            MembershipCommand::Coordinator(arguments) => Some(&arguments.log),
            MembershipCommand::Status(_)
            | MembershipCommand::Clear(_)
            | MembershipCommand::Retire(_)
            | MembershipCommand::Quota(_) => None,
        }
    }
}

#[derive(Debug, Subcommand)]
enum MembershipCommand {
    Coordinator(CoordinatorArguments),
    Status(StatusArguments),
    Clear(ClearArguments),
    Retire(RetireArguments),
    Quota(QuotaArguments),
}

/// Run a coordinator, until SIGINT or SIGTERM: for clusters without an etcd.
///
/// It keeps the cluster's map and its members' leases. While it is away, members go on with what they
/// may do without: reads and puts of cache namespaces. With LUNETTE_SECRET_FILE everything to and from
/// it is sealed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lunette cluster coordinator --data /var/lib/lunette/coordinator
  lunette cluster coordinator --listen 10.0.0.1:7300 --data coordinator.data")]
pub(crate) struct CoordinatorArguments {
    /// Address and port to listen on; port 0 lets the system choose.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7300")]
    listen: SocketAddr,
    /// Where it keeps what it acknowledges. Without, it forgets everything when it ends, and a
    /// cluster has to be started anew then.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    #[command(flatten)]
    log: LogArguments,
}

/// Show the map of a cluster, and what each member holds.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lunette cluster status --nodes 127.0.0.1:7400
  lunette cluster status --nodes 127.0.0.1:7400 --json")]
pub(crate) struct StatusArguments {
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// Remove every object of a cluster, on every member, whoever put it; or all that one tenant has.
///
/// Waits until all members know of it. What is put meanwhile may be removed too. What a tenant has is removed key by
/// key; what it puts meanwhile may stay.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lunette cluster clear --nodes 127.0.0.1:7400 --yes
  lunette cluster clear --nodes 127.0.0.1:7400 --yes --json
  lunette cluster clear --nodes 127.0.0.1:7400 --yes --tenant a")]
pub(crate) struct ClearArguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// The tenant all of whose objects are meant, and nobody else's.
    #[arg(long, value_name = "NAME", env = "LUNETTE_TENANT", value_parser = parse_tenant)]
    tenant: Option<Tenant>,
    /// That it is meant: nothing brings the objects back.
    #[arg(long)]
    yes: bool,
}

/// Empty a member that is to be stopped later.
///
/// It is the home of nothing from then on and takes nothing new. Others take what it has, as far as they have free memory or
/// room on their drives, and it serves that until they have; nothing leaves anybody's memory for it. Started anew it is a member like any other. A member
/// that is stopped (SIGTERM) leaves by itself, with what it has.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lunette cluster retire --nodes 127.0.0.1:7400 127.0.0.1:7401 --wait-ms 60000
  lunette cluster retire --nodes 127.0.0.1:7400 127.0.0.1:7401 --json")]
pub(crate) struct RetireArguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// The member, as `lunette cluster status` names it.
    #[arg(value_name = "ADDRESS:PORT")]
    member: SocketAddr,
    /// Wait until it is empty, for so long at most, in milliseconds: exit code 1 if it is not by then.
    #[arg(long, value_name = "MS")]
    wait_ms: Option<u64>,
}

/// Show how much memory of a cluster tenants may have, and have; or set it for one.
///
/// A quota is of the memory of all members, and of all copies. What a tenant puts beyond it takes the place of something of its
/// own, on a drive or nowhere. It is kept at the coordinator, and holds until it is set again.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lunette cluster quota --nodes 127.0.0.1:7400
  lunette cluster quota --nodes 127.0.0.1:7400 --tenant a --memory 64GiB
  lunette cluster quota --nodes 127.0.0.1:7400 --tenant a --none")]
pub(crate) struct QuotaArguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// Whose quota is to be another.
    #[arg(long, value_name = "NAME", value_parser = parse_tenant)]
    tenant: Option<Tenant>,
    /// How much the tenant may have.
    #[arg(long, value_name = "SIZE", value_parser = Size::parse, requires = "tenant")]
    memory: Option<Size>,
    /// That the tenant may have whatever others leave it.
    #[arg(long, requires = "tenant", conflicts_with = "memory")]
    none: bool,
}

/// Which cluster a node is to be a member of.
#[derive(Args, Debug)]
pub(crate) struct JoinArguments {
    /// Be a member of the cluster of this name: nodes of it come and go, and clients follow.
    #[arg(long, value_name = "NAME", requires = "coordination")]
    cluster: Option<String>,
    #[command(flatten)]
    coordination: CoordinationArguments,
    /// Where others reach this node, if that is not where it listens.
    #[arg(long, value_name = "HOST:PORT", value_parser = NodeAddress::parse, requires = "cluster")]
    advertise: Option<NodeAddress>,
    /// A file that this node locks for as long as it lives, so that it is a member again at once when
    /// it starts anew after a crash. Default: one in the folder of this user's programs, for nodes
    /// whose identity is the same after a restart.
    #[arg(long, value_name = "FILE", requires = "cluster")]
    life_file: Option<PathBuf>,
    /// How long others wait for this node once it is silent, in seconds.
    #[arg(long, value_name = "S", default_value_t = 5, requires = "cluster",
          value_parser = clap::value_parser!(u32).range(2..=60))]
    lease_ttl: u32,
    /// What this node fails together with, by a name of your own: copies of an object go to different
    /// racks, where there are such. At most 16 characters.
    #[arg(long, value_name = "NAME", requires = "cluster")]
    rack: Option<Rack>,
    /// Send all bytes, also to clients and members on this host, which else map the memory of this node's
    /// objects for reading and copy what is long themselves.
    #[arg(long, requires = "cluster")]
    pub(crate) no_one_sided: bool,
    /// RDMA devices over which objects are written to the memory of clients that have some too, as `ibv_devices`
    /// names them; `all` for all that are there. What cannot be used is said, and connections carry the bytes.
    #[arg(
        long,
        value_name = "DEVICE,...",
        value_delimiter = ',',
        requires = "cluster"
    )]
    rdma: Vec<String>,
    /// Where what leaves the memory goes; the cores take several in turn, each one of them. A folder, on a drive of its own: a file for
    /// each core is made there. A block device, or the character device of an NVMe namespace (/dev/ng0n1), or a
    /// namespace over NVMe/TCP (nvme://HOST:PORT/NQN?nsid=1): each core takes a part of it, which is claimed, so that
    /// no other node writes there. Further addresses of a target follow the first with commas; digests=both may follow
    /// the nsid, with a `&`. A device or a namespace begins with zeros when it is given to a node.
    #[arg(long, value_name = "FOLDER|DEVICE|nvme://...", value_parser = DriveChoice::parse,
          requires_all = ["cluster", "drive_size"])]
    drive: Vec<DriveChoice>,
    /// How much the drives take in all, like 512GiB.
    #[arg(long, value_name = "SIZE", requires = "drive", value_parser = Size::parse)]
    drive_size: Option<Size>,
    /// How long objects are in the mean. The index of what is on drives, in memory, has room for as many as they have
    /// then, of 75 to 149 bytes each; if objects are shorter, the oldest leave although the drives have bytes left.
    #[arg(long, value_name = "SIZE", requires = "drive", default_value = "64KiB", value_parser = Size::parse)]
    drive_object_size: Size,
    /// How long a node that is asked to end goes on to write to its drives what only its memory has, in seconds: who starts
    /// again with them has it then. What was used again goes first. 0: not at all.
    #[arg(long, value_name = "SECONDS", requires = "drive", default_value_t = 10)]
    drive_park_timeout: u16,
    #[command(flatten)]
    nvme_host: HostArguments,
}

/// Where a drive is, as it is written.
#[derive(Clone, Debug)]
enum DriveChoice {
    Path(PathBuf),
    Namespace(NamespaceUrl),
}

impl DriveChoice {
    fn parse(text: &str) -> Result<Self, UrlFault> {
        if NamespaceUrl::is_meant(text) {
            NamespaceUrl::parse(text).map(Self::Namespace)
        } else {
            Ok(Self::Path(text.into()))
        }
    }

    fn place(&self, host: &HostArguments) -> Result<TierPlace, Failure> {
        match self {
            Self::Path(path) => {
                let kind = fs::metadata(path).map(|metadata| metadata.file_type());
                let is_device =
                    kind.is_ok_and(|kind| kind.is_block_device() || kind.is_char_device());
                Ok(if is_device {
                    TierPlace::Device(path.clone())
                } else {
                    TierPlace::Folder(path.clone())
                })
            }
            Self::Namespace(url) => Ok(TierPlace::Namespace(Box::new(url.drive(host)?))),
        }
    }
}

impl JoinArguments {
    /// Which adapters the node uses.
    pub(crate) fn rdma(&self) -> RdmaOptions {
        rdma_options(&self.rdma)
    }

    /// The options of the cluster, if there is to be one. `node_id` is the node's identity, if it is
    /// the same after a restart.
    pub(crate) fn options(&self, node_id: Option<u64>) -> Result<Option<ClusterOptions>, Failure> {
        let Some(name) = &self.cluster else {
            return Ok(None);
        };
        let coordinators = self.coordination.endpoints()?;
        let advertised = self.advertise.as_ref().map(NodeAddress::resolve);
        Ok(Some(ClusterOptions {
            secrets: secrets()?,
            is_coordinator_sealed: self.coordination.is_embedded(),
            advertised: advertised.transpose()?,
            life_file: self.life_file.clone().or_else(|| life_file(name, node_id?)),
            lease_ttl_s: self.lease_ttl,
            rack: self.rack.unwrap_or_default(),
            ..ClusterOptions::new(name, coordinators)
        }))
    }
}

impl JoinArguments {
    /// The drives, if there are any.
    pub(crate) fn tier(&self) -> Result<Option<TierOptions>, Failure> {
        let Some(size) = self.drive_size else {
            return Ok(None);
        };
        let places = self.drive.iter().map(|drive| drive.place(&self.nvme_host));
        Ok(Some(TierOptions {
            places: places.collect::<Result<_, _>>()?,
            capacity_bytes: size.0,
            object_bytes: self.drive_object_size.0,
            holders: user_folder().ok(),
            park_timeout: Duration::from_secs(self.drive_park_timeout.into()),
        }))
    }
}

/// Where a node of this host says that it lives; nowhere if there is no folder for it.
fn life_file(cluster: &str, node_id: u64) -> Option<PathBuf> {
    let spelt = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' => char::from(byte).to_string(),
        byte => format!("%{byte:02x}"),
    };
    let name: String = cluster.bytes().map(spelt).collect();
    match user_folder() {
        Ok(folder) => Some(folder.join(format!("{name}-{node_id}.life"))),
        Err(error) => {
            tracing::warn!(%error, "after a crash this node waits for its lease");
            None
        }
    }
}

/// What nodes and clients prove to each other, if the environment names a file of it.
pub(crate) fn secrets() -> Result<Option<Secrets>, Failure> {
    match env::var_os(SECRET_FILE_SETTING) {
        Some(path) => Ok(Some(read_secrets(Path::new(&path))?)),
        None => Ok(None),
    }
}

pub(crate) fn membership(arguments: &MembershipArguments, as_json: bool) -> Result<(), Failure> {
    match &arguments.command {
        MembershipCommand::Coordinator(arguments) => coordinator::run(arguments, as_json),
        MembershipCommand::Status(arguments) => status::run(arguments, as_json),
        MembershipCommand::Clear(arguments) => clear::run(arguments, as_json),
        MembershipCommand::Retire(arguments) => retire::run(arguments, as_json),
        MembershipCommand::Quota(arguments) => quota::run(arguments, as_json),
    }
}
