//! Weights in buckets: offered, and taken.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lunette_p2p::proto::update::{BucketRecord, Manifest};
use lunette_p2p::{
    Block, FollowOptions, LentBucket, LentBuffers, OfferHandle, OfferOptions, Parts, Pending,
    RegisterOptions, UpdateHandle, Version,
};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

use super::asking::answer;
use super::held::admit;
use super::lending::{Lending, Lent};
use super::told::{self, ToldTensor, told_tensor};
use super::{Lend, NativeObjects, object};
use crate::failure::Invalid;
use crate::owned::Owned;
use crate::queue::NativeQueue;

/// What is told of an update: its number, and version and staging memory of each bucket.
type ToldManifest = (u64, Vec<(u64, u64)>);

/// First element and number of elements of the part of each tensor, by name.
type Blocks = BTreeMap<String, (Vec<u64>, Vec<u64>)>;

fn patience(timeout_s: f64) -> PyResult<Duration> {
    let patience = Duration::try_from_secs_f64(timeout_s);
    patience.map_err(|error| Invalid::new_err(error.to_string()))
}

/// Weights that are offered: until it is closed, or dropped.
#[pyclass(frozen, module = "lunette._native")]
pub(crate) struct NativeOffer {
    offer: Owned<OfferHandle>,
    lent: Arc<Lent>,
    lending: Arc<Lending>,
}

impl fmt::Debug for NativeOffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeOffer").finish_non_exhaustive()
    }
}

#[pymethods]
impl NativeOffer {
    /// Offers the tensors that lie in these buffers, which `keeps` has, in buckets.
    #[expect(clippy::too_many_arguments, reason = "they are Python's, by position")]
    #[staticmethod]
    fn offer(
        py: Python<'_>,
        objects: &NativeObjects,
        queue: Option<&NativeQueue>,
        name: &str,
        buffers: Lend,
        keeps: Py<PyAny>,
        tensors: Vec<ToldTensor>,
        bucket_bytes: u64,
        chunk_bytes: u32,
        may_replace: bool,
    ) -> PyResult<Py<PyAny>> {
        let name = object(name)?;
        let tensors = told::tensors(tensors)?;
        let register = RegisterOptions {
            chunk_bytes,
            may_replace,
        };
        let options = OfferOptions {
            bucket_bytes,
            register,
        };
        let ask = |store: &lunette_p2p::StoreHandle, buffers: LentBuffers| {
            store.offer(name, buffers, tensors, options)
        };
        objects.lent_to(py, queue, (&buffers, keeps), ask, |offer, lent, lending| {
            Self {
                offer: Owned::new(offer),
                lent,
                lending,
            }
        })
    }

    /// How many buckets there are.
    #[getter]
    fn buckets(&self) -> PyResult<usize> {
        self.offer.with(OfferHandle::buckets)
    }

    /// Withdraws them, and waits until nobody has their memory. Ended by a signal, or given up, that goes on.
    fn close(&self, py: Python<'_>, queue: Option<&NativeQueue>) -> PyResult<Py<PyAny>> {
        admit(queue)?;
        let withdrawing = self.offer.with(OfferHandle::withdraw)?;
        let_go(py, queue, withdrawing, (&self.lent, &self.lending))
    }
}

/// An update that is taken: until it is closed, or dropped.
#[pyclass(frozen, module = "lunette._native")]
pub(crate) struct NativeUpdate {
    update: Owned<UpdateHandle>,
    lent: Arc<Lent>,
    lending: Arc<Lending>,
}

impl fmt::Debug for NativeUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeUpdate").finish_non_exhaustive()
    }
}

