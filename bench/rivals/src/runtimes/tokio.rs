//! tokio, on one thread.

use std::future::Future;

use lunette_bench::harness::{Failure, Sample};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::mpsc;

use super::program::{Program, exchanges, measured, on_two_cores};
use crate::role::{Work, announce};

pub(super) struct Tokio;

impl Program for Tokio {
    fn block_on<F>(_cpu: usize, future: F) -> Result<F::Output, Failure>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let runtime = Builder::new_current_thread().enable_io().build()?;
        Ok(runtime.block_on(future))
    }

    fn tasks(work: Work, cpu: usize) -> Result<Sample, Failure> {
        Self::block_on(cpu, async move {
            let empty = || tokio::spawn(async {});
            Ok(tokio::spawn(measured(work, empty)).await?)
        })?
    }

    fn spawn<F>(future: F) -> impl Future<Output = ()> + 'static
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let handle = tokio::spawn(future);
        async move { handle.await.expect("no panic") }
    }

    fn echo(cpu: usize, message_bytes: usize) -> Result<(), Failure> {
        Self::block_on(cpu, async move {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            announce(listener.local_addr()?)?;
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                drop(tokio::spawn(answer(stream, message_bytes)));
            }
        })?
    }
}

async fn answer(mut stream: TcpStream, message_bytes: usize) {
    let mut buffer = vec![0; message_bytes];
    while stream.read_exact(&mut buffer).await.is_ok() {
        if stream.write_all(&buffer).await.is_err() {
            return;
        }
    }
}

/// Messages through tokio's channels, which tokio-uring's users take too.
pub(super) fn messages<P: Program>(work: Work, cpus: [usize; 2]) -> Result<Sample, Failure> {
    let (questions, mut asked) = mpsc::channel::<u64>(1);
    let (answers, mut answered) = mpsc::channel::<u64>(1);
    let ask = async move {
        exchanges(async || {
            questions.send(1).await.expect("it is received");
            answered.recv().await.expect("it is answered");
        })
        .await
    };
    on_two_cores::<P, _, _, _>(work, cpus, ask, move || async move {
        while let Some(question) = asked.recv().await {
            if answers.send(question).await.is_err() {
                return;
            }
        }
    })
}
