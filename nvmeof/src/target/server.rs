//! Subsystems, listeners, and who is connected.

use std::cell::{Ref, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lunette_nvmeof_proto::auth::TlsPsk;
use lunette_nvmeof_proto::command::Command;
use lunette_nvmeof_proto::completion::Status;
use lunette_nvmeof_proto::controller::{
    AdminReply, Attached, CONTROLLER_ID_MAX, ControllerId, ControllerOptions, ControllerQueue,
    IoView, Namespace, Secrets, SubsystemOptions, Target, TargetOptions,
};
use lunette_nvmeof_proto::identify::IdentifyNamespace;
use lunette_nvmeof_proto::log_page::{AnaState, ChannelSecurity, DiscoveryRecord, SubsystemKind};
use lunette_nvmeof_proto::nqn::Nqn;
use lunette_nvmeof_proto::pdu::Digests;
use lunette_runtime::Signal;
use lunette_runtime::net::{Accepted, TcpListener, TcpStream};
use lunette_runtime::{JoinError, Port, Scope, time};
use lunette_runtime_core::time::Time;
use thiserror::Error;

use super::connection::Connection;
use super::desk::{Desk, Job};
use super::hub::{Call, Hub, Place};
use super::link::Link;
use crate::disk::{Disk, GRANULE_BYTES};

/// How long a host may take from its first byte to its Connect, and how long it may take to read
/// the last words to it.
const SETUP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a host may take to prove itself then.
const AUTH_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after the system refused a connection (no descriptors left, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Data in a capsule at most, before a Connect says what queue it is for.
const CAPSULE_BYTES_MIN: u32 = 8192;

/// Data in a capsule at most, by default: a granule of a disk in memory. What comes with its command needs no request
/// before it and no header of its own, and memory only as it arrives.
const IN_CAPSULE_BYTES: u32 = 128 * 1024;

/// How disks are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// What all subsystems have in common.
    pub target: TargetOptions,
    /// Digests that hosts may choose.
    pub digests: Digests,
    /// Most data in one H2CData PDU, in bytes.
    pub h2c_data_bytes_max: u32,
    /// Most data asked for at a time, in bytes.
    pub r2t_bytes_max: u32,
    /// Connections at a time.
    pub connections_max: usize,
    /// The key that hosts share with it: every connection is in TLS 1.3 then, which needs the feature
    /// `tls`.
    pub psk: Option<Arc<TlsPsk>>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            target: TargetOptions {
                serial: "lunette".into(),
                model: "Lunette NVMe/TCP".into(),
                firmware: env!("CARGO_PKG_VERSION").into(),
                entries_max: 128,
                io_queues_max: 64,
                in_capsule_bytes: IN_CAPSULE_BYTES,
                transfer_pages_log2: 8,
                controllers_max: 256,
                controller_ids: (1, CONTROLLER_ID_MAX),
            },
            digests: Digests::BOTH,
            h2c_data_bytes_max: 4 << 20,
            r2t_bytes_max: 4 << 20,
            connections_max: 1024,
            psk: None,
        }
    }
}

/// A disk as a namespace.
#[derive(Debug)]
pub struct ExportedDisk {
    /// Its bytes.
    pub disk: Disk,
    /// Length of a block in bytes: a power of two from 512 to 65,536.
    pub block_bytes: u32,
    /// Its lasting name.
    pub uuid: [u8; 16],
    /// It cannot be written.
    pub is_read_only: bool,
    /// Its group of states by path.
    pub ana_group: u32,
}

/// A subsystem; its namespaces have the ids 1 and up.
#[derive(Debug)]
pub struct Export {
    /// Its name.
    pub name: Nqn,
    /// Hosts that may connect; all of them, if it is `None`.
    pub hosts: Option<Vec<Nqn>>,
    /// What they have to prove first.
    pub secrets: Secrets,
    /// Its namespaces.
    pub disks: Vec<ExportedDisk>,
}

