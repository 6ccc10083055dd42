//! The client of a cluster whose members come and go.
//!
//! It knows the map as some member told it, asks each key's home, and where the home has the bytes
//! itself it sends them at once. What nobody knows to have happened is never tried again: see
//! [`Asker`](lunette_kvstore_proto::asker).
//!
//! | file | subject |
//! |---|---|
//! | `objects` | puts, gets, ranges, batches |
//! | `devices` | [`DeviceClient`]: objects that come from devices and go to them |
//! | `peeking` | lookups in batches |
//! | `lining` | connections that it makes for threads |
//! | `gathering` | gets of small objects in batches |
//! | `scattering` | puts of small objects in batches |
//! | `striping` | objects in parts: their parts, then their manifest |
//! | `placing` | which nodes are tried for the first copy of an object |
//! | `trying` | a write of one object, at one of them after another |
//! | `reserving` | [`Reservation`]: objects that are written in ranges |
//! | `locating` | [`Located`]: where objects are |
//! | `local` | what a client on a member's core finds there |
//! | `asking` | the asker, and what it wants sent |
//! | `calls` | one request, and what its answer means |
//! | `adapters` | bytes that RDMA adapters bring |
//! | `one_sided` | bytes that are copied from the memory of owners on this host |
//! | `seeing` | keys and short objects that are seen of owners on this host |
//! | `running` | operations under way, with their rooms and values |
//! | `maps` | where newer maps come from |
//! | `turns` | asking one after the other, without waiting for who is silent |
//! | `everywhere` | what is asked of every core of every member |
//! | `terms` | until when a member may do what it was asked for |
//! | `clearing` | "remove all" |
//! | `quotas` | how much memory tenants may have |
//! | `retiring` | to empty a member that is to leave |
//! | `listing` | [`Listed`]: which keys there are |

mod adapters;
mod asking;
mod calls;
mod clearing;
mod devices;
mod everywhere;
mod gathering;
mod lining;
mod listing;
mod local;
mod locating;
mod maps;
mod objects;
mod one_sided;
mod peeking;
mod placing;
mod quotas;
mod reserving;
mod retiring;
mod running;
mod scattering;
mod seeing;
mod striping;
mod terms;
mod trying;
mod turns;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use futures_channel::oneshot;
use futures_util::future::FutureExt;
use lunette_auth::Secrets;
use lunette_cluster::proto::fence::NamespaceKind;
use lunette_cluster::proto::map::{ClusterMap, Epoch};
use lunette_kvstore_proto::asker::{Outcome, Wish};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::NodeStat;
use lunette_kvstore_proto::message::directory::{Found, HoldWish, Only, Peek};
use lunette_kvstore_proto::paths::Path;
use lunette_kvstore_proto::placement::{Seat, seats};
use lunette_kvstore_proto::retention::{GroupId, Parent, Pin};
use lunette_kvstore_proto::tenant::Tenant;
use lunette_kvstore_proto::version::{Form, Version, WriteKind};
use lunette_runtime::arena::Exposed;
use lunette_runtime::{Scope, entropy, time};
use lunette_transfer::adapters::RdmaOptions;
use lunette_transfer::{Guard, Room};
use lunette_transfer_proto::calls::IN_FLIGHT_MAX;
use lunette_verbs::Context;

use crate::error::{ClusterError, StoreError, StoreErrorKind};
use crate::member::MemberCore;
use crate::seats::{CONNECTIONS_MAX, IDLE_TIMEOUT, Linking, Seats};
use adapters::ByAdapters;
pub use adapters::{
    AdapterGets, AdapterPuts, DeviceCheck, DeviceLanding, Landing, TooManyLandings,
};
use asking::{Asking, is_present};
pub use clearing::Cleared;
pub use devices::{DeviceClient, DeviceFetched, DeviceStoreError};
pub(crate) use devices::{Landed, Lending, Object as DeviceObject, Piece as DevicePiece};
use everywhere::Told;
pub(crate) use lining::HomeLine;
use lining::LINES_MAX;
pub use listing::{ListCursor, Listed};
use local::Local;
pub use locating::Located;
pub(crate) use objects::{Among, Putting, parts_of, retention_in};
pub use one_sided::OneSided;
use one_sided::{FROM_BYTES, Sights};
pub use placing::{PREFERRED_MAX, Preferred};
pub use quotas::TenantQuota;
pub use reserving::{CommitFailure, Reservation, Reserved};
use running::Brought;
pub use striping::PARTS;
pub(crate) use trying::stored_as;

