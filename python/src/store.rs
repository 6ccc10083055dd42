//! The store, as the Python half sees it.
//!
//! Keys are `bytes`. A call that ends, however it did, leaves nothing behind that touches memory which it was given.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use lunette_kvstore::{
    Lent, ListCursor, Listed, Located, Preferred, PutOptions, StoreError, StoreErrorKind,
    StoreHandle, TierOptions, ToPut,
};
use lunette_kvstore_proto::retention::{GroupId, PIN_TTL_MAX, Parent, Pin};
use lunette_kvstore_proto::tenant::Tenant;
use lunette_kvstore_proto::version::WriteKind;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList};

use crate::failure::{Invalid, of_store};
use crate::memory::{Landed, Loans, Registered, streams};
use crate::objects::{
    Asking, Outcome, bytes_of, fetched_bytes, piece_of, put_waited, seen_bytes, waited, waited_and,
};
use crate::opening::{Cores, NativeCluster, Open, address};
use crate::owned::Owned;
use crate::queue::{Making, NativeQueue};
use crate::waiting::{wait, wait_for_steps};

/// How objects are written: whether over what is there, how many copies, whether all of a batch on one node, the
/// nodes that are preferred, for how many seconds they outlast others in memory, the group of each, and the key that each
/// is behind: an empty one is none, and so is none for any.
pub(crate) type How = (bool, u8, bool, Vec<String>, f64, Vec<Vec<u8>>, Vec<Vec<u8>>);

/// The same, as the store takes it.
pub(crate) struct Wishes {
    options: PutOptions,
    groups: Vec<Option<GroupId>>,
    behind: Vec<Option<Parent>>,
}

impl Wishes {
    /// Of one object.
    pub(crate) fn of_one(self) -> PutOptions {
        PutOptions {
            group: self.groups.first().copied().flatten(),
            behind: self.behind.first().copied().flatten(),
            ..self.options
        }
    }

    /// Of several, those that are `left_out` not included: these, with their groups, and what holds for all.
    pub(crate) fn of_each(
        self,
        objects: Vec<(Vec<u8>, Vec<Lent>)>,
        left_out: impl ExactSizeIterator<Item = bool>,
    ) -> PyResult<(Vec<ToPut>, PutOptions)> {
        let count = left_out.len();
        let is_for_each = |len| len == 0 || len == count;
        if !is_for_each(self.groups.len()) {
            return Err(Invalid::new_err("as many groups as objects, or none"));
        }
        if !is_for_each(self.behind.len()) {
            return Err(Invalid::new_err(
                "as many keys that are before as objects, or none",
            ));
        }
        let all = left_out.enumerate();
        let kept = all.filter_map(|(index, is_left_out)| (!is_left_out).then_some(index));
        let objects = objects.into_iter().zip(kept);
        let objects = objects.map(|((key, value), index)| ToPut {
            key,
            value,
            group: self.groups.get(index).copied().flatten(),
            behind: self.behind.get(index).copied().flatten(),
        });
        Ok((objects.collect(), self.options))
    }
}

fn group(name: &[u8]) -> Option<GroupId> {
    (!name.is_empty()).then(|| GroupId::of(name))
}

/// Keys, and for each the addresses and the lengths of its pieces.
type Objects = (Vec<Vec<u8>>, Vec<Vec<usize>>, Vec<Vec<usize>>);

/// A member of a cluster in this process, or clients of one.
#[pyclass(frozen, module = "lunette._native")]
pub(crate) struct NativeStore {
    open: Owned<Open>,
    registered: Registered,
    /// Objects may come by adapters.
    has_adapters: bool,
}

impl fmt::Debug for NativeStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeStore").finish_non_exhaustive()
    }
}

#[pymethods]
impl NativeStore {
    /// A member that lends `memory_bytes`, and so much of drives in these folders.
    #[staticmethod]
    fn member(
        py: Python<'_>,
        cluster: &NativeCluster,
        listen: &str,
        memory_bytes: u64,
        drives: Option<(Vec<PathBuf>, u64)>,
    ) -> PyResult<Self> {
        let tier = drives.map(|(directories, capacity_bytes)| {
            TierOptions::in_folders(directories, capacity_bytes)
        });
        let open = cluster.member(py, address(listen)?, memory_bytes, tier)?;
        Ok(Self::of(open, cluster))
    }

