//! The membership of a node, on its first core: what the cores learn from it, and what it is told.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_channel::{mpsc, oneshot};
use futures_core::Stream;
use lunette_cluster::proto::fence::Fence;
use lunette_cluster::proto::map::{ClusterMap, Epoch, MapMember};
use lunette_cluster::proto::member::{MemberOptions, QuotaRefusal, Refusal};
use lunette_cluster::proto::quota::Quotas;
use lunette_cluster::{Client, ClientOptions, Membership, Security};
use lunette_kvstore_proto::message::FormatVersions;
use lunette_kvstore_proto::tenant::Tenant;
use lunette_kvstore_proto::version::Generation;
use lunette_runtime::{JoinError, Scope, Sender, entropy, time};
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::time::Time;

use super::departing::{Departure, Parking, finish};
use super::emptying::{Emptied, Emptying};
use super::{ClusterOptions, Mail, QuotaList};
use crate::error::ClusterError;

/// How often the cores learn how long the lease is: often enough that they never stop for want of it.
const FENCE_LOOK: Duration = Duration::from_millis(100);
/// How long a coordinator may be silent before another is asked.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// Those who may wait for a "remove all"; further ones are told nothing.
const CLEARING_MAX: usize = 64;
/// Oldest and newest version of the formats that this node speaks: with each other member it has to share one.
const VERSIONS: (u8, u8) = (FormatVersions::OURS.min.0, FormatVersions::OURS.max.0);

/// What is wanted of a membership.
pub(crate) enum Steer {
    /// The map, once this node is in it.
    Joined(oneshot::Sender<Result<ClusterMap, Refusal>>),
    /// To be emptied: the next map has this node without weight. Answered when that is known, or will not be; not begun later than that.
    Drain {
        until: Time,
        answer: oneshot::Sender<Emptied>,
    },
    /// To leave the map at once. Answered when the coordinator knows, or the lease has run out.
    Leave(oneshot::Sender<()>),
    /// "Remove all": the next map is of a later generation. Answered when this node knows it, with its epoch
    /// and generation; not begun later than that.
    Clear {
        until: Time,
        answer: oneshot::Sender<(Epoch, Generation)>,
    },
    /// Another map than that of this epoch: what a drive keeps for it and does not forget is to count no more.
    Renew(Epoch),
    /// Another quota of a tenant, in bytes, or none. Answered when the coordinator has it; not made later than that.
    Quota {
        tenant: Tenant,
        quota_bytes: Option<u64>,
        until: Time,
        answer: oneshot::Sender<Result<(), QuotaRefusal>>,
    },
}

/// Whether a node is in the map, and the map: what there is to know.
enum Next {
    Changed,
    Look,
    Steer(Steer),
    /// What only memory had is on drives.
    Parked,
    Over,
}

/// How often a coordinator is asked for members, where there are none.
const MEMBERS_PAUSE: Duration = Duration::from_millis(100);

impl ClusterOptions {
    /// A client of its coordinators, on this core.
    fn client(&self) -> Client {
        let secrets = self.secrets.clone();
        let secrets = secrets.filter(|_| self.is_coordinator_sealed);
        let security = secrets.map(|secrets| Security {
            secrets,
            entropy: Rc::new(drawn),
        });
        Client::new(ClientOptions {
            endpoints: self.coordinators.clone(),
            security,
            silence_max: SILENCE_MAX,
        })
    }

    /// Where the members listen: seeds for clients. Waits up to `timeout` for a map that has any.
    ///
    /// # Errors
    /// `Coordinator`, or `NoMap`.
    pub(crate) async fn seeds(&self, timeout: Duration) -> Result<Vec<SocketAddr>, ClusterError> {
        let client = self.client();
        let until = time::now() + timeout;
        loop {
            let map = client.map(&self.name, timeout).await;
            let members = map.map(|map| map.map(|map| map.members().to_vec()));
            let has_time = time::now() + MEMBERS_PAUSE < until;
            match members {
                Ok(Some(members)) if !members.is_empty() => {
                    return Ok(members.iter().map(|member| member.address).collect());
                }
                Err(fault) if !(has_time && fault.is_retryable()) => {
                    return Err(ClusterError::Coordinator(fault));
                }
                Ok(_) if !has_time => return Err(ClusterError::NoMap),
                Ok(_) | Err(_) => time::sleep(MEMBERS_PAUSE).await,
            }
        }
    }
}

/// Begins to join.
fn join(
    cluster: &ClusterOptions,
    member: MapMember,
    former: Vec<u64>,
) -> Result<Membership, JoinError> {
    let client = cluster.client();
    let options = MemberOptions {
        cluster: cluster.name.clone(),
        prefix: cluster.name.clone(),
        member,
        versions: VERSIONS,
        former,
        lease_ttl_s: cluster.lease_ttl_s,
        rejoin_wait: cluster.rejoin_wait,
        seed: entropy(),
    };
    Membership::start(client, options)
}

fn drawn() -> [u8; 32] {
    let mut bytes = [0; 32];
    for part in bytes.as_chunks_mut::<8>().0 {
        *part = entropy().to_le_bytes();
    }
    bytes
}

