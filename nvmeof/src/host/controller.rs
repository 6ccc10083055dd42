//! A controller: brought up, kept alive, with queues.

use std::cell::{Cell, OnceCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lunette_nvmeof_proto::auth::{AuthNext, Credentials, Entropy, HostAuth, TlsPsk};
use lunette_nvmeof_proto::command::{Command, admin, fabrics};
use lunette_nvmeof_proto::completion::Status;
use lunette_nvmeof_proto::fabrics::{Configuration, Property};
use lunette_nvmeof_proto::feature::events;
use lunette_nvmeof_proto::host::{
    Association, BringUp, BringUpFault, BringUpOptions, HostOptions, Next, Request, RequestData,
};
use lunette_nvmeof_proto::identify::{
    IdentifyNamespace, NSID_ALL, NamespaceNames, PAGE_BYTES, cns, decode_list, identify,
};
use lunette_nvmeof_proto::log_page::{
    AnaGroup, DISCOVERY_RECORD_BYTES, DiscoveryRecord, LogRequest, decode_ana,
    decode_discovery_header, decode_discovery_records, id,
};
use lunette_nvmeof_proto::nqn::Nqn;
use lunette_nvmeof_proto::pdu::Digests;
use lunette_runtime::{Scope, Sender, arena, channel, control, time};
use lunette_runtime_core::time::Time;

use super::events::{ControllerEvent, Events, listen};
use super::queue::{Ask, Data, Done, Queue};
use super::seat::QueueSeat;
use crate::error::{CloseReason, CommandError, CommandFailure, ConnectError};
use crate::wire::Pledge;

/// Commands of queues of other cores that may wait to be aborted.
const ABORTS_MAX: usize = 1024;
/// Commands in flight on an admin queue: its entries, one of which stays empty.
const ADMIN_COMMANDS_MAX: u16 = 31;
/// Data of an admin command at most that go with it, whatever the controller says of queues for
/// I/O (NVMe/TCP 1.0, "Capsules").
const ADMIN_IN_CAPSULE_BYTES: usize = 8192;
/// First length of an ANA log that is tried, and the last one, in bytes.
const ANA_BYTES: usize = 4096;
const ANA_BYTES_MAX: usize = 256 * 1024;
/// "Return groups only": what is specific to the ANA log.
const ANA_GROUPS_ONLY: u8 = 1;
/// Records that are read of a discovery log at most.
const DISCOVERY_RECORDS_MAX: u64 = 4096;
/// Records that are read at once.
const DISCOVERY_BATCH: u64 = 16;

/// Who this host is, and how it connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostConfig {
    /// The host's name.
    pub host: Nqn,
    /// Which host this is, beside its name.
    pub host_id: [u8; 16],
    /// Digests that it asks for.
    pub digests: Digests,
    /// Commands in flight on one queue for I/O.
    pub commands_max: u16,
    /// Queues for I/O that it asks for.
    pub io_queues: u16,
    /// How long the controller waits for a sign of life.
    pub keep_alive: Duration,
    /// How long connecting and each admin command may take.
    pub timeout: Duration,
    /// What it proves where it is asked to; with a secret of the controller, it insists.
    pub credentials: Option<Arc<Credentials>>,
    /// The key that it shares with controllers: every connection is in TLS 1.3 then, which needs the
    /// feature `tls`.
    pub psk: Option<Arc<TlsPsk>>,
}

impl HostConfig {
    /// A host that proves nothing and asks for no digests: 64 commands on one queue, a sign of life within 15 s, and 10 s for
    /// each admin command.
    #[must_use]
    pub const fn new(host: Nqn, host_id: [u8; 16]) -> Self {
        Self {
            host,
            host_id,
            digests: Digests::NONE,
            commands_max: 64,
            io_queues: 1,
            keep_alive: Duration::from_secs(15),
            timeout: Duration::from_secs(10),
            credentials: None,
            psk: None,
        }
    }

    fn options(&self, commands_max: u16) -> HostOptions {
        HostOptions {
            digests: self.digests,
            r2t_max: 1,
            commands_max,
        }
    }

    fn pledge(&self, subsystem: &Nqn) -> Option<Pledge> {
        self.psk.as_ref().map(|psk| Pledge {
            psk: Arc::clone(psk),
            host: self.host.clone(),
            subsystem: subsystem.clone(),
        })
    }

