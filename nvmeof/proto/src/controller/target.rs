//! Subsystems, the controllers that hosts have there, and who may do what.
//!
//! A controller comes to be when a host connects its admin queue, and ends with that connection or
//! when the host has been silent for too long. It is dynamic: hosts do not choose which one they
//! get (NVMe Base 2.0, "Dynamic Controller Model").

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lunette_runtime_core::time::Time;

use super::access::Access;
use super::life::Life;
use super::settings::Settings;
use super::shares::HostId;
use crate::auth::Credentials;
use crate::command::{Command, fabrics};
use crate::completion::Status;
use crate::fabrics::{CONTROLLER_ANY, Configuration, Connect, ConnectData, QUEUE_ENTRIES_MAX};
use crate::feature::{self, events};
use crate::identify::{IdentifyNamespace, NSID_ALL};
use crate::log_page::{self, AnaState, DiscoveryRecord};
use crate::nqn::Nqn;

/// Subsystems of one target at most, beside that for discovery.
pub const SUBSYSTEMS_MAX: usize = 256;
/// The greatest id of a controller: those above have meanings of their own (NVMe Base 2.0, "Connect
/// Command").
pub const CONTROLLER_ID_MAX: u16 = 0xffef;
/// Where in a Connect its parameters lie, for a refusal.
const QUEUE_ID_AT: u32 = 42;
const ENTRIES_AT: u32 = 44;
/// Says in a refusal that the place is in the data.
const IN_DATA: u32 = 1 << 16;
const CONTROLLER_ID_AT: u32 = 16 | IN_DATA;
/// Says in the answer to a Connect that the host is to authenticate.
const AUTH_REQUIRED_BIT: u64 = 1 << 17;

/// What all subsystems of a target have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetOptions {
    /// Serial number, at most 20 characters.
    pub serial: String,
    /// Model, at most 40.
    pub model: String,
    /// Firmware, at most 8.
    pub firmware: String,
    /// Entries of a queue at most, 2 to [`QUEUE_ENTRIES_MAX`].
    pub entries_max: u16,
    /// Queues for I/O of one controller at most.
    pub io_queues_max: u16,
    /// Data in a capsule of a queue for I/O at most, in bytes: a multiple of 16.
    pub in_capsule_bytes: u32,
    /// Data of one command at most: 4,096 bytes times a power of two.
    pub transfer_pages_log2: u8,
    /// Controllers at a time at most.
    pub controllers_max: usize,
    /// Ids that controllers are given, the first and the last: 1 to [`CONTROLLER_ID_MAX`]. Targets
    /// that serve one subsystem together have ranges of their own.
    pub controller_ids: (u16, u16),
}

/// A namespace of a subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its id: 1 and up.
    pub nsid: u32,
    /// What it is.
    pub identity: IdentifyNamespace,
}

/// What a subsystem is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemOptions {
    /// Its name.
    pub name: Nqn,
    /// Its namespaces, by id.
    pub namespaces: Vec<Namespace>,
    /// Hosts that may connect; all of them, if it is `None`.
    pub hosts: Option<Vec<Nqn>>,
    /// Writes may be lost until a Flush.
    pub caches_writes: bool,
    /// What hosts have to prove.
    pub secrets: Secrets,
}

/// What hosts of a subsystem have to prove before they may use it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Secrets {
    /// Of the hosts of these names.
    pub by_host: BTreeMap<Nqn, Arc<Credentials>>,
    /// Of all others; they have to prove nothing, if it is `None`.
    pub of_others: Option<Arc<Credentials>>,
}

impl Secrets {
    pub(super) fn of(&self, host: &Nqn) -> Option<&Arc<Credentials>> {
        self.by_host.get(host).or(self.of_others.as_ref())
    }
}

/// A subsystem.
#[derive(Debug)]
pub struct Subsystem {
    pub(super) options: SubsystemOptions,
}

impl Subsystem {
    pub(super) fn namespace(&self, nsid: u32) -> Option<&Namespace> {
        let mut namespaces = self.options.namespaces.iter();
        namespaces.find(|namespace| namespace.nsid == nsid)
    }
}

/// A controller of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ControllerId(pub u16);

