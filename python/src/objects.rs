//! Objects whose bytes lie in memory of the program's: put from where they lie, got to where they belong.
//!
//! One question for each batch. Pieces of an object are given as two lists for each key, addresses and lengths.
//! What came of each key is a value or an exception, in a list: one that fails does not hide the others.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::{ptr, slice};

use lunette_gpu::EngineStream;
use lunette_kvstore::{
    Brought, FetchedBytes, Got, Lent, ObjectBytes, Placing, StoreError, StoreHandle, Stored,
};
use lunette_kvstore_proto::range::ByteRange;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::failure::{Invalid, of_store};
use crate::gil::{self, COPIED_WITH_GIL_MAX};
use crate::memory::{Loans, Registered};
use crate::store::Wishes;
use crate::waiting::{wait, wait_for_many, wait_for_steps};

/// Addresses and lengths of each object's pieces.
pub(crate) type Pieces = (Vec<Vec<usize>>, Vec<Vec<usize>>);

/// What came of one key: a value for Python, or an exception.
pub(crate) type Outcome<T> = Result<T, PyErr>;

/// Longest object that is not worth a second question: its core copies it.
const COPIED_BY_CORE_MAX: usize = 64 << 10;

/// Why the memory for an object is not lent.
type Refused = &'static str;

/// One key with its pieces.
type Object = (Vec<u8>, Vec<Lent>);

/// Who asks, and with what memory.
pub(crate) struct Asking<'a> {
    pub(crate) handle: StoreHandle,
    pub(crate) registered: &'a Registered,
    /// Streams of the program that copies of devices' memory come after.
    pub(crate) after: Arc<[EngineStream]>,
}

impl Asking<'_> {
    /// Puts objects; whether each was written. What is lent is lent by `loans`.
    pub(crate) fn put_from(
        &self,
        loans: &Loans,
        keys: Vec<Vec<u8>>,
        pieces: Pieces,
        wishes: Wishes,
    ) -> PyResult<impl Future<Output = Vec<Outcome<bool>>> + Send + use<>> {
        let (refused, objects) = self.lent(loans, keys, pieces)?;
        let (objects, options) = wishes.of_each(objects, refused.iter().map(Option::is_some))?;
        let put = self.handle.put_all(objects, options);
        Ok(async move { written(refused, put.await) })
    }

    /// As [`put_from`](Self::put_from), but that what is left is copied by who [finishes](Putting::finish).
    pub(crate) fn place_from(
        &self,
        loans: &Loans,
        keys: Vec<Vec<u8>>,
        pieces: Pieces,
        wishes: Wishes,
    ) -> PyResult<impl Future<Output = Putting> + Send + use<>> {
        let (refused, objects) = self.lent(loans, keys, pieces)?;
        let (objects, options) = wishes.of_each(objects, refused.iter().map(Option::is_some))?;
        let placing = self.handle.place_all(objects, options);
        Ok(async move {
            let placing = placing.await;
            Putting { refused, placing }
        })
    }

    /// As [`get_into`](Self::get_into), but that what is long and seen is copied now, without the GIL, what is short and on
    /// other hosts may be got now, and what is left is copied by who [finishes](Bringing::finish).
    pub(crate) fn bring_into(
        &self,
        py: Python<'_>,
        loans: &Loans,
        keys: Vec<Vec<u8>>,
        pieces: Pieces,
    ) -> PyResult<impl Future<Output = Bringing> + Send + use<>> {
        let (refused, mut objects) = self.lent(loans, keys, pieces)?;
        let lens = objects.iter().flat_map(|(_, pieces)| pieces).map(Lent::len);
        let len_bytes: usize = lens.sum();
        let keeps_gil = len_bytes <= COPIED_WITH_GIL_MAX;
        let mut seen = vec![None; objects.len()];
        if !keeps_gil {
            seen = gil::copying(py, len_bytes, || self.handle.see_all(&objects));
            let mut is_left = seen.iter().map(Option::is_none);
            objects.retain(|_| is_left.next().expect("one each"));
        }
        let mut fetching = self.handle.fetch(objects);
        wait_for_steps(py, &mut fetching, keeps_gil)?;
        let brought = fetching.finish();
        Ok(async move {
            let brought = brought.await;
            Bringing {
                refused,
                seen,
                brought,
            }
        })
    }

    /// Gets objects; the length of each, or `None` where there is none. What is lent is lent by `loans`.
    pub(crate) fn get_into(
        &self,
        loans: &Loans,
        keys: Vec<Vec<u8>>,
        pieces: Pieces,
    ) -> PyResult<impl Future<Output = Vec<Outcome<Option<usize>>>> + Send + use<>> {
        let (refused, objects) = self.lent(loans, keys, pieces)?;
        let got = self.handle.get_all(objects);
        Ok(async move { merged(refused, got.await.into_iter().map(len_of)) })
    }

    /// Gets ranges of one object, each to the piece at its place; how many bytes, or `None` if there is no
    /// object. What is lent is lent by `loans`.
    pub(crate) fn get_ranges(
        &self,
        loans: &Loans,
        key: Vec<u8>,
        (addresses, lens): (Vec<usize>, Vec<usize>),
        offsets: &[u64],
    ) -> PyResult<impl Future<Output = Outcome<Option<usize>>> + Send + use<>> {
        if offsets.len() != lens.len() {
            return Err(unequal());
        }
        let ranges = offsets.iter().zip(&lens).map(|(offset, len)| {
            Some(ByteRange {
                offset_bytes: *offset,
                len_bytes: u32::try_from(*len).ok()?,
            })
        });
        let ranges: Option<Vec<_>> = ranges.collect();
        let ranges = ranges.ok_or_else(|| Invalid::new_err("a range is too long"))?;
        let into = self.lend(loans, &addresses, &lens);
        let into = into.map_err(Invalid::new_err)?;
        let got = self.handle.get_ranges(key, ranges, into);
        Ok(async move { len_of(got.await).map_err(|error| of_store(&error)) })
    }

    /// Lends the pieces of each: for each whether that is refused, and those that it is not.
    fn lent(
        &self,
        loans: &Loans,
        keys: Vec<Vec<u8>>,
        (addresses, lens): Pieces,
    ) -> PyResult<(Vec<Option<Refused>>, Vec<Object>)> {
        if keys.len() != addresses.len() || keys.len() != lens.len() {
            return Err(unequal());
        }
        let mut refused = Vec::with_capacity(keys.len());
        let mut objects = Vec::with_capacity(keys.len());
        for ((key, addresses), lens) in keys.into_iter().zip(addresses).zip(lens) {
            let lent = self.lend(loans, &addresses, &lens);
            refused.push(lent.as_ref().err().copied());
            objects.extend(lent.ok().map(|pieces| (key, pieces)));
        }
        Ok((refused, objects))
    }

    /// The pieces of one object; why not, if they are not memory.
    pub(crate) fn lend(
        &self,
        loans: &Loans,
        addresses: &[usize],
        lens: &[usize],
    ) -> Result<Vec<Lent>, Refused> {
        if addresses.len() != lens.len() {
            return Err("there are not as many lengths as addresses");
        }
        let pieces = addresses.iter().copied().zip(lens.iter().copied());
        let pieces = pieces.filter(|(_, len)| *len > 0);
        pieces
            .map(|piece| loans.lend_any(self.registered, piece, &self.after))
            .collect::<Option<_>>()
            .ok_or("nothing is mapped at an address")
    }
}

