//! The asking side of a ping-pong on the product's runtime.

use std::net::SocketAddr;
use std::time::Duration;

use lunette_runtime::net::TcpStream;
use lunette_runtime::{CoreOptions, OpError, block_on, time};

use crate::peer::{PING_BYTES, idle};
use lunette_bench::calls::{Calls, PACED_PAUSE, Pace};
use lunette_bench::harness::Failure;

pub(super) fn measure(
    server: SocketAddr,
    cpu: usize,
    pace: Pace,
    spin: Duration,
) -> Result<Calls, Failure> {
    let options = CoreOptions {
        idle: idle(spin),
        ..CoreOptions::default()
    };
    Ok(block_on(Some(cpu), options, move || ping(server, pace))??)
}

async fn ping(server: SocketAddr, pace: Pace) -> Result<Calls, OpError> {
    let stream = TcpStream::connect(server).await?;
    let mut calls = Calls::new(pace);
    let (mut out, mut back) = (vec![1; PING_BYTES], vec![0; PING_BYTES]);
    while calls.go_on() {
        if pace == Pace::Paced {
            time::sleep(PACED_PAUSE).await;
        }
        calls.begin();
        let sent;
        (sent, out) = stream.send_all(out, 0, PING_BYTES).await;
        sent?;
        let mut got = 0;
        while got < PING_BYTES {
            let received;
            (received, back) = stream.recv(back, got, PING_BYTES - got).await;
            got += received?;
        }
        calls.end();
    }
    Ok(calls)
}
