//! Which way an object comes, where there are several: the one that was quickest lately.
//!
//! Ways differ by more than their speed: an owner that is busy sends late and writes late, and is not asked by a read
//! of its memory at all; a notice costs less than a copy, a round trip more. What that comes to is measured, by
//! the length of what was got: each way that there is has been tried a few times before any is preferred, and is tried
//! again now and then, since what was slow may be quick by now.

use core::time::Duration;

/// A way for an object's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    /// Over the connection.
    Sent,
    /// By the owner's adapter, which writes them.
    Written,
    /// By the reader's adapter, which reads the owner's memory.
    Read,
}

impl Path {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sent, Self::Written, Self::Read];
}

/// Gets of one length that each way has before it is compared.
pub const TRIES: u32 = 4;
/// One in so many gets of one length goes the way that was not gone for longest.
pub const EXPLORE_EVERY: u64 = 64;
/// A measurement counts for one in so many.
const WEIGHT: u64 = 8;
/// Lengths in bytes of which each class has those up to it, the last one all others: each four times the one before.
const CLASS_BYTES_MIN: usize = 4096;
const CLASSES: usize = 9;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    tries: u32,
    /// How long they took lately.
    mean_ns: u64,
    /// The get in which it was chosen last.
    chosen: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Class {
    gets: u64,
    seen: [Seen; Path::ALL.len()],
}

/// What is known of the ways from one owner. See the [module](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chooser([Class; CLASSES]);

fn class_of(len_bytes: usize) -> usize {
    let bounds = (0..CLASSES - 1).map(|class| CLASS_BYTES_MIN << (2 * class));
    bounds.take_while(|bound| *bound < len_bytes).count()
}

impl Chooser {
    /// The way of a get of at most so many bytes, of those that there are: [`Path::Sent`] always is.
    pub fn choose(&mut self, len_bytes: usize, is_there: impl Fn(Path) -> bool) -> Path {
        let class = &mut self.0[class_of(len_bytes)];
        class.gets += 1;
        let there = |path: &Path| *path == Path::Sent || is_there(*path);
        let all = || Path::ALL.into_iter().filter(there);
        let untried = all().find(|path| class.seen[*path as usize].tries < TRIES);
        let oldest = all().min_by_key(|path| class.seen[*path as usize].chosen);
        let quickest = all().min_by_key(|path| class.seen[*path as usize].mean_ns);
        let explores = class.gets.is_multiple_of(EXPLORE_EVERY);
        let chosen = if explores { oldest } else { quickest };
        let chosen = untried.or(chosen).unwrap_or(Path::Sent);
        class.seen[chosen as usize].chosen = class.gets;
        chosen
    }

    /// A get of at most so many bytes was over in so long, by whatever other way in the end.
    pub fn ended(&mut self, path: Path, len_bytes: usize, took: Duration) {
        let seen = &mut self.0[class_of(len_bytes)].seen[path as usize];
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX / WEIGHT);
        seen.mean_ns = if seen.tries == 0 {
            took_ns
        } else {
            seen.mean_ns - seen.mean_ns / WEIGHT + took_ns / WEIGHT
        };
        seen.tries = seen.tries.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 100_000;

    /// Chooses so often among all, and ends each in what it takes.
    fn run(chooser: &mut Chooser, gets: u32, took_us: [u64; 3]) -> [u32; 3] {
        let mut chosen = [0; 3];
        for _ in 0..gets {
            let path = chooser.choose(LEN, |_| true);
            chosen[path as usize] += 1;
            let took = Duration::from_micros(took_us[path as usize]);
            chooser.ended(path, LEN, took);
        }
        chosen
    }

    #[test]
    fn each_way_is_tried_and_the_quickest_is_gone() {
        for quickest in 0..3 {
            let mut took_us = [50; 3];
            took_us[quickest] = 20;
            let mut chooser = Chooser::default();
            assert_eq!(run(&mut chooser, 3 * TRIES, took_us), [TRIES; 3]);
            let chosen = run(&mut chooser, 1000, took_us);
            assert!(chosen[quickest] >= 980, "{quickest}: {chosen:?}");
            assert!(chosen.iter().all(|count| *count >= 5), "{chosen:?}");
        }
    }

    #[test]
    fn what_becomes_slow_is_left_and_what_becomes_quick_is_found() {
        let mut chooser = Chooser::default();
        run(&mut chooser, 100, [50, 10, 30]);
        // The owner is busy: it writes and sends late.
        let chosen = run(&mut chooser, 100, [1050, 1010, 30]);
        assert!(chosen[Path::Read as usize] >= 95, "{chosen:?}");
        run(&mut chooser, 5000, [50, 10, 30]);
        let chosen = run(&mut chooser, 100, [50, 10, 30]);
        assert!(chosen[Path::Written as usize] >= 95, "{chosen:?}");
    }

    #[test]
    fn only_ways_that_there_are_are_gone() {
        let mut chooser = Chooser::default();
        for _ in 0..200 {
            assert_eq!(chooser.choose(LEN, |_| false), Path::Sent);
            chooser.ended(Path::Sent, LEN, Duration::from_secs(1));
        }
        for _ in 0..TRIES {
            let path = chooser.choose(LEN, |path| path == Path::Read);
            assert_eq!(path, Path::Read);
            chooser.ended(path, LEN, Duration::from_secs(2));
        }
        assert_eq!(chooser.choose(LEN, |path| path == Path::Read), Path::Sent);
    }

    #[test]
    fn lengths_are_judged_apart() {
        let classes = [
            (0, 0),
            (4096, 0),
            (4097, 1),
            (16_384, 1),
            (16_385, 2),
            (64 << 20, 7),
            ((64 << 20) + 1, 8),
            (usize::MAX, 8),
        ];
        for (len, class) in classes {
            assert_eq!(class_of(len), class, "{len}");
        }
        let mut chooser = Chooser::default();
        run(&mut chooser, 100, [50, 10, 30]);
        assert_eq!(
            chooser.choose(10, |_| true),
            Path::Sent,
            "nothing is known of it"
        );
    }

    #[test]
    fn no_time_is_too_long() {
        let mut chooser = Chooser::default();
        for _ in 0..100 {
            chooser.ended(Path::Sent, LEN, Duration::MAX);
        }
        assert_eq!(chooser.choose(LEN, |_| true), Path::Written);
    }
}