/// Objects that are about to be put, some of which are to be copied before.
pub(crate) struct Putting {
    refused: Vec<Option<Refused>>,
    placing: Placing,
}

impl Putting {
    /// Copies them, without the GIL if they are long, and puts all; whether each was written.
    pub(crate) fn finish(self, py: Python<'_>) -> impl Future<Output = Vec<Outcome<bool>>> + Send {
        let Self { refused, placing } = self;
        let put = gil::copying(py, placing.left_bytes(), move || placing.finish());
        async move { written(refused, put.await) }
    }
}

/// What came of gets, some of which may still be to be copied.
pub(crate) struct Bringing {
    refused: Vec<Option<Refused>>,
    /// Of those that were not refused, what has been got.
    seen: Vec<Option<Got>>,
    brought: Brought,
}

impl Bringing {
    /// Copies that, without the GIL if it is long. What came of each get.
    pub(crate) fn finish(self, py: Python<'_>) -> Vec<Outcome<Option<usize>>> {
        let brought = self.brought;
        let got = gil::copying(py, brought.left_bytes(), move || brought.finish());
        let mut got = got.into_iter();
        let got = self.seen.into_iter().map(|seen| match seen {
            Some(seen) => Ok(seen),
            None => got.next().expect("one for each that was left"),
        });
        merged(self.refused, got.map(len_of))
    }
}

/// The bytes of an object that is seen, if it is.
///
/// # Errors
/// Python has no memory for them.
pub(crate) fn seen_bytes<'py>(
    py: Python<'py>,
    handle: &StoreHandle,
    key: &[u8],
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let mut bytes = None;
    let got = handle.see(key, |seen| {
        bytes = Some(new_bytes(py, seen.len(), |to| {
            gil::copying(py, to.len(), || seen.copy_to_new(to));
        }));
    });
    match got {
        Some(_) => bytes.transpose(),
        // Whatever was copied is not it.
        None => Ok(None),
    }
}

