//! Subsystems, listeners, and who is connected.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Duration;

use lunette_nvmeof_proto::command::Command;
use lunette_nvmeof_proto::completion::Status;
use lunette_nvmeof_proto::controller::{
    CONTROLLER_ID_MAX, ControllerId, ControllerOptions, ControllerQueue, Namespace, Secrets,
    SubsystemOptions, Target, TargetOptions,
};
use lunette_nvmeof_proto::identify::IdentifyNamespace;
use lunette_nvmeof_proto::io::Geometry;
use lunette_nvmeof_proto::log_page::{AnaState, DiscoveryRecord, SubsystemKind};
use lunette_nvmeof_proto::nqn::Nqn;
use lunette_nvmeof_proto::pdu::Digests;
use lunette_runtime::Signal;
use lunette_runtime::net::Outbox;
use lunette_runtime::net::{TcpListener, TcpStream};
use lunette_runtime::{JoinError, Scope, time};
use lunette_runtime_core::time::Time;
use thiserror::Error;

use super::connection::Connection;
use super::desk::Desk;
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
                in_capsule_bytes: 8192,
                transfer_pages_log2: 8,
                controllers_max: 256,
                controller_ids: (1, CONTROLLER_ID_MAX),
            },
            digests: Digests::BOTH,
            h2c_data_bytes_max: 4 << 20,
            r2t_bytes_max: 4 << 20,
            connections_max: 1024,
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

/// A server of disks, on one core.
#[derive(Debug)]
pub struct Server {
    options: ServerOptions,
    pub(super) target: RefCell<Target>,
    desks: BTreeMap<(usize, u32), Rc<Desk>>,
    links: RefCell<Vec<Weak<Link>>>,
    open: Cell<usize>,
    /// Wakes who keeps an eye on silent hosts.
    pub(super) keeper: Signal,
}