/// Why a server cannot be made.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ServerError {
    /// Blocks have a length that they cannot have.
    #[error(
        "blocks of {block_bytes} bytes: a power of two from 512 to 65536, and a multiple of \
         {align_bytes}, is needed"
    )]
    BlockLength {
        /// The length.
        block_bytes: u32,
        /// What the disk asks for.
        align_bytes: usize,
    },
    /// Two subsystems have one name, or one has that of discovery.
    #[error("a subsystem needs a name of its own")]
    Name,
}

/// A server of disks: all of it, or what one core of it does.
pub struct Server {
    options: ServerOptions,
    pub(super) hub: Arc<Hub>,
    /// Which of its cores this is.
    pub(super) core: usize,
    calls: RefCell<Option<Port<Call>>>,
    /// What commands are checked against, and its number.
    view: RefCell<(u64, Arc<IoView>)>,
    desks: BTreeMap<(usize, u32), Rc<Desk>>,
    links: RefCell<Vec<Weak<Link>>>,
    /// Wakes who keeps an eye on silent hosts.
    pub(super) keeper: Signal,
}

impl Server {
    /// A server on one core that listens nowhere yet. `addresses` are what discovery tells.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn new(
        options: ServerOptions,
        exports: Vec<Export>,
        addresses: &[SocketAddr],
    ) -> Result<Rc<Self>, ServerError> {
        let (server, _alone) = Self::spread(options, exports, addresses, 1)?;
        Ok(server)
    }

    /// As [`Server::new`], on several cores: this one, which listens, and as many more as there are
    /// seats, each of which is to be [taken](Seat::join) on a core of its own. Connections go to the
    /// cores in turn, so that the queues of a controller are on several of them.
    ///
    /// # Errors
    /// [`ServerError`].
    ///
    /// # Panics
    /// If there is no core.
    pub fn spread(
        options: ServerOptions,
        exports: Vec<Export>,
        addresses: &[SocketAddr],
        cores: usize,
    ) -> Result<(Rc<Self>, Vec<Seat>), ServerError> {
        let mut subsystems: Vec<SubsystemOptions> = Vec::new();
        let mut disks = Vec::new();
        for export in exports {
            let is_known = subsystems.iter().any(|known| known.name == export.name);
            if is_known || export.name.is_discovery() {
                return Err(ServerError::Name);
            }
            let caches_writes = export.disks.iter().any(|disk| disk.disk.caches_writes());
            let mut namespaces = Vec::new();
            let mut of_subsystem = Vec::new();
            for (nsid, disk) in (1..).zip(export.disks) {
                let identity = identity_of(&disk)?;
                namespaces.push(Namespace { nsid, identity });
                of_subsystem.push(disk.disk);
            }
            disks.push(of_subsystem);
            subsystems.push(SubsystemOptions {
                name: export.name,
                namespaces,
                hosts: export.hosts,
                caches_writes,
                secrets: export.secrets,
            });
        }
        let records = records(&subsystems, addresses, &options);
        let target = Target::new(options.target.clone(), subsystems, records);
        let (hub, ports) = Hub::new(target, cores);
        let seat = |(core, calls)| Seat {
            options: options.clone(),
            hub: Arc::clone(&hub),
            core,
            calls,
        };
        let mut seats = ports.into_iter().enumerate().map(seat);
        let first = seats.next().expect("a server has a core");
        let others = seats.collect();
        Ok((first.join(disks), others))
    }

    /// Serves connections to `listener` until `stop` ends; then every connection is closed.
    /// Dropping the future does the same.
    pub async fn serve(self: Rc<Self>, listener: TcpListener, stop: impl Future<Output = ()>) {
        self.serve_ports(vec![listener], stop).await;
    }

    /// As [`Server::serve`], on several ports: the first listener is port 1, and so on, as discovery
    /// tells of their addresses.
    pub async fn serve_ports(
        self: Rc<Self>,
        listeners: Vec<TcpListener>,
        stop: impl Future<Output = ()>,
    ) {
        let connections = Rc::new(Scope::new());
        let acceptors = Scope::new();
        if self.core == 0 {
            spawned(connections.spawn(Rc::clone(&self).keep_alive()));
        }
        let port = self.calls.borrow_mut().take();
        if let Some(port) = port.filter(|_| self.hub.cores() > 1) {
            let answering = Rc::clone(&self).answer_calls(port, Rc::clone(&connections));
            spawned(acceptors.spawn(answering));
        }
        for desk in self.desks.values() {
            let server = Rc::clone(&self);
            let is_current = move |job: &Job| server.is_current(&job.link, job.resets);
            spawned(connections.spawn(Rc::clone(desk).serve(is_current)));
        }
        for (port_id, listener) in (1..).zip(listeners) {
            let serving = Rc::clone(&self).accept(port_id, listener, Rc::clone(&connections));
            spawned(acceptors.spawn(serving));
        }
        stop.await;
    }

    async fn accept(self: Rc<Self>, port_id: u16, listener: TcpListener, connections: Rc<Scope>) {
        loop {
            let accepted = if self.hub.cores() == 1 {
                listener.accept().await.map(Came::Here)
            } else {
                listener.accept_for_any().await.map(Came::ForAny)
            };
            match accepted {
                Err(error) => {
                    tracing::warn!(%error, "accept");
                    time::sleep(ACCEPT_PAUSE).await;
                }
                // Counted here: others may be accepted before this one's task has begun.
                Ok(came) => match self.hub.place(self.options.connections_max) {
                    Some(place) => self.take(port_id, came, place, &connections),
                    None => tracing::warn!("a connection beyond the limit is closed"),
                },
            }
        }
    }

    /// Has a connection served, here or by another core.
    fn take(self: &Rc<Self>, port_id: u16, came: Came, place: Place, connections: &Scope) {
        match came {
            Came::Here(stream) => {
                let serving = Rc::clone(self).serve_one(port_id, stream, place);
                spawned(connections.spawn(serving));
            }
            Came::ForAny(connection) => {
                let call = Call::Serve {
                    port_id,
                    connection,
                    place,
                };
                if !self.hub.call(self.hub.next_core(), call) {
                    tracing::warn!("a connection is closed: its core has too much to do");
                }
            }
        }
    }

    /// Does what other cores ask for.
    async fn answer_calls(self: Rc<Self>, port: Port<Call>, connections: Rc<Scope>) {
        let Ok(mut calls) = port.open() else {
            tracing::error!("this core has too many sources to serve with others");
            return;
        };
        while let Some(call) = calls.recv().await {
            match call {
                Call::Look => {}
                Call::Serve {
                    port_id,
                    connection,
                    place,
                } => {
                    let serving = Rc::clone(&self).serve_one(port_id, connection.here(), place);
                    spawned(connections.spawn(serving));
                }
                Call::Abort {
                    controller,
                    queue_id,
                    cid,
                    core,
                    slot,
                } => {
                    let was_aborted = self.abort_here((controller, queue_id), cid);
                    let answer = Call::Aborted {
                        controller,
                        slot,
                        was_aborted,
                    };
                    if !self.hub.call(core, answer) {
                        tracing::warn!("an Abort stays without its answer");
                    }
                }
                Call::Aborted {
                    controller,
                    slot,
                    was_aborted,
                } => {
                    if let Some(link) = self.link((controller, 0)) {
                        link.reply(slot, AdminReply::aborted(was_aborted));
                    }
                }
            }
            self.look();
        }
    }

    /// Does what follows from what another core has changed.
    fn look(&self) {
        self.keeper.raise();
        self.close_strays();
        self.deliver_notices();
        self.look_at_desks();
    }

    /// Some controller may have been reset.
    pub(super) fn look_at_desks(&self) {
        for desk in self.desks.values() {
            desk.look();
        }
    }

    /// Whether a controller has not been reset since it had been so often.
    pub(super) fn is_current(&self, link: &Link, resets: u64) -> bool {
        let attached = link.attached.get();
        let found = attached.and_then(|attached| self.view().resets(attached.controller));
        found == Some(resets)
    }

    /// Aborts a command of a queue for I/O that has not begun, on whatever core, and answers the one
    /// that asks for it.
    pub(super) fn abort(&self, link: &Link, slot: u16, queue: (ControllerId, u16), cid: u16) {
        match self.hub.core_of(queue) {
            Some(core) if core != self.core => {
                let call = Call::Abort {
                    controller: queue.0,
                    queue_id: queue.1,
                    cid,
                    core: self.core,
                    slot,
                };
                if !self.hub.call(core, call) {
                    link.reply(slot, AdminReply::aborted(false));
                }
            }
            _ => link.reply(slot, AdminReply::aborted(self.abort_here(queue, cid))),
        }
    }

    fn abort_here(&self, queue: (ControllerId, u16), cid: u16) -> bool {
        let Some(link) = self.link(queue) else {
            return false;
        };
        let host = link.attached.get().expect("just seen").host;
        let mut desks = self.desks.values();
        desks.any(|desk| desk.abort(host, &link, cid))
    }

    /// Connections that are open, on any core.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.hub.connections()
    }

    /// Those of them that this core serves.
    #[must_use]
    pub fn connections_here(&self) -> usize {
        let links = self.links.borrow();
        links.iter().filter(|link| link.strong_count() > 0).count()
    }

    /// Looks at the target, or changes it.
    pub(super) fn target<T>(&self, action: impl FnOnce(&mut Target) -> T) -> T {
        self.hub.with(self.core, action)
    }

    /// What commands for I/O are checked against now.
    pub(super) fn view(&self) -> Ref<'_, IoView> {
        if self.view.borrow().0 != self.hub.views() {
            self.view.replace(self.hub.view());
        }
        Ref::map(self.view.borrow(), |(_, view)| &**view)
    }

    /// Changes how namespaces of a group can be reached by a port; hosts there that want to know
    /// are told.
    pub fn set_ana_state(&self, port_id: u16, group: u32, state: AnaState) {
        self.target(|target| target.set_ana_state(port_id, group, state));
        self.deliver_notices();
    }

    /// Closes every connection of this core, as a crash would. Hosts may come back.
    pub fn disconnect_all(&self) {
        for link in self.links.borrow().iter().filter_map(Weak::upgrade) {
            link.close();
        }
    }

    async fn serve_one(self: Rc<Self>, port_id: u16, stream: TcpStream, _place: Place) {
        let queue = ControllerQueue::new(ControllerOptions {
            digests: self.options.digests,
            h2c_data_bytes_max: self.options.h2c_data_bytes_max,
            r2t_bytes_max: self.options.r2t_bytes_max,
            in_capsule_bytes_max: self.options.target.in_capsule_bytes.max(CAPSULE_BYTES_MIN),
        });
        let link = Rc::new(Link::new(stream, port_id, queue));
        self.know(&link);
        let securing = link.secure(self.options.psk.as_ref());
        match time::timeout(SETUP_TIMEOUT, securing).await {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => {
                tracing::warn!(%reason, "a connection is closed");
                return link.close();
            }
            Err(_late) => return link.close(),
        }
        let beside = Scope::new();
        spawned(beside.spawn(send(Rc::clone(&link))));
        spawned(beside.spawn(Rc::clone(&self).end_unless_used(Rc::clone(&link))));
        match Connection::new(Rc::clone(&self), Rc::clone(&link)) {
            Err(reason) => tracing::warn!(%reason, "a connection is closed at once"),
            Ok(mut connection) => {
                let reason = connection.run().await;
                tracing::debug!(%reason, "connection ended");
            }
        }
        // Its own last words are still on their way when the other connections are closed.
        if let Some(attached) = link.attached.take() {
            let (controller, queue_id) = (attached.controller, attached.queue_id);
            self.hub.unseat((controller, queue_id));
            self.target(|target| target.detach(controller, queue_id));
            self.close_strays();
        }
        let last_words = time::timeout(SETUP_TIMEOUT, link.outbox.drained_below(0)).await;
        tracing::trace!(?last_words, "outbox");
        link.close();
    }

    /// Remembers a connection while it lives.
    fn know(&self, link: &Rc<Link>) {
        let mut links = self.links.borrow_mut();
        links.retain(|link| link.strong_count() > 0);
        links.push(Rc::downgrade(link));
    }

    /// Ends a connection whose host does not say, and prove if it has to, who it is.
    async fn end_unless_used(self: Rc<Self>, link: Rc<Link>) {
        time::sleep(SETUP_TIMEOUT).await;
        let Some(attached) = link.attached.get() else {
            tracing::debug!("a connection without a Connect is closed");
            return link.close();
        };
        if attached.must_authenticate {
            time::sleep(AUTH_TIMEOUT).await;
            let Attached {
                controller,
                queue_id,
                ..
            } = attached;
            if !self.target(|target| target.is_authenticated(controller, queue_id)) {
                tracing::warn!("a connection whose host did not prove itself is closed");
                link.close();
            }
        }
    }

    /// Answers a Connect.
    pub(super) fn connect(&self, link: &Link, slot: u16, command: &Command, data: &[u8]) {
        if !link.is_as_pledged(data) {
            tracing::warn!("a host is not who its key was for");
            let refused = Status::CONNECT_HOST.do_not_retry();
            return link.complete(slot, refused, 0);
        }
        let (port_id, now) = (link.port_id, time::now());
        let connected = self.target(|target| target.connect(command, data, port_id, now));
        match connected {
            Ok(attached) => {
                let mut queue = link.queue.borrow_mut();
                queue.connect(attached.entries, attached.has_flow_control);
                drop(queue);
                link.attached.set(Some(attached));
                let queue = (attached.controller, attached.queue_id);
                self.hub.seat(queue, self.core);
                link.complete(slot, Status::SUCCESS, attached.result());
                self.keeper.raise();
            }
            Err(refusal) => {
                tracing::debug!(?refusal, "connect");
                link.complete(slot, refusal.status, u64::from(refusal.result));
            }
        }
    }

    /// The desk of a namespace that commands were checked against.
    pub(super) fn desk(&self, subsystem: usize, nsid: u32) -> Rc<Desk> {
        let desk = self.desks.get(&(subsystem, nsid));
        Rc::clone(desk.expect("each namespace has one on every core"))
    }

    pub(super) fn desks_of(&self, subsystem: Option<usize>) -> Vec<Rc<Desk>> {
        let desks = self.desks.iter();
        let of_subsystem = desks.filter(|((index, _), _)| Some(*index) == subsystem);
        of_subsystem.map(|(_, desk)| Rc::clone(desk)).collect()
    }

    /// Completes the commands of this core that waited for events that have come.
    pub(super) fn deliver_notices(&self) {
        let is_mine = |controller| self.link((controller, 0)).is_some();
        while let Some(notice) = self.target(|target| target.next_notice(is_mine)) {
            if let Some(link) = self.link((notice.controller, 0)) {
                link.complete(notice.slot, notice.status, notice.result);
            }
        }
    }

    /// The connection of a queue, if it is on this core.
    fn link(&self, queue: (ControllerId, u16)) -> Option<Rc<Link>> {
        let links = self.links.borrow();
        links.iter().filter_map(Weak::upgrade).find(|link| {
            let attached = link.attached.get();
            attached.is_some_and(|a| (a.controller, a.queue_id) == queue)
        })
    }

    /// Closes the connections of this core whose controllers are no more.
    fn close_strays(&self) {
        let links: Vec<_> = self
            .links
            .borrow()
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        self.target(|target| {
            for link in links {
                let attached = link.attached.get();
                if attached.is_some_and(|attached| !target.has(attached.controller)) {
                    link.close();
                }
            }
        });
    }

    /// Ends controllers whose hosts are silent.
    async fn keep_alive(self: Rc<Self>) {
        let mut expired = Vec::new();
        loop {
            let next = self.target(|target| target.poll_timeout());
            let next = next.unwrap_or(Time::MAX);
            let mut sleep = pin!(time::sleep_until(next));
            poll_fn(|cx| {
                if self.keeper.poll(cx.waker()).is_ready() {
                    return Poll::Ready(());
                }
                sleep.as_mut().poll(cx)
            })
            .await;
            self.target(|target| target.expire(time::now(), &mut expired));
            for controller in expired.drain(..) {
                tracing::warn!(
                    controller = controller.0,
                    "the host is silent: disconnected"
                );
            }
            self.close_strays();
        }
    }
}

