//! What a runtime must offer, and the programs over that.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::thread;

use lunette_bench::harness::{Failure, Sample};
use lunette_runtime::topology;

use crate::batches::Batches;
use crate::role::Work;

/// Yields, or spawned tasks, per batch.
const TASKS_PER_BATCH: u32 = 1000;
/// Exchanges of messages per batch.
pub(super) const EXCHANGES_PER_BATCH: u32 = 16;

/// A runtime on the calling thread, which is pinned to `cpu`.
pub(super) trait Program {
    /// Runs a future to its end.
    fn block_on<F>(cpu: usize, future: F) -> Result<F::Output, Failure>
    where
        F: Future + 'static,
        F::Output: 'static;

    /// Runs [`measured`] in a task.
    fn tasks(work: Work, cpu: usize) -> Result<Sample, Failure>;

    /// Starts a task; the returned future waits for its end.
    fn spawn<F>(future: F) -> impl Future<Output = ()> + 'static
    where
        F: Future<Output = ()> + Send + 'static;

    /// Says where it listens, then answers each message on each connection with itself.
    fn echo(cpu: usize, message_bytes: usize) -> Result<(), Failure>;
}

/// Wakes itself and lets others run: the same for every runtime.
pub(super) fn yield_now() -> impl Future<Output = ()> {
    let mut yielded = false;
    poll_fn(move |context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
}

/// Nanoseconds per yield, or per task spawned and waited for; to be run in a task, because the
/// future that a runtime blocks on is no task in some of them.
pub(super) async fn measured<H: Future>(work: Work, spawn_empty: impl Fn() -> H) -> Sample {
    let mut batches = Batches::of(TASKS_PER_BATCH);
    while let Some(count) = batches.next() {
        for _ in 0..count {
            if work == Work::Yield {
                yield_now().await;
            } else {
                drop(spawn_empty().await);
            }
        }
        batches.end();
    }
    batches.sample_ns()
}

/// Keeps a core busy until it is told to stop.
pub(super) async fn always_ready(stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        yield_now().await;
    }
}

/// Exchanges until there are enough; half of an exchange is one message.
pub(super) async fn exchanges(mut exchange: impl AsyncFnMut()) -> Sample {
    let mut batches = Batches::of(EXCHANGES_PER_BATCH);
    while let Some(count) = batches.next() {
        for _ in 0..count {
            exchange().await;
        }
        batches.end();
    }
    one_way(batches.sample_ns())
}

pub(super) fn one_way(there_and_back: Sample) -> Sample {
    Sample {
        value: there_and_back.value / 2.0,
        p99: there_and_back.p99 / 2.0,
    }
}

/// Two runtimes on two threads: what `answer` makes runs on the second CPU, `ask` here.
pub(super) fn on_two_cores<P, A, B, F>(
    work: Work,
    cpus: [usize; 2],
    ask: A,
    answer: B,
) -> Result<Sample, Failure>
where
    P: Program,
    A: Future<Output = Sample> + 'static,
    B: FnOnce() -> F + Send + 'static,
    F: Future<Output = ()> + 'static,
{
    if work == Work::MessagePolling {
        return Err("it cannot poll instead of waiting".into());
    }
    let [here, there] = cpus;
    let busy = work == Work::MessageBusy;
    let stop = Arc::new(AtomicBool::new(!busy));
    let stop_there = Arc::clone(&stop);
    let answering = thread::spawn(move || -> Result<(), String> {
        topology::pin_current_thread(there).map_err(|error| error.to_string())?;
        let run = async move {
            let _ready = Box::pin(P::spawn(always_ready(stop_there)));
            answer().await;
        };
        P::block_on(there, run).map_err(|error| error.to_string())
    });
    topology::pin_current_thread(here)?;
    let stop_here = Arc::clone(&stop);
    let sample = P::block_on(here, async move {
        let ready = P::spawn(always_ready(Arc::clone(&stop_here)));
        let sample = ask.await;
        stop_here.store(true, Ordering::Relaxed);
        ready.await;
        sample
    })?;
    answering
        .join()
        .map_err(|_| "the answering core panicked")??;
    Ok(sample)
}

/// Messages through a channel of no runtime's own.
pub(super) fn messages<P: Program>(work: Work, cpus: [usize; 2]) -> Result<Sample, Failure> {
    let (questions, asked) = async_channel::bounded::<u64>(1);
    let (answers, answered) = async_channel::bounded::<u64>(1);
    let ask = async move {
        exchanges(async || {
            questions.send(1).await.expect("it is received");
            answered.recv().await.expect("it is answered");
        })
        .await
    };
    on_two_cores::<P, _, _, _>(work, cpus, ask, move || async move {
        while let Ok(question) = asked.recv().await {
            if answers.send(question).await.is_err() {
                return;
            }
        }
    })
}