/// How a client of a cluster behaves.
#[derive(Clone, Debug)]
pub struct ClusterClientOptions {
    /// Some members' addresses: the map is learnt from the first that answers.
    pub seeds: Vec<SocketAddr>,
    /// What members and clients prove to each other, if anything.
    pub secrets: Option<Secrets>,
    /// Deadline of each operation, and of each part of an object in parts.
    pub timeout: Duration,
    /// Deadline of connecting to one core.
    pub connect_timeout: Duration,
    /// Most requests in flight to one core; further ones wait.
    pub in_flight_max: u32,
    /// Most connections, of which there is one for each core of a member that is asked. Where another is
    /// needed, the one that is idle for longest is closed; where none is idle, operations wait.
    pub connections_max: usize,
    /// How long a connection is kept on which nothing is asked; the next question opens it anew.
    pub idle_timeout: Duration,
    /// Most connections that threads have to themselves beside those, with which they that wait ask members on other hosts
    /// ([`StoreHandle::look_up`](crate::StoreHandle::look_up)): at most 4 to each core of a member. 64 by default; with 0, cores
    /// ask for all.
    pub lines_max: usize,
    /// What is wanted of members that are cut off.
    pub namespace: NamespaceKind,
    /// Whose keys and groups callers name. Tenants do not see each other's objects; "remove all" is of
    /// all of them, and the default one's to ask for.
    pub tenant: Tenant,
    /// Gets of at least so many bytes, into a room of as many, are copied from the memory of owners on this host
    /// that share it, and not sent. `None`: never. 64 KiB by default. Short objects, and which keys there are, are seen
    /// there without asking, in a cache namespace, once an owner has been asked a few times; with `None` they are not.
    pub one_sided_from_bytes: Option<usize>,
    /// RDMA: by default none. With adapters, gets from owners that have some too come by them: what goes into
    /// [landed](ClusterClient::land) memory is written there by the owner, and what goes to memory to which gets
    /// came before is read; of the ways that there are the one that was quickest lately is gone.
    pub rdma: RdmaOptions,
    /// The only one of these ways, besides the connection, if it is not to be chosen.
    pub rdma_path: Option<Path>,
}

impl ClusterClientOptions {
    /// A client of a cache namespace.
    #[must_use]
    pub fn new(seeds: Vec<SocketAddr>) -> Self {
        Self {
            seeds,
            secrets: None,
            timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            in_flight_max: IN_FLIGHT_MAX,
            connections_max: CONNECTIONS_MAX,
            idle_timeout: IDLE_TIMEOUT,
            lines_max: LINES_MAX,
            namespace: NamespaceKind::Cache,
            tenant: Tenant::default(),
            one_sided_from_bytes: Some(FROM_BYTES),
            rdma: RdmaOptions::default(),
            rdma_path: None,
        }
    }
}