    fn bring_up(&self, subsystem: &Nqn) -> BringUpOptions {
        let keep_alive_ms = u32::try_from(self.keep_alive.as_millis()).unwrap_or(u32::MAX);
        BringUpOptions {
            subsystem: subsystem.clone(),
            host: self.host.clone(),
            host_id: self.host_id,
            keep_alive_ms,
            io_queues: if subsystem.is_discovery() {
                0
            } else {
                self.io_queues
            },
            entries: self.commands_max.saturating_add(1),
            events: events::NAMESPACES | events::ANA | events::DISCOVERY,
        }
    }
}

/// A controller that works, with its admin queue on this core. Dropping it ends the controller;
/// its queues end with it.
#[derive(Debug)]
pub struct RemoteController {
    admin: Queue,
    association: Association,
    address: SocketAddr,
    config: HostConfig,
    events: Rc<Events>,
    /// Keeps the controller alive, asks it for events, and has commands aborted for other cores.
    beside: Scope,
    aborts: OnceCell<Sender<Ask>>,
    next_queue: Cell<u16>,
}

impl RemoteController {
    /// Connects to a subsystem at `address` and brings a controller of it up.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(
        address: SocketAddr,
        subsystem: &Nqn,
        config: HostConfig,
    ) -> Result<Rc<Self>, ConnectError> {
        let options = config.options(ADMIN_COMMANDS_MAX);
        let pledge = config.pledge(subsystem);
        let admin = Queue::open_as(address, options, config.timeout, pledge).await?;
        admin.set_in_capsule_bytes_max(ADMIN_IN_CAPSULE_BYTES);
        let mut bring_up = BringUp::new(config.bring_up(subsystem));
        if let Some(credentials) = &config.credentials {
            bring_up = bring_up.with_credentials(Arc::clone(credentials), drawn());
        }
        let association = brought_up(&admin, bring_up, config.timeout).await?;
        if !association.identity.is_discovery {
            admin.abort_on(&admin, 0);
        }
        let beside = Scope::new();
        if !config.keep_alive.is_zero()
            && let Err(error) = beside.spawn(keep_alive(admin.clone(), config.clone()))
        {
            tracing::warn!(%error, "nobody keeps the controller alive");
        }
        let events = Rc::new(Events::default());
        if let Err(error) = beside.spawn(listen(admin.clone(), Rc::clone(&events))) {
            tracing::warn!(%error, "nobody asks the controller for events");
        }
        Ok(Rc::new(Self {
            admin,
            association,
            address,
            config,
            events,
            beside,
            aborts: OnceCell::new(),
            next_queue: Cell::new(1),
        }))
    }

    /// What is known of the controller.
    #[must_use]
    pub const fn association(&self) -> &Association {
        &self.association
    }

    /// Its admin queue.
    #[must_use]
    pub const fn admin(&self) -> &Queue {
        &self.admin
    }

    /// Connects its next queue for I/O, on this core.
    ///
    /// # Errors
    /// [`ConnectError`]; [`CloseReason::Local`] when all that were granted have been connected.
    pub async fn queue(&self) -> Result<Queue, ConnectError> {
        let queue_id = self.next_queue_id()?;
        let queue = connect_queue(self.address, &self.association, queue_id, &self.config).await?;
        queue.abort_on(&self.admin, queue_id);
        Ok(queue)
    }

    /// What another core needs to connect its next queue for I/O there: it may be sent to that core.
    ///
    /// # Errors
    /// [`CloseReason::Local`] when all that were granted have been connected, or given away.
    pub fn seat(&self) -> Result<QueueSeat, ConnectError> {
        let queue_id = self.next_queue_id()?;
        let aborts = self.aborts.get_or_init(|| {
            let (sender, asks) = channel(ABORTS_MAX);
            let aborting = self.admin.clone().abort_for_others(asks);
            if let Err(error) = self.beside.spawn(aborting) {
                tracing::warn!(%error, "commands of other cores are not aborted");
            }
            sender
        });
        Ok(QueueSeat {
            address: self.address,
            association: self.association.clone(),
            queue_id,
            config: self.config.clone(),
            aborts: aborts.clone(),
        })
    }

    fn next_queue_id(&self) -> Result<u16, ConnectError> {
        let queue_id = self.next_queue.get();
        if queue_id > self.association.io_queues {
            return Err(ConnectError::Closed(CloseReason::Local));
        }
        self.next_queue.set(queue_id + 1);
        Ok(queue_id)
    }

    /// The ids of its namespaces.
    ///
    /// # Errors
    /// [`CommandError`].
    pub async fn namespaces(&self) -> Result<Vec<u32>, CommandError> {
        let mut found = Vec::new();
        loop {
            let above = found.last().copied().unwrap_or(0);
            let page = self.page(identify(cns::ACTIVE_NAMESPACES, above)).await?;
            let listed = decode_list(&page);
            // A list that does not go up would never end.
            let is_over = listed.first().is_none_or(|&first| first <= above);
            if is_over || !listed.is_sorted() {
                return Ok(found);
            }
            found.extend(listed);
            if found.last().is_none_or(|&last| last >= NSID_ALL - 1) {
                return Ok(found);
            }
        }
    }

    /// What a namespace is; `None` if it is not there.
    ///
    /// # Errors
    /// [`CommandError`].
    pub async fn namespace(&self, nsid: u32) -> Result<Option<IdentifyNamespace>, CommandError> {
        let page = self.page(identify(cns::NAMESPACE, nsid)).await?;
        Ok(IdentifyNamespace::decode(&page))
    }

    /// The lasting names of a namespace that is there.
    ///
    /// # Errors
    /// [`CommandError`].
    pub async fn names(&self, nsid: u32) -> Result<NamespaceNames, CommandError> {
        let namespace = self.page(identify(cns::NAMESPACE, nsid)).await?;
        let descriptors = self.page(identify(cns::NAMESPACE_DESCRIPTORS, nsid)).await;
        let descriptors = match descriptors {
            Ok(page) => Some(page),
            // Controllers before version 1.3 have none.
            Err(CommandError::Status(_)) => None,
            Err(error) => return Err(error),
        };
        Ok(NamespaceNames::decode(&namespace, descriptors.as_ref()))
    }

    /// Part of a log page: `len` bytes, a multiple of 4.
    ///
    /// # Errors
    /// [`CommandError`].
    pub async fn log(&self, id: u8, offset: u64, len: usize) -> Result<Vec<u8>, CommandError> {
        let request = LogRequest {
            id,
            specific: 0,
            retains_event: true,
            offset_bytes: offset,
            len_bytes: len as u64,
        };
        self.read(request.command(), len).await
    }

    /// Waits until the controller tells that something has changed, and asks it what. One caller at
    /// a time; dropping the future loses no event. Changes of one kind between two calls are one
    /// event.
    ///
    /// # Errors
    /// [`CommandError`]: the connection has ended, or the controller did not say what has changed.
    pub async fn event(&self) -> Result<ControllerEvent, CommandError> {
        loop {
            let page = self.events.page().await?;
            let looked = self.look_into(page).await;
            // A page that is refused now will be refused again.
            if matches!(looked, Ok(_) | Err(CommandError::Status(_))) {
                self.events.take();
            }
            if let Some(event) = looked? {
                return Ok(event);
            }
            tracing::warn!(page, "an event of no known kind");
        }
    }

    /// Reads what an event is about, after which the controller may tell of the same again.
    async fn look_into(&self, page: u8) -> Result<Option<ControllerEvent>, CommandError> {
        let event = match page {
            id::CHANGED_NAMESPACES => {
                let list = self.page(told_log(page, 0, PAGE_BYTES)).await?;
                ControllerEvent::Namespaces(decode_list(&list))
            }
            id::ANA => ControllerEvent::Paths(self.paths().await?),
            id::DISCOVERY => {
                let command = told_log(page, 0, DISCOVERY_RECORD_BYTES);
                self.read(command, DISCOVERY_RECORD_BYTES).await?;
                ControllerEvent::Discovery
            }
            _ => return Ok(None),
        };
        Ok(Some(event))
    }

    /// How groups of namespaces can be reached by this controller, without their namespaces.
    ///
    /// # Errors
    /// [`CommandError`].
    pub async fn paths(&self) -> Result<Vec<AnaGroup>, CommandError> {
        let allowed = self.association.identity.transfer_bytes_max();
        let len_bytes_max = allowed.map_or(ANA_BYTES_MAX, |most| ANA_BYTES_MAX.min(most as usize));
        let mut len = ANA_BYTES;
        loop {
            let log = self
                .read(told_log(id::ANA, ANA_GROUPS_ONLY, len), len)
                .await?;
            match decode_ana(&log) {
                Ok((_changes, groups)) => return Ok(groups),
                Err(_) if len * 2 <= len_bytes_max => len *= 2,
                Err(_) => {
                    let status = Status::DATA_TRANSFER_ERROR.do_not_retry();
                    return Err(CommandError::Status(status));
                }
            }
        }
    }

    /// Shuts the controller down in order, and then ends it.
    ///
    /// # Errors
    /// [`CommandError`]: it did not answer, and is ended all the same.
    pub async fn shut_down(&self) -> Result<(), CommandError> {
        let configuration = Configuration::ENABLED.shutting_down();
        let command = Property::Configuration.write(configuration.0);
        let timeout = self.config.timeout;
        let done = self.admin.command(command, Data::None, timeout).await;
        self.admin.close();
        done.map(drop).map_err(|failure| failure.error)
    }

    async fn page(&self, command: Command) -> Result<[u8; PAGE_BYTES], CommandError> {
        let bytes = self.read(command, PAGE_BYTES).await?;
        Ok(bytes.try_into().expect("a read fills its region"))
    }

    async fn read(&self, command: Command, len: usize) -> Result<Vec<u8>, CommandError> {
        let region = arena().alloc(len)?;
        let reading = self
            .admin
            .command(command, Data::In(region), self.config.timeout);
        let done = reading.await.map_err(|failure| failure.error)?;
        let region = done.region.expect("a read gives its region back");
        Ok(region.as_slice().to_vec())
    }
}

