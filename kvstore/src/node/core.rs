//! One core of a node: alone, or as one of a member of a cluster.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, mpsc as std_mpsc};
use std::time::Duration;

use futures_channel::{mpsc, oneshot};
use futures_core::Stream;
use lunette_kvstore_proto::message::{FormatVersions, NodeCard, NodeState};
use lunette_kvstore_proto::placement::{ClusterMap, Seat};
use lunette_kvstore_proto::shard::ShardLimits;
use lunette_runtime::arena::Arena;
use lunette_runtime::net::{REBIND_WAIT, TcpListener};
use lunette_runtime::{Port, Scope, Sender, arena, spawn_local, time};
use lunette_runtime_core::ids::CoreIndex;
use lunette_runtime_core::limits::PAYLOAD_BYTES_MAX;
use lunette_transfer::{Drain, Guard, REPLY_BYTES_MAX, ServeOptions, Service, serve};
use lunette_transfer_proto::calls::IN_FLIGHT_MAX;
use lunette_transfer_proto::hello::{Hello, VersionRange};

use super::inside::{Inside, NodeCore};
use super::options::{NodeOptions, Prefault, ahead_bytes, memory_options};
use crate::counting::CoreReport;
use crate::error::NodeError;
use crate::member::{self, Beginning, Life, Mail, MemberService, Steer, Tier};
use crate::service::CoreService;

/// What the node asks of one of its cores.
pub(super) enum Question {
    /// What it holds and has counted.
    Report(oneshot::Sender<CoreReport>),
    /// To end its connections; the sender is dropped when the last one has ended.
    Drain(std_mpsc::Sender<Infallible>),
}

/// What a core needs to know before it can serve.
pub(super) struct CorePlan {
    pub(super) index: CoreIndex,
    pub(super) listen: SocketAddr,
    pub(super) limits: ShardLimits,
    pub(super) options: NodeOptions,
    pub(super) cores: usize,
    pub(super) bound: oneshot::Sender<Result<SocketAddr, NodeError>>,
    pub(super) announced: oneshot::Receiver<Announced>,
    pub(super) questions: mpsc::Receiver<Question>,
    pub(super) incarnation: u64,
    /// Held for as long as any core may serve.
    pub(super) life: Option<Arc<Life>>,
    pub(super) mail: Port<Mail>,
    /// For what clients want of the membership.
    pub(super) steering: mpsc::Sender<Steer>,
}

/// What the cores of a node learn of each other once all listen.
#[derive(Clone)]
pub(super) struct Announced {
    pub(super) ports: Vec<u16>,
    pub(super) mail: Vec<Sender<Mail>>,
}

/// One core: listens, learns the others' ports, serves, and answers for its statistics.
pub(super) async fn run_core(plan: CorePlan) {
    let (listener, memory, tier) = match open_core(&plan).await {
        Ok(opened) => opened,
        Err(error) => {
            // A starter that has given up does not want to know.
            drop(plan.bound.send(Err(error)));
            return;
        }
    };
    drop(plan.bound.send(Ok(listener.local_addr())));
    let Ok(announced) = plan.announced.await else {
        return;
    };
    let _life = plan.life;
    let first = SocketAddr::new(plan.listen.ip(), announced.ports[0]);
    let options = &plan.options;
    let card = NodeCard {
        node_id: options.id,
        weight: options.weight,
        core: plan.index,
        ports: announced.ports,
        versions: FormatVersions::OURS,
    };
    let connections_max = options.connections_max;
    let Some(cluster) = options.cluster.clone() else {
        let own = ClusterMap::new(vec![options.member(plan.cores)]);
        let own = own.expect("checked before the core was started");
        let service = Rc::new(CoreService::new(plan.index, own, plan.limits, memory));
        let asked = Rc::clone(&service);
        let serving = serve_options(&card, connections_max, None, time::unix_ns());
        let report = move || asked.report();
        return serve_until_drained((listener, serving), service, report, plan.questions).await;
    };
    let seat = Seat {
        node: options.id,
        incarnation: plan.incarnation,
        core: plan.index,
    };
    let guard = cluster.guard(plan.incarnation);
    let secrets = cluster.secrets.clone();
    let begun = plan.mail.open().map(|mail| {
        member::begin(Beginning {
            seat,
            cluster,
            memory: (memory, plan.limits),
            tier,
            is_shared: options.is_shared(),
            rdma: options.rdma.clone(),
            cores: announced.mail,
            mail,
        })
    });
    let Ok(Ok((core, _tasks))) = begun else {
        return tracing::error!("a core of a member has no room for its tasks");
    };
    let _inside = Inside::begin(NodeCore::new(Rc::clone(&core), first, secrets));
    core.steer_by(plan.steering.clone());
    let service = Rc::new(MemberService::new(core, plan.steering));
    let hearing = Scope::new();
    if let Err(error) = hearing.spawn(Rc::clone(&service).hear()) {
        tracing::warn!(%error, "what readers ask by messages is not heard");
    }
    let asked = Rc::clone(&service);
    let serving = serve_options(&card, connections_max, guard, plan.incarnation);
    let report = move || asked.report();
    serve_until_drained((listener, serving), service, report, plan.questions).await;
}