/// How an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutOptions {
    /// What becomes of what is there.
    pub kind: WriteKind,
    /// How many copies there are to be, on distinct nodes: 1 to
    /// [`COPIES_WANTED_MAX`](lunette_kvstore_proto::version::COPIES_WANTED_MAX). The write succeeds with the first; others follow while there is room.
    pub copies: u8,
    /// Where the first copy is to be, if that can be had; not heeded by reservations, which are at the key's
    /// home. Without, it is on the writer's own node where that is a member and has room, and else at the
    /// key's home.
    pub preferred: Preferred,
    /// The first copies of one [`put_all`](ClusterClient::put_all) are to be on one node, if that can be had:
    /// the first one preferred, or the writer's own, or else one of two that are drawn.
    pub is_same_node: bool,
    /// Objects that are longer than this, in bytes, are written in parts of this length, each at the home of its
    /// own or where it is preferred, so that they are read from many nodes at a time. Without, in parts of
    /// [`PART_LEN_DEFAULT`](lunette_kvstore_proto::striped::PART_LEN_DEFAULT) where they are too long for one
    /// copy. Parts are longer where there would be more than
    /// [`PARTS_MAX`](lunette_kvstore_proto::striped::PARTS_MAX).
    pub stripe_len: Option<u32>,
    /// Whether it outlasts others in memory, in each of its copies. Of a put that finds the key taken nothing is pinned. Parts
    /// of an object that is pinned for ever are pinned for a day
    /// ([`PIN_TTL_MAX`](lunette_kvstore_proto::retention::PIN_TTL_MAX)): a writer that dies would leave them for ever.
    pub pin: Pin,
    /// With which others it is of use only: when one of them leaves memory to make room, the others leave before what is in
    /// no such group, wherever they lie, unless they are used first. Objects of several copies are in no group, nor is what
    /// a node reads back from its drive when it begins. See [`groups`](lunette_kvstore_proto::groups).
    pub group: Option<GroupId>,
    /// The object without which it is of no use ([`ClusterClient::parent`]): of a prompt's blocks the one before. When that is
    /// gone, it leaves before what is of use, wherever it is, unless it is used first, and what is behind it follows. Not
    /// heeded for objects of several copies, as groups are not; a parent that a drive has is not gone.
    pub behind: Option<Parent>,
}

impl Default for PutOptions {
    fn default() -> Self {
        Self {
            kind: WriteKind::Put,
            copies: 1,
            preferred: Preferred::default(),
            is_same_node: false,
            stripe_len: None,
            pin: Pin::None,
            group: None,
            behind: None,
        }
    }
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The object is there.
    Written {
        /// The version.
        version: Version,
        /// It was written while a node was cut off, in a cache namespace: others may know better.
        is_cut_off: bool,
        /// The writer had a wish where it should be, and it is on another node.
        is_elsewhere: bool,
    },
    /// A put found the key taken; objects are immutable, so it has succeeded.
    Exists {
        /// What is there.
        version: Version,
    },
}

/// What came of a get.
#[derive(Debug)]
pub enum Fetched {
    /// The value is at the front of the room.
    Hit {
        /// The room, the caller's again.
        room: Room,
        /// How many bytes are in the room: the value's, or those of the ranges.
        len_bytes: usize,
        /// Length of the value in bytes.
        object_len_bytes: usize,
        /// Its version.
        version: Version,
        /// The owner was cut off, in a cache namespace: the object may have been removed meanwhile.
        is_cut_off: bool,
    },
    /// There is no object.
    Miss {
        /// The room, the caller's again.
        room: Room,
        /// Whether that is sure. Otherwise a home does not know yet what all members hold, or is cut off, in a cache
        /// namespace; or who knows, or all who have it, cannot be reached.
        is_known: bool,
    },
}

/// A handle to a cluster, on one core. Clones share its connections.
#[derive(Clone)]
pub struct ClusterClient {
    asking: Rc<Asking>,
    /// Of a client on a core of a member.
    local: Option<Rc<Local>>,
    tenant: Tenant,
    timeout: Duration,
    lines_max: usize,
    _tasks: Rc<Scope>,
}

impl fmt::Debug for ClusterClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterClient")
            .field("epoch", &self.asking.map().epoch())
            .finish_non_exhaustive()
    }
}

impl ClusterClient {
    /// Learns the map from the first seed that answers, within the options' timeout.
    ///
    /// # Errors
    /// [`ClusterError`]: none does.
    pub async fn connect(options: ClusterClientOptions) -> Result<Self, ClusterError> {
        Self::connect_with(options, Vec::new()).await
    }

