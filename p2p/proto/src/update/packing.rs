//! Which tensors are in which bucket.

use thiserror::Error;

use crate::layout::Tensor;

/// Most buckets of an update.
pub const BUCKETS_MAX: usize = 4096;
/// Where runs begin in staging memory is a multiple of this, in bytes.
const ALIGN_BYTES: u64 = 256;

/// Bytes that lie one behind the other in one of the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Which buffer.
    pub buffer: u32,
    /// Where in it they begin, in bytes.
    pub offset_bytes: u64,
    /// How many they are.
    pub len_bytes: u64,
}

impl Run {
    const fn end(&self) -> u64 {
        self.offset_bytes + self.len_bytes
    }
}

/// What is taken at a time: an object whose buffers are the runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Its buffers.
    pub runs: Vec<Run>,
    /// Its tensors, which lie in the runs.
    pub tensors: Vec<Tensor>,
}

impl Bucket {
    fn len_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.len_bytes).sum()
    }

    /// How many bytes it would have more with this tensor.
    fn more_bytes(&self, place: &Run) -> u64 {
        match self.runs.last() {
            Some(last) if joins(last, place) => place.end().saturating_sub(last.end()),
            _ => place.len_bytes,
        }
    }

    fn add(&mut self, mut tensor: Tensor, place: Run) {
        match self.runs.last_mut() {
            Some(last) if joins(last, &place) => {
                last.len_bytes = last.end().max(place.end()) - last.offset_bytes;
            }
            _ => self.runs.push(place),
        }
        let last = self.runs.last().expect("one was just added");
        tensor.buffer = u32::try_from(self.runs.len() - 1).expect("tensors are bounded");
        tensor.offset_bytes = place.offset_bytes - last.offset_bytes;
        self.tensors.push(tensor);
    }
}

/// Whether what lies there goes on where the run ends, or lies in it.
fn joins(run: &Run, place: &Run) -> bool {
    run.buffer == place.buffer && (run.offset_bytes..=run.end()).contains(&place.offset_bytes)
}

/// What is no update.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PackFault {
    /// No tensor has a byte.
    #[error("no tensor has a byte")]
    Empty,
    /// More than [`BUCKETS_MAX`].
    #[error("more than {BUCKETS_MAX} buckets: make them longer")]
    TooManyBuckets,
    /// It is no whole number of bytes.
    #[error("tensor {tensor:?} is no whole number of bytes")]
    Length {
        /// Which.
        tensor: String,
    },
}

/// Packs tensors into buckets of about so many bytes, in the order in which they lie. A tensor is in one bucket: one that is
/// longer has a bucket of its own.
///
/// # Errors
/// [`PackFault`].
pub fn pack(mut tensors: Vec<Tensor>, bucket_bytes: u64) -> Result<Vec<Bucket>, PackFault> {
    tensors.sort_by_key(|tensor| (tensor.buffer, tensor.offset_bytes));
    let mut buckets = Vec::new();
    let mut bucket = Bucket::default();
    for tensor in tensors {
        let len_bytes = tensor.len_bytes().ok_or_else(|| PackFault::Length {
            tensor: tensor.name.clone(),
        })?;
        let place = Run {
            buffer: tensor.buffer,
            offset_bytes: tensor.offset_bytes,
            len_bytes,
        };
        let more_bytes = bucket.more_bytes(&place);
        // Those without a byte are with whatever is there.
        let is_full = more_bytes > 0 && bucket.len_bytes() + more_bytes > bucket_bytes;
        if is_full && bucket.len_bytes() > 0 {
            buckets.push(std::mem::take(&mut bucket));
        }
        bucket.add(tensor, place);
    }
    if bucket.len_bytes() == 0 && !bucket.tensors.is_empty() {
        // Only if nothing has a byte: whatever is behind a bucket that is full has one.
        return Err(PackFault::Empty);
    }
    buckets.extend((!bucket.tensors.is_empty()).then_some(bucket));
    match buckets.len() {
        0 => Err(PackFault::Empty),
        count if count > BUCKETS_MAX => Err(PackFault::TooManyBuckets),
        _ => Ok(buckets),
    }
}

