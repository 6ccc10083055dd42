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

/// Cuts lie at multiples of this from the beginning of their request, wherever slices are as long: what is
/// aligned to blocks, of a disk say, stays so.
pub const CUT_ALIGN_BYTES: u64 = 4096;

/// So much, or a little less, to be cut off.
const fn aligned(len_bytes: u64) -> u64 {
    if len_bytes < CUT_ALIGN_BYTES {
        return len_bytes;
    }
    len_bytes - len_bytes % CUT_ALIGN_BYTES
}

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
    /// Whether it goes over streams alone: not all of it is reached from memory to memory.
    pub is_barred: bool,
}

/// Which of the bytes that wait are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// All of them.
    Any,
    /// Those that may go over whatever rail.
    Open,
    /// Those that go over streams alone.
    Barred,
}

/// What a rail takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measure {
    /// Of which bytes.
    pub work: Work,
    /// About how many.
    pub bytes: u32,
    /// How many at most, about, of what was cut before.
    pub bytes_max: u32,
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

impl Slice {
    fn is_of(&self, work: Work) -> bool {
        match work {
            Work::Any => true,
            Work::Open => !self.is_barred,
            Work::Barred => self.is_barred,
        }
    }

    /// Keeps the first `len_bytes`, of more, and gives the rest.
    fn split_off(&mut self, len_bytes: u64) -> Self {
        let mut left = len_bytes;
        let mut kept = Vec::new();
        let mut rest = Vec::new();
        for part in &self.parts {
            let whole = u64::from(part.len_bytes);
            let len = if whole <= left { whole } else { aligned(left) };
            // Nothing behind a cut is kept.
            left = if len < whole { 0 } else { left - len };
            let (first, second) = part.split(u32::try_from(len).expect("no longer than the part"));
            kept.extend(first);
            rest.extend(second);
        }
        self.parts = kept;
        Self {
            way: self.way,
            parts: rest,
            attempts: self.attempts,
            is_barred: self.is_barred,
        }
    }
}

impl Part {
    /// The first `len_bytes`, and what follows, if there are any bytes in each.
    fn split(self, len_bytes: u32) -> (Option<Self>, Option<Self>) {
        let first = Self { len_bytes, ..self };
        let second = Self {
            offset_bytes: self.offset_bytes + u64::from(len_bytes),
            len_bytes: self.len_bytes - len_bytes,
            ..self
        };
        let some = |part: Self| (part.len_bytes > 0).then_some(part);
        (some(first), some(second))
    }
}

