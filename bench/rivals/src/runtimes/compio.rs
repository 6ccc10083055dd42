//! compio, with deferred task running: its better setting.

use std::future::Future;
use std::io;
use std::rc::Rc;

use compio::BufResult;
use compio::buf::{IntoInner, IoBuf};
use compio::fs::{File, OpenOptions};
use compio::io::{AsyncReadAt, AsyncReadExt, AsyncWriteExt};
use compio::net::{TcpListener, TcpStream};
use compio::runtime::RuntimeBuilder;
use compio_driver::ProactorBuilder;
use lunette_bench::harness::{Failure, Sample};

use super::program::{Program, measured};
use super::reads::{self, READ_BYTES, Reads};
use crate::role::{Work, announce};

pub(super) struct Compio;

impl Program for Compio {
    fn block_on<F>(_cpu: usize, future: F) -> Result<F::Output, Failure>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let mut proactor = ProactorBuilder::new();
        proactor
            .single_issuer(true)
            .defer_taskrun(true)
            .taskrun_flag(true);
        let runtime = RuntimeBuilder::new().with_proactor(proactor).build()?;
        Ok(runtime.block_on(future))
    }

    fn tasks(work: Work, cpu: usize) -> Result<Sample, Failure> {
        // Not in a task, which is better for it: there a join takes 16 us.
        Self::block_on(cpu, async move {
            let empty = || compio::runtime::spawn(async {});
            measured(work, empty).await
        })
    }

    fn spawn<F>(future: F) -> impl Future<Output = ()> + 'static
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let handle = compio::runtime::spawn(future);
        async move {
            assert!(handle.await.is_ok(), "no panic");
        }
    }

    fn echo(cpu: usize, message_bytes: usize) -> Result<(), Failure> {
        Self::block_on(cpu, async move {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            announce(listener.local_addr()?)?;
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                compio::runtime::spawn(answer(stream, message_bytes)).detach();
            }
        })?
    }
}

async fn answer(mut stream: TcpStream, message_bytes: usize) {
    let mut buffer = Vec::with_capacity(message_bytes);
    loop {
        let BufResult(received, full) = stream.read_exact(buffer).await;
        if received.is_err() {
            return;
        }
        let BufResult(sent, back) = stream.write_all(full).await;
        if sent.is_err() {
            return;
        }
        buffer = back;
    }
}

/// Random direct reads, `depth` of them under way.
pub(super) fn reads(cpu: usize, depth: usize) -> Result<Sample, Failure> {
    Compio::block_on(cpu, async move {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(reads::direct()?);
        let (reads, file) = (Reads::new()?, Rc::new(options.open(reads::path()?).await?));
        let readers: Vec<_> = (0..depth)
            .map(|_| compio::runtime::spawn(read(Rc::clone(&reads), Rc::clone(&file))))
            .collect();
        for reader in readers {
            reader.await.map_err(|_| "a reader panicked")??;
        }
        reads.sample()
    })?
}

async fn read(reads: Rc<Reads>, file: Rc<File>) -> io::Result<()> {
    let (mut buffer, start) = reads::aligned();
    while let Some((offset, begun)) = reads.next() {
        let slice = buffer.slice(start..start + READ_BYTES);
        let BufResult(count, slice) = file.read_at(slice, offset).await;
        reads.end(begun, count?);
        buffer = slice.into_inner();
    }
    Ok(())
}
