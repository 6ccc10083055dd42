//! How soon an engine is opened, beside itself with clients in front that say nothing; and the rows of that, and of
//! an engine that nobody asks.

use std::io;
use std::net::{SocketAddr, TcpStream};

use lunette_bench::calls::{Calls, PACED_PAUSE, Pace};
use lunette_bench::harness::{Failure, Goal};
use lunette_runtime::{CoreOptions, block_on, time};
use lunette_transfer::engine::{Engine, EngineOptions};

use super::starting::{Fact, Idler};
use super::store_rows::bound;
use super::{Asking, ENGINE_READ_4K, Rival, Row};

/// Clients that connect and say nothing. An engine sends them away after a while, which is longer than a run.
const SILENT: usize = 3;

pub(super) const ROWS: [Row; 4] = [
    // Its core's, and the control thread.
    Row {
        asking: Asking::Starting(Fact::Threads(Idler::Engine)),
        ..bound("engine_idle_threads", "threads", Goal::AtMost(1.0), 2.0)
    },
    Row {
        asking: Asking::Starting(Fact::Memory(Idler::Engine)),
        ..bound("engine_idle_memory", "MB", Goal::AtMost(1.0), 30.0)
    },
    Row {
        asking: Asking::Starting(Fact::Cpu(Idler::Engine)),
        ..bound("engine_idle_cpu", "% of a core", Goal::AtMost(1.0), 1.0)
    },
    // Paced, since each opening leaves the system a port that it does not use again for a minute.
    Row {
        name: "engine_open_behind_silent",
        rival_name: "nobody in front",
        goal: Goal::AtMost(1.10),
        asking: Asking::Opening { silent: SILENT },
        rival: Rival::NobodyInFront,
        pace: Pace::Paced,
        ..ENGINE_READ_4K
    },
];

/// Opens an engine again and again, behind so many clients that say nothing.
pub(super) fn measure(
    server: SocketAddr,
    cpu: usize,
    pace: Pace,
    silent: usize,
) -> Result<Calls, Failure> {
    let silent = (0..silent).map(|_| TcpStream::connect(server));
    let silent: Vec<TcpStream> = silent.collect::<io::Result<_>>()?;
    let calls = block_on(Some(cpu), CoreOptions::default(), move || {
        open(server, pace)
    })?;
    drop(silent);
    calls
}

async fn open(server: SocketAddr, pace: Pace) -> Result<Calls, Failure> {
    let engine = Engine::start(EngineOptions {
        same_host: false,
        ..EngineOptions::default()
    })?;
    let mut calls = Calls::new(pace);
    while calls.go_on() {
        if pace == Pace::Paced {
            time::sleep(PACED_PAUSE).await;
        }
        calls.begin();
        let peer = engine.open(&[server]).await?;
        calls.end();
        drop(peer);
    }
    Ok(calls)
}
