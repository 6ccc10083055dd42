//! A node that is a member of a cluster: each of its cores is a home and an owner.
//!
//! ```text
//!   coordinator <---- Membership (first core) ----> maps, leases ----> each core
//!                                                                        |
//!   clients ------------------------> MemberService --> MemberCore: Home, Owner, bytes
//!                                                                        |
//!   other cores <--- mail --- Post --- connections ---> other nodes
//! ```
//!
//! | file | subject |
//! |---|---|
//! | `core` | the machines of one core, and what happens to them |
//! | `deeds` | what they want of each other and of others |
//! | `service` | requests of clients and of other nodes |
//! | `bytes` | the memory of one core |
//! | `post` | messages on their way to other seats |
//! | `mailing` | sending and receiving them |
//! | `replicas` | copies beyond the first, and in place of lost ones |
//! | `offers` | what other nodes have room for |
//! | `taking` | which replicas this core takes |
//! | `loading` | how busy the core is |
//! | `tier` | a drive takes what leaves memory |
//! | `reservations` | room for objects that come in ranges |
//! | `one_sided` | readers of this host, which copy from its memory |
//! | `lane` | puts by threads of other processes of this host |
//! | `local` | what tasks of the core itself ask |
//! | `shown` | what those see that do not ask: threads, and processes of this host |
//! | `presence` | which keys its home has, for them |
//! | `catalogue` | where its short copies lie, for them |
//! | `levels` | where keys are in these |
//! | `leased` | until when that may be relied on |
//! | `told` | what they have read |
//! | `direct` | their puts, where nothing is in the way |
//! | `tenants` | their names, and what they have |
//! | `quotas` | what they may have |
//! | `grouping` | objects that are of use together only |
//! | `lending` | memory that threads of the process read and write |
//! | `waiters` | requests whose answers come later |
//! | `life` | a file that says which lives of the node are over |
//! | `steering` | the membership, and what it tells the cores |
//! | `departing` | what it does before it leaves |

mod bytes;
mod catalogue;
mod core;
mod deeds;
mod departing;
mod direct;
mod emptying;
mod grouping;
mod lane;
mod leased;
mod lending;
mod levels;
mod life;
mod loading;
mod local;
mod mailing;
mod offers;
mod one_sided;
mod post;
mod presence;
mod pushing;
mod quotas;
mod replicas;
mod reservations;
mod service;
mod shown;
mod steering;
mod taking;
mod tenants;
mod tier;
mod told;
mod waiters;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use lunette_auth::Secrets;
use lunette_cluster::proto::rack::Rack;
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::shard::ShardLimits;
use lunette_runtime::arena::Arena;
use lunette_runtime::{JoinError, Receiver, Scope, Sender, time};
use lunette_transfer::Guard;
use lunette_transfer::adapters::RdmaOptions;
use lunette_transfer_proto::calls::IN_FLIGHT_MAX;

use crate::seats::{CONNECTIONS_MAX, IDLE_TIMEOUT, Linking, Seats};

pub use self::core::COPIES;
pub(crate) use self::core::MemberCore;
pub(crate) use catalogue::{CatalogueView, DIRECT_BYTES_MAX, Direct, Find, Listed};
pub(crate) use direct::AtOnce;
pub(crate) use emptying::Emptied;
pub(crate) use lane::{HANDED_BYTES_MAX, HandedOver, LANE_WINDOW_BYTES, LANE_WORDS, Lane, Outcome};
pub(crate) use leased::{LEASED_WORDS, LeasedView};
pub(crate) use lending::{LENT_MIN, LentCopy, LentRoom, Placed, RoomHere};
pub(crate) use life::Life;
pub use life::LifeError;
pub(crate) use local::{Here, Put};
#[cfg(test)]
pub(crate) use one_sided::Board;
pub(crate) use one_sided::{Named, draw};
pub(crate) use post::{MAIL_MAX, Mail};
pub(crate) use presence::PresenceView;
pub(crate) use quotas::QuotaList;
pub(crate) use service::MemberService;
pub(crate) use shown::{Part, ShownPart};
pub(crate) use steering::{Steer, steer};
pub(crate) use tier::Tier;
pub use tier::{TierOptions, TierPlace};
pub(crate) use told::{TOLD_WORDS, Told};
pub(crate) use waiters::Waiting;

/// How long a core that has something under way waits before it looks again.
const TICK: Duration = Duration::from_millis(5);
/// The same of one that has not.
const IDLE_TICK: Duration = Duration::from_millis(100);