impl Server {
    /// A server that listens nowhere yet. `addresses` are what discovery tells.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn new(
        options: ServerOptions,
        exports: Vec<Export>,
        addresses: &[SocketAddr],
    ) -> Result<Rc<Self>, ServerError> {
        let mut subsystems: Vec<SubsystemOptions> = Vec::new();
        let mut desks = BTreeMap::new();
        for (index, export) in exports.into_iter().enumerate() {
            let is_known = subsystems.iter().any(|known| known.name == export.name);
            if is_known || export.name.is_discovery() {
                return Err(ServerError::Name);
            }
            let caches_writes = export.disks.iter().any(|disk| disk.disk.caches_writes());
            let mut namespaces = Vec::new();
            for (nsid, disk) in (1..).zip(export.disks) {
                namespaces.push(Namespace {
                    nsid,
                    identity: identity_of(&disk)?,
                });
                desks.insert((index, nsid), Desk::new(disk.disk));
            }
            subsystems.push(SubsystemOptions {
                name: export.name,
                namespaces,
                hosts: export.hosts,
                caches_writes,
                secrets: export.secrets,
            });
        }
        let records = records(&subsystems, addresses, options.target.entries_max);
        let target = Target::new(options.target.clone(), subsystems, records);
        Ok(Rc::new(Self {
            options,
            target: RefCell::new(target),
            desks,
            links: RefCell::default(),
            open: Cell::new(0),
            keeper: Signal::default(),
        }))
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
        spawned(connections.spawn(Rc::clone(&self).keep_alive()));
        for desk in self.desks.values() {
            spawned(connections.spawn(Rc::clone(desk).serve()));
        }
        for (port_id, listener) in (1..).zip(listeners) {
            let serving = Rc::clone(&self).accept(port_id, listener, Rc::clone(&connections));
            spawned(acceptors.spawn(serving));
        }
        stop.await;
    }

    async fn accept(self: Rc<Self>, port_id: u16, listener: TcpListener, connections: Rc<Scope>) {
        loop {
            match listener.accept().await {
                Err(error) => {
                    tracing::warn!(%error, "accept");
                    time::sleep(ACCEPT_PAUSE).await;
                }
                Ok(_refused) if self.open.get() >= self.options.connections_max => {
                    tracing::warn!("a connection beyond the limit is closed");
                }
                Ok(stream) => {
                    let serving = Rc::clone(&self).serve_one(port_id, stream);
                    spawned(connections.spawn(serving));
                }
            }
        }
    }

    /// Connections that are open.
    #[must_use]
    pub const fn connections(&self) -> usize {
        self.open.get()
    }

    /// Changes how namespaces of a group can be reached by a port; hosts there that want to know
    /// are told.
    pub fn set_ana_state(&self, port_id: u16, group: u32, state: AnaState) {
        let mut target = self.target.borrow_mut();
        target.set_ana_state(port_id, group, state);
        drop(target);
        self.deliver_notices();
    }

    /// Closes every connection, as a crash would. Hosts may come back.
    pub fn disconnect_all(&self) {
        for link in self.links.borrow().iter().filter_map(Weak::upgrade) {
            link.close();
        }
    }

    async fn serve_one(self: Rc<Self>, port_id: u16, stream: TcpStream) {
        let queue = ControllerQueue::new(ControllerOptions {
            digests: self.options.digests,
            h2c_data_bytes_max: self.options.h2c_data_bytes_max,
            r2t_bytes_max: self.options.r2t_bytes_max,
            in_capsule_bytes_max: self.options.target.in_capsule_bytes.max(CAPSULE_BYTES_MIN),
        });
        let link = Rc::new(Link {
            stream,
            port_id,
            outbox: Outbox::default(),
            queue: RefCell::new(queue),
            attached: Cell::new(None),
            is_closing: Cell::new(false),
        });
        let _open = Open::new(&self, &link);
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
            self.target.borrow_mut().detach(controller, queue_id);
            self.close_strays();
        }
        let last_words = time::timeout(SETUP_TIMEOUT, link.outbox.drained_below(0)).await;
        tracing::trace!(?last_words, "outbox");
        link.close();
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
            let target = self.target.borrow();
            if !target.is_authenticated(attached.controller, attached.queue_id) {
                tracing::warn!("a connection whose host did not prove itself is closed");
                link.close();
            }
        }
    }

    /// Answers a Connect.
    pub(super) fn connect(&self, link: &Link, slot: u16, command: &Command, data: &[u8]) {
        let mut target = self.target.borrow_mut();
        let connected = target.connect(command, data, link.port_id, time::now());
        drop(target);
        match connected {
            Ok(attached) => {
                let mut queue = link.queue.borrow_mut();
                queue.connect(attached.entries, attached.has_flow_control);
                drop(queue);
                link.attached.set(Some(attached));
                link.complete(slot, Status::SUCCESS, attached.result());
                self.keeper.raise();
            }
            Err(refusal) => {
                tracing::debug!(?refusal, "connect");
                link.complete(slot, refusal.status, u64::from(refusal.result));
            }
        }
    }

    pub(super) fn desk(&self, subsystem: usize, nsid: u32) -> Option<(Rc<Desk>, Geometry)> {
        let desk = Rc::clone(self.desks.get(&(subsystem, nsid))?);
        let geometry = self.target.borrow().geometry(subsystem, nsid)?;
        Some((desk, geometry))
    }

    pub(super) fn desks_of(&self, subsystem: Option<usize>) -> Vec<Rc<Desk>> {
        let desks = self.desks.iter();
        let of_subsystem = desks.filter(|((index, _), _)| Some(*index) == subsystem);
        of_subsystem.map(|(_, desk)| Rc::clone(desk)).collect()
    }

    /// Completes the commands that waited for events that have come.
    pub(super) fn deliver_notices(&self) {
        loop {
            let Some(notice) = self.target.borrow_mut().next_notice() else {
                return;
            };
            if let Some(link) = self.admin_link(notice.controller) {
                link.complete(notice.slot, notice.status, notice.result);
            }
        }
    }

    fn admin_link(&self, controller: ControllerId) -> Option<Rc<Link>> {
        let links = self.links.borrow();
        links.iter().filter_map(Weak::upgrade).find(|link| {
            let attached = link.attached.get();
            attached.is_some_and(|a| a.controller == controller && a.queue_id == 0)
        })
    }

    /// Closes the connections of controllers that are no more.
    fn close_strays(&self) {
        let target = self.target.borrow();
        for link in self.links.borrow().iter().filter_map(Weak::upgrade) {
            let attached = link.attached.get();
            if attached.is_some_and(|attached| !target.has(attached.controller)) {
                link.close();
            }
        }
    }

    /// Ends controllers whose hosts are silent.
    async fn keep_alive(self: Rc<Self>) {
        let mut expired = Vec::new();
        loop {
            let next = self.target.borrow().poll_timeout().unwrap_or(Time::MAX);
            let mut sleep = pin!(time::sleep_until(next));
            poll_fn(|cx| {
                if self.keeper.poll(cx.waker()).is_ready() {
                    return Poll::Ready(());
                }
                sleep.as_mut().poll(cx)
            })
            .await;
            self.target.borrow_mut().expire(time::now(), &mut expired);
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

/// Counts an open connection while it lives.
struct Open {
    server: Rc<Server>,
}

impl Open {
    fn new(server: &Rc<Server>, link: &Rc<Link>) -> Self {
        let mut links = server.links.borrow_mut();
        links.retain(|link| link.strong_count() > 0);
        links.push(Rc::downgrade(link));
        server.open.set(server.open.get() + 1);
        Self {
            server: Rc::clone(server),
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.server.open.set(self.server.open.get() - 1);
    }
}

async fn send(link: Rc<Link>) {
    if let Err(error) = link.outbox.run(&link.stream).await {
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
    admin_entries_max: u16,
) -> Vec<DiscoveryRecord> {
    let ways = addresses.iter().zip(1..);
    ways.flat_map(|(&address, port_id)| {
        subsystems.iter().map(move |subsystem| DiscoveryRecord {
            kind: SubsystemKind::Nvm,
            port_id,
            admin_entries_max,
            subsystem: subsystem.name.clone(),
            address,
        })
    })
    .collect()
}