    /// Clients of the cluster: of these members of it, or of those that its coordinators tell.
    #[staticmethod]
    fn client(py: Python<'_>, cluster: &NativeCluster, nodes: Vec<String>) -> PyResult<Self> {
        Ok(Self::of(cluster.clients(py, &nodes)?, cluster))
    }

    /// Where a member listens; `None` of clients.
    #[getter]
    fn address(&self) -> PyResult<Option<String>> {
        self.open.with(|open| match &open.cores {
            Cores::Member(node) => Some(node.address().to_string()),
            Cores::Clients(_) => None,
        })
    }

    /// Whether it was written: a put leaves what is there.
    fn put(
        &self,
        py: Python<'_>,
        key: Vec<u8>,
        value: &Bound<'_, PyBytes>,
        how: How,
    ) -> PyResult<bool> {
        let (asking, wishes) = (self.asking(&[])?, self.wishes(how)?);
        let written = put_waited(py, &asking, vec![key], piece_of(value), wishes)?;
        let written = written.into_iter().next();
        written.expect("one for the key")
    }

    /// Puts what lies at the addresses, of the host or of devices, whose copies come after what streams have to do. For each
    /// key whether it was written, or an exception.
    #[pyo3(signature = (keys, addresses, lens, how, after=Vec::new()))]
    fn put_from<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Vec<u8>>,
        addresses: Vec<Vec<usize>>,
        lens: Vec<Vec<usize>>,
        how: How,
        after: Vec<usize>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (asking, wishes) = (self.asking(&after)?, self.wishes(how)?);
        let written = put_waited(py, &asking, keys, (addresses, lens), wishes)?;
        listed(py, written)
    }

    /// The bytes; `None` if there is no object.
    fn get<'py>(&self, py: Python<'py>, key: Vec<u8>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let handle = self.handle()?;
        if let Some(bytes) = seen_bytes(py, &handle, &key)? {
            return Ok(Some(bytes));
        }
        if let Some(room_bytes) = handle.likely_bytes() {
            return fetched_bytes(py, &handle, &key, room_bytes);
        }
        let bytes = wait(py, handle.bring_bytes(key))?;
        let bytes = bytes.map_err(|error| of_store(&error))?;
        bytes.map(|bytes| bytes_of(py, &bytes)).transpose()
    }

    /// Gets objects to the addresses, as `put_from` puts them. For each key its length, `None` if there is no object, or an
    /// exception.
    #[pyo3(signature = (keys, addresses, lens, after=Vec::new()))]
    fn get_into<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Vec<u8>>,
        addresses: Vec<Vec<usize>>,
        lens: Vec<Vec<usize>>,
        after: Vec<usize>,
    ) -> PyResult<Bound<'py, PyList>> {
        let asking = self.asking(&after)?;
        let objects = keys.len();
        let get = |loans: &Loans| asking.bring_into(py, loans, keys, (addresses, lens));
        listed(
            py,
            waited_and(py, objects, get, |brought| brought.finish(py))?,
        )
    }

    /// Gets ranges of one object that begin at `offsets`, each to its address: how many bytes, or `None` if there
    /// is no object.
    #[pyo3(signature = (key, addresses, lens, offsets, after=Vec::new()))]
    fn get_ranges(
        &self,
        py: Python<'_>,
        key: Vec<u8>,
        addresses: Vec<usize>,
        lens: Vec<usize>,
        offsets: Vec<u64>,
        after: Vec<usize>,
    ) -> PyResult<Option<usize>> {
        let asking = self.asking(&after)?;
        waited(py, |loans| {
            asking.get_ranges(loans, key, (addresses, lens), &offsets)
        })?
    }

    /// Lengths in bytes, in the order of `keys`: of each, `None` if there is no object, or an exception.
    fn sizes<'py>(&self, py: Python<'py>, keys: Vec<Vec<u8>>) -> PyResult<Bound<'py, PyList>> {
        listed(py, failures(wait(py, self.handle()?.sizes(keys))?))
    }

    /// Lengths in bytes and where the members listen that have copies, in the order of `keys`: of each, `None` if there
    /// is no object, or an exception.
    fn locate<'py>(&self, py: Python<'py>, keys: Vec<Vec<u8>>) -> PyResult<Bound<'py, PyList>> {
        let located = wait(py, self.handle()?.locate(keys))?.into_iter();
        let told = |located: Located| {
            let nodes = located.nodes.iter().map(SocketAddr::to_string);
            (located.len_bytes, nodes.collect::<Vec<_>>())
        };
        let located = located.map(|located| located.map(|located| located.map(told)));
        listed(py, failures(located.collect()))
    }

    /// Whether there is an object, in the order of `keys`; or an exception.
    fn exists<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<PyBackedBytes>,
    ) -> PyResult<Bound<'py, PyList>> {
        let mut looking = self.handle()?.look_up(keys);
        wait_for_steps(py, &mut looking, true)?;
        listed(py, failures(wait(py, looking.finish())?))
    }

    /// Whether there was an object, in the order of `keys`; or an exception.
    fn remove<'py>(&self, py: Python<'py>, keys: Vec<Vec<u8>>) -> PyResult<Bound<'py, PyList>> {
        listed(py, failures(wait(py, self.handle()?.remove(keys))?))
    }

    /// Removes everything, on all members. Of a tenant other than the default one what that has: how many objects.
    fn clear(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let handle = self.handle()?;
        let cleared = match wait(py, handle.clear())? {
            Err(error) if error.kind == StoreErrorKind::OfAllTenants => {
                wait(py, handle.remove_listed(Vec::new()))?.map(Some)
            }
            cleared => cleared.map(|_cleared| None),
        };
        cleared.map_err(|error| of_store(&error))
    }

    /// A tenant's quota in bytes; `None`: whatever others leave it.
    fn set_quota(
        &self,
        py: Python<'_>,
        tenant: &str,
        quota_bytes: Option<NonZeroU64>,
    ) -> PyResult<()> {
        let tenant = Tenant::named(tenant);
        let tenant = tenant.map_err(|fault| Invalid::new_err(fault.to_string()))?;
        let set = wait(py, self.handle()?.set_quota(tenant, quota_bytes))?;
        set.map_err(|error| of_store(&error))
    }

    /// Of each tenant that has a quota its name, the quota, what it uses and what of it is lent, in bytes.
    fn quotas(&self, py: Python<'_>) -> PyResult<Vec<(String, u64, u64, u64)>> {
        let quotas = wait(py, self.handle()?.quotas())?;
        let quotas = quotas.map_err(|error| of_store(&error))?.into_iter();
        let quotas = quotas.map(|of| (of.tenant, of.quota_bytes, of.used_bytes, of.lent_bytes));
        Ok(quotas.collect())
    }

    /// Some of the keys that begin so, and where to go on, if there are more.
    fn list(&self, py: Python<'_>, prefix: Vec<u8>, after: Option<u128>) -> PyResult<ListedPage> {
        let after = after.map(ListCursor::from_bits);
        let listed = wait(py, self.handle()?.list(prefix, after))?;
        listed.map(page_of).map_err(|error| of_store(&error))
    }

    /// How many objects there are, as far as members answer: copies count.
    fn count(&self, py: Python<'_>) -> PyResult<u64> {
        let stats = wait(py, self.handle()?.stat())?;
        let stats = stats.map_err(|error| of_store(&error))?;
        let answered = stats.into_iter().filter_map(|(_, stat)| stat.ok());
        Ok(answered.map(|stat| stat.shards.entries).sum())
    }

    /// As `put_from`, of which the queue has the answer: under which number. `keeps` has the memory.
    #[pyo3(signature = (queue, objects, how, keeps, after=Vec::new()))]
    fn begin_put_from(
        &self,
        queue: &NativeQueue,
        objects: Objects,
        how: How,
        keeps: Py<PyAny>,
        after: Vec<usize>,
    ) -> PyResult<u64> {
        queue.admit()?;
        let wishes = self.wishes(how)?;
        let loans = Loans::default();
        let (keys, addresses, lens) = objects;
        let asking = self.asking(&after)?;
        let put = asking.put_from(&loans, keys, (addresses, lens), wishes)?;
        Ok(queue.put(Box::pin(async move { making(put.await) }), loans, keeps))
    }

    /// As `get_into`, of which the queue has the answer: under which number. `keeps` has the memory.
    #[pyo3(signature = (queue, objects, keeps, after=Vec::new()))]
    fn begin_get_into(
        &self,
        queue: &NativeQueue,
        objects: Objects,
        keeps: Py<PyAny>,
        after: Vec<usize>,
    ) -> PyResult<u64> {
        queue.admit()?;
        let loans = Loans::default();
        let (keys, addresses, lens) = objects;
        let got = self
            .asking(&after)?
            .get_into(&loans, keys, (addresses, lens))?;
        Ok(queue.put(Box::pin(async move { making(got.await) }), loans, keeps))
    }

    /// As `get`, of which the queue has the answer: under which number.
    fn begin_get(&self, py: Python<'_>, queue: &NativeQueue, key: Vec<u8>) -> PyResult<u64> {
        queue.admit()?;
        let got = self.handle()?.get_bytes(key);
        let question = async move {
            let got = got.await;
            let making: Making = Box::new(move |py| {
                let bytes = got.map_err(|error| of_store(&error))?;
                bytes.map(|bytes| PyBytes::new(py, &bytes)).into_py_any(py)
            });
            making
        };
        Ok(queue.put(Box::pin(question), Loans::default(), py.None()))
    }

    /// As `sizes`, of which the queue has the answer: under which number.
    fn begin_sizes(
        &self,
        py: Python<'_>,
        queue: &NativeQueue,
        keys: Vec<Vec<u8>>,
    ) -> PyResult<u64> {
        queue.admit()?;
        let sizes = self.handle()?.sizes(keys);
        let question = async move { making(failures(sizes.await)) };
        Ok(queue.put(Box::pin(question), Loans::default(), py.None()))
    }

    /// As `exists`, of which the queue has the answer: under which number.
    fn begin_exists(
        &self,
        py: Python<'_>,
        queue: &NativeQueue,
        keys: Vec<Vec<u8>>,
    ) -> PyResult<u64> {
        queue.admit()?;
        let exists = self.handle()?.exists(keys);
        let question = async move { making(failures(exists.await)) };
        Ok(queue.put(Box::pin(question), Loans::default(), py.None()))
    }

    /// As `remove`, of which the queue has the answer: under which number.
    fn begin_remove(
        &self,
        py: Python<'_>,
        queue: &NativeQueue,
        keys: Vec<Vec<u8>>,
    ) -> PyResult<u64> {
        queue.admit()?;
        let removed = self.handle()?.remove(keys);
        let question = async move { making(failures(removed.await)) };
        Ok(queue.put(Box::pin(question), Loans::default(), py.None()))
    }

    /// As `list`, of which the queue has the answer: under which number.
    fn begin_list(
        &self,
        py: Python<'_>,
        queue: &NativeQueue,
        prefix: Vec<u8>,
        after: Option<u128>,
    ) -> PyResult<u64> {
        queue.admit()?;
        let listed = self
            .handle()?
            .list(prefix, after.map(ListCursor::from_bits));
        let question = async move { making(failures(vec![listed.await.map(page_of)])) };
        Ok(queue.put(Box::pin(question), Loans::default(), py.None()))
    }

    /// Vouches for memory until it is taken back: it is not looked at before each call whether it is mapped, and owners'
    /// adapters write what is got there.
    fn register(&self, py: Python<'_>, address: usize, len: usize) -> PyResult<bool> {
        if !self.registered.add(address, len) {
            return Ok(false);
        }
        if self.has_adapters
            && let Some(landed) = Landed::land(py, &self.handle()?, (address, len))?
            && let Some(taken_back) = self.registered.land(address, landed)
        {
            taken_back.end(py)?;
        }
        Ok(true)
    }

    /// Takes that back; whether it was registered. Nobody writes there any more when it returns.
    fn unregister(&self, py: Python<'_>, address: usize) -> PyResult<bool> {
        let Some(landed) = self.registered.remove(address) else {
            return Ok(false);
        };
        landed.map_or(Ok(()), |landed| landed.end(py))?;
        Ok(true)
    }

    /// Ends it: calls under way fail. Again, it does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.open.close()?;
        py.detach(|| drop(open));
        Ok(())
    }
}