/// A connection that has been accepted.
enum Came {
    Here(TcpStream),
    ForAny(Accepted),
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server(core {} of {:?})", self.core, self.hub)
    }
}

/// A place for one more core of a server: it may be sent to that core.
pub struct Seat {
    options: ServerOptions,
    hub: Arc<Hub>,
    core: usize,
    calls: Port<Call>,
}

impl Seat {
    /// Takes it for this core. `disks` are those of the exports, in their order, as this core
    /// reaches them. The server serves no listener here, but is to be [served](Server::serve_ports)
    /// all the same.
    ///
    /// # Panics
    /// If there are other disks than were exported: more or fewer, or of another length.
    #[must_use]
    pub fn join(self, disks: Vec<Vec<Disk>>) -> Rc<Server> {
        let view = self.hub.view();
        let mut desks = BTreeMap::new();
        for (index, disks) in disks.into_iter().enumerate() {
            for (nsid, disk) in (1..).zip(disks) {
                let geometry = view
                    .1
                    .geometry(index, nsid)
                    .expect("a disk that is exported");
                let blocks = disk.len_bytes() >> geometry.block_bytes_log2;
                assert_eq!(blocks, geometry.blocks, "the disk that is exported");
                desks.insert((index, nsid), Desk::new(disk));
            }
        }
        Rc::new(Server {
            options: self.options,
            hub: self.hub,
            core: self.core,
            calls: RefCell::new(Some(self.calls)),
            view: RefCell::new(view),
            desks,
            links: RefCell::default(),
            keeper: Signal::default(),
        })
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seat(core {} of {:?})", self.core, self.hub)
    }
}

