//! From requests to slices, and back to what is done.
//!
//! A large request is cut; small ones of the same way travel together. What is lost is handed out
//! again as it was, so that a slice that has been fenced is exactly what is sent once more.

use std::collections::VecDeque;

use super::segment::Way;

/// Most parts of one slice: a frame's payload is gathered from, and scattered to, as many places.
pub const SLICE_PARTS_MAX: usize = 256;
/// Requests of one transfer.
pub const REQUESTS_MAX: usize = 1 << 17;
/// A request is cut only if at least this much of it fits behind others.
const CUT_BYTES_MIN: u64 = 16 * 1024;

/// A piece of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Index of the request in its batch.
    pub request: u32,
    /// Where in the request it begins.
    pub offset_bytes: u64,
    /// Its length.
    pub len_bytes: u32,
}

/// What one frame carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Which way its bytes go.
    pub way: Way,
    /// Its parts, in the order of the payload. At least one.
    pub parts: Vec<Part>,
    /// How often it was sent before.
    pub attempts: u32,
}

impl Slice {
    /// Length of the payload.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.parts
            .iter()
            .map(|part| u64::from(part.len_bytes))
            .sum()
    }
}

/// What is asked: a way and a length. Where the bytes lie is the driver's to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which way its bytes go.
    pub way: Way,
    /// How many.
    pub len_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Progress {
    request: Request,
    /// Bytes that have been handed out at least once.
    cut_bytes: u64,
    done_bytes: u64,
    /// Nothing more of it is to be sent.
    is_failed: bool,
}

impl Progress {
    const fn is_open(&self) -> bool {
        !self.is_failed && self.done_bytes < self.request.len_bytes
    }
}

/// Cuts the requests of one batch.
#[derive(Debug)]
pub struct Cutter {
    requests: Vec<Progress>,
    /// The first request of which something has not been handed out.
    cursor: usize,
    again: VecDeque<Slice>,
    /// Bytes of requests that have not failed which are not handed out at present.
    waiting_bytes: u64,
    /// Bytes of requests that have not failed which are not done.
    open_bytes: u64,
}

impl Cutter {
    /// A cutter of these requests.
    ///
    /// # Panics
    /// If there are more than [`REQUESTS_MAX`].
    #[must_use]
    pub fn new(requests: impl IntoIterator<Item = Request>) -> Self {
        let progress = |request| Progress {
            request,
            cut_bytes: 0,
            done_bytes: 0,
            is_failed: false,
        };
        let requests: Vec<Progress> = requests.into_iter().map(progress).collect();
        assert!(requests.len() <= REQUESTS_MAX, "a batch is bounded");
        let waiting_bytes = requests.iter().map(|asked| asked.request.len_bytes).sum();
        Self {
            requests,
            cursor: 0,
            again: VecDeque::new(),
            waiting_bytes,
            open_bytes: waiting_bytes,
        }
    }

    /// Whether every request is done or has failed.
    #[must_use]
    pub const fn is_finished(&self) -> bool {
        self.open_bytes == 0
    }

    /// Bytes that wait to be handed out.
    #[must_use]
    pub const fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// About how long the next slice is.
    #[must_use]
    pub fn next_len_bytes(&self, bytes_max: u32) -> u64 {
        match self.again.front() {
            Some(slice) => slice.len_bytes(),
            None => self.waiting_bytes.min(u64::from(bytes_max)),
        }
    }

    /// The next slice, of about `bytes_max` unless it was cut before.
    pub fn next(&mut self, bytes_max: u32) -> Option<Slice> {
        if let Some(slice) = self.again.pop_front() {
            self.waiting_bytes -= slice.len_bytes();
            return Some(slice);
        }
        self.skip_finished();
        let way = self.requests.get(self.cursor)?.request.way;
        let mut parts = Vec::new();
        let mut room = u64::from(bytes_max.max(1));
        while parts.len() < SLICE_PARTS_MAX {
            self.skip_finished();
            let Some(progress) = self.requests.get_mut(self.cursor) else {
                break;
            };
            if progress.request.way != way {
                break;
            }
            let left = progress.request.len_bytes - progress.cut_bytes;
            // A short tail goes along; a long request is not begun in a short rest of a slice.
            let len = if left <= room || (parts.is_empty() && left <= room + room / 4) {
                left
            } else if parts.is_empty() || room >= CUT_BYTES_MIN {
                room
            } else {
                break;
            };
            parts.push(Part {
                request: u32::try_from(self.cursor).expect("requests are bounded"),
                offset_bytes: progress.cut_bytes,
                len_bytes: u32::try_from(len).expect("about `bytes_max`"),
            });
            progress.cut_bytes += len;
            self.waiting_bytes -= len;
            room = room.saturating_sub(len);
            if room == 0 {
                break;
            }
        }
        assert!(!parts.is_empty(), "the cursor points at bytes to hand out");
        Some(Slice {
            way,
            parts,
            attempts: 0,
        })
    }

    /// The slice is where it belongs.
    pub fn done(&mut self, slice: &Slice) {
        for part in &slice.parts {
            let progress = &mut self.requests[part.request as usize];
            progress.done_bytes += u64::from(part.len_bytes);
            assert!(
                progress.done_bytes <= progress.cut_bytes,
                "no more is done than was handed out"
            );
            if !progress.is_failed {
                self.open_bytes -= u64::from(part.len_bytes);
            }
        }
    }

    /// The slice is to be sent once more, less what has failed meanwhile.
    pub fn again(&mut self, mut slice: Slice) {
        slice.attempts += 1;
        self.back(slice);
    }