impl NativeStore {
    fn of(open: Open, cluster: &NativeCluster) -> Self {
        Self {
            open: Owned::new(open),
            registered: Registered::default(),
            has_adapters: cluster.has_adapters(),
        }
    }

    /// `after`: streams of the program, live ones of the device whose memory goes along, by their handles.
    pub(crate) fn asking(&self, after: &[usize]) -> PyResult<Asking<'_>> {
        Ok(Asking {
            handle: self.handle()?,
            registered: &self.registered,
            after: streams(after),
        })
    }

    /// What a call wishes, as the store takes it.
    pub(crate) fn wishes(
        &self,
        (is_upsert, copies, is_same_node, preferred, pin_s, groups, behind): How,
    ) -> PyResult<Wishes> {
        let preferred: Vec<_> = preferred
            .iter()
            .map(|name| address(name))
            .collect::<PyResult<_>>()?;
        let preferred = Preferred::new(&preferred).map_err(|error| of_store(&error))?;
        let options = PutOptions {
            kind: if is_upsert {
                WriteKind::Upsert
            } else {
                WriteKind::Put
            },
            copies,
            preferred,
            is_same_node,
            pin: pin(pin_s)?,
            ..PutOptions::default()
        };
        Ok(Wishes {
            options,
            groups: groups.iter().map(|name| group(name)).collect(),
            behind: self.parents(&behind)?,
        })
    }

    fn parents(&self, keys: &[Vec<u8>]) -> PyResult<Vec<Option<Parent>>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let handle = self.handle()?;
        Ok(keys.iter().map(|key| handle.parent(key)).collect())
    }

    pub(crate) fn handle(&self) -> PyResult<StoreHandle> {
        self.open.with(|open| open.handle.giving_up())
    }
}

