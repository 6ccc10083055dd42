//! monoio, with cooperative task running: its better setting.

use std::future::Future;
use std::io;
use std::rc::Rc;

use lunette_bench::harness::{Failure, Sample};
use monoio::buf::IoBufMut;
use monoio::fs::File;
use monoio::io::{AsyncReadRentExt, AsyncWriteRentExt};
use monoio::net::{TcpListener, TcpStream};
use monoio::{IoUringDriver, RuntimeBuilder};

use super::program::{Program, measured};
use super::reads::{self, READ_BYTES, Reads};
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

/// Random direct reads, `depth` of them under way.
pub(super) fn reads(cpu: usize, depth: usize) -> Result<Sample, Failure> {
    Monoio::block_on(cpu, async move {
        let (reads, file) = (Reads::new()?, Rc::new(File::from_std(reads::open()?)?));
        let readers: Vec<_> = (0..depth)
            .map(|_| monoio::spawn(read(Rc::clone(&reads), Rc::clone(&file))))
            .collect();
        for reader in readers {
            reader.await?;
        }
        reads.sample()
    })?
}

async fn read(reads: Rc<Reads>, file: Rc<File>) -> io::Result<()> {
    let (mut buffer, start) = reads::aligned();
    while let Some((offset, begun)) = reads.next() {
        let slice = buffer.slice_mut(start..start + READ_BYTES);
        let (count, slice) = file.read_at(slice, offset).await;
        reads.end(begun, count?);
        buffer = slice.into_inner();
    }
    Ok(())
}
