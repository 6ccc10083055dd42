//! A turn of the loop, and when a core sleeps.

use lunette_runtime_core::time::Time;

use super::{Core, add_one};
use crate::driver::Wait;
use crate::process;

/// Looks at driver and inbox in one turn of a core that spins.
const LOOKS_PER_TURN: usize = 16;
/// Completions taken from one source at one look.
const SOURCE_BUDGET: usize = 64;
/// Messages from other cores taken at one look.
const MESSAGES_PER_LOOK_MAX: usize = 64;
/// Tasks that run between two looks for what comes through memory, which costs as little as one of them: others wait for
/// it meanwhile, while the driver, which is dear to ask, is asked after all of a turn's tasks.
const TASKS_PER_LOOK: usize = 4;

/// What a core does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is more to do.
    Busy,
    /// It sleeps, until this time if a timer is set, or something is due at a source.
    Asleep(Option<Time>),
}

impl Core {
    pub(super) fn turn(&self) {
        let worked = self.work(|| {});
        if !self.scheduler.is_idle() {
            if self.driver_may_have_work() {
                self.drive(Wait::Poll);
            }
        } else if !self.stopping.get() {
            self.wait(worked);
        }
    }

    /// One turn of a simulated core, which does not block: where it would sleep it says for how
    /// long, and is to be stepped again when something has woken it.
    pub(crate) fn step(&self) -> Step {
        if self.rests.replace(false) {
            self.drive(Wait::Poll);
            self.wake_up();
        }
        if self.draws_tasks() {
            self.work(|| self.scheduler.draw_next(|bound| self.draw_below(bound)));
        } else {
            self.work(|| {});
        }
        if self.driver_may_have_work() {
            self.drive(Wait::Poll);
            return Step::Busy;
        }
        if !self.scheduler.is_idle() {
            return Step::Busy;
        }
        let step = self.fall_asleep();
        self.rests.set(step != Step::Busy);
        step
    }

    /// What a turn does before it looks at the driver. Whether there was anything. `reorder` is called
    /// before each task.
    fn work(&self, reorder: impl Fn()) -> bool {
        assert!(
            !process::is_fork_child(),
            "a core belongs to the process that opened it"
        );
        // Tasks last: what arrived just now is run in the same turn.
        let arrived = self.take_inbox() | self.fire_timers() | self.poll_sources();
        let worked = self.run_ready(reorder) | arrived;
        add_one(&self.counters.turns);
        self.inbox.pulse().beat(self.counters.turns.get());
        worked
    }

    /// Runs tasks that are ready, at most a turn's worth.
    fn run_ready(&self, reorder: impl Fn()) -> bool {
        self.scheduler.begin_turn();
        let mut worked = false;
        for ran in 1_usize.. {
            reorder();
            let Some((task, choice)) = self.scheduler.next() else {
                break;
            };
            self.inbox.pulse().enter_task(task.spawned_at());
            if choice.is_contended {
                let began = self.now();
                task.run(&self.scheduler);
                let took = self.now().since(began);
                self.scheduler.charge(choice.class, took);
            } else {
                task.run(&self.scheduler);
            }
            worked = true;
            if ran.is_multiple_of(TASKS_PER_LOOK) {
                self.inbox.pulse().leave_task();
                self.take_inbox();
                self.poll_sources();
            }
        }
        if worked {
            self.inbox.pulse().leave_task();
        }
        worked
    }

    fn take_inbox(&self) -> bool {
        let mut worked = self.scheduler.take_woken();
        for _ in 0..MESSAGES_PER_LOOK_MAX {
            let Some(message) = self.inbox.next_message() else {
                break;
            };
            message();
            worked = true;
        }
        worked
    }

    fn poll_sources(&self) -> bool {
        let mut sources = self.sources.borrow_mut();
        !sources.is_empty() && sources.poll(SOURCE_BUDGET) > 0
    }

    fn fire_timers(&self) -> bool {
        let mut timers = self.timers.borrow_mut();
        if timers.is_empty() {
            return false;
        }
        let mut expired = self.expired.take();
        timers.advance(self.now(), &mut expired);
        drop(timers);
        let worked = !expired.is_empty();
        for waker in expired.drain(..) {
            waker.wake();
        }
        self.expired.replace(expired);
        worked
    }

    /// Nothing is ready: polls while the idle policy says so, then sleeps.
    fn wait(&self, worked: bool) {
        let is_efficient = self.idle.borrow().is_efficient();
        let looks = || {
            let is_in_the_way = |has_paid| self.is_in_the_way(has_paid);
            let mut idle = self.idle.borrow_mut();
            idle.should_spin(self.now(), worked, is_in_the_way)
        };
        if is_efficient || !looks() {
            self.sleep();
            return;
        }
        // The clock costs more than a look at the queues, so it is read once in several looks.
        for _ in 0..LOOKS_PER_TURN {
            // Under a spinning policy submissions go out before the spin. Without one they go out
            // with the sleep, in one system call.
            if self.driver_may_have_work() {
                self.drive(Wait::Poll);
                // Handing over may take a good part of the spin. Only the first time counts, or a spin could go on for ever.
                if worked && self.scheduler.is_idle() {
                    self.idle.borrow_mut().on_submitted();
                }
                return;
            }
            if self.inbox.has_mail() || self.poll_sources() {
                return;
            }
            std::hint::spin_loop();
        }
    }

    fn driver_may_have_work(&self) -> bool {
        let mut driver = self.driver.borrow_mut();
        driver.has_work() || !driver.completes_in_memory()
    }

    fn sleep(&self) {
        if let Step::Asleep(until) = self.fall_asleep() {
            let wait = until.map_or(Wait::Forever, |at| Wait::For(at.since(self.now())));
            self.drive(wait);
            self.wake_up();
            if !self.idle.borrow().is_efficient() {
                self.idle.borrow_mut().on_wake(self.now());
            }
        }
    }

    /// Announces the sleep, unless there is something to do after all.
    fn fall_asleep(&self) -> Step {
        self.inbox.set_asleep();
        if self.inbox.has_mail() || !self.sources.borrow_mut().try_park() {
            self.inbox.take_asleep();
            return Step::Busy;
        }
        // With its last look a source may have woken a task, and let the core sleep all the same.
        if !self.scheduler.is_idle() {
            self.wake_up();
            return Step::Busy;
        }
        add_one(&self.counters.sleeps);
        let expiry = self.timers.borrow().next_expiry();
        let due = self.sources.borrow().sleeps_until();
        Step::Asleep(expiry.into_iter().chain(due).min())
    }

    fn wake_up(&self) {
        self.sources.borrow_mut().unpark();
        self.inbox.take_asleep();
    }
}
