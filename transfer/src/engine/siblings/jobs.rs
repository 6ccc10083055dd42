//! What the cores of an engine are asked to do, by threads and by each other.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use futures_channel::oneshot;
use lunette_runtime::{Port, Receiver, SendError, Sender, can_spawn, channel, spawn_local};
use slab::Slab;

use super::super::devices::LentDevices;
use super::super::peer::Peer;
use super::super::{Engine, Inner};
use super::Siblings;

/// Questions that wait for one core.
pub(in crate::engine) const JOBS_MAX: usize = 4096;

/// A question.
pub(in crate::engine) type Job = Box<dyn FnOnce(&Rc<Hosted>) + Send>;

/// Where a core is asked.
#[derive(Debug)]
pub(in crate::engine) struct JobSender(Sender<Job>);

impl JobSender {
    /// Whether nobody is there any more.
    pub(super) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// What is there on a core to answer.
#[derive(Debug)]
pub(in crate::engine) struct Hosted {
    pub(in crate::engine) inner: Rc<Inner>,
    /// What handles have opened.
    pub(in crate::engine) peers: RefCell<Slab<Peer>>,
    /// Devices whose memory handles have registered.
    pub(in crate::engine) devices: LentDevices,
}

impl Hosted {
    pub(super) fn new(engine: &Engine) -> Rc<Self> {
        Rc::new(Self {
            inner: Rc::clone(&engine.inner),
            peers: RefCell::default(),
            devices: LentDevices::default(),
        })
    }
}

pub(in crate::engine) fn job_channel() -> (JobSender, Port<Job>) {
    let (sender, port) = channel(JOBS_MAX);
    (JobSender(sender), port)
}

pub(in crate::engine) async fn take_jobs(hosted: Rc<Hosted>, mut jobs: Receiver<Job>) {
    while let Some(job) = jobs.recv().await {
        job(&hosted);
    }
}

/// Why a question was not put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum NotAsked {
    /// Too many others wait.
    Busy,
    /// Nobody is there.
    Gone,
}

/// Why a question has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum NotAnswered {
    /// The core has ended.
    Ended,
    /// It takes no more tasks.
    Full,
}

/// Answers in a task of its own; with what `full` says where the core takes no more.
pub(in crate::engine) fn answer_in_task<T, F>(
    sender: oneshot::Sender<T>,
    full: impl FnOnce() -> T,
    answer: impl FnOnce(oneshot::Sender<T>) -> F,
) where
    F: Future<Output = ()> + 'static,
{
    if can_spawn() {
        drop(spawn_local(answer(sender)));
    } else {
        tracing::warn!("the core takes no more tasks");
        // Nobody waits any more: then nobody is told.
        drop(sender.send(full()));
    }
}

impl Siblings {
    /// Puts a question to the first of `cores` that takes it, and says which it was.
    pub(in crate::engine) fn ask_any(
        &self,
        cores: impl IntoIterator<Item = usize>,
        mut job: Job,
    ) -> Result<usize, NotAsked> {
        let mut refused = NotAsked::Gone;
        for core in cores {
            let Some(jobs) = &self.members[core].jobs else {
                continue;
            };
            match jobs.0.try_send(job) {
                Ok(()) => return Ok(core),
                Err(SendError::Full(back)) => (refused, job) = (NotAsked::Busy, back),
                Err(SendError::Closed(back)) => job = back,
            }
        }
        Err(refused)
    }

    /// Puts a question to a core, and waits for room. What is asked answers by `answer`, now or later;
    /// `None` once the core has ended without one.
    pub(in crate::engine) async fn ask<T: Send + 'static>(
        &self,
        core: usize,
        question: impl FnOnce(&Rc<Hosted>, oneshot::Sender<T>) + Send + 'static,
    ) -> Asked<T> {
        let (sender, receiver) = oneshot::channel();
        let job: Job = Box::new(move |hosted| question(hosted, sender));
        let jobs = self.members[core].jobs.as_ref();
        let jobs = jobs.expect("who has siblings is asked by them");
        match jobs.0.send(job).await {
            Ok(()) => Asked(Some(receiver)),
            Err(_) => Asked(None),
        }
    }

    /// Puts a question to each core that has not ended, and waits for the answers.
    pub(in crate::engine) async fn ask_each<T, Q, F>(
        &self,
        question: impl Fn(usize) -> Q,
    ) -> Vec<Result<T, NotAnswered>>
    where
        T: Send + 'static,
        Q: FnOnce(Rc<Hosted>) -> F + Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let mut asked = Vec::with_capacity(self.members.len());
        for core in 0..self.members.len() {
            let question = question(core);
            let put = move |hosted: &Rc<Hosted>, sender: oneshot::Sender<_>| {
                let hosted = Rc::clone(hosted);
                answer_in_task(
                    sender,
                    || Err(NotAnswered::Full),
                    // Nobody waits any more: then nobody is told.
                    |sender| async move { drop(sender.send(Ok(question(hosted).await))) },
                );
            };
            asked.push(self.ask(core, put).await);
        }
        let mut answers = Vec::with_capacity(asked.len());
        for asked in asked {
            let answer = asked.answer().await;
            answers.push(answer.unwrap_or(Err(NotAnswered::Ended)));
        }
        answers
    }

    /// Has the siblings of a core end a connection of a session, if it is one of theirs; returns when nothing
    /// of it lands any more.
    pub(in crate::engine) async fn fence_elsewhere(&self, core: usize, epoch: u64, number: u64) {
        let others = self.members.iter().enumerate();
        let others = others.filter(|(other, member)| *other != core && member.has_started());
        let mut asked = Vec::new();
        for (other, member) in others {
            let fence = move |hosted: &Rc<Hosted>, sender| {
                hosted.inner.rdma.acceptor().fence(epoch, number);
                let sessions = hosted.inner.sessions.borrow();
                sessions.fence_for(epoch, number, sender);
            };
            asked.push((member, self.ask(other, fence).await));
        }
        for (member, asked) in asked {
            if asked.answer().await.is_none() {
                member.ended.raised().await;
            }
        }
    }
}

/// An answer of another core on its way.
#[derive(Debug)]
pub(in crate::engine) struct Asked<T>(Option<oneshot::Receiver<T>>);

impl<T> Asked<T> {
    /// The answer; `None` if the core has ended, or is about to, and gave none.
    pub(in crate::engine) async fn answer(self) -> Option<T> {
        self.0?.await.ok()
    }
}

/// Counts bytes as posted to a core until it is dropped.
#[derive(Debug)]
pub(in crate::engine) struct Load {
    siblings: Arc<Siblings>,
    core: usize,
    bytes: u64,
}

impl Load {
    pub(in crate::engine) fn new(siblings: &Arc<Siblings>, core: usize, bytes: u64) -> Self {
        let load = &siblings.members[core].load_bytes;
        load.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
        Self {
            siblings: Arc::clone(siblings),
            core,
            bytes,
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let load = &self.siblings.members[self.core].load_bytes;
        load.fetch_sub(self.bytes, std::sync::atomic::Ordering::Relaxed);
    }
}
