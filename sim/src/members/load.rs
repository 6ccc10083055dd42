//! What a client of a world does, and what it tells the ledger.

mod asking;
mod late;
mod putting;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_kvstore::{
    ClusterClient, ClusterClientOptions, Fetched, GetFailure, Landing, NodeCore, StoreError,
    StoreErrorKind,
};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::Status;
use lunette_kvstore_proto::message::directory::HoldWish;
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::retention::{GroupId, Parent, Pin};
use lunette_kvstore_proto::tenant::{DEFAULT_TENANT, Tenant};
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::arena::{Exposed, HugePages, Region};
use lunette_runtime::sim::Log;
use lunette_runtime::{arena, spawn_local, time};
use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;
use lunette_transfer::Room;

use super::adapters::Adapters;
use super::history::End;
use super::ledger::{Hit, Ledger};
use super::plan::Means;

pub(crate) const KEYS: usize = 12;
/// Tasks of one client.
const TASKS: usize = 3;
/// Keys below this are removed and replaced: other objects live to see a fault.
const CHANGED_BELOW: usize = 4;
/// Which of the things that a client does may have owners write into its memory.
const LANDS_BELOW: u32 = 7;
const VALUE_BYTES_MIN: usize = 16;
const VALUE_BYTES_MAX: usize = 3000;
/// Length of the parts of an object that is in parts.
const STRIPE_BYTES: u32 = 1_200;
/// Keys whose values may be in one group.
const KEYS_OF_GROUP: usize = 4;
/// Keys below this are of the default tenant, the others of another one.
const KEYS_OF_DEFAULT: usize = 2 * KEYS_OF_GROUP;
/// The key some of whose values are pinned for ever, and how long these are.
const PINNED_KEY: usize = 6;
const PINNED_BYTES_MAX: usize = 600;

/// Keys that are put or got in one call, at most.
const SEVERAL: usize = KEYS / 2;
/// How long a node keeps room to which nothing is written.
const RESERVED_KEEP: Duration = Duration::from_secs(2);
/// Before a node is asked once more to be emptied.
const RETIRE_PAUSE: Duration = Duration::from_millis(100);
/// After that nobody serves who does not know that everything is removed.
const CLEARED_WAIT: Duration = Duration::from_secs(3);
/// How often a client that asks late looks whether it is time.
const LATE_PAUSE: Duration = Duration::from_millis(50);
/// What a client wants to be held, and for how long.
const HOLD: HoldWish = HoldWish {
    holder: 1,
    ttl_ms: 400,
};

/// A client of a world.
#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) seeds: Vec<SocketAddr>,
    pub(crate) ledger: Rc<RefCell<Ledger>>,
    pub(crate) log: Log,
    /// When it stops.
    pub(crate) until: Time,
    /// From when on nothing may fail any more.
    pub(crate) calm_from: Time,
    /// When something goes wrong, and until when that has consequences.
    pub(crate) unrest: Rc<[(Time, Time)]>,
    pub(crate) timeout: Duration,
    /// Of everything that is put.
    pub(crate) namespace: NamespaceKind,
    /// Whether each node has room for everything.
    pub(crate) is_roomy: bool,
    /// Whether members have drives, which fail now and then.
    pub(crate) has_drives: bool,
    /// How many copies writes ask for at most.
    pub(crate) copies_max: u8,
    /// How much memory the tenant may have that is not the default one, from when on.
    pub(crate) quotas: Rc<[(Time, Option<u64>)]>,
    /// What it may have.
    pub(crate) means: Means,
    /// The adapters of its world, and which client it is.
    pub(crate) adapters: Option<(Rc<Adapters>, u8)>,
}

/// Memory into which owners' adapters may write.
struct Landed {
    memory: Exposed,
    _landing: Landing,
}