impl Measure {
    /// What was cut before goes whole up to this length.
    fn longest(&self) -> u64 {
        u64::from(self.bytes_max) + u64::from(self.bytes_max / 4)
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
    /// Room for the parts of slices, of those that are done: as many as were under way together at most.
    spare: Vec<Vec<Part>>,
    /// Bytes of requests that have not failed which are not handed out at present.
    waiting_bytes: u64,
    /// Of these, those in slices that go over streams alone.
    barred_bytes: u64,
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
            spare: Vec::new(),
            waiting_bytes,
            barred_bytes: 0,
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

    /// Bytes of that kind that wait to be handed out.
    #[must_use]
    pub const fn waiting(&self, work: Work) -> u64 {
        match work {
            Work::Any => self.waiting_bytes,
            Work::Open => self.waiting_bytes - self.barred_bytes,
            Work::Barred => self.barred_bytes,
        }
    }

    /// About how long the next slice is.
    #[must_use]
    pub fn next_len_bytes(&self, measure: Measure) -> u64 {
        let again = self.again.iter().find(|slice| slice.is_of(measure.work));
        match again {
            Some(slice) => slice.len_bytes().min(measure.longest()),
            None => self.waiting(measure.work).min(u64::from(measure.bytes)),
        }
    }

    /// The next slice of whatever kind, of about `bytes` unless it was cut before.
    pub fn next(&mut self, bytes: u32) -> Option<Slice> {
        self.next_of(Measure {
            work: Work::Any,
            bytes,
            bytes_max: u32::MAX,
        })
    }

    /// The next slice of a kind, of about so many bytes unless it was cut before.
    pub fn next_of(&mut self, measure: Measure) -> Option<Slice> {
        let again = self.again.iter();
        let mut found = (0..).zip(again);
        if let Some((at, _)) = found.find(|(_, slice)| slice.is_of(measure.work)) {
            let slice = self.again.remove(at).expect("just found");
            return Some(self.again_of(slice, measure));
        }
        if measure.work == Work::Barred {
            return None;
        }
        self.cut(measure.bytes)
    }

    /// Hands out what was cut before, or the beginning of it if it is too long.
    fn again_of(&mut self, mut slice: Slice, measure: Measure) -> Slice {
        if slice.len_bytes() > measure.longest() {
            let rest = slice.split_off(u64::from(measure.bytes_max));
            self.again.push_front(rest);
        }
        self.waiting_bytes -= slice.len_bytes();
        if slice.is_barred {
            self.barred_bytes -= slice.len_bytes();
        }
        slice
    }

    fn cut(&mut self, bytes_max: u32) -> Option<Slice> {
        self.skip_finished();
        let way = self.requests.get(self.cursor)?.request.way;
        let mut parts = self.spare.pop().unwrap_or_default();
        let mut room = u64::from(bytes_max.max(1));
        let first = self.cursor;
        for (index, progress) in (first..).zip(&mut self.requests[first..]) {
            let left = progress.request.len_bytes - progress.cut_bytes;
            if left == 0 {
                continue;
            }
            if progress.request.way != way || parts.len() == SLICE_PARTS_MAX {
                break;
            }
            // A short tail goes along; a long request is not begun in a short rest of a slice.
            let is_whole = left <= room || (parts.is_empty() && left <= room + room / 4);
            let len = if is_whole {
                left
            } else if parts.is_empty() || room >= CUT_BYTES_MIN {
                aligned(room)
            } else {
                break;
            };
            parts.push(Part {
                request: u32::try_from(index).expect("requests are bounded"),
                offset_bytes: progress.cut_bytes,
                len_bytes: u32::try_from(len).expect("about `bytes_max`"),
            });
            self.cursor = index;
            progress.cut_bytes += len;
            self.waiting_bytes -= len;
            room = room.saturating_sub(len);
            if room == 0 || !is_whole {
                break;
            }
        }
        assert!(!parts.is_empty(), "the cursor points at bytes to hand out");
        Some(Slice {
            way,
            parts,
            attempts: 0,
            is_barred: false,
        })
    }

    /// The slice is where it belongs.
    pub fn done(&mut self, mut slice: Slice) {
        for part in slice.parts.drain(..) {
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
        self.spare.push(slice.parts);
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
            if slice.is_barred {
                self.barred_bytes += slice.len_bytes();
            }
            self.again.push_back(slice);
        }
    }

    /// A slice that was not sent, because it goes over streams alone.
    pub fn bar(&mut self, mut slice: Slice) {
        slice.is_barred = true;
        self.back(slice);
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
        let (mut dropped, mut barred) = (0, 0);
        self.again.retain_mut(|slice| {
            let before = slice.len_bytes();
            slice.parts.retain(|part| part.request != request);
            let less = before - slice.len_bytes();
            dropped += less;
            barred += if slice.is_barred { less } else { 0 };
            !slice.parts.is_empty()
        });
        self.waiting_bytes -= dropped;
        self.barred_bytes -= barred;
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
    fn cuts_lie_at_whole_blocks_also_behind_short_requests_and_when_cut_again() {
        let lens_bytes = [512, 3 << 20, 1536, 700 * 1024, 12_288];
        let requests = lens_bytes.map(|len| request(Way::Write, len));
        let mut cutter = Cutter::new(requests);
        let measure = |bytes, bytes_max| Measure {
            work: Work::Any,
            bytes,
            bytes_max,
        };
        let check = |slice: &Slice| {
            for part in &slice.parts {
                assert!(
                    part.offset_bytes.is_multiple_of(CUT_ALIGN_BYTES),
                    "{part:?}"
                );
            }
        };
        let mut done_bytes = 0;
        for bytes in [70_001, 65_537, 123_457, 300_003].into_iter().cycle() {
            let Some(slice) = cutter.next_of(measure(bytes, 512 * 1024)) else {
                break;
            };
            check(&slice);
            // Refused, and sent again over a rail that takes less.
            cutter.again(slice);
            while let Some(slice) = cutter.again.front().cloned() {
                let again = cutter.next_of(measure(50_001, 50_001)).expect("it waits");
                check(&again);
                assert!(again.len_bytes() <= slice.len_bytes());
                done_bytes += again.len_bytes();
                cutter.done(again);
            }
        }
        assert!(cutter.is_finished());
        assert_eq!(done_bytes, lens_bytes.iter().sum::<u64>());
    }

    #[test]
    fn what_goes_over_streams_alone_is_kept_apart_and_cut_as_they_take_it() {
        let mut cutter = Cutter::new([request(Way::Write, 4000), request(Way::Write, 500)]);
        let of = |work| Measure {
            work,
            bytes: 3000,
            bytes_max: 1000,
        };
        let first = cutter.next_of(of(Work::Open)).expect("bytes");
        assert_eq!(
            (first.len_bytes(), cutter.next_of(of(Work::Barred))),
            (3000, None)
        );
        cutter.bar(first);
        let waiting = |cutter: &Cutter| {
            [Work::Any, Work::Open, Work::Barred].map(|work| cutter.waiting(work))
        };
        assert_eq!(waiting(&cutter), [4500, 1500, 3000]);
        assert_eq!(cutter.next_len_bytes(of(Work::Open)), 1500);
        assert_eq!(cutter.next_len_bytes(of(Work::Barred)), 1250);
        let open = cutter.next_of(of(Work::Open)).expect("bytes");
        assert_eq!(lens(&open), [(0, 3000, 1000), (1, 0, 500)]);
        let barred = cutter.next_of(of(Work::Barred)).expect("bytes");
        assert_eq!(
            (lens(&barred), barred.is_barred),
            (vec![(0, 0, 1000)], true)
        );
        cutter.done(barred);
        assert_eq!(waiting(&cutter), [2000, 0, 2000]);
        cutter.back(open);
        let any = cutter.next_of(of(Work::Any)).expect("bytes");
        assert_eq!(lens(&any), [(0, 1000, 1000)]);
        cutter.again(any);
        assert_eq!(waiting(&cutter), [3500, 1500, 2000]);
        cutter.fail(0);
        assert_eq!(waiting(&cutter), [500, 500, 0]);
        let rest = cutter.next_of(of(Work::Open)).expect("bytes");
        assert_eq!(lens(&rest), [(1, 0, 500)]);
        cutter.done(rest);
        assert!(cutter.is_finished());
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
                (write, vec![(3, 0, 100), (4, 0, 98_304)]),
                (write, vec![(4, 98_304, 98_304)]),
                (write, vec![(4, 196_608, 53_392)]),
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
        cutter.done(slice);
        assert_eq!(cutter.unfinished().collect::<Vec<_>>(), [2]);
        let rest = cutter.next(1000).expect("bytes");
        cutter.again(rest);
        assert!(cutter.fail(2));
        assert_eq!((cutter.waiting_bytes(), cutter.next(100)), (0, None));
        assert!(cutter.is_finished() && cutter.unfinished().next().is_none());
    }
}
