//! The asking side of reads and writes of a transfer engine's segment: sent, with checksums that are
//! verified on the way, or copied between two processes of this host.

use std::net::SocketAddr;
use std::time::Duration;

use lunette_runtime::arena::{Exposed, HugePages};
use lunette_runtime::{CoreOptions, block_on, time};
use lunette_transfer::engine::{
    Access, Batch, Engine, EngineOptions, Peer, PostOptions, RegisterOptions, RemoteSegment,
};

use crate::peer::{SEGMENT, SEGMENT_PART, idle};
use lunette_bench::calls::{Calls, PACED_PAUSE, Pace};
use lunette_bench::harness::Failure;

/// What one call moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moves {
    /// To the peer, as against from it.
    pub(super) writes: bool,
    /// Requests of one batch.
    pub(super) requests: usize,
    /// Bytes of each.
    pub(super) bytes: usize,
    /// Which way.
    pub(super) path: Path,
}

/// How bytes get from one process to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// Over connections.
    Sent,
    /// Copied once, from memory that is mapped.
    Mapped,
    /// Copied twice, by memory that both write.
    Window,
    /// Copied once, by who reads the other process.
    Trusted,
}

pub(super) fn measure(
    server: SocketAddr,
    cpu: usize,
    pace: Pace,
    spin: Duration,
    moves: Moves,
) -> Result<Calls, Failure> {
    let options = CoreOptions {
        idle: idle(spin),
        ..CoreOptions::default()
    };
    block_on(Some(cpu), options, move || post(server, pace, moves))?
}

async fn post(server: SocketAddr, pace: Pace, moves: Moves) -> Result<Calls, Failure> {
    let engine = Engine::start(EngineOptions {
        same_host: moves.path != Path::Sent,
        same_host_trust: moves.path == Path::Trusted,
        ..EngineOptions::default()
    })?;
    let peer = engine.open(&[server]).await?;
    let name = match moves.path {
        Path::Sent | Path::Mapped => SEGMENT,
        Path::Window | Path::Trusted => SEGMENT_PART,
    };
    let remote = peer.segment(name).await?;
    let len = moves.requests * moves.bytes;
    // What is no whole mapping is not lent as one.
    let skipped = if moves.path == Path::Trusted { 4096 } else { 0 };
    let whole = Exposed::map(skipped + len, HugePages::Transparent, &mut Vec::new())?;
    let memory = whole.slice(skipped, len);
    memory.copy_in(0, &vec![3; len]);
    let batch = prepare(&memory, &remote, moves)?;
    if matches!(moves.path, Path::Mapped | Path::Trusted) {
        let unnamed = RegisterOptions {
            access: Access::Read,
            ..RegisterOptions::named("source")
        };
        let registered = engine.register(memory.clone(), &unnamed);
        registered.map_err(|error| error.refusal)?;
    }
    meet(&engine, &peer, &batch, moves.path).await?;
    let mut calls = Calls::new(pace);
    while calls.go_on() {
        if pace == Pace::Paced {
            time::sleep(PACED_PAUSE).await;
        }
        calls.begin();
        post_once(&peer, &batch).await?;
        calls.end();
    }
    Ok(calls)
}

/// Posts until bytes go the way that is measured: the two sides offer each other memory first.
async fn meet(engine: &Engine, peer: &Peer, batch: &Batch, path: Path) -> Result<(), Failure> {
    for _ in 0..100 {
        let before = engine.statistics();
        post_once(peer, batch).await?;
        let after = engine.statistics();
        let copied = after.same_host_bytes - before.same_host_bytes;
        let by_window = after.window_bytes - before.window_bytes;
        let found = match (copied, by_window) {
            (0, _) => Path::Sent,
            (_, 0) if path == Path::Trusted => Path::Trusted,
            (_, 0) => Path::Mapped,
            (_, _) => Path::Window,
        };
        if found == path {
            return Ok(());
        }
        time::sleep(Duration::from_millis(1)).await;
    }
    Err(format!("bytes do not go this way: {path:?}").into())
}

fn prepare(memory: &Exposed, remote: &RemoteSegment, moves: Moves) -> Result<Batch, Failure> {
    let mut batch = Batch::new();
    for request in 0..moves.requests {
        let start = request * moves.bytes;
        let local = memory.slice(start, moves.bytes);
        if moves.writes {
            batch.write(local, remote, start as u64)?;
        } else {
            batch.read(local, remote, start as u64)?;
        }
    }
    Ok(batch)
}

async fn post_once(peer: &Peer, batch: &Batch) -> Result<(), Failure> {
    let done = peer.post(batch, PostOptions::default())?.await?;
    if done.resent > 0 {
        return Err(format!("a quiet connection lost slices: {done:?}").into());
    }
    Ok(())
}