/// Reads the first `len` bytes of a log page, and with that the event that told of it is over.
fn told_log(id: u8, specific: u8, len: usize) -> Command {
    let request = LogRequest {
        id,
        specific,
        retains_event: false,
        offset_bytes: 0,
        len_bytes: len as u64,
    };
    request.command()
}

/// What discovery at `address` tells.
///
/// # Errors
/// [`ConnectError`].
pub async fn discover(
    address: SocketAddr,
    config: HostConfig,
) -> Result<Vec<DiscoveryRecord>, ConnectError> {
    let controller = RemoteController::connect(address, &Nqn::discovery(), config).await?;
    loop {
        let header = controller
            .log(id::DISCOVERY, 0, DISCOVERY_RECORD_BYTES)
            .await?;
        let cut = |_| ConnectError::Closed(CloseReason::Peer);
        let (generation, count) = decode_discovery_header(&header).map_err(cut)?;
        let count = count.min(DISCOVERY_RECORDS_MAX);
        let mut records = Vec::new();
        let mut at = 0;
        while at < count {
            let batch = DISCOVERY_BATCH.min(count - at);
            let record_bytes = DISCOVERY_RECORD_BYTES as u64;
            let len = usize::try_from(batch * record_bytes).expect("a batch is short");
            let offset = (at + 1) * record_bytes;
            let bytes = controller.log(id::DISCOVERY, offset, len).await?;
            records.extend(decode_discovery_records(&bytes));
            at += batch;
        }
        // It may have changed while it was read.
        let header = controller
            .log(id::DISCOVERY, 0, DISCOVERY_RECORD_BYTES)
            .await?;
        if decode_discovery_header(&header).map_err(cut)?.0 == generation {
            return Ok(records);
        }
    }
}