/// Keeps the node in the cluster's map, and tells its cores of maps and of the lease, until whoever
/// steers it is gone. What is asked by way of the cores is done as well, and keeps nothing alive.
pub(crate) async fn steer(
    cluster: ClusterOptions,
    (member, former): (MapMember, Vec<u64>),
    cores: Vec<Sender<Mail>>,
    (mut steering, mut asked): (mpsc::Receiver<Steer>, mpsc::Receiver<Steer>),
) {
    let node = member.id.0;
    let membership = match join(&cluster, member, former) {
        Ok(membership) => Rc::new(membership),
        Err(error) => return tracing::error!(node, %error, "the node does not join its cluster"),
    };
    let mut told = Told {
        node,
        ..Told::default()
    };
    let mut joining: Vec<oneshot::Sender<Result<ClusterMap, Refusal>>> = Vec::new();
    let mut clearing: Vec<Clear> = Vec::new();
    let mut emptying = Emptying::default();
    let setting = Scope::new();
    let mut departure: Option<Departure> = None;
    let mut changed = Box::pin(next_change(Rc::clone(&membership)));
    loop {
        told.tell(&membership, &cores).await;
        answer_joined(&membership, &mut joining);
        clearing = clear(&membership, clearing);
        emptying.answer(time::now(), &membership, NodeId(node));
        let left = departure.as_ref().map(|it| it.left(&membership));
        if left == Some(Duration::ZERO) {
            break;
        }
        let look = pin!(time::sleep(
            left.map_or(FENCE_LOOK, |left| left.min(FENCE_LOOK))
        ));
        let parking = departure.as_mut().and_then(Departure::parking);
        match next((&mut changed, parking), look, (&mut steering, &mut asked)).await {
            Next::Changed => changed = Box::pin(next_change(Rc::clone(&membership))),
            Next::Look => {}
            Next::Steer(Steer::Joined(answer)) => joining.push(answer),
            Next::Steer(Steer::Drain { until, answer }) => {
                emptying.begin(&membership, (until, answer));
            }
            Next::Steer(Steer::Renew(epoch)) => membership.renew_map(epoch),
            Next::Steer(Steer::Clear { until, answer }) => {
                Clear::begin((until, answer), &mut clearing);
            }
            Next::Steer(Steer::Quota {
                tenant,
                quota_bytes,
                until,
                answer,
            }) => {
                let change = (tenant, quota_bytes, until);
                begin(&setting, set_quota(Rc::clone(&membership), change, answer));
            }
            Next::Steer(Steer::Leave(answer)) => {
                let begun = match departure.take() {
                    Some(begun) => begun,
                    None => Departure::begin(&cores, &membership).await,
                };
                departure = Some(begun.asked_by(answer));
            }
            Next::Parked => departure
                .iter_mut()
                .for_each(|departure| departure.has_parked(&membership)),
            Next::Over => return,
        }
    }
    finish(&cores, &membership).await;
    membership.leave().await;
    tracing::info!(node, epoch = told.epoch.0, "left the cluster");
    departure.into_iter().for_each(Departure::end);
}

fn begin(setting: &Scope, set: impl Future<Output = ()> + 'static) {
    if let Err(error) = setting.spawn(set) {
        tracing::warn!(%error, "a quota is not set");
    }
}

async fn set_quota(
    membership: Rc<Membership>,
    (tenant, quota_bytes, until): (Tenant, Option<u64>, Time),
    answer: oneshot::Sender<Result<(), QuotaRefusal>>,
) {
    let set = membership
        .set_quota(tenant.name(), quota_bytes, until)
        .await;
    if answer.send(set).is_err() {
        tracing::debug!("whoever set a quota is gone");
    }
}

async fn next_change(membership: Rc<Membership>) {
    membership.changed().await;
}

async fn next(
    (changed, mut parking): (&mut Pin<Box<impl Future<Output = ()>>>, Option<Parking<'_>>),
    mut look: Pin<&mut impl Future<Output = ()>>,
    (steering, asked): (&mut mpsc::Receiver<Steer>, &mut mpsc::Receiver<Steer>),
) -> Next {
    poll_fn(|cx| {
        if changed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Next::Changed);
        }
        if parking
            .as_mut()
            .is_some_and(|parking| parking.as_mut().poll(cx).is_ready())
        {
            return Poll::Ready(Next::Parked);
        }
        match Pin::new(&mut *steering).poll_next(cx) {
            Poll::Ready(Some(steer)) => return Poll::Ready(Next::Steer(steer)),
            Poll::Ready(None) => return Poll::Ready(Next::Over),
            Poll::Pending => {}
        }
        if let Poll::Ready(Some(steer)) = Pin::new(&mut *asked).poll_next(cx) {
            return Poll::Ready(Next::Steer(steer));
        }
        look.as_mut().poll(cx).map(|()| Next::Look)
    })
    .await
}