#[pymethods]
impl NativeUpdate {
    /// What is told of an update.
    #[staticmethod]
    fn offered(
        py: Python<'_>,
        objects: &NativeObjects,
        queue: Option<&NativeQueue>,
        name: &str,
        timeout_s: f64,
    ) -> PyResult<Py<PyAny>> {
        admit(queue)?;
        let asked = objects
            .store()?
            .offered(object(name)?, patience(timeout_s)?);
        answer(py, queue, asked, |py, manifest: Manifest| {
            let buckets = manifest.buckets.iter();
            let buckets = buckets.map(|bucket| (bucket.version.0, bucket.staging_bytes));
            (manifest.id, buckets.collect::<Vec<_>>()).into_py_any(py)
        })
    }

    /// Takes an update, or parts of its tensors, through these slots of memory, which `keeps` has.
    #[expect(clippy::too_many_arguments, reason = "they are Python's, by position")]
    #[staticmethod]
    fn follow(
        py: Python<'_>,
        objects: &NativeObjects,
        queue: Option<&NativeQueue>,
        name: &str,
        manifest: ToldManifest,
        slots: Lend,
        keeps: Py<PyAny>,
        parts: Option<(Blocks, bool)>,
        timeout_s: f64,
    ) -> PyResult<Py<PyAny>> {
        let name = object(name)?;
        let (id, buckets) = manifest;
        let buckets = buckets
            .into_iter()
            .map(|(version, staging_bytes)| BucketRecord {
                version: Version(version),
                staging_bytes,
            });
        let manifest = Manifest {
            id,
            buckets: buckets.collect(),
        };
        let options = FollowOptions {
            parts: parts.map_or(Parts::All, |(blocks, keep_chunks)| {
                let blocks = blocks.into_iter();
                let blocks = blocks.map(|(name, (start, shape))| (name, Block { start, shape }));
                Parts::Of {
                    blocks: blocks.collect(),
                    keep_chunks,
                }
            }),
            patience: patience(timeout_s)?,
            ..FollowOptions::default()
        };
        let ask = |store: &lunette_p2p::StoreHandle, slots: LentBuffers| {
            store.follow(name, manifest, slots, options)
        };
        objects.lent_to(py, queue, (&slots, keeps), ask, |update, lent, lending| {
            Self {
                update: Owned::new(update),
                lent,
                lending,
            }
        })
    }

    /// The next bucket, by its number, and its tensors, whose buffers are slots; `None` behind the last. `copied` is the one
    /// that is looked at no more.
    fn next(
        &self,
        py: Python<'_>,
        queue: Option<&NativeQueue>,
        copied: Option<u32>,
    ) -> PyResult<Py<PyAny>> {
        admit(queue)?;
        let asked = self.update.with(|update| update.next(copied))?;
        answer(py, queue, asked, |py, lent: Option<LentBucket>| {
            let told = lent.map(|lent| {
                let tensors = lent.tensors.iter().map(told_tensor);
                (lent.bucket, tensors.collect::<Vec<_>>())
            });
            told.into_py_any(py)
        })
    }

    /// Ends it, and waits until nobody has the slots. Ended by a signal, or given up, that goes on.
    fn close(&self, py: Python<'_>, queue: Option<&NativeQueue>) -> PyResult<Py<PyAny>> {
        admit(queue)?;
        let closing = self.update.with(UpdateHandle::close)?;
        let_go(py, queue, closing, (&self.lent, &self.lending))
    }
}

/// Waits until something is let go of, and nobody has its memory.
pub(super) fn let_go(
    py: Python<'_>,
    queue: Option<&NativeQueue>,
    letting_go: Pending<()>,
    (lent, lending): (&Arc<Lent>, &Arc<Lending>),
) -> PyResult<Py<PyAny>> {
    let lent = Arc::clone(lent);
    let let_go = Pending::here(async move {
        // A store that has ended has let go of it before.
        let _ended = letting_go.await;
        lent.loans.over().await;
        Ok(())
    });
    let lending = Arc::clone(lending);
    answer(py, queue, let_go, move |py, ()| {
        lending.sweep();
        Ok(py.None())
    })
}