async fn brought_up(
    admin: &Queue,
    mut bring_up: BringUp,
    timeout: Duration,
) -> Result<Association, ConnectError> {
    loop {
        match bring_up.next(time::now()) {
            Next::WaitUntil(at) => time::sleep_until(at).await,
            Next::Ready(association) => return Ok(*association),
            Next::Failed(fault) => return Err(fault.into()),
            Next::Send(request) => {
                let answered = answer(admin, request, timeout).await;
                let answer = answered.map_err(|error| or_else(bring_up.fault(), error))?;
                let is_costly = bring_up.is_costly();
                bring_up = told(is_costly, bring_up, answer, |bring_up, answer| {
                    let Answer { status, result, .. } = *answer;
                    bring_up.on_completion(answer.at, status, result, &answer.data);
                })
                .await?;
            }
        }
    }
}

/// Proves, on a queue that has been connected, what its controller asks for.
async fn authenticated(
    queue: &Queue,
    mut auth: HostAuth,
    timeout: Duration,
) -> Result<(), ConnectError> {
    loop {
        match auth.next_request() {
            AuthNext::Done => return Ok(()),
            AuthNext::Failed(fault) => return Err(BringUpFault::from(fault).into()),
            AuthNext::Send(request) => {
                let answered = answer(queue, request, timeout).await;
                let fault = || auth.fault().map(BringUpFault::from);
                let answer = answered.map_err(|error| or_else(fault(), error))?;
                let is_costly = auth.is_costly();
                auth = told(is_costly, auth, answer, |auth, answer| {
                    auth.on_completion(answer.status, &answer.data);
                })
                .await?;
            }
        }
    }
}