/// A queue that has been connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Its controller.
    pub controller: ControllerId,
    /// The queue: 0 for the admin queue.
    pub queue_id: u16,
    /// Its entries.
    pub entries: u16,
    /// Whether the host wants to know the head of the submission queue.
    pub has_flow_control: bool,
    /// Index of the subsystem; none for discovery.
    pub subsystem: Option<usize>,
    /// The host has to prove itself on this queue first.
    pub must_authenticate: bool,
    /// The host, whose controllers all have the same number while it has any.
    pub host: HostId,
}

impl Attached {
    /// What the Connect returns.
    #[must_use]
    pub fn result(&self) -> u64 {
        let required = if self.must_authenticate {
            AUTH_REQUIRED_BIT
        } else {
            0
        };
        u64::from(self.controller.0) | required
    }
}

/// Why a queue was not connected: what the Connect ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its status.
    pub status: Status,
    /// What it returns: where the parameter is that does not fit.
    pub result: u32,
}

impl Refusal {
    const fn new(status: Status) -> Self {
        Self {
            status: status.do_not_retry(),
            result: 0,
        }
    }

    const fn parameter(at: u32) -> Self {
        Self {
            status: Status::CONNECT_PARAMETERS.do_not_retry(),
            result: at,
        }
    }
}

/// What an admin command is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminReply {
    /// A completion.
    Done {
        /// How it ended.
        status: Status,
        /// What it returns.
        result: u64,
    },
    /// Data, all that the command asked for, and success.
    Data(Vec<u8>),
    /// Nothing yet: it waits for an event.
    Held,
    /// Success, and then the connection is to be closed.
    Close,
    /// The same, behind data.
    LastData(Vec<u8>),
    /// The caller aborts a command of a queue for I/O, if it has not begun, and completes this one
    /// with [`AdminReply::aborted`].
    Abort {
        /// The queue.
        queue_id: u16,
        /// The command.
        cid: u16,
    },
}

impl AdminReply {
    /// How an Abort ends: the command was aborted, or was not (NVMe Base 2.0, "Abort command").
    #[must_use]
    pub const fn aborted(was_aborted: bool) -> Self {
        Self::Done {
            status: Status::SUCCESS,
            result: if was_aborted { 0 } else { 1 },
        }
    }
}

impl From<Status> for AdminReply {
    fn from(status: Status) -> Self {
        Self::Done { status, result: 0 }
    }
}

/// A command that waited for an event ends: with one, or aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whose admin queue.
    pub controller: ControllerId,
    /// The command's slot there.
    pub slot: u16,
    /// How it ends.
    pub status: Status,
    /// What it returns.
    pub result: u64,
}

/// What hosts are told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    Namespaces,
    Ana,
    Discovery,
}

impl Topic {
    pub(super) const ALL: [Self; 3] = [Self::Namespaces, Self::Ana, Self::Discovery];

    /// The bit of the feature that asks for it, and its information and log page (NVMe Base 2.0,
    /// "Asynchronous Event Information - Notice").
    pub(super) const fn facts(self) -> (u32, u64, u8) {
        match self {
            Self::Namespaces => (events::NAMESPACES, 0x00, log_page::id::CHANGED_NAMESPACES),
            Self::Ana => (events::ANA, 0x03, log_page::id::ANA),
            Self::Discovery => (events::DISCOVERY, 0xf0, log_page::id::DISCOVERY),
        }
    }

    pub(super) const fn result(self) -> u64 {
        let (_, information, page) = self.facts();
        2 | information << 8 | (page as u64) << 16
    }
}

/// One controller.
#[derive(Debug)]
pub(super) struct Controller {
    pub(super) subsystem: Option<usize>,
    /// The port by which its admin queue came.
    pub(super) port_id: u16,
    pub(super) host: Nqn,
    host_number: HostId,
    host_id: [u8; 16],
    pub(super) life: Life,
    /// How often it has been disabled.
    pub(super) resets: u64,
    pub(super) configuration: Configuration,
    pub(super) settings: Settings,
    silent_since: Time,
    pub(super) queues: BTreeMap<u16, Access>,
    /// Slots of commands that wait for events, with their ids.
    pub(super) waiting: Vec<(u16, u16)>,
    /// Slots of those that were aborted.
    pub(super) aborted: Vec<u16>,
    pub(super) raised: BTreeSet<Topic>,
    /// Told, and not looked into yet.
    pub(super) masked: BTreeSet<Topic>,
    pub(super) changed_namespaces: BTreeSet<u32>,
}

impl Controller {
    fn keep_alive(&self) -> Option<Duration> {
        let ms = self.settings.value(feature::id::KEEP_ALIVE);
        (ms > 0).then(|| Duration::from_millis(u64::from(ms)))
    }

