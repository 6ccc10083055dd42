//! monoio, with cooperative task running: its better setting.

use std::future::Future;

use lunette_bench::harness::{Failure, Sample};
use monoio::io::{AsyncReadRentExt, AsyncWriteRentExt};
use monoio::net::{TcpListener, TcpStream};
use monoio::{IoUringDriver, RuntimeBuilder};

use super::program::{Program, measured};
use crate::role::{Work, announce};

pub(super) struct Monoio;

impl Program for Monoio {
    fn block_on<F>(_cpu: usize, future: F) -> Result<F::Output, Failure>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let mut ring = io_uring::IoUring::builder();
        ring.setup_coop_taskrun();
        let builder = RuntimeBuilder::<IoUringDriver>::new().uring_builder(ring);
        Ok(builder.build()?.block_on(future))
    }

    fn tasks(work: Work, cpu: usize) -> Result<Sample, Failure> {
        Self::block_on(cpu, async move {
            let empty = || monoio::spawn(async {});
            monoio::spawn(measured(work, empty)).await
        })
    }

    fn spawn<F>(future: F) -> impl Future<Output = ()> + 'static
    where
        F: Future<Output = ()> + Send + 'static,
    {
        monoio::spawn(future)
    }

    fn echo(cpu: usize, message_bytes: usize) -> Result<(), Failure> {
        Self::block_on(cpu, async move {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            announce(listener.local_addr()?)?;
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                drop(monoio::spawn(answer(stream, message_bytes)));
            }
        })?
    }
}

async fn answer(mut stream: TcpStream, message_bytes: usize) {
    let mut buffer = Vec::with_capacity(message_bytes);
    loop {
        let (received, full) = stream.read_exact(buffer).await;
        if received.is_err() {
            return;
        }
        let (sent, back) = stream.write_all(full).await;
        if sent.is_err() {
            return;
        }
        buffer = back;
    }
}
