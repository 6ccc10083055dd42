//! Which core is asked, and how.

use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use futures_channel::oneshot;
use lunette_cluster::proto::map::ClusterMap;
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::placement::{Seat, home_of};
use lunette_kvstore_proto::retention::Parent;
use lunette_kvstore_proto::tenant::Tenant;
use lunette_runtime::{Pending, Port, SendError, Sender, channel};

use super::having::Having;
use super::hosted::{Hosted, Job, Until};
use super::lengths::Lengths;
use super::lines::Lines;
use crate::cluster_client::ClusterClient;
use crate::error::{ClusterError, StoreError, StoreErrorKind};
use crate::glance::{Glance, Shown};

/// Questions that wait for one core. Further ones are refused as
/// [`TooManyOperations`](StoreErrorKind::TooManyOperations).
pub const QUESTIONS_MAX: usize = 4096;
/// What a core needs for one of many items, if it is about a few KiB that are here. Threads that ask for many look for the
/// answer accordingly.
const ITEM_TAKES: Duration = Duration::from_micros(4);

/// How long a core that has as many questions as it takes is not asked for a connection.
pub(super) const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// The cores that answer.
pub(crate) struct Cores {
    members: Box<[Member]>,
    /// Any seat of the node whose cores these are.
    node: Option<Seat>,
    /// Whose keys they are asked for.
    tenant: Tenant,
    /// The newest map that one of them has told; none before.
    map: RwLock<Option<ClusterMap>>,
    /// What is seen of cores, theirs and others, without asking them.
    glance: Arc<Glance>,
    /// By what threads ask others themselves.
    lines: Arc<Lines>,
    /// Of values of which nobody says how long they are.
    lengths: Arc<Lengths>,
    /// Whether these are clients inside of nodes, which put things at their own first.
    is_inside: AtomicBool,
    /// Whether homes have what threads want from them.
    homes_have: Having,
}

/// One core, as threads see it.
struct Member {
    questions: Sender<Job>,
    /// Reservations there that nobody has any more.
    dropped: Mutex<Vec<usize>>,
}

/// One core's place among them, on its way there.
pub(crate) struct Seated {
    pub(super) cores: std::sync::Weak<Cores>,
    pub(super) core: usize,
    pub(super) questions: Port<Job>,
}

impl Seated {
    /// Answers on the current core, by this client, for as long as anybody can ask.
    ///
    /// # Errors
    /// [`ClusterError::TooManyTasks`].
    pub(crate) fn begin(self, client: ClusterClient) -> Result<(), ClusterError> {
        Hosted::begin(self, client)
    }

    /// Threads see what the current core, which has this seat, shows.
    pub(crate) fn show(&self, seat: Seat, shown: Shown) {
        if let Some(cores) = self.cores.upgrade() {
            let shown = Arc::new(shown.asked_by(self.core));
            cores.glance.show(seat, shown);
        }
    }
}

impl Cores {
    /// So many, of one node if one is named, for one tenant's keys, with what is seen of cores, and what is to
    /// [begin](Seated::begin) on each.
    pub(crate) fn new(
        count: usize,
        node: Option<Seat>,
        tenant: Tenant,
        glance: Arc<Glance>,
    ) -> (Arc<Self>, Vec<Seated>) {
        let (senders, ports): (Vec<_>, Vec<_>) = (0..count).map(|_| channel(QUESTIONS_MAX)).unzip();
        let member = |questions| Member {
            questions,
            dropped: Mutex::default(),
        };
        let cores = Arc::new(Self {
            members: senders.into_iter().map(member).collect(),
            node,
            tenant,
            map: RwLock::default(),
            glance,
            lines: Arc::default(),
            lengths: Arc::default(),
            is_inside: AtomicBool::new(false),
            homes_have: Having::default(),
        });
        let seated = |(core, questions)| Seated {
            cores: Arc::downgrade(&cores),
            core,
            questions,
        };
        let seated = ports.into_iter().enumerate().map(seated).collect();
        (cores, seated)
    }

    pub(super) const fn len(&self) -> usize {
        self.members.len()
    }

    /// A core has this map.
    pub(super) fn on_map(&self, map: &ClusterMap) {
        let mut known = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if known
            .as_ref()
            .is_none_or(|known| known.epoch() < map.epoch())
        {
            *known = Some(map.clone());
            self.lines.on_map(map);
        }
    }

    /// What is behind the object under a key names that by this.
    pub(super) fn parent(&self, key: &[u8]) -> Option<Parent> {
        let key = self.tenant.key(key);
        let key = self.tenant.check(&key).ok()?;
        Some(Parent(key.fingerprint()))
    }

