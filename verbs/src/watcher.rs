//! Wakes sleeping cores when a completion channel has an event.
//!
//! A core that sleeps waits in its driver for what the driver knows. Channels are made known to a
//! thread of their own, which does nothing but wait for them and wake their core; while a core is
//! awake it polls its queues and neither side makes a system call.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use lunette_runtime::CoreWaker;
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;

/// Events of one wait.
const EVENTS_MAX: usize = 64;

/// The thread's state.
#[derive(Debug)]
pub(crate) struct Watcher {
    epoll: OwnedFd,
    cores: Mutex<BTreeMap<RawFd, CoreWaker>>,
}

impl Watcher {
    /// The watcher of this process, started when it is first needed.
    pub(crate) fn get() -> Result<&'static Self, Errno> {
        static WATCHER: OnceLock<Result<Watcher, Errno>> = OnceLock::new();
        let watcher = WATCHER.get_or_init(|| {
            Ok(Self {
                epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
                cores: Mutex::default(),
            })
        });
        static THREAD: OnceLock<bool> = OnceLock::new();
        let watcher = watcher.as_ref().map_err(|errno| *errno)?;
        let builder = || thread::Builder::new().name("lunette-verbs".into());
        let runs = THREAD.get_or_init(|| builder().spawn(|| watcher.run()).is_ok());
        if *runs {
            Ok(watcher)
        } else {
            Err(Errno::AGAIN)
        }
    }

    /// Makes a channel known; nothing is watched yet.
    pub(crate) fn add(&self, fd: RawFd, waker: CoreWaker) -> Result<(), Errno> {
        self.lock().insert(fd, waker);
        epoll::add(
            &self.epoll,
            borrowed(&fd),
            data(fd),
            epoll::EventFlags::ONESHOT,
        )
    }

    /// Wakes the channel's core at its next event, or at once if there is one.
    pub(crate) fn watch(&self, fd: RawFd) -> Result<(), Errno> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        epoll::modify(&self.epoll, borrowed(&fd), data(fd), flags)
    }

    /// Forgets a channel, before it is closed.
    pub(crate) fn remove(&self, fd: RawFd) {
        self.lock().remove(&fd);
        if let Err(errno) = epoll::delete(&self.epoll, borrowed(&fd)) {
            tracing::debug!(%errno, "a channel was not watched");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<RawFd, CoreWaker>> {
        self.cores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS_MAX);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    tracing::error!(%errno, "completion channels are watched no more");
                    return;
                }
            }
            let cores = self.lock();
            for event in &events {
                let fd = RawFd::try_from(event.data.u64()).unwrap_or(-1);
                if let Some(waker) = cores.get(&fd) {
                    waker.wake();
                }
            }
        }
    }
}

const fn borrowed(fd: &RawFd) -> BorrowedFd<'_> {
    // SAFETY: a channel is removed before it is closed, so its descriptor is open here. Ends with
    // the borrow.
    unsafe { BorrowedFd::borrow_raw(*fd) }
}

fn data(fd: RawFd) -> epoll::EventData {
    epoll::EventData::new_u64(u64::try_from(fd).expect("an open descriptor"))
}
