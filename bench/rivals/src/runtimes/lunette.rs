//! Ours.

use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lunette_bench::harness::{Failure, Sample};
use lunette_runtime::fs::{File, OpenOptions};
use lunette_runtime::net::{TcpListener, TcpStream};
use lunette_runtime::{
    CoreOptions, Idle, Placement, Runtime, arena, block_on, channel, register_arena, spawn_local,
};
use lunette_runtime_core::ids::CoreIndex;

use super::program::{Program, always_ready, exchanges, measured};
use super::reads::{self, READ_BYTES, Reads};
use crate::role::{Work, announce};

/// With its default idle policy.
pub(super) struct Adaptive;

/// Sleeping whenever it has nothing to do.
pub(super) struct Efficient;

fn options(idle: Idle) -> CoreOptions {
    CoreOptions {
        idle,
        ..CoreOptions::default()
    }
}

fn run<F>(idle: Idle, future: F) -> Result<F::Output, Failure>
where
    F: Future + 'static,
    F::Output: 'static,
{
    Ok(block_on(None, options(idle), move || future)?)
}

async fn tasks(work: Work) -> Result<Sample, Failure> {
    let empty = || spawn_local(async {});
    Ok(spawn_local(measured(work, empty)).await?)
}

fn spawn<F: Future<Output = ()> + 'static>(future: F) -> impl Future<Output = ()> + 'static {
    let handle = spawn_local(future);
    async move { handle.await.expect("no panic") }
}

impl Program for Adaptive {
    fn block_on<F>(_cpu: usize, future: F) -> Result<F::Output, Failure>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        run(Idle::default(), future)
    }

    fn tasks(work: Work, cpu: usize) -> Result<Sample, Failure> {
        Self::block_on(cpu, tasks(work))?
    }

    fn spawn<F>(future: F) -> impl Future<Output = ()> + 'static
    where
        F: Future<Output = ()> + Send + 'static,
    {
        spawn(future)
    }

    fn echo(_cpu: usize, message_bytes: usize) -> Result<(), Failure> {
        run(Idle::default(), serve(message_bytes))?
    }
}

impl Program for Efficient {
    fn block_on<F>(_cpu: usize, future: F) -> Result<F::Output, Failure>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        run(Idle::Efficient, future)
    }

    fn tasks(work: Work, cpu: usize) -> Result<Sample, Failure> {
        Self::block_on(cpu, tasks(work))?
    }

    fn spawn<F>(future: F) -> impl Future<Output = ()> + 'static
    where
        F: Future<Output = ()> + Send + 'static,
    {
        spawn(future)
    }

    fn echo(_cpu: usize, message_bytes: usize) -> Result<(), Failure> {
        run(Idle::Efficient, serve(message_bytes))?
    }
}

async fn serve(message_bytes: usize) -> Result<(), Failure> {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    announce(listener.local_addr())?;
    loop {
        let stream = listener.accept().await?;
        drop(spawn_local(answer(stream, message_bytes)));
    }
}

async fn answer(stream: TcpStream, message_bytes: usize) {
    let mut buffer = vec![0; message_bytes];
    loop {
        let mut got = 0;
        while got < message_bytes {
            let received;
            (received, buffer) = stream.recv(buffer, got, message_bytes - got).await;
            let Ok(count @ 1..) = received else { return };
            got += count;
        }
        let sent;
        (sent, buffer) = stream.send_all(buffer, 0, message_bytes).await;
        if sent.is_err() {
            return;
        }
    }
}

/// Messages through channels, as the others'.
pub(super) fn messages(work: Work, cpus: [usize; 2]) -> Result<Sample, Failure> {
    let idle = match work {
        Work::MessagePolling => Idle::Latency,
        Work::MessageAsleep => Idle::Efficient,
        _ => Idle::Adaptive(Duration::ZERO),
    };
    let runtime = Runtime::start(&Placement::Pinned(cpus.to_vec()), options(idle))?;
    let (questions, asked) = channel::<u64>(1);
    let (answers, answered) = channel::<u64>(1);
    let stop = Arc::new(AtomicBool::new(work != Work::MessageBusy));
    let stop_there = Arc::clone(&stop);
    let keeping = runtime.spawn_on(CoreIndex(1), move || always_ready(stop_there))?;
    let answering = runtime.spawn_on(CoreIndex(1), move || async move {
        let mut asked = asked.open().expect("room for a source");
        while let Some(question) = asked.recv().await {
            answers.send(question).await.expect("it is received");
        }
    })?;
    let asking = runtime.spawn_on(CoreIndex(0), move || async move {
        let mut answered = answered.open().expect("room for a source");
        let ready = spawn_local(always_ready(Arc::clone(&stop)));
        let sample = exchanges(async || {
            questions.send(1).await.expect("it is received");
            answered.recv().await.expect("it is answered");
        })
        .await;
        stop.store(true, Ordering::Relaxed);
        ready.await.expect("no panic");
        sample
    })?;
    let sample = asking.wait()?;
    answering.wait()?;
    keeping.wait()?;
    runtime.shut_down()?;
    Ok(sample)
}

/// Random direct reads, `depth` of them under way.
pub(super) fn reads(idle: Idle, depth: usize) -> Result<Sample, Failure> {
    run(idle, async move {
        let direct = OpenOptions {
            direct: true,
            ..OpenOptions::READ
        };
        let file = File::open(reads::path()?, direct).await?;
        // The first region maps the chunk that holds all of them.
        let first = arena().alloc(READ_BYTES)?;
        register_arena()?;
        drop(first);
        let reads = Reads::new()?;
        let readers: Vec<_> = (0..depth)
            .map(|_| spawn_local(read(Rc::clone(&reads), file.clone())))
            .collect();
        for reader in readers {
            reader.await??;
        }
        reads.sample()
    })?
}

async fn read(reads: Rc<Reads>, file: File) -> Result<(), Failure> {
    let mut region = arena().alloc(READ_BYTES)?;
    while let Some((offset, begun)) = reads.next() {
        let count;
        (count, region) = file.read_at(region, 0, READ_BYTES, offset).await;
        reads.end(begun, count?);
    }
    Ok(())
}
