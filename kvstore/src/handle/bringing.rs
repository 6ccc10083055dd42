//! Large objects, for threads that copy them themselves: a core has others to serve meanwhile, and several threads
//! copy at the same time.

use std::fmt;
use std::rc::Rc;

use lunette_runtime::Pending;
use lunette_runtime::arena::Borrowed;

use super::StoreHandle;
use super::cores::{Cores, failed};
use super::devices::{Apart, are_of_device};
use super::direct::merged;
use super::hosted::{Hosted, Until};
use super::lent::Lent;
use super::objects::{Got, got, unknown};
use crate::error::StoreError;

/// What came of gets. What lies in this process and is long is still to be copied, by [`finish`](Self::finish): what
/// it is got into has not been written yet, and the copies in the store stay where they are.
#[derive(Debug)]
#[must_use = "nothing is copied unless it is finished"]
pub struct Brought(Vec<Result<Came, StoreError>>);

/// What came of one get.
#[derive(Debug)]
pub(super) struct Came {
    got: Got,
    left: Option<(Borrowed, Vec<Lent>)>,
}

/// The bytes of an object.
pub enum ObjectBytes {
    /// Memory of their own.
    Own(Vec<u8>),
    /// Where they lie in the store. They stay until this is dropped: drop it soon.
    Lent(Borrowed),
}

impl ObjectBytes {
    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Lent(bytes) => bytes.as_slice(),
        }
    }
}

impl fmt::Debug for ObjectBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectBytes({} bytes)", self.as_slice().len())
    }
}

impl Brought {
    /// How many bytes are to be copied.
    #[must_use]
    pub fn left_bytes(&self) -> usize {
        let came = self.0.iter().flatten();
        let left = came.filter_map(|came| came.left.as_ref());
        left.map(|(from, _)| from.as_slice().len()).sum()
    }

    /// Copies them, on this thread. What came of each get, in their order.
    ///
    /// # Errors
    /// One for each.
    #[must_use]
    pub fn finish(self) -> Vec<Result<Got, StoreError>> {
        let came = self.0.into_iter();
        came.map(|came| came.map(Came::finish)).collect()
    }
}

impl Came {
    fn finish(self) -> Got {
        if let Some((from, into)) = self.left {
            let mut rest = from.as_slice();
            for piece in into {
                let (now, later) = rest.split_at(piece.len().min(rest.len()));
                piece.copy_in(now);
                rest = later;
            }
            assert!(rest.is_empty(), "it was lent because it fits");
        }
        self.got
    }
}

impl StoreHandle {
    /// As [`get_all`](Self::get_all), but that objects of more than 64 KiB that are in this process are copied by the
    /// thread that [finishes](Brought::finish).
    pub fn bring_all(&self, wanted: Vec<(Vec<u8>, Vec<Lent>)>) -> Pending<Brought> {
        let known = self.cores.read_all_into(&wanted);
        self.cores.bring_rest(wanted, known)
    }

    /// The value under `key`, where it lies if it is of more than 64 KiB and in this process; `None` if there is none,
    /// or its home does not know.
    ///
    /// # Errors
    /// [`StoreError`], as of [`put`](Self::put).
    pub fn bring_bytes(&self, key: Vec<u8>) -> Pending<Result<Option<ObjectBytes>, StoreError>> {
        if let Some(bytes) = self.cores.read_bytes(&key) {
            return Pending::ready(Ok(Some(ObjectBytes::Own(bytes))));
        }
        self.cores.bring_bytes(key)
    }
}

impl Cores {
    /// What is known of gets, and in its gaps what cores bring.
    pub(super) fn bring_rest(
        &self,
        wanted: Vec<(Vec<u8>, Vec<Lent>)>,
        known: Vec<Option<Got>>,
    ) -> Pending<Brought> {
        let known = known.into_iter();
        let known = known.map(|got| got.map(|got| Ok(Came { got, left: None })));
        let known: Vec<_> = known.collect();
        let wanted = unknown(wanted, &known);
        if wanted.is_empty() {
            return Pending::ready(Brought(known.into_iter().flatten().collect()));
        }
        let bring = |hosted: Rc<Hosted>, wanted| async move { hosted.bring_all(wanted).await };
        let asked = self.ask_each(Until::NobodyWaits, wanted, |(key, _)| key, bring);
        let brought = merged(known, asked);
        Pending::here(async move { Brought(brought.await) })
    }

    /// Has a core bring a value.
    pub(super) fn bring_bytes(
        &self,
        key: Vec<u8>,
    ) -> Pending<Result<Option<ObjectBytes>, StoreError>> {
        let core = self.core_of(&key);
        let bring = move |hosted: Rc<Hosted>| async move {
            if let Some(lent) = hosted.client.lend(&key, usize::MAX) {
                return Ok(Some(ObjectBytes::Lent(lent.value)));
            }
            let bytes = hosted.get_bytes(key).await?;
            Ok(bytes.map(ObjectBytes::Own))
        };
        self.ask_until(Until::NobodyWaits, core, failed, bring)
    }
}

impl Hosted {
    async fn bring_all(&self, wanted: Vec<(Vec<u8>, Vec<Lent>)>) -> Vec<Result<Came, StoreError>> {
        let apart = Apart::new(wanted, |(_, into)| are_of_device(into));
        apart
            .answered(
                async |wanted| self.bring_to_host(wanted).await,
                async |wanted| {
                    let got = self.get_to_devices(wanted).await.into_iter();
                    got.map(|got| got.map(|got| Came { got, left: None }))
                        .collect()
                },
            )
            .await
    }

    async fn bring_to_host(
        &self,
        wanted: Vec<(Vec<u8>, Vec<Lent>)>,
    ) -> Vec<Result<Came, StoreError>> {
        let mut came: Vec<Option<Result<Came, StoreError>>> = Vec::with_capacity(wanted.len());
        let mut asked = Vec::new();
        // The last one is used first: see `ClusterClient::put_all`.
        for (key, into) in wanted.into_iter().rev() {
            let len_max = into.iter().map(Lent::len).sum();
            let Some(lent) = self.client.lend(&key, len_max) else {
                came.push(None);
                asked.push((key, self.room(&into)));
                continue;
            };
            let len_bytes = lent.value.as_slice().len();
            let got = Got::Hit {
                len_bytes,
                object_len_bytes: len_bytes,
                version: lent.version,
                is_cut_off: lent.is_cut_off,
            };
            let left = Some((lent.value, into));
            came.push(Some(Ok(Came { got, left })));
        }
        asked.reverse();
        let mut fetched = self.client.get_all(asked).await.into_iter().rev();
        let mut next = move || {
            let fetched = fetched.next().expect("one for each that was asked");
            got(fetched).map(|got| Came { got, left: None })
        };
        let came = came.into_iter();
        let mut came: Vec<_> = came.map(|came| came.unwrap_or_else(&mut next)).collect();
        came.reverse();
        came
    }
}