/// Which cluster a node is to be a member of, and how.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The cluster's name: at most
    /// [`CLUSTER_NAME_BYTES_MAX`](lunette_cluster::proto::member::CLUSTER_NAME_BYTES_MAX) bytes. All its
    /// keys at the coordinator begin with it.
    pub name: String,
    /// Where coordinators answer: an etcd's client port, or an embedded one. At least one.
    pub coordinators: Vec<SocketAddr>,
    /// What nodes, clients and the embedded coordinator prove to each other. An etcd is spoken to
    /// without.
    pub secrets: Option<Secrets>,
    /// Whether the coordinator knows the secrets too, as the embedded one does.
    pub is_coordinator_sealed: bool,
    /// Where others reach the node, if that is not where it listens.
    pub advertised: Option<SocketAddr>,
    /// A file that the node locks for as long as it lives, of this host and this node alone. With it, a
    /// node that starts again after a crash need not wait for its former lease.
    pub life_file: Option<PathBuf>,
    /// How long its lease is, in seconds: for that long others wait for one that is gone. The same on
    /// all members: a removal is acknowledged when whoever left has stopped, by this.
    pub lease_ttl_s: u32,
    /// How long members are waited for when all leases have expired together.
    pub rejoin_wait: Duration,
    /// What the node fails together with: copies of an object go to nodes of different racks, where there are
    /// such.
    pub rack: Rack,
}

impl ClusterOptions {
    /// The cluster of this name, without a secret.
    #[must_use]
    pub fn new(name: &str, coordinators: Vec<SocketAddr>) -> Self {
        Self {
            name: name.to_owned(),
            coordinators,
            secrets: None,
            is_coordinator_sealed: false,
            advertised: None,
            life_file: None,
            lease_ttl_s: 5,
            rejoin_wait: Duration::from_secs(10),
            rack: Rack::NONE,
        }
    }

    /// What authenticates the connections of this life of the node.
    pub(crate) fn guard(&self, session_epoch: u64) -> Option<Guard> {
        let secrets = self.secrets.clone();
        secrets.map(|secrets| Guard::new(secrets, session_epoch))
    }
}

/// What one core of a member begins with.
pub(crate) struct Beginning {
    pub(crate) seat: Seat,
    pub(crate) cluster: ClusterOptions,
    pub(crate) memory: (Arena, ShardLimits),
    /// The drive that takes what leaves it.
    pub(crate) tier: Option<Tier>,
    /// Whether readers of this host may map that memory, which holds nothing but copies then.
    pub(crate) is_shared: bool,
    /// The adapters of this core.
    pub(crate) rdma: RdmaOptions,
    /// The cores of this node.
    pub(crate) cores: Vec<Sender<Mail>>,
    pub(crate) mail: Receiver<Mail>,
}

/// Starts what runs on one core of a member beside its service. It runs for as long as the scope
/// lives.
///
/// # Errors
/// [`JoinError`]: the core has no room for its tasks.
pub(crate) fn begin(beginning: Beginning) -> Result<(Rc<MemberCore>, Scope), JoinError> {
    let Beginning {
        seat,
        cluster,
        memory,
        tier,
        is_shared,
        rdma,
        cores,
        mail,
    } = beginning;
    let session_epoch = seat.incarnation;
    let seats = Rc::new(Seats::new(Linking {
        guard: cluster.guard(session_epoch),
        session_epoch,
        connect_timeout: Duration::from_secs(2),
        in_flight_max: IN_FLIGHT_MAX,
        connections_max: CONNECTIONS_MAX,
        idle_timeout: IDLE_TIMEOUT,
    }));
    let post = post::Post::new(seat, cores);
    let entries_max = memory.1.entries_max();
    let board = is_shared.then(|| one_sided::board(entries_max)).flatten();
    let (sharing, listener) = board.as_ref().and_then(one_sided::open).unzip();
    let pushing = pushing::Pushing::open(rdma);
    let core = MemberCore::new(seat, memory, (board, sharing, pushing), (post, tier));
    let scope = Scope::new();
    if let Some(listener) = listener {
        scope.spawn(one_sided::accept(Rc::clone(&core), listener))?;
    }
    scope.spawn(mailing::send_post(Rc::clone(&core), Rc::clone(&seats)))?;
    scope.spawn(mailing::take_mail(
        Rc::clone(&core),
        Rc::clone(&seats),
        mail,
    ))?;
    scope.spawn(keep_time(Rc::clone(&core)))?;
    let idle = Rc::clone(&seats);
    scope.spawn(async move { idle.close_idle().await })?;
    scope.spawn(replicas::replicate(Rc::clone(&core), seats))?;
    Ok((core, scope))
}

/// Lets time pass: often while something is under way.
async fn keep_time(core: Rc<MemberCore>) {
    loop {
        core.on_tick();
        if core.is_idle() {
            let early = time::timeout(IDLE_TICK, core.busy.raised()).await;
            tracing::trace!(?early, "member");
        }
        let until = time::now() + TICK;
        time::sleep(TICK).await;
        core.look_at_load(time::now().since(until));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    pub(crate) use super::catalogue::tests::listing;
    pub(crate) use super::leased::tests::leased;
}
