//! Which of the ready tasks runs next.
//!
//! Tasks have a [`Class`]. While only one class has ready tasks, they run in their order, and
//! nothing is measured. While several have, each gets its share of the time: a class pays for the
//! time that its tasks take, less the larger its share, and the one that has paid least is next. A
//! class that was idle has saved nothing: it starts level with the least of the others, so a
//! latency task that becomes ready waits for one task of another class at most.

use std::cell::Cell;
use std::time::Duration;

/// How urgent a task is. A task that is spawned has the class of the task that spawns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Somebody waits for it: 100 shares.
    Latency,
    /// As most: 50 shares.
    #[default]
    Normal,
    /// What can wait: demotion, prefetching, scans. 5 shares, and few tasks between two looks at
    /// the driver.
    Background,
}

impl Class {
    pub(super) const COUNT: usize = 3;
    pub(super) const ALL: [Self; Self::COUNT] = [Self::Latency, Self::Normal, Self::Background];

    pub(super) const fn index(self) -> usize {
        self as usize
    }

    const fn bit(self) -> u8 {
        1 << self.index()
    }

    const fn shares(self) -> u64 {
        match self {
            Self::Latency => 100,
            Self::Normal => 50,
            Self::Background => 5,
        }
    }

    /// Tasks of the class that run before the driver is asked again.
    const fn budget(self) -> usize {
        match self {
            Self::Latency | Self::Normal => 64,
            Self::Background => 8,
        }
    }
}

/// What each class has used, and may use.
#[derive(Debug, Default)]
pub(super) struct Classes {
    /// A bit for each class that had ready tasks at the last choice.
    active: Cell<u8>,
    /// What each class has paid: time over shares.
    paid: [Cell<u64>; Class::COUNT],
    /// Tasks of each class that may still run in this turn.
    left: [Cell<usize>; Class::COUNT],
}

/// The class whose task runs next, and whether other classes wait, so that its time is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) class: Class,
    pub(super) is_contended: bool,
}

impl Classes {
    /// A turn begins: every class has its budget again.
    pub(super) fn begin_turn(&self) {
        for class in Class::ALL {
            self.left[class.index()].set(class.budget());
        }
    }

    /// The class of the task that runs next in this turn; `is_ready` tells which have ready tasks.
    #[inline]
    pub(super) fn choose(&self, is_ready: impl Fn(Class) -> bool) -> Option<Choice> {
        // What is nearly always so: nobody waits but normal tasks.
        let choice = if !is_ready(Class::Latency) && !is_ready(Class::Background) {
            if !is_ready(Class::Normal) {
                return None;
            }
            self.active.set(Class::Normal.bit());
            Choice {
                class: Class::Normal,
                is_contended: false,
            }
        } else {
            self.weigh(is_ready)?
        };
        let left = &self.left[choice.class.index()];
        left.set(left.get().checked_sub(1)?);
        Some(choice)
    }

    #[cold]
    fn weigh(&self, is_ready: impl Fn(Class) -> bool) -> Option<Choice> {
        let ready = Class::ALL
            .into_iter()
            .filter(|class| is_ready(*class))
            .fold(0, |ready, class| ready | class.bit());
        let before = self.active.replace(ready);
        self.level(ready, ready & before);
        let class = Class::ALL
            .into_iter()
            .filter(|class| ready & class.bit() != 0 && self.left[class.index()].get() > 0)
            .min_by_key(|class| self.paid[class.index()].get())?;
        Some(Choice {
            class,
            is_contended: !ready.is_power_of_two(),
        })
    }

    /// Classes that were idle start level with the least of those that were not.
    fn level(&self, ready: u8, stayed: u8) {
        let of = |classes: u8| {
            let is_in = move |class: &Class| classes & class.bit() != 0;
            Class::ALL.into_iter().filter(is_in)
        };
        let paid = |class: Class| &self.paid[class.index()];
        if let Some(least) = of(stayed).map(|class| paid(class).get()).min() {
            for class in of(ready & !stayed) {
                paid(class).set(paid(class).get().max(least));
            }
        }
    }

    /// A task of `class` took so long while others waited.
    pub(super) fn charge(&self, class: Class, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // 100 shares pay one for each ns.
        let price = ns.saturating_mul(100) / class.shares();
        let paid = &self.paid[class.index()];
        paid.set(paid.get().saturating_add(price));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `turns` of a core on which the classes given are always ready, each task taking as long
    /// as given, and returns the time of each class in us.
    fn time_by_class(ready: &[Class], us: u64, turns: usize) -> [u64; Class::COUNT] {
        let classes = Classes::default();
        let mut time = [0; Class::COUNT];
        for _ in 0..turns {
            classes.begin_turn();
            for _ in 0..64 {
                let Some(choice) = classes.choose(|class| ready.contains(&class)) else {
                    break;
                };
                time[choice.class.index()] += us;
                assert_eq!(choice.is_contended, ready.len() > 1);
                if choice.is_contended {
                    classes.charge(choice.class, Duration::from_micros(us));
                }
            }
        }
        time
    }

    #[test]
    fn classes_that_are_always_ready_get_their_shares() {
        let [latency, normal, background] = time_by_class(&Class::ALL, 10, 1000);
        let total = latency + normal + background;
        for (time, shares) in [(latency, 100), (normal, 50), (background, 5)] {
            let expected = total * shares / 155;
            assert!(
                time.abs_diff(expected) * 20 <= expected,
                "{time} of {total}"
            );
        }
    }

    #[test]
    fn a_class_that_is_alone_gets_everything_up_to_its_budget() {
        assert_eq!(time_by_class(&[Class::Normal], 1, 10), [0, 640, 0]);
        assert_eq!(time_by_class(&[Class::Background], 1, 10), [0, 0, 80]);
    }

    #[test]
    fn a_latency_task_is_next_whatever_its_class_has_used_before() {
        let classes = Classes::default();
        classes.begin_turn();
        let others = |class| class != Class::Latency;
        for class in Class::ALL {
            classes.charge(class, Duration::from_secs(1));
        }
        classes.charge(Class::Normal, Duration::from_secs(9));
        classes.charge(Class::Background, Duration::from_secs(9));
        assert!(classes.choose(others).is_some());
        let choice = classes.choose(|_| true).expect("all are ready");
        assert_eq!(choice.class, Class::Latency);
    }

    #[test]
    fn an_idle_class_has_saved_nothing() {
        let classes = Classes::default();
        classes.begin_turn();
        assert!(classes.choose(|class| class == Class::Normal).is_some());
        classes.charge(Class::Normal, Duration::from_secs(10));
        // Background has never run; it does not get the ten seconds now.
        let mut ran = [0; Class::COUNT];
        for _ in 0..100 {
            classes.begin_turn();
            let choice = classes.choose(|class| class != Class::Latency);
            let choice = choice.expect("two are ready");
            ran[choice.class.index()] += 1;
            classes.charge(choice.class, Duration::from_micros(10));
        }
        assert!(ran[Class::Background.index()] <= 10, "{ran:?}");
    }

    #[test]
    fn a_class_without_ready_tasks_is_not_chosen() {
        let classes = Classes::default();
        classes.begin_turn();
        assert!(classes.choose(|_| false).is_none());
        for class in Class::ALL {
            let choice = classes.choose(|ready| ready == class).expect("it is ready");
            assert_eq!((choice.class, choice.is_contended), (class, false));
        }
    }
}