    /// The same, with adapters that the program has opened on this core, besides those that the options name: those
    /// of a simulated fabric, say.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_with(
        options: ClusterClientOptions,
        adapters: Vec<Context>,
    ) -> Result<Self, ClusterError> {
        Self::connect_from(options, None, adapters).await
    }

    /// As [`connect`](Self::connect), of a client on the core of a member.
    pub(crate) async fn connect_from(
        options: ClusterClientOptions,
        core: Option<Rc<MemberCore>>,
        adapters: Vec<Context>,
    ) -> Result<Self, ClusterError> {
        let session_epoch = entropy() | 1;
        let guard = options.secrets.clone();
        let seats = Seats::new(Linking {
            guard: guard.map(|secrets| Guard::new(secrets, session_epoch)),
            session_epoch,
            connect_timeout: options.connect_timeout,
            in_flight_max: options.in_flight_max,
            connections_max: options.connections_max,
            idle_timeout: options.idle_timeout,
        });
        let sights = Sights::new(options.one_sided_from_bytes);
        let by = ByAdapters::open(&options.rdma, options.rdma_path, adapters);
        let local = core.map(|core| Rc::new(Local::new(core)));
        let manner = (options.namespace, options.timeout);
        let asking = Asking::new(seats, (sights, by), local.clone(), manner);
        let asking = Rc::new(asking);
        let deadline = time::now() + options.timeout;
        let map = maps::first(asking.seats.linking(), &options.seeds, deadline).await?;
        asking.on_map(map);
        let tasks = Scope::new();
        let begun = (tasks.spawn(Rc::clone(&asking).send_questions()))
            .and_then(|()| tasks.spawn(Rc::clone(&asking).keep_time()))
            .and_then(|()| tasks.spawn(Rc::clone(&asking).close_idle()))
            .and_then(|()| tasks.spawn(maps::keep(Rc::clone(&asking), options.seeds)));
        let mut ears = 0..asking.adapters.len();
        let begun = begun.and_then(|()| {
            ears.try_for_each(|index| tasks.spawn(adapters::hear(Rc::clone(&asking), index)))
        });
        begun.map_err(|_too_many| ClusterError::TooManyTasks)?;
        Ok(Self {
            asking,
            local,
            tenant: options.tenant,
            timeout: options.timeout,
            lines_max: options.lines_max,
            _tasks: Rc::new(tasks),
        })
    }

    /// How many connections threads may have to themselves.
    pub(crate) const fn lines_max(&self) -> usize {
        self.lines_max
    }

    /// Whose keys callers choose.
    #[must_use]
    pub const fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// The same client for the keys of another tenant. Both share connections.
    #[must_use]
    pub fn of_tenant(&self, tenant: Tenant) -> Self {
        Self {
            tenant,
            ..self.clone()
        }
    }

    /// What the store has a caller's key as.
    fn own<'a>(&self, chosen: &'a [u8]) -> Cow<'a, [u8]> {
        self.tenant.key(chosen)
    }

    fn own_all<'a>(&self, chosen: &'a [Vec<u8>]) -> Cow<'a, [Vec<u8>]> {
        if self.tenant == Tenant::default() {
            return Cow::Borrowed(chosen);
        }
        let own = chosen.iter().map(|key| self.own(key).into_owned());
        Cow::Owned(own.collect())
    }

    /// A key as the store has it, if its caller chose one.
    fn valid<'a>(&self, own: &'a [u8]) -> Result<Key<'a>, StoreError> {
        let valid = self.tenant.check(own);
        valid.map_err(|fault| StoreError::local(fault.into()))
    }

    /// The core that it is on, whose map it has too.
    fn inside(&self) -> Option<&Local> {
        let local = self.local.as_deref()?;
        let known = self.asking.map().epoch();
        local.if_newer(known, |map| self.asking.on_map(map.clone()));
        Some(local)
    }

    /// The newest map that it knows. One that has asked nobody for anything in a while learns of a newer one
    /// when it does.
    #[must_use]
    pub fn map(&self) -> Rc<ClusterMap> {
        self.asking.map()
    }

    /// Ends when the map is another one, or there will be no other: whether it is.
    pub(crate) fn next_map(&self) -> impl Future<Output = bool> + use<> {
        let next = self.asking.next_map();
        async move { next.await.is_ok() }
    }

    /// What it has copied from the memory of owners on this host.
    #[must_use]
    pub fn one_sided(&self) -> OneSided {
        self.asking.sights.counted()
    }

    /// Lets owners' adapters write what is got into rooms of this memory
    /// ([`Room::exposed`](lunette_transfer::Room::exposed)), and read what is put out of it
    /// ([`WriteSource::Exposed`](lunette_transfer::WriteSource)): it is registered with each of the client's adapters,
    /// as a whole and with nothing beside it, where that holds up nobody. Who owns an object is trusted with that
    /// memory for as long as the answer lives: with its key any member could read and write there. Nothing lands in a
    /// room any more once its get has ended; dropping that has the connection's queue pair given up first.
    ///
    /// # Errors
    /// [`TooManyLandings`].
    pub async fn land(&self, memory: Exposed) -> Result<Landing, TooManyLandings> {
        self.asking.adapters.land(memory).await
    }

    /// What adapters have brought.
    #[must_use]
    pub fn by_adapters(&self) -> AdapterGets {
        self.asking.adapters.counted()
    }

    /// What adapters have read of what was put.
    #[must_use]
    pub fn puts_by_adapters(&self) -> AdapterPuts {
        self.asking.adapters.counted_puts()
    }

    /// How many requests, of gets and lookups, have gone by messages between adapters, in place of connections.
    #[must_use]
    pub fn asked_by_adapters(&self) -> u64 {
        self.asking.adapters.asked()
    }

    /// Where the object is, or the manifest of one that is in parts; with `hold`, its owner keeps it for a while,
    /// within its limits. `None`: there is none, or its home does not know yet.
    ///
    /// With adapters on both sides, and where gets have gone to its owner before, the owner is asked where a held
    /// object lies, too. Until the hold ends, or the owner's lease might, gets of it read it there and ask nobody, and
    /// do not wait for an owner that is late. They see a removal or an upsert when it has been acknowledged, and may
    /// not see it before, although others may.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn lookup(
        &self,
        key: &[u8],
        hold: Option<HoldWish>,
    ) -> Result<Option<Found>, StoreError> {
        let key = self.own(key);
        self.find(self.valid(&key)?, hold).await
    }

    /// As [`lookup`](Self::lookup), of a key as the store has it.
    async fn find(
        &self,
        key: Key<'_>,
        hold: Option<HoldWish>,
    ) -> Result<Option<Found>, StoreError> {
        let (wish, until) = (Wish::Lookup(hold), time::now() + self.timeout);
        let ended = self.asking.begin(key, wish, Brought::Nothing, until).await;
        let found = match ended.outcome.map_err(StoreError::local)? {
            Outcome::Found(found) => found,
            Outcome::Miss | Outcome::Unknown => return Ok(None),
            _ => return Err(StoreError::local(StoreErrorKind::TimedOut)),
        };
        if let Some(hold) = hold {
            let held = [(key, found.clone())];
            adapters::learn(&self.asking, &held, hold).await;
        }
        Ok(Some(found))
    }

    /// As [`lookup`](Self::lookup) with a hold, of many objects, in their order: the questions of one home go
    /// together, and those for places of one owner.
    ///
    /// # Errors
    /// One for each: [`StoreError`].
    pub async fn hold_all(
        &self,
        keys: &[Vec<u8>],
        hold: HoldWish,
    ) -> Vec<Result<Option<Found>, StoreError>> {
        let keys = self.own_all(keys);
        let valid_keys: Vec<_> = keys.iter().map(|key| self.valid(key)).collect();
        let asked = valid_keys.iter().filter_map(|key| key.ok());
        let mut ended = self
            .ask_all(asked, Wish::Lookup(Some(hold)))
            .await
            .into_iter();
        let found = valid_keys.iter().map(|key| {
            key.as_ref().map_err(|error| *error)?;
            locating::found(ended.next().expect("one for each key"))
        });
        let found: Vec<Result<Option<Found>, StoreError>> = found.collect();
        let held = valid_keys.iter().zip(&found);
        let held = held.filter_map(|(key, found)| Some(((*key).ok()?, found.clone().ok()??)));
        let held: Vec<(Key<'_>, Found)> = held.collect();
        adapters::learn(&self.asking, &held, hold).await;
        found
    }

    /// Whether there is an object under each of `keys`, in their order: a hint. The questions of one
    /// home go together. Of an object in parts it is the manifest that is asked for: that a part is lost, its
    /// next get finds out.
    ///
    /// # Errors
    /// [`StoreError`] of the first that failed.
    pub async fn exists(&self, keys: &[Vec<u8>]) -> Result<Vec<bool>, StoreError> {
        let keys = self.own_all(keys);
        let keys = keys.iter().map(|key| self.valid(key));
        let keys: Vec<Key<'_>> = keys.collect::<Result<_, _>>()?;
        let mut present = Vec::with_capacity(keys.len());
        let mut elsewhere: Vec<usize> = Vec::new();
        let fingerprints: Vec<_> = keys.iter().map(|key| key.fingerprint()).collect();
        match self.inside() {
            Some(local) => local.peek(&fingerprints, self.asking.namespace(), |peek| {
                if peek == Peek::Unsure {
                    elsewhere.push(present.len());
                }
                present.push(peek == Peek::Present);
            }),
            None => {
                present.resize(keys.len(), false);
                elsewhere.extend(0..keys.len());
            }
        }
        if !elsewhere.is_empty() {
            elsewhere = self.peek_seen(&fingerprints, elsewhere, &mut present);
        }
        if !elsewhere.is_empty() {
            let peeked = self.peek_homes(&fingerprints, elsewhere, &mut present);
            elsewhere = peeked.await;
        }
        let asked = elsewhere.iter().map(|&index| keys[index]);
        let ended = self.ask_all(asked, Wish::Lookup(None)).await;
        for (index, ended) in elsewhere.into_iter().zip(ended) {
            present[index] = match ended.map_err(StoreError::local)? {
                Outcome::TimedOut => return Err(StoreError::local(StoreErrorKind::TimedOut)),
                outcome => is_present(&outcome),
            };
        }
        Ok(present)
    }

    /// Lengths of the values under `keys` in bytes, in their order; `None` where there is none, or its home
    /// does not know yet. The questions of one home go together.
    ///
    /// # Errors
    /// One for each: [`StoreError`].
    pub async fn sizes(&self, keys: &[Vec<u8>]) -> Vec<Result<Option<usize>, StoreError>> {
        let keys = self.own_all(keys);
        let mut sizes = Vec::with_capacity(keys.len());
        let mut elsewhere = Vec::new();
        let inside = self.inside();
        for key in &*keys {
            let namespace = self.asking.namespace();
            let here = |key| inside.and_then(|local| local.len_of(key, namespace));
            sizes.push(self.valid(key).map(|key| {
                let len_bytes = here(key);
                if len_bytes.is_none() {
                    elsewhere.push((sizes.len(), key));
                }
                len_bytes
            }));
        }
        let asked = elsewhere.iter().map(|(_, key)| *key);
        let ended = self.ask_all(asked, Wish::Lookup(None)).await;
        for ((index, key), ended) in elsewhere.into_iter().zip(ended) {
            sizes[index] = match ended {
                Ok(Outcome::Found(found)) if found.form == Form::Striped => {
                    self.size_of_striped(key).await
                }
                Ok(Outcome::Found(found)) => Ok(Some(found.len_bytes as usize)),
                Ok(Outcome::TimedOut) => Err(StoreError::local(StoreErrorKind::TimedOut)),
                Ok(_) => Ok(None),
                Err(kind) => Err(StoreError::local(kind)),
            };
        }
        sizes
    }

    /// Removes `keys`, and the parts of what is in parts; tells for each, in their order, whether there was an object.
    ///
    /// # Errors
    /// One for each: `TimedOut` if nothing was done, `Interrupted` if it is not known.
    pub async fn remove(&self, keys: &[Vec<u8>]) -> Vec<Result<bool, StoreError>> {
        let keys = self.own_all(keys);
        let valid_keys: Vec<_> = keys.iter().map(|key| self.valid(key)).collect();
        let asked = valid_keys.iter().filter_map(|key| key.ok());
        let mut ended = self
            .ask_all(asked, Wish::Remove(Only::Whole))
            .await
            .into_iter();
        let mut removed = Vec::with_capacity(keys.len());
        for key in valid_keys {
            let key = match key {
                Ok(key) => key,
                Err(error) => {
                    removed.push(Err(error));
                    continue;
                }
            };
            let ended = ended.next().expect("one for each key");
            removed.push(match ended.map_err(StoreError::local) {
                Ok(Outcome::Found(found)) => self.remove_striped(key, found.version).await,
                ended => ended.and_then(removed_as),
            });
        }
        removed
    }

    /// Those of one home leave together.
    async fn ask_all(
        &self,
        keys: impl Iterator<Item = Key<'_>>,
        wish: Wish,
    ) -> Vec<Result<Outcome, StoreErrorKind>> {
        let until = time::now() + self.timeout;
        let begun = keys.map(|key| self.asking.begin(key, wish, Brought::Nothing, until));
        objects::batch(begun, async |begun| begun.await.outcome).await
    }

    /// Each seat's statistics: what its core holds and has counted. Many are asked at the same time, so one
    /// that is silent holds up nobody's but its own, for as long as it is a member.
    pub async fn stat(&self) -> Vec<(Seat, Result<NodeStat, StoreError>)> {
        let until = time::now() + self.timeout;
        loop {
            let map = self.asking.map();
            if map.members().is_empty() && self.wait_for_map(until).await.is_ok() {
                continue;
            }
            let (mut stats, newest) = match self.stat_of(&map).await {
                Told::All(stats) => (stats, map.epoch()),
                // There may be members that it had not heard of, and others may be gone.
                Told::Newer(epoch, stats) => (stats, epoch),
            };
            if newest > map.epoch() && self.know_map(newest, until).await.is_ok() {
                continue;
            }
            let told: BTreeSet<Seat> = stats.iter().map(|(seat, _)| *seat).collect();
            for seat in seats(&map).filter(|seat| !told.contains(seat)) {
                let late = StoreError::local(StoreErrorKind::TimedOut);
                stats.push((seat, Err(late)));
            }
            stats.sort_by_key(|(seat, _)| (seat.node, seat.core));
            return stats;
        }
    }

    async fn stat_of(&self, map: &ClusterMap) -> Told<(Seat, Result<NodeStat, StoreError>)> {
        let asked = seats(map).map(|seat| {
            let (told, stat) = oneshot::channel();
            let (asking, timeout) = (Rc::clone(&self.asking), self.timeout);
            self.asking.spawn(async move {
                let stat = maps::stat(&asking.seats, seat, timeout).await;
                if told.send(stat).is_err() {
                    tracing::trace!("who asked for statistics has given up");
                }
            });
            let none = StoreError::local(StoreErrorKind::TooManyOperations);
            stat.map(move |stat| Ok::<_, Infallible>((seat, stat.unwrap_or(Err(none)))))
        });
        let epoch_of = |(_, stat): &(Seat, Result<NodeStat, StoreError>)| {
            stat.as_ref().map_or(Epoch(0), |stat| Epoch(stat.epoch))
        };
        let Ok(told) = self.told_under(map, asked, epoch_of).await;
        told
    }
}

/// What came of a removal.
fn removed_as(outcome: Outcome) -> Result<bool, StoreError> {
    match outcome {
        Outcome::Removed { found, .. } => Ok(found),
        Outcome::TimedOut => Err(StoreError::local(StoreErrorKind::TimedOut)),
        _ => Err(StoreError::local(StoreErrorKind::Interrupted)),
    }
}
