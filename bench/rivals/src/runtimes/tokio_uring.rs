//! tokio-uring.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use lunette_bench::harness::{Failure, Sample};
use tokio_uring::buf::BoundedBuf;
use tokio_uring::fs::File;
use tokio_uring::net::{TcpListener, TcpStream};

use super::program::{Program, measured};
use super::reads::{self, READ_BYTES, Reads};
use crate::role::{Work, announce};

pub(super) struct TokioUring;

impl Program for TokioUring {
    fn block_on<F>(_cpu: usize, future: F) -> Result<F::Output, Failure>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        Ok(tokio_uring::start(future))
    }

    fn tasks(work: Work, cpu: usize) -> Result<Sample, Failure> {
        Self::block_on(cpu, async move {
            let empty = || tokio_uring::spawn(async {});
            Ok(tokio_uring::spawn(measured(work, empty)).await?)
        })?
    }

    fn spawn<F>(future: F) -> impl Future<Output = ()> + 'static
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let handle = tokio_uring::spawn(future);
        async move { handle.await.expect("no panic") }
    }

    fn echo(cpu: usize, message_bytes: usize) -> Result<(), Failure> {
        Self::block_on(cpu, async move {
            let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
            announce(listener.local_addr()?)?;
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                drop(tokio_uring::spawn(answer(stream, message_bytes)));
            }
        })?
    }
}

async fn answer(stream: TcpStream, message_bytes: usize) {
    let mut buffer = vec![0; message_bytes];
    loop {
        let mut got = 0;
        while got < message_bytes {
            let (received, slice) = stream.read(buffer.slice(got..)).await;
            let Ok(count @ 1..) = received else { return };
            got += count;
            buffer = slice.into_inner();
        }
        let (sent, back) = stream.write_all(buffer).await;
        if sent.is_err() {
            return;
        }
        buffer = back;
    }
}

/// Random direct reads, `depth` of them under way.
pub(super) fn reads(cpu: usize, depth: usize) -> Result<Sample, Failure> {
    TokioUring::block_on(cpu, async move {
        let (reads, file) = (Reads::new()?, Rc::new(File::from_std(reads::open()?)));
        let readers: Vec<_> = (0..depth)
            .map(|_| tokio_uring::spawn(read(Rc::clone(&reads), Rc::clone(&file))))
            .collect();
        for reader in readers {
            reader.await??;
        }
        reads.sample()
    })?
}

async fn read(reads: Rc<Reads>, file: Rc<File>) -> io::Result<()> {
    let (mut buffer, start) = reads::aligned();
    while let Some((offset, begun)) = reads.next() {
        let slice = buffer.slice(start..start + READ_BYTES);
        let (count, slice) = file.read_at(slice, offset).await;
        reads.end(begun, count?);
        buffer = slice.into_inner();
    }
    Ok(())
}
