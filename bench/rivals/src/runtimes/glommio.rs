//! glommio.

use std::future::Future;
use std::rc::Rc;

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::channels::shared_channel;
use glommio::io::DmaFile;
use glommio::net::{TcpListener, TcpStream};
use glommio::{LocalExecutorBuilder, Placement};
use lunette_bench::harness::{Failure, Sample};

use super::program::{Program, exchanges, measured, on_two_cores};
use super::reads::{self, READ_BYTES, Reads};
use crate::role::{Work, announce};

pub(super) struct Glommio;

impl Program for Glommio {
    fn block_on<F>(cpu: usize, future: F) -> Result<F::Output, Failure>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let builder = LocalExecutorBuilder::new(Placement::Fixed(cpu));
        let executor = builder.make().map_err(|error| error.to_string())?;
        Ok(executor.run(future))
    }

    fn tasks(work: Work, cpu: usize) -> Result<Sample, Failure> {
        Self::block_on(cpu, async move {
            let empty = || glommio::spawn_local(async {});
            glommio::spawn_local(measured(work, empty)).await
        })
    }

    fn spawn<F>(future: F) -> impl Future<Output = ()> + 'static
    where
        F: Future<Output = ()> + Send + 'static,
    {
        glommio::spawn_local(future)
    }

    fn echo(cpu: usize, message_bytes: usize) -> Result<(), Failure> {
        Self::block_on(cpu, async move {
            let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
            announce(listener.local_addr().map_err(|error| error.to_string())?)?;
            loop {
                let stream = listener.accept().await;
                let stream = stream.map_err(|error| error.to_string())?;
                stream
                    .set_nodelay(true)
                    .map_err(|error| error.to_string())?;
                glommio::spawn_local(answer(stream, message_bytes)).detach();
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

/// Messages through its own channels between executors.
pub(super) fn messages(work: Work, cpus: [usize; 2]) -> Result<Sample, Failure> {
    let (questions, asked) = shared_channel::new_bounded::<u64>(1);
    let (answers, answered) = shared_channel::new_bounded::<u64>(1);
    let ask = async move {
        let (questions, answered) = (questions.connect().await, answered.connect().await);
        exchanges(async || {
            let sent = questions.send(1).await;
            assert!(sent.is_ok(), "it is received");
            answered.recv().await.expect("it is answered");
        })
        .await
    };
    on_two_cores::<Glommio, _, _, _>(work, cpus, ask, move || async move {
        let (asked, answers) = (asked.connect().await, answers.connect().await);
        while let Some(question) = asked.recv().await {
            if answers.send(question).await.is_err() {
                return;
            }
        }
    })
}

/// Random direct reads, `depth` of them under way.
pub(super) fn reads(cpu: usize, depth: usize) -> Result<Sample, Failure> {
    Glommio::block_on(cpu, async move {
        let file = DmaFile::open(reads::path()?).await;
        let file = Rc::new(file.map_err(|error| error.to_string())?);
        let reads = Reads::new()?;
        let readers: Vec<_> = (0..depth)
            .map(|_| glommio::spawn_local(read(Rc::clone(&reads), Rc::clone(&file))))
            .collect();
        for reader in readers {
            reader.await?;
        }
        let sample = reads.sample();
        file.close_rc().await.map_err(|error| error.to_string())?;
        sample
    })?
}

async fn read(reads: Rc<Reads>, file: Rc<DmaFile>) -> Result<(), String> {
    while let Some((offset, begun)) = reads.next() {
        let result = file.read_at_aligned(offset, READ_BYTES).await;
        reads.end(begun, result.map_err(|error| error.to_string())?.len());
    }
    Ok(())
}