    /// The core for a key: its home, where that is one of these. If the map is an old one, that core asks on.
    pub(super) fn core_of(&self, key: &[u8]) -> usize {
        if self.members.len() == 1 {
            return 0;
        }
        let key = self.tenant.key(key);
        let key = self.tenant.check(&key);
        // One that is no key is refused by whichever.
        key.map_or(0, |key| self.places_of(key.fingerprint()).1)
    }

    /// The home of a key, as far as is known, and the [core](Self::core_of) for it.
    pub(super) fn places_of(&self, key: Fingerprint) -> (Option<Seat>, usize) {
        let home = self.map().as_ref().and_then(|map| home_of(map, key));
        let count = self.members.len() as u64;
        let any = || usize::try_from(key.low() % count).expect("below a count");
        let here = home.and_then(|home| self.core_at(home));
        (home, here.unwrap_or_else(any))
    }

    /// Whether one of these cores has this seat.
    pub(super) fn has_seat(&self, seat: Seat) -> bool {
        self.core_at(seat).is_some()
    }

    /// Which of these cores has this seat, if one has.
    fn core_at(&self, seat: Seat) -> Option<usize> {
        let node = self.node?;
        let is_here = (seat.node, seat.incarnation) == (node.node, node.incarnation);
        let core = usize::from(seat.core.0);
        (is_here && core < self.members.len()).then_some(core)
    }

    /// What is seen of cores without asking them.
    pub(super) const fn glance(&self) -> &Arc<Glance> {
        &self.glance
    }

    /// By what threads ask others themselves.
    pub(super) const fn lines(&self) -> &Arc<Lines> {
        &self.lines
    }

    /// One of them is inside of a node.
    pub(super) fn set_inside(&self) {
        self.is_inside.store(true, Ordering::Relaxed);
    }

    /// Whether they put things at their own node first.
    pub(super) fn is_inside(&self) -> bool {
        self.is_inside.load(Ordering::Relaxed)
    }

    /// Whether homes have what threads want from them.
    pub(super) const fn homes_have(&self) -> &Having {
        &self.homes_have
    }

    /// Of values of which nobody says how long they are.
    pub(super) const fn lengths(&self) -> &Arc<Lengths> {
        &self.lengths
    }

    /// Has a core make a line to a home, as [told](super::lines::Taken::ToMake).
    pub(super) fn have_line_made(&self, seat: Seat) {
        if !self.tell(0, move |hosted| hosted.make_line(seat)) {
            self.lines.made(seat, Err(BUSY_PAUSE));
        }
    }

    /// The newest map that is known.
    pub(super) fn map(&self) -> RwLockReadGuard<'_, Option<ClusterMap>> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whose keys they are asked for.
    pub(super) const fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Has a core do something when it comes to it. Whether it will: not if it has as many questions as it takes.
    pub(super) fn tell(
        &self,
        core: usize,
        deed: impl FnOnce(&Rc<Hosted>) + Send + 'static,
    ) -> bool {
        let told = self.members[core].questions.try_send(Box::new(deed));
        told.is_ok()
    }

    /// Asks a core for what is done to its end. `refused` is the answer where there is none.
    pub(super) fn ask<T: Send + 'static, F: Future<Output = T> + 'static>(
        &self,
        core: usize,
        refused: impl Fn(StoreErrorKind) -> T + Clone + Send + 'static,
        question: impl FnOnce(Rc<Hosted>) -> F + Send + 'static,
    ) -> Pending<T> {
        self.ask_until(Until::Done, core, refused, question)
    }

    /// As [`ask`](Self::ask).
    pub(super) fn ask_until<T: Send + 'static, F: Future<Output = T> + 'static>(
        &self,
        until: Until,
        core: usize,
        refused: impl Fn(StoreErrorKind) -> T + Clone + Send + 'static,
        question: impl FnOnce(Rc<Hosted>) -> F + Send + 'static,
    ) -> Pending<T> {
        let (sender, answer) = oneshot::channel();
        let job_refused = refused.clone();
        let job: Job = Box::new(move |hosted| {
            let answer = question(Rc::clone(hosted));
            hosted.answer(until, answer, sender, job_refused);
        });
        match self.members[core].questions.try_send(job) {
            Ok(()) => Pending::of_core(answer, move || refused(StoreErrorKind::ShutDown)),
            Err(SendError::Full(_)) => Pending::ready(refused(StoreErrorKind::TooManyOperations)),
            Err(SendError::Closed(_)) => Pending::ready(refused(StoreErrorKind::ShutDown)),
        }
    }