/// Serves, and answers the node's questions, until it has been drained.
async fn serve_until_drained<S: Service>(
    (listener, serving): (TcpListener, ServeOptions),
    service: Rc<S>,
    report: impl Fn() -> CoreReport + 'static,
    questions: mpsc::Receiver<Question>,
) {
    let drain = Drain::default();
    let drained = Rc::new(Drained::default());
    let ends = (drain.clone(), Rc::clone(&drained));
    drop(spawn_local(answer(report, questions, ends)));
    serve(listener, service, serving, drain).await;
    // Whoever waits for the drain learns of its end.
    drained.end();
}

/// Where it listens, the arena for its copies (one of their own, if others may read it), and the drive.
async fn open_core(plan: &CorePlan) -> Result<(TcpListener, Arena, Option<Tier>), NodeError> {
    let memory = if plan.options.is_shared() {
        Arena::new(memory_options(&plan.options, plan.limits))
    } else {
        arena()
    };
    match plan.options.prefault {
        Prefault::Never => {}
        Prefault::Ahead => {
            let (memory, bytes) = (memory.clone(), ahead_bytes(plan.limits));
            // Where there is no room for the task, puts touch the memory themselves.
            drop(spawn_local(async move { memory.touch_ahead(bytes).await }));
        }
        Prefault::All => memory.prefault()?,
    }
    let address = plan.listen;
    let listener = TcpListener::bind_within(address, REBIND_WAIT).await;
    let listener = listener.map_err(|error| NodeError::Listen { address, error })?;
    let tier = open_drive(plan, &memory).await?;
    Ok((listener, memory, tier))
}

async fn open_drive(plan: &CorePlan, memory: &Arena) -> Result<Option<Tier>, NodeError> {
    let Some(tier) = &plan.options.tier else {
        return Ok(None);
    };
    let cluster = plan.options.cluster.as_ref();
    let cluster = cluster.ok_or(NodeError::DriveAlone)?;
    let memory = (memory.clone(), plan.limits.high_watermark_bytes());
    let core = (plan.index, plan.cores);
    Ok(Tier::open(tier, &cluster.name, core, memory).await?)
}

/// Who waits for the end of a drain.
#[derive(Default)]
struct Drained {
    ended: Cell<bool>,
    waiting: RefCell<Vec<std_mpsc::Sender<Infallible>>>,
}

impl Drained {
    fn wait(&self, waiting: std_mpsc::Sender<Infallible>) {
        if !self.ended.get() {
            self.waiting.borrow_mut().push(waiting);
        }
    }

    fn end(&self) {
        self.ended.set(true);
        self.waiting.borrow_mut().clear();
    }
}

/// Answers the node's questions.
async fn answer(
    report: impl Fn() -> CoreReport,
    mut questions: mpsc::Receiver<Question>,
    (drain, drained): (Drain, Rc<Drained>),
) {
    let mut is_draining = false;
    loop {
        let next = std::future::poll_fn(|cx| Pin::new(&mut questions).poll_next(cx)).await;
        match next {
            None => return,
            Some(Question::Report(answer)) => {
                let mut report = report();
                if is_draining {
                    let state = report.stat.state().max(NodeState::Draining);
                    report.stat.state_code = state.code();
                }
                if answer.send(report).is_err() {
                    tracing::trace!("whoever asked for statistics is gone");
                }
            }
            Some(Question::Drain(waiting)) => {
                is_draining = true;
                drained.wait(waiting);
                drain.begin();
            }
        }
    }
}

fn serve_options(
    card: &NodeCard,
    connections_max: usize,
    guard: Option<Guard>,
    session_epoch: u64,
) -> ServeOptions {
    let mut greeting = Vec::new();
    card.encode(&mut greeting);
    ServeOptions {
        guard,
        reply_bytes_max: REPLY_BYTES_MAX,
        hello: Hello {
            session_epoch,
            ..hello(greeting)
        },
        connections_max,
        handshake_timeout: Duration::from_secs(5),
        stall_timeout: Duration::from_secs(30),
    }
}

/// What either side of a store connection offers.
pub(crate) fn hello(greeting: Vec<u8>) -> Hello {
    Hello {
        versions: VersionRange::OURS,
        session_epoch: time::unix_ns(),
        in_flight_max: IN_FLIGHT_MAX,
        payload_bytes_max: u32::try_from(PAYLOAD_BYTES_MAX).expect("bounded"),
        greeting,
    }
}