    fn expires_at(&self) -> Option<Time> {
        self.keep_alive().map(|timeout| self.silent_since + timeout)
    }

    pub(super) fn raise(&mut self, topic: Topic) {
        let wanted = self.settings.value(feature::id::EVENTS) & topic.facts().0 != 0;
        if wanted && !self.masked.contains(&topic) {
            self.raised.insert(topic);
        }
    }

    fn has_notice(&self) -> bool {
        let has_news = !self.raised.is_empty() && !self.waiting.is_empty();
        has_news || !self.aborted.is_empty()
    }

    fn take_notice(&mut self) -> Option<(u16, Status, u64)> {
        if let Some(slot) = self.aborted.pop() {
            return Some((slot, Status::ABORT_REQUESTED, 0));
        }
        let topic = *self.raised.first()?;
        let (slot, _cid) = self.waiting.pop()?;
        self.raised.remove(&topic);
        self.masked.insert(topic);
        Some((slot, Status::SUCCESS, topic.result()))
    }
}

/// A target: discovery, and subsystems with namespaces.
#[derive(Debug)]
pub struct Target {
    pub(super) options: TargetOptions,
    pub(super) subsystems: Vec<Subsystem>,
    pub(super) controllers: BTreeMap<ControllerId, Controller>,
    pub(super) records: Vec<DiscoveryRecord>,
    pub(super) generation: u64,
    next_id: u16,
    next_host: u32,
    /// How often something has changed that commands for I/O are checked against.
    pub(super) revision: u64,
    /// State and number of changes of each group by the port where it has ever changed.
    pub(super) groups: BTreeMap<(u16, u32), (AnaState, u64)>,
}

impl Target {
    /// A target without controllers. `records` are what discovery tells.
    ///
    /// # Panics
    /// If there are too many subsystems or entries, a namespace has the id 0 or that of all, or there
    /// are fewer ids of controllers than controllers.
    #[must_use]
    pub fn new(
        options: TargetOptions,
        subsystems: Vec<SubsystemOptions>,
        records: Vec<DiscoveryRecord>,
    ) -> Self {
        assert!(subsystems.len() <= SUBSYSTEMS_MAX, "subsystems are bounded");
        assert!((2..=QUEUE_ENTRIES_MAX).contains(&options.entries_max));
        assert!(options.io_queues_max > 0 && options.in_capsule_bytes.is_multiple_of(16));
        let (first_id, last_id) = options.controller_ids;
        assert!((1..=last_id).contains(&first_id) && last_id <= CONTROLLER_ID_MAX);
        assert!(usize::from(last_id - first_id) + 1 >= options.controllers_max);
        let mut namespaces = subsystems.iter().flat_map(|options| &options.namespaces);
        assert!(namespaces.all(|namespace| (1..NSID_ALL).contains(&namespace.nsid)));
        let subsystems = subsystems
            .into_iter()
            .map(|options| Subsystem { options })
            .collect();
        Self {
            options,
            subsystems,
            controllers: BTreeMap::new(),
            records,
            generation: 1,
            next_id: first_id,
            next_host: 0,
            revision: 1,
            groups: BTreeMap::new(),
        }
    }

    /// Most data of one command, in bytes.
    #[must_use]
    pub const fn transfer_bytes_max(&self) -> u32 {
        4096 << self.options.transfer_pages_log2
    }

    /// The first command of a connection that came by port `port_id`, with its data.
    ///
    /// # Errors
    /// [`Refusal`]: what to complete it with. The host may try again on the same connection, but
    /// closing it is as well.
    pub fn connect(
        &mut self,
        command: &Command,
        data: &[u8],
        port_id: u16,
        now: Time,
    ) -> Result<Attached, Refusal> {
        if command.fabrics_type() != Some(fabrics::CONNECT) {
            return Err(Refusal::new(Status::COMMAND_SEQUENCE_ERROR));
        }
        let connect = Connect::of(command);
        if connect.format != 0 {
            return Err(Refusal::new(Status::CONNECT_FORMAT));
        }
        let data = ConnectData::decode(data);
        let data = data.map_err(|fault| Refusal::parameter(u32::from(fault.at()) | IN_DATA))?;
        let entries = connect.entries_less_one.saturating_add(1);
        if !(2..=self.options.entries_max.max(32)).contains(&entries) {
            return Err(Refusal::parameter(ENTRIES_AT));
        }
        let subsystem = self.subsystem_for(&data)?;
        let access = self.access_of(subsystem, &data.host);
        let must_authenticate = !access.is_open();
        let controller = if connect.queue_id == 0 {
            self.add_controller(subsystem, &connect, data, (access, port_id), now)?
        } else {
            self.add_queue(subsystem, connect.queue_id, &data, access)?
        };
        Ok(Attached {
            controller,
            queue_id: connect.queue_id,
            entries,
            has_flow_control: !connect.without_flow_control,
            subsystem,
            must_authenticate,
            host: self.controllers[&controller].host_number,
        })
    }