    /// Asks one core for all items.
    pub(super) fn ask_all<I, T, F>(
        &self,
        until: Until,
        core: usize,
        items: Vec<I>,
        question: impl Fn(Rc<Hosted>, Vec<I>) -> F + Clone + Send + 'static,
    ) -> Pending<Vec<Result<T, StoreError>>>
    where
        I: Send + 'static,
        T: Send + 'static,
        F: Future<Output = Vec<Result<T, StoreError>>> + 'static,
    {
        let count = items.len();
        let refused = move |kind| each_failed(count, kind);
        let asked = self.ask_until(until, core, refused, move |hosted| question(hosted, items));
        asked.taking(work_of(count))
    }

    /// Asks each key's core for the items of its keys; the answers are in the items' order.
    pub(super) fn ask_each<I, T, F>(
        &self,
        until: Until,
        items: Vec<I>,
        key: impl Fn(&I) -> &[u8],
        question: impl Fn(Rc<Hosted>, Vec<I>) -> F + Clone + Send + 'static,
    ) -> Pending<Vec<Result<T, StoreError>>>
    where
        I: Send + 'static,
        T: Send + 'static,
        F: Future<Output = Vec<Result<T, StoreError>>> + 'static,
    {
        self.ask_at(until, items, |item| self.core_of(key(item)), question)
    }

    /// Asks each item's core for its items; the answers are in the items' order.
    pub(super) fn ask_at<I, T, F>(
        &self,
        until: Until,
        items: Vec<I>,
        core: impl Fn(&I) -> usize,
        question: impl Fn(Rc<Hosted>, Vec<I>) -> F + Clone + Send + 'static,
    ) -> Pending<Vec<Result<T, StoreError>>>
    where
        I: Send + 'static,
        T: Send + 'static,
        F: Future<Output = Vec<Result<T, StoreError>>> + 'static,
    {
        let count = items.len();
        let ask = |core, items: Vec<I>| self.ask_all(until, core, items, question.clone());
        if self.members.len() == 1 {
            return ask(0, items);
        }
        let mut parts: Vec<(Vec<usize>, Vec<I>)> = Vec::new();
        parts.resize_with(self.members.len(), Default::default);
        for (index, item) in items.into_iter().enumerate() {
            let (indices, part) = &mut parts[core(&item)];
            indices.push(index);
            part.push(item);
        }
        let parts = parts.into_iter().enumerate();
        let parts = parts.filter(|(_, (indices, _))| !indices.is_empty());
        let asked: Vec<_> = parts
            .map(|(core, (indices, part))| (indices, ask(core, part)))
            .collect();
        Pending::here(async move {
            let mut answers = Vec::new();
            answers.resize_with(count, || None);
            for (indices, pending) in asked {
                for (index, answer) in indices.into_iter().zip(pending.await) {
                    answers[index] = Some(answer);
                }
            }
            let answers = answers.into_iter();
            answers.map(|answer| answer.expect("one each")).collect()
        })
        .taking(work_of(count))
    }

    /// Nobody has this reservation any more.
    pub(super) fn drop_reservation(&self, core: usize, index: usize) {
        let member = &self.members[core];
        let mut dropped = member
            .dropped
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        dropped.push(index);
        drop(dropped);
        // Looked at with the next question; this one is for when there is none for a while.
        drop(member.questions.try_send(Box::new(|_| {})));
    }

    /// Has each core look for what nobody has any more. One that has as many questions as it takes looks soon.
    pub(super) fn look_again(&self) {
        for member in &self.members {
            drop(member.questions.try_send(Box::new(|_| {})));
        }
    }

    /// Reservations of a core that nobody has any more.
    pub(super) fn take_dropped(&self, core: usize) -> Vec<usize> {
        let dropped = &self.members[core].dropped;
        std::mem::take(&mut dropped.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The answer to a question that was not answered.
pub(super) fn failed<T>(kind: StoreErrorKind) -> Result<T, StoreError> {
    Err(StoreError::local(kind))
}

/// How long one core works on so many items.
pub(super) fn work_of(items: usize) -> Duration {
    ITEM_TAKES.saturating_mul(u32::try_from(items).unwrap_or(u32::MAX))
}

fn each_failed<T>(count: usize, kind: StoreErrorKind) -> Vec<Result<T, StoreError>> {
    (0..count).map(|_| failed(kind)).collect()
}