    /// A slice that was not sent after all: it goes as if it had never been cut.
    pub fn back(&mut self, mut slice: Slice) {
        slice
            .parts
            .retain(|part| !self.requests[part.request as usize].is_failed);
        if !slice.parts.is_empty() {
            self.waiting_bytes += slice.len_bytes();
            self.again.push_back(slice);
        }
    }

    /// Nothing more of this request is to be sent. Whether it was not so already.
    pub fn fail(&mut self, request: u32) -> bool {
        let progress = &mut self.requests[request as usize];
        if progress.is_failed {
            return false;
        }
        progress.is_failed = true;
        self.waiting_bytes -= progress.request.len_bytes - progress.cut_bytes;
        self.open_bytes -= progress.request.len_bytes - progress.done_bytes;
        progress.cut_bytes = progress.request.len_bytes;
        let mut dropped = 0;
        self.again.retain_mut(|slice| {
            let before = slice.len_bytes();
            slice.parts.retain(|part| part.request != request);
            dropped += before - slice.len_bytes();
            !slice.parts.is_empty()
        });
        self.waiting_bytes -= dropped;
        true
    }

    /// The requests that are neither done nor failed.
    pub fn unfinished(&self) -> impl Iterator<Item = u32> + use<'_> {
        (0..)
            .zip(&self.requests)
            .filter_map(|(index, progress)| progress.is_open().then_some(index))
    }

    /// Whether a request is neither done nor failed.
    #[must_use]
    pub fn unfinished_contains(&self, request: u32) -> bool {
        self.requests
            .get(request as usize)
            .is_some_and(Progress::is_open)
    }

    /// Whether any byte of a request was ever handed out.
    ///
    /// # Panics
    /// If it has failed: what is handed out is forgotten then.
    #[must_use]
    pub fn was_begun(&self, request: u32) -> bool {
        let progress = &self.requests[request as usize];
        assert!(!progress.is_failed, "asked before it fails");
        progress.cut_bytes > 0
    }

    /// Which way a request's bytes go.
    #[must_use]
    pub fn way(&self, request: u32) -> Way {
        self.requests[request as usize].request.way
    }

    fn skip_finished(&mut self) {
        while let Some(progress) = self.requests.get(self.cursor)
            && progress.cut_bytes == progress.request.len_bytes
        {
            self.cursor += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(way: Way, len_bytes: u64) -> Request {
        Request { way, len_bytes }
    }

    fn lens(slice: &Slice) -> Vec<(u32, u64, u32)> {
        let triple = |part: &Part| (part.request, part.offset_bytes, part.len_bytes);
        slice.parts.iter().map(triple).collect()
    }

    #[test]
    fn small_ones_travel_together_and_large_ones_are_cut() {
        let (read, write) = (Way::Read, Way::Write);
        let mut cutter = Cutter::new([
            request(read, 100),
            request(read, 0),
            request(read, 200),
            request(write, 100),
            request(write, 250_000),
        ]);
        let all: Vec<Slice> = std::iter::from_fn(|| cutter.next(100_000)).collect();
        let shapes: Vec<_> = all.iter().map(|slice| (slice.way, lens(slice))).collect();
        assert_eq!(
            shapes,
            [
                (read, vec![(0, 0, 100), (2, 0, 200)]),
                (write, vec![(3, 0, 100), (4, 0, 99_900)]),
                (write, vec![(4, 99_900, 100_000)]),
                (write, vec![(4, 199_900, 50_100)]),
            ]
        );
        assert_eq!(cutter.waiting_bytes(), 0);
    }

    #[test]
    fn a_short_tail_goes_along_and_a_short_rest_is_left_alone() {
        let mut cutter = Cutter::new([request(Way::Read, 120)]);
        assert_eq!(cutter.next(100).map(|slice| slice.len_bytes()), Some(120));
        let mut cutter = Cutter::new([request(Way::Read, 90), request(Way::Read, 100)]);
        assert_eq!(cutter.next(100).map(|slice| slice.len_bytes()), Some(90));
        assert_eq!(cutter.next(100).map(|slice| slice.len_bytes()), Some(100));
        assert_eq!(cutter.next(100), None);
    }

    #[test]
    fn parts_are_bounded() {
        let many = SLICE_PARTS_MAX + 1;
        let mut cutter = Cutter::new(std::iter::repeat_n(request(Way::Write, 1), many));
        let lens: Vec<usize> = std::iter::from_fn(|| cutter.next(1 << 20))
            .map(|slice| slice.parts.len())
            .collect();
        assert_eq!(lens, [SLICE_PARTS_MAX, 1]);
    }

    #[test]
    fn what_is_lost_comes_again_less_what_has_failed() {
        let mut cutter = Cutter::new([
            request(Way::Read, 10),
            request(Way::Read, 20),
            request(Way::Read, 500),
        ]);
        let slice = cutter.next(100).expect("bytes");
        assert_eq!(slice.parts.len(), 2, "the long one is not begun");
        assert!(cutter.was_begun(0) && !cutter.was_begun(2) && !cutter.is_finished());
        assert!(cutter.fail(0) && !cutter.fail(0));
        cutter.again(slice);
        assert_eq!(cutter.waiting_bytes(), 520);
        let slice = cutter.next(100).expect("bytes");
        assert_eq!((lens(&slice), slice.attempts), (vec![(1, 0, 20)], 1));
        cutter.done(&slice);
        assert_eq!(cutter.unfinished().collect::<Vec<_>>(), [2]);
        let rest = cutter.next(1000).expect("bytes");
        cutter.again(rest);
        assert!(cutter.fail(2));
        assert_eq!((cutter.waiting_bytes(), cutter.next(100)), (0, None));
        assert!(cutter.is_finished() && cutter.unfinished().next().is_none());
    }
}
