//! The cores of one engine.
//!
//! To its peers an engine is one, however many cores it has: one session, one registry, one set of
//! notifications. Its cores are siblings, each with an [`Engine`] of its own: listeners, connections,
//! sessions, a copy of the registry. Nothing on the way of bytes is shared between them:
//!
//! ```text
//!   EngineHandle --register--> Directory (gives the id) --job--> each core's Registry
//!                --post------> a job to a core, or to several, a part of the bytes each
//!
//!   core 0   listeners, sessions, rails --- TCP ---  a core of the peer's
//!   core 1   listeners, sessions, rails --- TCP ---  another one
//! ```
//!
//! A connection leads from one core to one core of the peer's ([`home`](siblings::home)), as long as that
//! answers, and to the next one otherwise. So a fence may be asked of another core than the one that it is
//! about, which then asks its siblings (`fence_elsewhere`); a core that has failed is asked for nothing: what
//! it had under way is over when its last hold on shared memory is gone ([`Alive`]).
//!
//! | module | subject |
//! |---|---|
//! | `notices` | notifications, which the cores remember together |
//! | `directory` | what is registered at all cores |
//! | `opening` | files, namespaces and memory of devices, which each core opens for itself |
//! | `jobs` | what cores are asked to do |
//! | `presence` | which peers have a connection to any core |
//! | `serving` | the core whose adapters peers connect to |
//! | `ended` | knowing when a core is gone |
//!
//! [`siblings::home`]: lunette_transfer_proto::engine::siblings::home

mod directory;
mod ended;
mod jobs;
mod notices;
mod opening;
mod presence;
mod serving;

use std::any::Any;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use lunette_auth::OwnerKey;
use lunette_runtime::{Port, entropy};
use lunette_runtime_core::limits::CORES_MAX;
use lunette_transfer_proto::engine::siblings::Greeting;
use lunette_verbs::Context;

use super::error::StartError;
use super::host::EngineHandle;
use super::{Engine, EngineOptions};

use directory::Directory;
pub(super) use ended::Ended;
pub(super) use jobs::{Hosted, JOBS_MAX, Load, NotAnswered, NotAsked, answer_in_task};
use jobs::{Job, JobSender, job_channel, take_jobs};
pub(super) use notices::Notices;
pub(super) use opening::{Opening, OpeningError};
pub(super) use presence::{Presence, Presences};
use serving::Serving;

/// What the cores of an engine have in common.
#[derive(Debug)]
pub(super) struct Siblings {
    /// The session epoch, once the first core has started.
    epoch: OnceLock<u64>,
    /// What its capabilities are made with: drawn with the first of them.
    pub(super) owner_key: OnceLock<OwnerKey>,
    peers: AtomicU32,
    notes: AtomicU64,
    pub(super) notices: Notices,
    pub(super) directory: Directory,
    pub(super) presences: Arc<Presences>,
    serving: Serving,
    members: Box<[Member]>,
}

/// One core, as the others see it.
#[derive(Debug)]
pub(super) struct Member {
    /// `None` for an engine that is asked on its own core alone.
    jobs: Option<JobSender>,
    /// Where it listens, once it has started.
    addresses: OnceLock<Vec<SocketAddr>>,
    pub(super) ended: Ended,
    /// Adapters that peers may connect to there, once it has started.
    adapters: OnceLock<usize>,
    /// Bytes that handles have posted there and that are not moved yet.
    pub(super) load_bytes: AtomicU64,
}

impl Siblings {
    fn new(options: &EngineOptions, jobs: Vec<Option<JobSender>>) -> Arc<Self> {
        let members: Vec<_> = jobs.into_iter().map(Member::new).collect();
        Arc::new(Self {
            epoch: OnceLock::new(),
            owner_key: OnceLock::new(),
            peers: AtomicU32::new(0),
            notes: AtomicU64::new(0),
            notices: Notices::new(options.notifications_max, members.len()),
            directory: Directory::default(),
            presences: Arc::default(),
            serving: Serving::default(),
            members: members.into(),
        })
    }

    /// An engine of one core that is asked there.
    pub(super) fn alone(options: &EngineOptions) -> Arc<Self> {
        Self::new(options, vec![None])
    }

    /// The session epoch, which the first core to ask draws if none is given.
    pub(super) fn epoch(&self, given: Option<u64>) -> u64 {
        *self.epoch.get_or_init(|| given.unwrap_or_else(entropy))
    }

    /// Whether there are several.
    pub(super) fn are_several(&self) -> bool {
        self.members.len() > 1
    }

    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// What a core says of itself to those who connect; nothing if it is alone.
    pub(super) fn greeting(&self, core: usize) -> Vec<u8> {
        let mut greeting = Vec::new();
        if self.are_several() {
            let number = |count: usize| u16::try_from(count).expect("cores are bounded");
            let (core, cores) = (number(core), number(self.members.len()));
            Greeting { core, cores }.encode(&mut greeting);
        }
        greeting
    }

    /// A core listens.
    pub(super) fn listens(&self, core: usize, addresses: &[SocketAddr]) {
        let first = self.members[core].addresses.set(addresses.to_vec());
        first.expect("a core starts once");
    }

    /// The ports of the siblings' listeners of that index, by core; 0 where there is none.
    pub(super) fn ports(&self, listener: usize) -> Vec<u16> {
        let port = |member: &Member| {
            let addresses = member.addresses.get().filter(|_| !member.ended.is_raised());
            addresses.map_or(0, |addresses| addresses[listener].port())
        };
        self.members.iter().map(port).collect()
    }

