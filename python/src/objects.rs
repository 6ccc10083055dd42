//! Objects whose bytes lie in memory of the program's: put from where they lie, got to where they belong.
//!
//! One question for each batch. Pieces of an object are given as two lists for each key, addresses and lengths.
//! What came of each key is a value or an exception, in a list: one that fails does not hide the others.

use lunette_kvstore::{Got, Lent, PutOptions, StoreError, StoreHandle, Stored};
use lunette_kvstore_proto::range::ByteRange;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::failure::{Invalid, of_store};
use crate::memory::{Loans, Registered};
use crate::waiting::wait;

/// Addresses and lengths of each object's pieces.
pub(crate) type Pieces = (Vec<Vec<usize>>, Vec<Vec<usize>>);

/// What came of one key: a value for Python, or an exception.
type Outcome<T> = Result<T, PyErr>;

/// One key with its pieces.
type Object = (Vec<u8>, Vec<Lent>);

/// Who asks, and with what memory.
pub(crate) struct Asking<'a> {
    pub(crate) handle: StoreHandle,
    pub(crate) registered: &'a Registered,
}

impl Asking<'_> {
    /// Puts objects; whether each was written.
    pub(crate) fn put_from(
        &self,
        py: Python<'_>,
        keys: Vec<Vec<u8>>,
        pieces: Pieces,
        options: PutOptions,
    ) -> PyResult<Vec<Outcome<bool>>> {
        self.each(py, keys, pieces, |objects| {
            let put = self.handle.put_all(objects, options);
            async move {
                let stored = put.await.into_iter();
                let written = |stored| matches!(stored, Stored::Written { .. });
                stored.map(|stored| stored.map(written)).collect()
            }
        })
    }

    /// Gets objects; the length of each, or `None` where there is none.
    pub(crate) fn get_into(
        &self,
        py: Python<'_>,
        keys: Vec<Vec<u8>>,
        pieces: Pieces,
    ) -> PyResult<Vec<Outcome<Option<usize>>>> {
        self.each(py, keys, pieces, |objects| {
            let got = self.handle.get_all(objects);
            async move { got.await.into_iter().map(len_of).collect() }
        })
    }

    /// Gets ranges of one object, each to the piece at its place; how many bytes, or `None` if there is no
    /// object.
    pub(crate) fn get_ranges(
        &self,
        py: Python<'_>,
        key: Vec<u8>,
        (addresses, lens): (Vec<usize>, Vec<usize>),
        offsets: &[u64],
    ) -> PyResult<Option<usize>> {
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
        let got = self.each(
            py,
            vec![key],
            (vec![addresses], vec![lens]),
            |mut objects| {
                let object = objects.pop();
                let got = object.map(|(key, into)| self.handle.get_ranges(key, ranges, into));
                async move {
                    match got {
                        Some(got) => vec![len_of(got.await)],
                        None => Vec::new(),
                    }
                }
            },
        )?;
        got.into_iter().next().expect("one for the key")
    }

    /// Puts the bytes where they lie, which are Python's and do not change.
    pub(crate) fn put_bytes(
        &self,
        py: Python<'_>,
        key: Vec<u8>,
        value: &Bound<'_, PyBytes>,
        options: PutOptions,
    ) -> PyResult<bool> {
        let bytes = value.as_bytes();
        let (addresses, lens) = if bytes.is_empty() {
            (Vec::new(), Vec::new())
        } else {
            (vec![bytes.as_ptr().expose_provenance()], vec![bytes.len()])
        };
        let stored = self.put_from(py, vec![key], (vec![addresses], vec![lens]), options)?;
        stored.into_iter().next().expect("one for the key")
    }

    /// Lends the pieces, asks for those keys whose pieces are memory, and waits until all memory is the
    /// program's again.
    fn each<T: Send, F>(
        &self,
        py: Python<'_>,
        keys: Vec<Vec<u8>>,
        (addresses, lens): Pieces,
        ask: impl FnOnce(Vec<Object>) -> F,
    ) -> PyResult<Vec<Outcome<T>>>
    where
        F: Future<Output = Vec<Result<T, StoreError>>> + Send,
    {
        if keys.len() != addresses.len() || keys.len() != lens.len() {
            return Err(unequal());
        }
        let loans = Loans::default();
        let mut refused = Vec::new();
        let mut objects = Vec::new();
        for ((key, addresses), lens) in keys.into_iter().zip(addresses).zip(lens) {
            let lent = self.lend(&loans, &addresses, &lens);
            refused.push(lent.as_ref().err().copied());
            objects.extend(lent.ok().map(|pieces| (key, pieces)));
        }
        let answers = wait(py, ask(objects));
        let ended = loans.ended(py);
        let mut answers = answers?.into_iter();
        ended?;
        let outcomes = refused.into_iter().map(|refused| match refused {
            Some(why) => Err(Invalid::new_err(why)),
            None => {
                let answer = answers.next().expect("one for each that was asked");
                answer.map_err(|error| of_store(&error))
            }
        });
        Ok(outcomes.collect())
    }

    /// The pieces of one object; why not, if they are not memory.
    fn lend(
        &self,
        loans: &Loans,
        addresses: &[usize],
        lens: &[usize],
    ) -> Result<Vec<Lent>, &'static str> {
        if addresses.len() != lens.len() {
            return Err("there are not as many lengths as addresses");
        }
        let pieces = addresses.iter().copied().zip(lens.iter().copied());
        let pieces = pieces.filter(|(_, len)| *len > 0);
        pieces
            .map(|piece| {
                let memory = loans.lend(Some(self.registered), piece)?;
                Some(Lent::whole(&memory))
            })
            .collect::<Option<_>>()
            .ok_or("nothing is mapped at an address")
    }
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