/// What has come, where its bytes can be looked at.
fn in_region(fetched: Fetched, memory: &Exposed) -> Fetched {
    match fetched {
        Fetched::Hit {
            len_bytes,
            object_len_bytes,
            version,
            is_cut_off,
            ..
        } => {
            let mut region = arena().alloc(len_bytes.max(1)).expect("room");
            memory.copy_out(0, &mut region.as_mut_slice()[..len_bytes]);
            Fetched::Hit {
                room: Room::whole(region),
                len_bytes,
                object_len_bytes,
                version,
                is_cut_off,
            }
        }
        miss @ Fetched::Miss { .. } => miss,
    }
}

/// How members name a key in what they tell.
pub(crate) fn fingerprint_high(key: usize) -> u64 {
    let (name, tenant) = (name(key), tenant_of(key));
    let key = tenant.key(&name);
    Key::new(&key).expect("a short name").fingerprint().high()
}

/// Whether objects of this key are written in parts.
pub(crate) const fn is_striped(key: usize) -> bool {
    key % 7 == 2
}

fn name(key: usize) -> Vec<u8> {
    format!("world/{key}").into_bytes()
}

fn tenant_of(key: usize) -> Tenant {
    let name = if key < KEYS_OF_DEFAULT {
        DEFAULT_TENANT
    } else {
        "other"
    };
    Tenant::named(name).expect("a short name")
}

/// Some values are of no use without what is under the key before.
fn parent_of(client: &ClusterClient, key: usize, value: u64) -> Option<Parent> {
    let has_one = !key.is_multiple_of(KEYS_OF_GROUP) && value % 5 < 2;
    has_one.then(|| client.parent(&name(key - 1))).flatten()
}

/// How a value is pinned: for ever one that is short, of one key, so that in the smallest memory there is room for any
/// other beside it.
fn pin_of(key: usize, value: u64) -> Pin {
    if key == PINNED_KEY && len_of(value) <= PINNED_BYTES_MAX {
        Pin::Hard
    } else if value.is_multiple_of(8) {
        Pin::soft(Some(Duration::from_secs(1 + value % 3)))
    } else {
        Pin::None
    }
}

/// Half of the values are of use only with what neighbouring keys have.
fn group_of(key: usize, value: u64) -> Option<GroupId> {
    let group = ((key / KEYS_OF_GROUP) as u64).to_le_bytes();
    value.is_multiple_of(2).then(|| GroupId::of(&group))
}

pub(crate) fn len_of(value: u64) -> usize {
    let spread = VALUE_BYTES_MAX - VALUE_BYTES_MIN;
    VALUE_BYTES_MIN + usize::try_from(value).expect("few") * 977 % spread
}

/// Bytes that tell which value they are.
fn bytes_of(value: u64) -> Region {
    let mut region = arena().alloc(len_of(value)).expect("room");
    for (index, byte) in region.as_mut_slice().iter_mut().enumerate() {
        *byte = (value >> (8 * (index % 8))).to_le_bytes()[0];
    }
    region.freeze()
}

/// The value that bytes are of; `None` if they are of none.
fn value_of(bytes: &[u8]) -> Option<u64> {
    let (first, _) = bytes.split_first_chunk()?;
    let value = u64::from_le_bytes(*first);
    (bytes_of(value).as_slice() == bytes).then_some(value)
}

impl Load {
    pub(crate) async fn run(self, mut random: SplitMix64) {
        for _ in 0..TASKS {
            let (load, random) = (self.clone(), SplitMix64::new(random.next()));
            drop(spawn_local(load.work(random)));
        }
        time::sleep_until(self.until).await;
    }