/// A fault that was known before a command failed is why it did: whoever is told may just go.
fn or_else(known: Option<BringUpFault>, error: CommandError) -> ConnectError {
    known.map_or_else(|| error.into(), ConnectError::from)
}

/// Tells a machine how its command ended: beside this core, if it is going to compute for long.
async fn told<M: Send + 'static>(
    is_costly: bool,
    mut machine: M,
    answer: Answer,
    tell: impl FnOnce(&mut M, &Answer) + Send + 'static,
) -> Result<M, ConnectError> {
    if !is_costly {
        tell(&mut machine, &answer);
        return Ok(machine);
    }
    let telling = control(move || {
        tell(&mut machine, &answer);
        machine
    });
    telling.await.map_err(ConnectError::Busy)
}

/// How a machine's command ended.
struct Answer {
    at: Time,
    status: Status,
    result: u64,
    data: Vec<u8>,
}

/// Sends what a machine wants sent.
async fn answer(
    queue: &Queue,
    request: Request,
    timeout: Duration,
) -> Result<Answer, CommandError> {
    let data = match request.data {
        RequestData::None => Data::None,
        RequestData::In(len) => Data::In(arena().alloc(len as usize)?),
        RequestData::Out(bytes) => {
            let mut region = arena().alloc(bytes.len())?;
            region.as_mut_slice().copy_from_slice(&bytes);
            Data::Out(region.freeze())
        }
    };
    let done = queue.command(request.command, data, timeout).await;
    let (status, result, region) = match done {
        Ok(Done { result, region }) => (Status::SUCCESS, result, region),
        Err(CommandFailure {
            error: CommandError::Status(status),
            ..
        }) => (status, 0, None),
        Err(failure) => return Err(failure.error),
    };
    let at = time::now();
    let data = region.map_or_else(Vec::new, |region| region.as_slice().to_vec());
    Ok(Answer {
        at,
        status,
        result,
        data,
    })
}

/// Random numbers for one authentication.
fn drawn() -> Entropy {
    Entropy::draw(lunette_runtime::entropy)
}

pub(super) async fn connect_queue(
    address: SocketAddr,
    association: &Association,
    queue_id: u16,
    config: &HostConfig,
) -> Result<Queue, ConnectError> {
    let commands_max = config.commands_max.min(association.entries - 1).max(1);
    let options = config.options(commands_max);
    let pledge = config.pledge(association.subsystem());
    let queue = Queue::open_as(address, options, config.timeout, pledge).await?;
    // The Connect has to go with its data whatever the controller says.
    queue.set_in_capsule_bytes_max(ADMIN_IN_CAPSULE_BYTES);
    let request = association.connect(queue_id);
    let Answer { status, result, .. } = answer(&queue, request, config.timeout).await?;
    let auth = association.check_connected(status, result, drawn)?;
    queue.set_in_capsule_bytes_max(association.identity.in_capsule_bytes as usize);
    if let Some(auth) = auth {
        authenticated(&queue, auth, config.timeout).await?;
    }
    Ok(queue)
}

/// Tells the controller that this host is there, often enough that one loss does not matter.
async fn keep_alive(admin: Queue, config: HostConfig) {
    loop {
        time::sleep(config.keep_alive / 2).await;
        let command = Command::new(admin::KEEP_ALIVE, 0, [0; 6]);
        let kept = admin.command(command, Data::None, config.keep_alive).await;
        if let Err(failure) = kept {
            tracing::warn!(%failure, "keep-alive");
            // Whoever uses the controller has to learn of it.
            admin.end(CloseReason::Stuck);
            return;
        }
    }
}

/// The command that ends a queue for I/O in order.
pub(super) fn disconnect() -> Command {
    Command::fabrics(fabrics::DISCONNECT, [0; 6])
}