fn answer_joined(
    membership: &Membership,
    joining: &mut Vec<oneshot::Sender<Result<ClusterMap, Refusal>>>,
) {
    if joining.is_empty() {
        return;
    }
    let map = membership.map().filter(|_| membership.is_serving());
    let answer = match (membership.refusal(), map) {
        (Some(refusal), _) => Err(refusal),
        (None, Some(map)) => Ok(map),
        (None, None) => return,
    };
    for waiter in joining.drain(..) {
        drop(waiter.send(answer.clone()));
    }
}

/// A "remove all" that is under way.
struct Clear {
    /// Its generation, once that is known.
    generation: Option<u64>,
    /// From when on nobody waits for it.
    until: Time,
    answer: oneshot::Sender<(Epoch, Generation)>,
}

impl Clear {
    /// One more, if there are not too many.
    fn begin(
        (until, answer): (Time, oneshot::Sender<(Epoch, Generation)>),
        clearing: &mut Vec<Self>,
    ) {
        if clearing.len() >= CLEARING_MAX {
            return tracing::warn!("too many wait for everything to be removed");
        }
        clearing.push(Self {
            generation: None,
            until,
            answer,
        });
    }
}

/// Brings each further: those that are not done, and may be.
fn clear(membership: &Membership, mut clearing: Vec<Clear>) -> Vec<Clear> {
    let now = time::now();
    clearing.retain(|clear| now < clear.until);
    // Nothing is written under a map that this node does not know, while it is in the cluster: who asks
    // now means no later generation than the next.
    let Some(map) = membership.map().filter(|_| membership.is_serving()) else {
        return clearing;
    };
    let mut left = Vec::new();
    for clear in clearing {
        match clear.generation {
            Some(generation) if map.generation() >= generation => {
                let done = (map.epoch(), Generation(map.generation()));
                if clear.answer.send(done).is_err() {
                    tracing::debug!("whoever had everything removed is gone");
                }
                continue;
            }
            Some(_) => left.push(clear),
            None => {
                let next = map.generation() + 1;
                membership.raise_generation(next, clear.until);
                left.push(Clear {
                    generation: Some(next),
                    ..clear
                });
            }
        }
    }
    left
}

/// What the cores were told last.
#[derive(Default)]
struct Told {
    /// Who is told of.
    node: u64,
    epoch: Epoch,
    quotas: Quotas,
    is_in_map: bool,
    fence: Fence,
    is_leased: bool,
    is_refused: bool,
}

impl Told {
    /// The map goes before the lease: one that was granted anew counts once the map has been read again. Before both go the
    /// quotas, so that nothing is served without.
    async fn tell(&mut self, membership: &Membership, cores: &[Sender<Mail>]) {
        let quotas = membership.quotas();
        if quotas != self.quotas {
            self.quotas = quotas;
            let list = Arc::new(QuotaList::new(&self.quotas));
            for core in cores {
                send(core, Mail::Quotas(Arc::clone(&list))).await;
            }
        }
        let map = membership.map().filter(|map| map.epoch() > self.epoch);
        if let Some(map) = map {
            self.log_map(&map);
            if self.epoch == Epoch::default() {
                self.tell_cluster(membership, cores).await;
            }
            self.epoch = map.epoch();
            let map = Arc::new(map);
            for core in cores {
                send(core, Mail::Map(Arc::clone(&map))).await;
            }
        }
        let fence = membership.fence();
        if fence != self.fence {
            self.fence = fence;
            for core in cores {
                send(core, Mail::Fence(fence)).await;
            }
        }
        self.log_lease();
        if let Some(refusal) = membership.refusal().filter(|_| !self.is_refused) {
            tracing::error!(node = self.node, %refusal, "the node is no member of its cluster");
            self.is_refused = true;
        }
    }

    /// Which cluster it is, whatever it is called.
    async fn tell_cluster(&self, membership: &Membership, cores: &[Sender<Mail>]) {
        let identity = membership.identity();
        debug_assert!(identity.is_some(), "maps are read behind it");
        if let Some(identity) = identity {
            for core in cores {
                send(core, Mail::Cluster(identity.id)).await;
            }
        }
    }

    fn log_map(&mut self, map: &ClusterMap) {
        let (node, epoch, members) = (self.node, map.epoch().0, map.members().len());
        let is_in_map = map.member(NodeId(node)).is_some();
        match (std::mem::replace(&mut self.is_in_map, is_in_map), is_in_map) {
            (false, true) => tracing::info!(node, epoch, members, "joined the cluster"),
            (true, true) => tracing::info!(node, epoch, members, "the cluster's map has changed"),
            (_, false) => tracing::info!(node, epoch, members, "the map is without this node"),
        }
    }

    fn log_lease(&mut self) {
        let is_leased = self.is_in_map && self.fence.is_leased(time::now());
        if is_leased == self.is_leased {
            return;
        }
        self.is_leased = is_leased;
        let (node, epoch) = (self.node, self.epoch.0);
        if is_leased {
            tracing::info!(node, epoch, "the node has its lease");
        } else {
            tracing::warn!(node, epoch, "the node has lost its lease");
        }
    }
}

pub(super) async fn send(core: &Sender<Mail>, mail: Mail) {
    if core.send(mail).await.is_err() {
        tracing::debug!("a core has ended already");
    }
}