/// Where buffers of these lengths lie in staging memory, one behind the other, and how much of it they take, in bytes.
pub fn staged(lens: impl IntoIterator<Item = u64>) -> (Vec<u64>, u64) {
    let mut end = 0_u64;
    let mut offsets = Vec::new();
    for len_bytes in lens {
        offsets.push(end);
        let aligned = len_bytes.checked_next_multiple_of(ALIGN_BYTES);
        end = end.saturating_add(aligned.unwrap_or(u64::MAX));
    }
    (offsets, end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Dtype;

    fn tensor(name: &str, buffer: u32, offset_bytes: u64, len: u64) -> Tensor {
        Tensor::whole(name.into(), Dtype::U8, vec![len], buffer, offset_bytes)
    }

    /// Names, and runs as buffer, offset and length.
    type Told<'a> = (Vec<&'a str>, Vec<(u32, u64, u64)>);

    fn told(buckets: &[Bucket]) -> Vec<Told<'_>> {
        let told = buckets.iter().map(|bucket| {
            let names = bucket.tensors.iter().map(|it| it.name.as_str()).collect();
            let runs = bucket.runs.iter();
            let runs = runs.map(|it| (it.buffer, it.offset_bytes, it.len_bytes));
            (names, runs.collect())
        });
        told.collect()
    }

    #[test]
    fn tensors_are_packed_in_the_order_in_which_they_lie() {
        let tensors = vec![
            tensor("d", 1, 0, 40),
            tensor("a", 0, 8, 50),
            tensor("b", 0, 58, 50),
            tensor("long", 0, 200, 1000),
            tensor("in a", 0, 10, 5),
            tensor("none", 1, 40, 0),
        ];
        let buckets = pack(tensors, 100).expect("packed");
        assert_eq!(
            told(&buckets),
            [
                (vec!["a", "in a", "b"], vec![(0, 8, 100)]),
                (vec!["long"], vec![(0, 200, 1000)]),
                (vec!["d", "none"], vec![(1, 0, 40)]),
            ]
        );
        let places = buckets[0].tensors.iter();
        let places: Vec<_> = places.map(|it| (it.buffer, it.offset_bytes)).collect();
        assert_eq!(places, [(0, 0), (0, 2), (0, 50)]);
        // What does not lie together is in runs of its own.
        let apart = vec![tensor("a", 0, 0, 10), tensor("b", 0, 11, 10)];
        let buckets = pack(apart, 100).expect("packed");
        assert_eq!(
            told(&buckets),
            [(vec!["a", "b"], vec![(0, 0, 10), (0, 11, 10)])]
        );
    }

    #[test]
    fn what_is_no_update_is_told() {
        assert_eq!(pack(Vec::new(), 1), Err(PackFault::Empty));
        assert_eq!(
            pack(vec![tensor("none", 0, 0, 0)], 1),
            Err(PackFault::Empty)
        );
        let each = |count: usize| {
            let at = (0..count as u64).map(|at| tensor("t", 0, 2 * at, 1));
            pack(at.collect(), 1).map(|buckets| buckets.len())
        };
        assert_eq!(each(BUCKETS_MAX), Ok(BUCKETS_MAX));
        assert_eq!(each(BUCKETS_MAX + 1), Err(PackFault::TooManyBuckets));
        let odd = Tensor::whole("odd".into(), Dtype::F4, vec![3], 0, 0);
        let tensor = "odd".to_owned();
        assert_eq!(pack(vec![odd], 1), Err(PackFault::Length { tensor }));
    }

    #[test]
    fn staged_buffers_begin_where_devices_like_it() {
        assert_eq!(staged([1, 0, 256, 257]), (vec![0, 256, 256, 512], 1024));
        assert_eq!(staged([u64::MAX, 1]).1, u64::MAX, "and nothing wraps");
    }
}