    fn subsystem_for(&self, data: &ConnectData) -> Result<Option<usize>, Refusal> {
        if data.subsystem.is_discovery() {
            return Ok(None);
        }
        let mut subsystems = self.subsystems.iter();
        let found = subsystems.position(|subsystem| subsystem.options.name == data.subsystem);
        let index = found.ok_or(Refusal::parameter(256 | IN_DATA))?;
        let hosts = &self.subsystems[index].options.hosts;
        if hosts
            .as_ref()
            .is_some_and(|hosts| !hosts.contains(&data.host))
        {
            return Err(Refusal::new(Status::CONNECT_HOST));
        }
        Ok(Some(index))
    }

    fn add_controller(
        &mut self,
        subsystem: Option<usize>,
        connect: &Connect,
        data: ConnectData,
        (access, port_id): (Access, u16),
        now: Time,
    ) -> Result<ControllerId, Refusal> {
        if data.controller_id != CONTROLLER_ANY {
            return Err(Refusal::parameter(CONTROLLER_ID_AT));
        }
        if self.controllers.len() >= self.options.controllers_max {
            return Err(Refusal {
                status: Status::CONTROLLER_BUSY,
                result: 0,
            });
        }
        let id = self.free_id();
        let host_number = self.number_of(&data.host);
        let caches_writes =
            subsystem.is_some_and(|index| self.subsystems[index].options.caches_writes);
        let queues_max = self.options.io_queues_max;
        let controller = Controller {
            subsystem,
            port_id,
            host: data.host,
            host_number,
            host_id: data.host_id,
            life: Life::Disabled,
            resets: 0,
            configuration: Configuration::default(),
            settings: Settings::new(queues_max, connect.keep_alive_ms, caches_writes),
            silent_since: now,
            queues: BTreeMap::from([(0, access)]),
            waiting: Vec::new(),
            aborted: Vec::new(),
            raised: BTreeSet::new(),
            masked: BTreeSet::new(),
            changed_namespaces: BTreeSet::new(),
        };
        self.controllers.insert(id, controller);
        self.revision += 1;
        Ok(id)
    }

    /// The number of a host: that of its other controllers, or a new one.
    fn number_of(&mut self, host: &Nqn) -> HostId {
        let mut controllers = self.controllers.values();
        if let Some(known) = controllers.find(|controller| controller.host == *host) {
            return known.host_number;
        }
        self.next_host = self.next_host.wrapping_add(1);
        HostId(self.next_host)
    }

    /// Ids are used again as late as possible.
    fn free_id(&mut self) -> ControllerId {
        let (first_id, last_id) = self.options.controller_ids;
        loop {
            let id = ControllerId(self.next_id);
            self.next_id = if self.next_id >= last_id {
                first_id
            } else {
                self.next_id + 1
            };
            if !self.controllers.contains_key(&id) {
                return id;
            }
        }
    }

    fn add_queue(
        &mut self,
        subsystem: Option<usize>,
        queue_id: u16,
        data: &ConnectData,
        access: Access,
    ) -> Result<ControllerId, Refusal> {
        let id = ControllerId(data.controller_id);
        let controller = self.controllers.get_mut(&id);
        let controller = controller.ok_or(Refusal::parameter(CONTROLLER_ID_AT))?;
        if subsystem.is_none() || controller.subsystem != subsystem {
            return Err(Refusal::parameter(256 | IN_DATA));
        }
        if controller.host != data.host || controller.host_id != data.host_id {
            return Err(Refusal::parameter(512 | IN_DATA));
        }
        if controller.life != Life::Ready {
            return Err(Refusal::new(Status::COMMAND_SEQUENCE_ERROR));
        }
        let granted = feature::queues_of(controller.settings.value(feature::id::QUEUES));
        if queue_id > granted || controller.queues.contains_key(&queue_id) {
            return Err(Refusal::parameter(QUEUE_ID_AT));
        }
        controller.queues.insert(queue_id, access);
        self.revision += 1;
        Ok(id)
    }

