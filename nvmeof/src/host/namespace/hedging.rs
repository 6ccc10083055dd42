//! Reads that take long are sent a second way; the first answer is the read's.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use lunette_nvmeof_proto::command::Command;
use lunette_nvmeof_proto::host::{Fate, Hedge, HedgeCounts, HedgeOptions};
use lunette_runtime::arena::RegionMut;
use lunette_runtime::{Scope, arena, time};
use lunette_runtime_core::time::Time;

use super::super::queue::Data;
use super::carry::{Ended, Limits, carry};
use super::ways::OnItsWay;

/// The reads of one namespace, and those of them that were sent twice.
#[derive(Debug)]
pub(super) struct Hedging {
    hedge: Rc<RefCell<Hedge>>,
    /// Slower requests of reads that have been answered: their memory is the controller's until
    /// they have been, too.
    slower: Scope,
}

/// A request of a read: it ends with how long it took.
type Asking = Pin<Box<dyn Future<Output = (Ended, Duration)>>>;

impl Hedging {
    pub(super) fn new(options: HedgeOptions) -> Self {
        Self {
            hedge: Rc::new(RefCell::new(Hedge::new(options))),
            slower: Scope::new(),
        }
    }

    pub(super) fn counts(&self) -> HedgeCounts {
        self.hedge.borrow().counts()
    }

    pub(super) fn bytes(&self) -> usize {
        self.hedge.borrow().bytes()
    }

    /// Reads by a way, and by a second one if that takes long.
    pub(super) async fn read(
        &self,
        way: OnItsWay,
        command: Command,
        region: RegionMut,
        limits: Limits,
    ) -> Ended {
        let (ways, index, len) = (Rc::clone(&way.ways), way.index, region.len());
        let delay = self.hedge.borrow_mut().on_read();
        let mut first = asking(way, command, region, limits);
        let hedges_at = delay.map_or(Time::MAX, |delay| time::now() + delay);
        if let Some(answer) = answered_by(&mut first, hedges_at).await {
            return self.learn(answer);
        }
        // The best of the others, if one can be used now.
        let second = ways.choose(Some(index), time::now()).ok();
        let Some((way, room)) = second.and_then(|way| Some((way, self.room(len)?))) else {
            return self.learn(first.await);
        };
        let second = asking(way, command, room, limits);
        self.race(first, second, len).await
    }

    /// Room for a second request, if the limits allow for one.
    fn room(&self, len: usize) -> Option<RegionMut> {
        let mut hedge = self.hedge.borrow_mut();
        if !hedge.begin(len) {
            return None;
        }
        let room = arena().alloc(len).ok();
        if room.is_none() {
            hedge.on_reaped(len);
        }
        room
    }

    fn learn(&self, (ended, took): (Ended, Duration)) -> Ended {
        if ended.0.is_ok() {
            self.hedge.borrow_mut().on_answer(took);
        }
        ended
    }

    /// The first answer of two, which may be that the command is wrong. A way that failed is no
    /// answer while the other one is underway.
    async fn race(&self, first: Asking, second: Asking, len: usize) -> Ended {
        let extra = Extra {
            hedge: Rc::clone(&self.hedge),
            len,
        };
        let mut both = Both {
            left: [Some(first), Some(second)],
        };
        let (winner, answer) = both.next().await;
        let ended = self.learn(answer);
        let has_answered = ended.1 == Fate::Answered;
        if !has_answered {
            let (other, answer) = both.next().await;
            let other_ended = self.learn(answer);
            if other == 1 && other_ended.0.is_ok() {
                self.hedge.borrow_mut().on_won();
            }
            // The region of the one that failed is given back to the arena.
            return other_ended;
        }
        if winner == 1 && ended.0.is_ok() {
            self.hedge.borrow_mut().on_won();
        }
        let slower = both.left.into_iter().flatten().next();
        let slower = slower.expect("one of two has ended");
        let reaping = async move {
            let ((ended, _), took) = slower.await;
            if ended.is_ok() {
                extra.hedge.borrow_mut().on_answer(took);
            }
            // Its memory is given back here, before that counts as free.
            drop(ended);
            drop(extra);
        };
        if let Err(error) = self.slower.spawn(reaping) {
            tracing::warn!(%error, "the slower request of a read is given up");
        }
        ended
    }
}

/// Memory beyond that of the caller, until it is dropped.
struct Extra {
    hedge: Rc<RefCell<Hedge>>,
    len: usize,
}

impl Drop for Extra {
    fn drop(&mut self) {
        self.hedge.borrow_mut().on_reaped(self.len);
    }
}

/// Two requests of one read.
struct Both {
    left: [Option<Asking>; 2],
}

impl Both {
    /// The next one that ends, and how.
    async fn next(&mut self) -> (usize, (Ended, Duration)) {
        poll_fn(|cx| {
            for (index, place) in self.left.iter_mut().enumerate() {
                if let Some(asking) = place
                    && let Poll::Ready(answer) = asking.as_mut().poll(cx)
                {
                    *place = None;
                    return Poll::Ready((index, answer));
                }
            }
            Poll::Pending
        })
        .await
    }
}

fn asking(way: OnItsWay, command: Command, region: RegionMut, limits: Limits) -> Asking {
    Box::pin(async move {
        let now = time::now();
        let limits = Limits { now, ..limits };
        let ended = carry(way, command, Data::In(region), limits).await;
        (ended, time::now().since(now))
    })
}

/// The answer, if it comes before `at`.
async fn answered_by(asking: &mut Asking, at: Time) -> Option<(Ended, Duration)> {
    let mut sleep = time::sleep_until(at);
    poll_fn(|cx: &mut Context<'_>| {
        if let Poll::Ready(answer) = asking.as_mut().poll(cx) {
            return Poll::Ready(Some(answer));
        }
        Pin::new(&mut sleep).poll(cx).map(|()| None)
    })
    .await
}