    /// A number for a peer, which names its connections at the other side.
    pub(super) fn next_peer(&self) -> u32 {
        self.peers.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// A number for a notification. Peers tell those of one session apart by it, so all that the engine
    /// sends are numbered together.
    pub(super) fn next_note(&self) -> u64 {
        self.notes.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl Member {
    fn new(jobs: Option<JobSender>) -> Self {
        Self {
            jobs,
            addresses: OnceLock::new(),
            adapters: OnceLock::new(),
            ended: Ended::default(),
            load_bytes: AtomicU64::new(0),
        }
    }

    /// Whether it has begun to listen.
    fn has_started(&self) -> bool {
        self.addresses.get().is_some()
    }
}

/// Kept by a core and by all of its handles to shared memory: the core has ended with the last, and then
/// nothing of it lands in that memory any more.
#[derive(Debug)]
pub(super) struct Alive {
    siblings: Arc<Siblings>,
    core: usize,
}

impl Alive {
    pub(super) fn new(siblings: &Arc<Siblings>, core: usize) -> Arc<Self> {
        Arc::new(Self {
            siblings: Arc::clone(siblings),
            core,
        })
    }

    /// For shared memory to keep.
    pub(super) fn kept(self: &Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        let kept: Arc<Self> = Arc::clone(self);
        kept
    }

    pub(super) const fn siblings(&self) -> &Arc<Siblings> {
        &self.siblings
    }

    pub(super) const fn core(&self) -> usize {
        self.core
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.siblings.members[self.core].ended.raise();
        self.siblings.notices.core_ended(self.core);
    }
}

/// A core's part of an engine of several, on its way to that core. See [`Engine::siblings`].
#[derive(Debug)]
pub struct Sibling {
    options: EngineOptions,
    alive: Arc<Alive>,
    jobs: Port<Job>,
}

impl Engine {
    /// Prepares an engine that runs on several cores and is one to its peers: a handle for any thread, and a
    /// part for each core, to be [started](Sibling::start) there. What is registered, with the handle, is
    /// reached from all of them; what is posted with it goes over all of them.
    ///
    /// Where a port is given, the second core listens on the next one, and so on; port 0 lets the system
    /// choose. Peers that reach one core learn of the others.
    ///
    /// # Errors
    /// [`StartError::CoreCount`]; [`StartError::NoPorts`], if there are not enough of them behind the one that
    /// is given.
    ///
    /// ```
    /// use lunette_runtime::{CoreOptions, Placement, Runtime};
    /// use lunette_runtime_core::ids::CoreIndex;
    /// use lunette_transfer::engine::{Engine, EngineOptions, RegisterOptions};
    ///
    /// let runtime = Runtime::start(&Placement::Anywhere(2), CoreOptions::default()).unwrap();
    /// let options = EngineOptions {
    ///     listen: vec!["127.0.0.1:0".parse().unwrap()],
    ///     ..EngineOptions::default()
    /// };
    /// let (handle, siblings) = Engine::siblings(&options, runtime.cores()).unwrap();
    /// for (core, sibling) in (0..).map(CoreIndex).zip(siblings) {
    ///     let start = move || async move {
    ///         let engine = sibling.start().unwrap();
    ///         // The core's own part: what it posts itself stays on it.
    ///         assert_eq!(engine.addresses().len(), 1);
    ///         std::future::pending::<()>().await
    ///     };
    ///     drop(runtime.spawn_on(core, start).unwrap());
    /// }
    /// let segment = handle.allocate(1 << 20, RegisterOptions::named("kv")).wait().unwrap();
    /// handle.fill(segment, 0, b"keys and values".to_vec()).wait().unwrap();
    /// ```
    pub fn siblings(
        options: &EngineOptions,
        cores: usize,
    ) -> Result<(EngineHandle, Vec<Sibling>), StartError> {
        if !(1..=CORES_MAX).contains(&cores) {
            return Err(StartError::CoreCount { cores });
        }
        let listens: Result<Vec<_>, _> = (0..cores).map(|core| at_core(options, core)).collect();
        let (senders, ports): (Vec<_>, Vec<_>) = (0..cores).map(|_| job_channel()).unzip();
        let siblings = Siblings::new(options, senders.into_iter().map(Some).collect());
        let parts = listens?.into_iter().zip(ports).enumerate();
        let parts = parts.map(|(core, (options, jobs))| Sibling {
            options,
            alive: Alive::new(&siblings, core),
            jobs,
        });
        let parts = parts.collect();
        Ok((EngineHandle::new(siblings), parts))
    }
}

/// The options of one core.
fn at_core(options: &EngineOptions, core: usize) -> Result<EngineOptions, StartError> {
    let mut options = options.clone();
    for address in &mut options.listen {
        let given = address.port();
        if given > 0 {
            let offset = u16::try_from(core).expect("cores are bounded");
            let port = given.checked_add(offset);
            let port = port.ok_or(StartError::NoPorts { address: *address })?;
            address.set_port(port);
        }
    }
    Ok(options)
}

impl Sibling {
    /// Which core of the engine it is.
    #[must_use]
    pub fn core(&self) -> usize {
        self.alive.core
    }

    /// Starts it on this core. What it returns is the core's own handle to the engine; with the last clone of
    /// it this core's part ends, and with the last part the engine.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(self) -> Result<Engine, StartError> {
        self.start_with(Vec::new())
    }

    /// The same, with adapters that the program has opened on this core: the same ones, in the same order, at
    /// each. See [`Engine::start_with`].
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_with(self, adapters: Vec<Context>) -> Result<Engine, StartError> {
        let Self {
            options,
            alive,
            jobs,
        } = self;
        let engine = Engine::start_on(options, alive, adapters)?;
        let jobs = jobs.open().map_err(|_| StartError::NoSource)?;
        let hosted = Hosted::new(&engine);
        let taking = take_jobs(hosted, jobs);
        engine.attends.spawn(taking).map_err(StartError::Task)?;
        Ok(engine)
    }
}