async fn send(link: Rc<Link>) {
    if let Err(error) = link.wire().send(&link.outbox, &link.stream).await {
        tracing::debug!(%error, "sending ended");
    }
    // The receiving half learns it from its receive.
    link.close();
}

/// Without a task the connection is dropped, and its host sees that.
fn spawned(result: Result<(), JoinError>) {
    if let Err(error) = result {
        tracing::warn!(%error, "a connection is closed at once");
    }
}

fn identity_of(disk: &ExportedDisk) -> Result<IdentifyNamespace, ServerError> {
    let block_bytes = disk.block_bytes;
    let align_bytes = disk.disk.align_bytes();
    let is_aligned = (block_bytes as usize).is_multiple_of(align_bytes);
    if !block_bytes.is_power_of_two() || !(512..=65_536).contains(&block_bytes) || !is_aligned {
        return Err(ServerError::BlockLength {
            block_bytes,
            align_bytes,
        });
    }
    let log2 = u8::try_from(block_bytes.trailing_zeros()).expect("at most 16");
    let optimal = GRANULE_BYTES >> log2;
    Ok(IdentifyNamespace {
        blocks: disk.disk.len_bytes() >> log2,
        block_bytes_log2: log2,
        ana_group: disk.ana_group,
        uuid: disk.uuid,
        is_read_only: disk.is_read_only,
        optimal_blocks_less_one: u16::try_from(optimal - 1).expect("a granule has few blocks"),
    })
}

fn records(
    subsystems: &[SubsystemOptions],
    addresses: &[SocketAddr],
    options: &ServerOptions,
) -> Vec<DiscoveryRecord> {
    let admin_entries_max = options.target.entries_max;
    let security = match options.psk {
        Some(_) => ChannelSecurity::Tls13,
        None => ChannelSecurity::None,
    };
    let ways = addresses.iter().zip(1..);
    ways.flat_map(|(&address, port_id)| {
        subsystems.iter().map(move |subsystem| DiscoveryRecord {
            kind: SubsystemKind::Nvm,
            port_id,
            admin_entries_max,
            subsystem: subsystem.name.clone(),
            address,
            security,
        })
    })
    .collect()
}