    /// A queue's connection has ended. With an admin queue its controller ends; the connections of
    /// its other queues are to be closed.
    pub fn detach(&mut self, controller: ControllerId, queue_id: u16) {
        self.revision += 1;
        if queue_id == 0 {
            self.controllers.remove(&controller);
        } else if let Some(controller) = self.controllers.get_mut(&controller) {
            controller.queues.remove(&queue_id);
        }
    }

    /// Whether a controller is there.
    #[must_use]
    pub fn has(&self, controller: ControllerId) -> bool {
        self.controllers.contains_key(&controller)
    }

    /// Controllers that are there.
    #[must_use]
    pub fn controllers(&self) -> usize {
        self.controllers.len()
    }

    /// The host of a controller has been heard of.
    pub fn touch(&mut self, controller: ControllerId, now: Time) {
        if let Some(controller) = self.controllers.get_mut(&controller) {
            controller.silent_since = now;
        }
    }

    /// When to call [`Target::expire`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.controllers
            .values()
            .filter_map(Controller::expires_at)
            .min()
    }

    /// Ends the controllers whose hosts have been silent for too long (NVMe Base 2.0, "Keep
    /// Alive"): all their connections are to be closed.
    pub fn expire(&mut self, now: Time, expired: &mut Vec<ControllerId>) {
        self.controllers.retain(|&id, controller| {
            let is_over = controller.expires_at().is_some_and(|at| at <= now);
            if is_over {
                self.revision += 1;
                expired.push(id);
            }
            !is_over
        });
    }

    /// How namespaces of a group can be reached by a port.
    #[must_use]
    pub fn ana_state(&self, port_id: u16, group: u32) -> AnaState {
        self.groups
            .get(&(port_id, group))
            .map_or(AnaState::Optimized, |(state, _)| *state)
    }

    /// Changes how namespaces of a group can be reached by a port; hosts there that want to know are
    /// told.
    pub fn set_ana_state(&mut self, port_id: u16, group: u32, state: AnaState) {
        let known = self.groups.entry((port_id, group));
        let (known, changes) = known.or_insert((AnaState::Optimized, 0));
        if *known == state {
            return;
        }
        *known = state;
        *changes += 1;
        self.revision += 1;
        for controller in self.controllers.values_mut() {
            if controller.subsystem.is_some() && controller.port_id == port_id {
                controller.raise(Topic::Ana);
            }
        }
    }

    /// Changes the size of a namespace; hosts that want to know are told.
    ///
    /// # Panics
    /// If there is no such namespace.
    pub fn resize(&mut self, subsystem: usize, nsid: u32, blocks: u64) {
        let namespaces = &mut self.subsystems[subsystem].options.namespaces;
        let mut found = namespaces
            .iter_mut()
            .filter(|namespace| namespace.nsid == nsid);
        let namespace = found.next().expect("a namespace of the subsystem");
        namespace.identity.blocks = blocks;
        self.revision += 1;
        for controller in self.controllers.values_mut() {
            if controller.subsystem == Some(subsystem) {
                controller.changed_namespaces.insert(nsid);
                controller.raise(Topic::Namespaces);
            }
        }
    }

    /// Changes what discovery tells; hosts that want to know are told.
    pub fn set_records(&mut self, records: Vec<DiscoveryRecord>) {
        self.records = records;
        self.generation += 1;
        self.revision += 1;
        for controller in self.controllers.values_mut() {
            if controller.subsystem.is_none() {
                controller.raise(Topic::Discovery);
            }
        }
    }

    /// The next command that no longer waits for an event, of controllers that are the caller's. To
    /// be asked after each admin command, and after each change.
    pub fn next_notice(&mut self, is_mine: impl Fn(ControllerId) -> bool) -> Option<Notice> {
        let mut controllers = self.controllers.iter_mut();
        controllers.find_map(|(&id, controller)| {
            if !controller.has_notice() || !is_mine(id) {
                return None;
            }
            let (slot, status, result) = controller.take_notice()?;
            Some(Notice {
                controller: id,
                slot,
                status,
                result,
            })
        })
    }
}

#[cfg(test)]
mod tests;