/// Keys, and where to go on.
type ListedPage = (Vec<Cow<'static, [u8]>>, Option<u128>);

fn page_of(listed: Listed) -> ListedPage {
    let keys = listed.keys.into_iter().map(Cow::Owned);
    (keys.collect(), listed.next.map(ListCursor::to_bits))
}

/// A list of what came of each key, when there is the GIL.
fn making<T>(outcomes: Vec<Outcome<T>>) -> Making
where
    T: for<'py> IntoPyObject<'py> + Send + 'static,
{
    Box::new(|py| Ok(listed(py, outcomes)?.into_any().unbind()))
}

/// What came of each key, as values and exceptions.
fn listed<'py, T: IntoPyObject<'py>>(
    py: Python<'py>,
    outcomes: Vec<Outcome<T>>,
) -> PyResult<Bound<'py, PyList>> {
    let outcomes = outcomes.into_iter().map(|outcome| match outcome {
        Ok(value) => Ok(value.into_bound_py_any(py)?),
        Err(error) => Ok(error.into_value(py).into_bound(py).into_any()),
    });
    PyList::new(py, outcomes.collect::<PyResult<Vec<_>>>()?)
}

fn failures<T>(answers: Vec<Result<T, StoreError>>) -> Vec<Outcome<T>> {
    let answers = answers.into_iter();
    answers
        .map(|answer| answer.map_err(|error| of_store(&error)))
        .collect()
}

/// A pin for so many seconds, none of which is none, and all of which are for ever.
fn pin(pin_s: f64) -> PyResult<Pin> {
    if pin_s == 0.0 {
        Ok(Pin::None)
    } else if pin_s == f64::INFINITY {
        Ok(Pin::Hard)
    } else if pin_s > 0.0 {
        let ttl = Duration::try_from_secs_f64(pin_s).unwrap_or(PIN_TTL_MAX);
        // No time at all is no pin.
        Ok(Pin::soft(Some(ttl.max(Duration::from_millis(1)))))
    } else {
        let said = format!("pinned for {pin_s} s, which is no time");
        Err(PyValueError::new_err(said))
    }
}