/// Bytes of Python's, all of which `fill` writes: to clear them before would take as long as that.
///
/// # Errors
/// Python has no memory for them.
fn new_bytes(
    py: Python<'_>,
    len: usize,
    fill: impl FnOnce(&mut [MaybeUninit<u8>]),
) -> PyResult<Bound<'_, PyBytes>> {
    let bytes = unwritten_bytes(py, len)?;
    let (first, _) = bounds_of(&bytes);
    // SAFETY: the object is new, so nobody else has a reference to its bytes, of which there are `len`, that are allowed to be
    // written until it is shown to anybody, and which may be anything as `MaybeUninit`. Ends with `fill`.
    fill(unsafe { slice::from_raw_parts_mut(first.cast(), len) });
    Ok(bytes)
}

/// Where bytes of Python's lie, written or not, and how many.
pub(crate) fn bounds_of(bytes: &Bound<'_, PyBytes>) -> (*mut u8, usize) {
    // SAFETY: it is an object of bytes, and tells where these are; the GIL is held. Ends with the call.
    let first = unsafe { ffi::PyBytes_AsString(bytes.as_ptr()) };
    (first.cast(), bytes.len().expect("bytes have a length"))
}

/// Bytes of Python's that are to be written before it is shown to anybody.
///
/// # Errors
/// Python has no memory for them.
fn unwritten_bytes(py: Python<'_>, len: usize) -> PyResult<Bound<'_, PyBytes>> {
    let size = ffi::Py_ssize_t::try_from(len).map_err(|_| Invalid::new_err("it is too long"))?;
    // SAFETY: without bytes to copy, the interpreter makes an object of that length, or says why not (null); the GIL is held.
    // Ends with the call.
    let object = unsafe { ffi::PyBytes_FromStringAndSize(ptr::null(), size) };
    // SAFETY: it is a new reference, or null with an exception. Ends with the call.
    let object = unsafe { Bound::from_owned_ptr_or_err(py, object) }?;
    Ok(object.cast_into::<PyBytes>()?)
}

/// The first `len` of bytes of Python's, which are written.
///
/// # Errors
/// Python has no memory for them.
fn cut<'py>(bytes: Bound<'py, PyBytes>, len: usize) -> PyResult<Bound<'py, PyBytes>> {
    let py = bytes.py();
    let (first, count) = bounds_of(&bytes);
    if count == len {
        return Ok(bytes);
    }
    assert!(len < count, "the first of them");
    // SAFETY: so many bytes of an object that `bytes` keeps have been written, and nobody writes them any more. Ends with the
    // copy.
    bytes_from(py, unsafe { slice::from_raw_parts(first, len) })
}

/// The bytes of an object that are likely to be so many and may have to come from another host: `None` if there is none. They
/// are received straight to where Python has them, if this thread gets them itself.
///
/// # Errors
/// What the store says, or a handler of a signal raised; or Python has no memory for them.
pub(crate) fn fetched_bytes<'py>(
    py: Python<'py>,
    handle: &StoreHandle,
    key: &[u8],
    room_bytes: usize,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let room = unwritten_bytes(py, room_bytes)?;
    let loans = Loans::default();
    let lent = loans.lend_unseen(bounds_of(&room));
    let mut fetching = handle.fetch_bytes(key, Lent::whole(&lent));
    drop(lent);
    let waited = wait_for_steps(py, &mut fetching, room_bytes <= COPIED_WITH_GIL_MAX);
    let fetched = waited.and_then(|()| wait(py, fetching.finish()));
    loans.ended(py)?;
    match fetched?.map_err(|error| of_store(&error))? {
        None => Ok(None),
        Some(FetchedBytes::InRoom { len_bytes }) => cut(room, len_bytes).map(Some),
        Some(FetchedBytes::Brought(bytes)) => bytes_of(py, &bytes).map(Some),
    }
}

/// The bytes, as Python's.
///
/// # Errors
/// As of [`bytes_from`].
pub(crate) fn bytes_of<'py>(py: Python<'py>, bytes: &ObjectBytes) -> PyResult<Bound<'py, PyBytes>> {
    bytes_from(py, bytes.as_slice())
}

/// A copy that is Python's, made without the GIL if it is long.
///
/// # Errors
/// Python has no memory for it.
fn bytes_from<'py>(py: Python<'py>, from: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    if from.len() <= COPIED_WITH_GIL_MAX {
        return Ok(PyBytes::new(py, from));
    }
    new_bytes(py, from.len(), |to| {
        gil::copying(py, from.len(), || to.write_copy_of_slice(from));
    })
}

/// Asks, waits for the answer, and until all memory is the program's again.
pub(crate) fn waited<T: Send, F: Future<Output = T> + Send>(
    py: Python<'_>,
    ask: impl FnOnce(&Loans) -> PyResult<F>,
) -> PyResult<T> {
    waited_and(py, 1, ask, |answer| answer)
}