    pub(crate) async fn connect(&self) -> ClusterClient {
        loop {
            let options = self.options();
            // In the process of a member, on its core.
            let connected = match NodeCore::here().pop() {
                Some(core) => core.client(options).await,
                None => {
                    let adapters = self.adapters.as_ref();
                    let adapters = adapters.map(|(adapters, client)| adapters.of_client(*client));
                    ClusterClient::connect_with(options, adapters.unwrap_or_default()).await
                }
            };
            match connected {
                Ok(client) => return client,
                Err(error) => {
                    if self.log.now() > self.calm_from + self.timeout {
                        let text = format!("no client although all is calm: {error}");
                        self.ledger.borrow_mut().fail(self.log.now(), &text);
                    }
                    time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    fn options(&self) -> ClusterClientOptions {
        let usual = ClusterClientOptions::new(self.seeds.clone());
        let Means {
            connections_max,
            in_flight_max,
            idle_timeout,
        } = self.means;
        ClusterClientOptions {
            timeout: self.timeout,
            namespace: self.namespace,
            connections_max: connections_max.unwrap_or(usual.connections_max),
            in_flight_max: in_flight_max.unwrap_or(usual.in_flight_max),
            idle_timeout: idle_timeout.unwrap_or(usual.idle_timeout),
            ..usual
        }
    }

    async fn work(self, mut random: SplitMix64) {
        let client = self.connect().await;
        let landed = self.land(&client).await;
        while self.log.now() < self.until {
            time::sleep(Duration::from_micros(random.below(40_000).into())).await;
            if self.log.now() >= self.until {
                break;
            }
            let keys = u32::try_from(KEYS).expect("few");
            let key = random.below(keys) as usize;
            let what = random.below(19);
            // Memory into which owners may still write is of no use for what comes next.
            let may_give_up = landed.is_none() || what >= LANDS_BELOW;
            let gives_up = may_give_up && random.below(8) == 0;
            let patience = gives_up.then(|| Duration::from_micros(random.below(3_000).into()));
            let done = self.once((&client, landed.as_ref()), (what, key), &mut random);
            match patience {
                None => done.await,
                Some(patience) => {
                    if time::timeout(patience, done).await.is_err() {
                        self.ledger.borrow_mut().count("given up");
                    }
                }
            }
        }
        if let Some((adapters, _)) = &self.adapters {
            adapters.count(client.by_adapters());
        }
    }

    /// One thing that a client does.
    async fn once(
        &self,
        (client, landed): (&ClusterClient, Option<&Landed>),
        (what, key): (u32, usize),
        random: &mut SplitMix64,
    ) {
        match what {
            0..4 => self.get_into(client, key, landed).await,
            4 => self.get_several(client, key).await,
            5 | 6 => self.get_parts(client, key, landed).await,
            7 => self.put_several(client, key, WriteKind::Put).await,
            8..13 => self.put(client, key, WriteKind::Put).await,
            13 if key.is_multiple_of(3) => {
                self.put_several(client, key, WriteKind::Upsert).await;
            }
            13 => {
                self.put(client, key % CHANGED_BELOW, WriteKind::Upsert)
                    .await
            }
            14 => {
                self.remove(client, key % CHANGED_BELOW, key / CHANGED_BELOW)
                    .await
            }
            15 | 16 => self.hold(client, key).await,
            17 => self.list(client, key).await,
            _ => self.ask(client, key, random).await,
        }
    }

    /// Memory that owners write, where there are adapters.
    async fn land(&self, client: &ClusterClient) -> Option<Landed> {
        self.adapters.as_ref()?;
        let map = Exposed::map(VALUE_BYTES_MAX, HugePages::Never, &mut Vec::new());
        let memory = map.expect("memory");
        let landing = client.land(memory.clone()).await;
        Some(Landed {
            memory,
            _landing: landing.expect("it is the first"),
        })
    }

    async fn get_into(&self, client: &ClusterClient, key: usize, landed: Option<&Landed>) {
        let Some(Landed { memory, .. }) = landed else {
            return self.get(client, key).await;
        };
        let begun = self.log.now();
        let room = Room::exposed(vec![memory.clone()]);
        let fetched = client.of_tenant(tenant_of(key)).get(&name(key), room).await;
        let fetched = fetched.map(|fetched| in_region(fetched, memory));
        self.on_fetched(key, begun, fetched, value_of);
    }

    /// Every key is put and got, by a fresh client: nothing may fail.
    pub(crate) async fn check(self) {
        let client = self.connect().await;
        for key in 0..KEYS {
            self.get(&client, key).await;
            self.put(&client, key, WriteKind::Put).await;
            self.get(&client, key).await;
        }
        self.remove(&client, 0, 0).await;
        self.put(&client, 1, WriteKind::Upsert).await;
        self.get(&client, 0).await;
        self.get(&client, 1).await;
        self.check_tenants(&client).await;
        self.check_quota(&client).await;
        let map = client.map();
        let members = map.members().iter();
        let emptied = members.filter(|member| member.is_draining);
        let emptied = emptied.map(|member| member.id.0).collect();
        self.ledger.borrow_mut().emptied = emptied;
    }

    /// Has a node emptied at that time, or as soon as it can be, wherever it is by then. It is filled again if it starts anew.
    pub(crate) async fn retire(self, at: Time, places: Vec<SocketAddr>) {
        time::sleep(at.since(time::now())).await;
        let client = self.connect().await;
        let mut unknown = 0;
        for node in places.iter().cycle() {
            match client.retire(*node).await {
                Ok(()) => break,
                Err(error) if matches!(error.kind, StoreErrorKind::LastMember { .. }) => {
                    return self.ledger.borrow_mut().count("kept as the last");
                }
                Err(error) => {
                    let is_unknown = matches!(error.kind, StoreErrorKind::NoMember { .. });
                    unknown = if is_unknown { unknown + 1 } else { 0 };
                    let may_be_elsewhere = is_unknown && unknown < places.len();
                    if time::now() >= self.calm_from && !may_be_elsewhere {
                        return self.on_failure(time::now(), "retire", &error.kind);
                    }
                    self.on_error("retire", &error.kind);
                    time::sleep(RETIRE_PAUSE).await;
                }
            }
        }
        self.ledger.borrow_mut().count("retired");
    }

    /// Removes everything at that time, or as soon as that can be.
    pub(crate) async fn clear(self, at: Time) {
        let client = self.connect().await;
        time::sleep(at.since(time::now())).await;
        let begun = time::now();
        self.ledger.borrow_mut().begin_clear(begun);
        let cleared = loop {
            let begun = time::now();
            match client.clear().await {
                Ok(cleared) => break cleared,
                Err(error) => self.on_failure(begun, "clear", &error.kind),
            }
        };
        self.log
            .note(&format!("everything is removed: {cleared:?}"));
        if !cleared.late.is_empty() {
            // They may show what they have for as long as their lease.
            time::sleep(CLEARED_WAIT).await;
        }
        let mut ledger = self.ledger.borrow_mut();
        ledger.end_clear(time::now(), begun);
    }

    /// Sets one quota after the other.
    pub(crate) async fn set_quotas(self) {
        if self.quotas.is_empty() {
            return;
        }
        let client = self.connect().await;
        let tenant = tenant_of(KEYS - 1);
        for (at, quota_bytes) in self.quotas.iter() {
            time::sleep(at.since(time::now())).await;
            let quota_bytes = quota_bytes.and_then(NonZeroU64::new);
            while let Err(error) = client.set_quota(&tenant, quota_bytes).await {
                self.on_error("set a quota", &error.kind);
            }
            self.log.note(&format!("the quota is {quota_bytes:?}"));
        }
    }

    /// Nobody has more than they may, and all members know how much that is.
    async fn check_quota(&self, client: &ClusterClient) {
        let tenant = tenant_of(KEYS - 1);
        let quotas = client.quotas().await.map_err(|error| error.kind);
        let meant = self.quotas.last().and_then(|(_, quota_bytes)| *quota_bytes);
        let is_kept = quotas.as_ref().is_ok_and(|quotas| match &quotas[..] {
            [of] => {
                let is_meant = of.tenant == tenant.name() && Some(of.quota_bytes) == meant;
                is_meant && of.used_bytes.max(of.lent_bytes) <= of.quota_bytes
            }
            quotas => quotas.is_empty() && meant.is_none(),
        });
        if !is_kept {
            let text = format!("of {meant:?} there are {quotas:?}");
            self.ledger.borrow_mut().fail(self.log.now(), &text);
        }
    }

    /// A tenant finds nothing under keys of others.
    async fn check_tenants(&self, client: &ClusterClient) {
        for key in 0..KEYS {
            for tenant in [0, KEYS - 1].map(tenant_of) {
                if tenant == tenant_of(key) {
                    continue;
                }
                let found = client.of_tenant(tenant).lookup(&name(key), None).await;
                if !matches!(found, Ok(None)) {
                    let text = format!("another tenant finds {key}: {found:?}");
                    self.ledger.borrow_mut().fail(self.log.now(), &text);
                }
            }
        }
    }

    /// Whether there may be no room for all parts of an object at a time: where a core has room for a few objects, of
    /// which some are held, or are parts that others are writing, for as long as the load lasts. Once it has ended,
    /// there is, but of a tenant's quota.
    fn may_lack_room(&self, begun: Time, key: usize, why: &StoreErrorKind) -> bool {
        let is_full = *why == StoreErrorKind::Refused(Status::Full);
        // Of what a tenant may have a core has room for a few parts, until it is lent more.
        let is_bounded = !self.quotas.is_empty() && tenant_of(key) == tenant_of(KEYS - 1);
        let is_late = begun >= self.until && !is_bounded;
        is_full && is_striped(key) && !self.is_roomy && !is_late
    }

    /// Whether reserved room was rightly given away: where a seat is not reached for so long, by a connection whose other
    /// end is gone, nothing is written meanwhile to what others have reserved.
    fn was_late(&self, begun: Time, why: &StoreErrorKind) -> bool {
        let took = self.log.now().since(begun);
        *why == StoreErrorKind::ReservationLost && took >= RESERVED_KEEP
    }

    fn on_failure(&self, begun: Time, what: &str, why: &StoreErrorKind) {
        self.on_error(what, why);
        if self.is_calm(begun) {
            let text = format!("{what} failed although all was calm: {why}");
            self.ledger.borrow_mut().fail(self.log.now(), &text);
        }
    }

    fn on_error(&self, what: &str, why: &StoreErrorKind) {
        self.log.note(&format!("{what}: {why}"));
        let kind = format!("{why:?}");
        let kind = kind.split(|letter: char| !letter.is_alphanumeric()).next();
        let mut ledger = self.ledger.borrow_mut();
        ledger.count_error(kind.unwrap_or_default().to_owned());
    }

    /// Whether nothing goes wrong since then, and has no consequences any more.
    fn is_calm(&self, begun: Time) -> bool {
        let now = self.log.now();
        let is_on = |(from, until): &(Time, Time)| *from <= now && begun < *until;
        !self.unrest.iter().any(is_on)
    }

    async fn get(&self, client: &ClusterClient, key: usize) {
        let begun = self.log.now();
        let room = Room::whole(arena().alloc(VALUE_BYTES_MAX).expect("room"));
        let fetched = client.of_tenant(tenant_of(key)).get(&name(key), room).await;
        self.on_fetched(key, begun, fetched, value_of);
    }

    /// Neighbours, those of one home in one answer.
    async fn get_several(&self, client: &ClusterClient, first: usize) {
        let begun = self.log.now();
        let keys = (first..first + SEVERAL).map(|key| key % KEYS);
        let tenant = tenant_of(first);
        let keys = keys.filter(|&key| tenant_of(key) == tenant);
        let wanted = keys.clone().map(|key| {
            let room = arena().alloc(VALUE_BYTES_MAX).expect("room");
            (name(key), Room::whole(room))
        });
        let fetched = client.of_tenant(tenant.clone()).get_all(wanted).await;
        for (key, fetched) in keys.zip(fetched) {
            self.on_fetched(key, begun, fetched, value_of);
        }
    }

    /// The end of an object's first bytes, and then its beginning, which tells which value it is.
    async fn get_parts(&self, client: &ClusterClient, key: usize, landed: Option<&Landed>) {
        let client = client.of_tenant(tenant_of(key));
        let begun = self.log.now();
        let first = size_of::<u64>();
        let range = |offset: usize, len: usize| ByteRange {
            offset_bytes: offset as u64,
            len_bytes: u32::try_from(len).expect("small"),
        };
        let rest = VALUE_BYTES_MIN - first;
        let ranges = [range(first, rest), range(0, first)];
        let fetched = match landed {
            Some(Landed { memory, .. }) => {
                let room = Room::exposed(vec![memory.slice(0, VALUE_BYTES_MIN)]);
                let fetched = client.get_ranges(&name(key), &ranges, room).await;
                fetched.map(|fetched| in_region(fetched, memory))
            }
            None => {
                let room = Room::whole(arena().alloc(VALUE_BYTES_MIN).expect("room"));
                client.get_ranges(&name(key), &ranges, room).await
            }
        };
        self.on_fetched(key, begun, fetched, |bytes| {
            let (then, id) = bytes.split_last_chunk()?;
            let value = u64::from_le_bytes(*id);
            let whole = bytes_of(value);
            (whole.as_slice()[first..VALUE_BYTES_MIN] == *then).then_some(value)
        });
    }

    fn on_fetched(
        &self,
        key: usize,
        begun: Time,
        fetched: Result<Fetched, GetFailure>,
        value_of: impl FnOnce(&[u8]) -> Option<u64>,
    ) {
        let now = self.log.now();
        match fetched {
            Ok(Fetched::Hit {
                room,
                len_bytes,
                version,
                is_cut_off,
                ..
            }) => {
                let value = value_of(&room.as_slice()[..len_bytes]);
                let note = format!("get {key}: {value:?} {version:?}, cut off {is_cut_off}");
                self.log.note(&note);
                let mut ledger = self.ledger.borrow_mut();
                let hit = |value| Hit {
                    value,
                    version,
                    is_cut_off,
                };
                match value {
                    Some(value) => ledger.on_hit(now, key, begun, hit(value)),
                    None => ledger.fail(now, &format!("key {key}: bytes that nobody put")),
                }
            }
            Ok(Fetched::Miss { is_known, .. }) => {
                self.log.note(&format!("get {key}: miss, known {is_known}"));
                let mut ledger = self.ledger.borrow_mut();
                ledger.hear(&self.log);
                if is_known {
                    ledger.on_miss(now, key, begun);
                } else if self.is_calm(begun) {
                    ledger.fail(now, &format!("key {key}: unknown although all is calm"));
                } else {
                    ledger.on_unknown();
                }
            }
            Err(failure) => self.on_failure(begun, &format!("get {key}"), &failure.error.kind),
        }
    }

    /// Removes a key, and so many after it.
    async fn remove(&self, client: &ClusterClient, first: usize, more: usize) {
        let begun = self.log.now();
        let keys: Vec<usize> = (first..=first + more)
            .map(|key| key % CHANGED_BELOW)
            .collect();
        for &key in &keys {
            self.ledger.borrow_mut().begin_removal(begun, key);
        }
        let names: Vec<_> = keys.iter().map(|&key| name(key)).collect();
        let removed = client.of_tenant(tenant_of(first)).remove(&names).await;
        for (key, removed) in keys.into_iter().zip(removed) {
            self.on_removed(begun, key, &removed);
        }
    }

    fn on_removed(&self, begun: Time, key: usize, removed: &Result<bool, StoreError>) {
        let now = self.log.now();
        self.log.note(&format!("remove {key}: {removed:?}"));
        let end = match removed {
            Ok(_) => End::Done,
            Err(error) => {
                self.on_failure(begun, &format!("remove {key}"), &error.kind);
                match error.kind {
                    StoreErrorKind::TimedOut => End::Undone,
                    _ => End::Doubt,
                }
            }
        };
        let mut ledger = self.ledger.borrow_mut();
        ledger.count(if end == End::Done {
            "removed"
        } else {
            "not removed"
        });
        ledger.end_removal(now, key, begun, end);
    }
}