/// As [`waited`], for an answer about so many objects, with something to do before the memory is the program's again.
pub(crate) fn waited_and<T: Send, U, F: Future<Output = T> + Send>(
    py: Python<'_>,
    objects: usize,
    ask: impl FnOnce(&Loans) -> PyResult<F>,
    finish: impl FnOnce(T) -> U,
) -> PyResult<U> {
    let loans = Loans::default();
    let asked = ask(&loans);
    let answer = asked.and_then(|asked| wait_for_many(py, asked, objects));
    let answer = answer.map(finish);
    let ended = loans.ended(py);
    let answer = answer?;
    ended.map(|()| answer)
}

/// Address and length of bytes that Python keeps and does not change, as one object's only piece.
pub(crate) fn piece_of(value: &Bound<'_, PyBytes>) -> Pieces {
    let bytes = value.as_bytes();
    if bytes.is_empty() {
        return (vec![Vec::new()], vec![Vec::new()]);
    }
    let address = bytes.as_ptr().expose_provenance();
    (vec![vec![address]], vec![vec![bytes.len()]])
}

/// Whether each was written.
fn written(
    refused: Vec<Option<Refused>>,
    stored: Vec<Result<Stored, StoreError>>,
) -> Vec<Outcome<bool>> {
    let written = |stored| matches!(stored, Stored::Written { .. });
    merged(
        refused,
        stored.into_iter().map(|stored| stored.map(written)),
    )
}

/// Puts objects and waits: long ones are copied by this thread.
pub(crate) fn put_waited(
    py: Python<'_>,
    asking: &Asking<'_>,
    keys: Vec<Vec<u8>>,
    pieces: Pieces,
    wishes: Wishes,
) -> PyResult<Vec<Outcome<bool>>> {
    if asking.handle.hands_over() {
        return hand_over(py, asking, keys, pieces, wishes);
    }
    let objects = keys.len();
    let (_, lens) = &pieces;
    let is_long = |lens: &Vec<usize>| {
        lens.iter().copied().fold(0, usize::saturating_add) > COPIED_BY_CORE_MAX
    };
    if !lens.iter().any(is_long) {
        if asking.handle.sends_itself() {
            return hand_over(py, asking, keys, pieces, wishes);
        }
        let put = |loans: &Loans| asking.put_from(loans, keys, pieces, wishes);
        return waited_and(py, objects, put, |written| written);
    }
    let place = |loans: &Loans| asking.place_from(loans, keys, pieces, wishes);
    let put = |putting: Putting| wait(py, putting.finish(py));
    waited_and(py, objects, place, put)?
}

/// Puts objects and waits: those that another process of this host takes are copied by this thread to memory that both share,
/// and short ones sent to other hosts.
fn hand_over(
    py: Python<'_>,
    asking: &Asking<'_>,
    keys: Vec<Vec<u8>>,
    pieces: Pieces,
    wishes: Wishes,
) -> PyResult<Vec<Outcome<bool>>> {
    let loans = Loans::default();
    let put = || {
        let (refused, objects) = asking.lent(&loans, keys, pieces)?;
        let (objects, options) = wishes.of_each(objects, refused.iter().map(Option::is_some))?;
        let lens = objects
            .iter()
            .flat_map(|object| &object.value)
            .map(Lent::len);
        let len_bytes: usize = lens.sum();
        let keeps_gil = len_bytes <= COPIED_WITH_GIL_MAX;
        let handle = &asking.handle;
        let mut handing = gil::copying(py, len_bytes, || handle.hand_over(objects, options));
        wait_for_steps(py, &mut handing, keeps_gil)?;
        let stored = wait(py, handing.finish())?;
        Ok(written(refused, stored))
    };
    let put: PyResult<_> = put();
    let ended = loans.ended(py);
    let put = put?;
    ended.map(|()| put)
}

/// What came of each: of those that were not refused, the answers in their order.
fn merged<T>(
    refused: Vec<Option<Refused>>,
    mut answers: impl Iterator<Item = Result<T, StoreError>>,
) -> Vec<Outcome<T>> {
    let outcomes = refused.into_iter().map(|refused| match refused {
        Some(why) => Err(Invalid::new_err(why)),
        None => {
            let answer = answers.next().expect("one for each that was asked");
            answer.map_err(|error| of_store(&error))
        }
    });
    outcomes.collect()
}

fn unequal() -> PyErr {
    Invalid::new_err("the lists are not of the same length")
}

fn len_of(got: Result<Got, StoreError>) -> Result<Option<usize>, StoreError> {
    Ok(match got? {
        Got::Hit { len_bytes, .. } => Some(len_bytes),
        Got::Miss { .. } => None,
    })
}
