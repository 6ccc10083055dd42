//! The embedded coordinator behind a listener.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use lunette_cluster_proto::coordination::{Answer, Ask, CoordinationFault, Revision, WatchFrom};
use lunette_cluster_proto::coordinator::{Coordinator, WatchId};
use lunette_cluster_proto::gateway::{self, Asked};
use lunette_cluster_proto::http::{self, RequestReader};
use lunette_runtime::net::{TcpListener, TcpStream};
use lunette_runtime::{Scope, Signal, time};
use thiserror::Error;

use crate::link::{Link, LinkFault, Security};
use crate::snapshots::{SnapshotError, Snapshots};

/// Most connections at a time; further ones are closed at once.
pub const CONNECTIONS_MAX: usize = 2048;
/// How long a new connection may take for its first request.
const FIRST_REQUEST_MAX: Duration = Duration::from_secs(5);
/// How long a connection may say nothing after that before it is closed.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// How long a peer may answer nothing on the level of TCP.
const UNANSWERED_MAX: Duration = Duration::from_secs(10);
/// Pause after the system refused a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Why the embedded coordinator did not start.
#[derive(Debug, Error)]
#[error("the coordinator's file: {0}")]
pub struct OpenError(#[from] SnapshotError);

impl OpenError {
    /// Whether the file is damaged. Else its drive failed, and starting again may help.
    #[must_use]
    pub const fn is_corruption(&self) -> bool {
        self.0.is_corruption()
    }
}

/// The embedded coordinator, of one core.
pub struct Hosted {
    coordinator: RefCell<Coordinator>,
    /// Where it keeps what it acknowledges; nowhere if `None`.
    snapshots: RefCell<Option<Snapshots>>,
    /// Raised when they are given back.
    returned: Signal,
    is_kept: bool,
    /// Up to which write everything is kept.
    kept_writes: Cell<u64>,
    /// Nothing can be kept any more, so nothing is acknowledged.
    has_failed: Cell<bool>,
    /// Raised when something is to be kept.
    dirty: Signal,
    /// Raised when a lease was granted.
    leased: Signal,
    waiting: RefCell<Vec<Rc<Signal>>>,
    watches: RefCell<BTreeMap<WatchId, Rc<Signal>>>,
}

impl std::fmt::Debug for Hosted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Hosted(revision {})",
            self.coordinator.borrow().revision().0
        )
    }
}

impl Hosted {
    /// A coordinator that forgets everything when it ends: for trials, and for worlds.
    #[must_use]
    pub fn in_memory() -> Rc<Self> {
        Self::new(None, Coordinator::default())
    }

    /// A coordinator that goes on from what `path` holds, and keeps there what it acknowledges.
    ///
    /// # Errors
    /// [`OpenError`]: the file cannot be read, or is damaged. Starting anew would take epochs back,
    /// so that is for a person to decide, by removing the file.
    pub async fn open(path: &Path) -> Result<Rc<Self>, OpenError> {
        let (snapshots, coordinator) = Snapshots::open(path, time::now()).await?;
        Ok(Self::new(Some(snapshots), coordinator))
    }

    fn new(snapshots: Option<Snapshots>, coordinator: Coordinator) -> Rc<Self> {
        Rc::new(Self {
            is_kept: snapshots.is_some(),
            snapshots: RefCell::new(snapshots),
            returned: Signal::default(),
            coordinator: RefCell::new(coordinator),
            kept_writes: Cell::new(0),
            has_failed: Cell::new(false),
            dirty: Signal::default(),
            leased: Signal::default(),
            waiting: RefCell::default(),
            watches: RefCell::default(),
        })
    }

    /// Forgets changes up to the newest one, so that watches that are behind have to begin anew.
    pub fn compact(&self) {
        let mut coordinator = self.coordinator.borrow_mut();
        let revision = coordinator.revision();
        coordinator.compact(revision);
        drop(coordinator);
        self.tell();
    }

    async fn ask(&self, ask: &Ask) -> Result<Answer, CoordinationFault> {
        let answer = self.coordinator.borrow_mut().handle(time::now(), ask);
        if matches!(ask, Ask::Grant { .. }) {
            self.leased.raise();
        }
        // Also what is only read must not be told before it is kept.
        self.settle().await?;
        answer
    }

    /// Waits until everything that was done is kept, and tells the watches.
    async fn settle(&self) -> Result<(), CoordinationFault> {
        let writes = self.coordinator.borrow().writes();
        if self.is_kept {
            while self.kept_writes.get() < writes && !self.has_failed.get() {
                let signal = Rc::new(Signal::default());
                self.waiting.borrow_mut().push(Rc::clone(&signal));
                self.dirty.raise();
                signal.raised().await;
            }
        }
        if self.has_failed.get() {
            let message = "what was done cannot be kept".to_owned();
            return Err(CoordinationFault::Unavailable { message });
        }
        self.tell();
        Ok(())
    }

    fn tell(&self) {
        let marked = self.coordinator.borrow().marked_watches();
        let watches = self.watches.borrow();
        for signal in marked.iter().filter_map(|id| watches.get(id)) {
            signal.raise();
        }
    }

    /// Whether there is nothing that is not kept yet.
    fn is_settled(&self) -> bool {
        !self.is_kept || self.kept_writes.get() >= self.coordinator.borrow().writes()
    }

    /// Keeps what is to be kept, everything of one moment at once, until that fails.
    async fn keep(&self) {
        if !self.is_kept {
            return;
        }
        let snapshots = loop {
            match self.snapshots.take() {
                Some(snapshots) => break snapshots,
                // Who served before has been told to end, and may not have done so yet.
                None => self.returned.raised().await,
            }
        };
        let mut lent = Lent {
            hosted: self,
            snapshots: Some(snapshots),
        };
        let snapshots = lent.snapshots.as_mut().expect("it was just put there");
        loop {
            self.dirty.raised().await;
            let (writes, snapshot) = {
                let coordinator = self.coordinator.borrow();
                (coordinator.writes(), coordinator.snapshot())
            };
            if let Err(error) = snapshots.write(&snapshot).await {
                tracing::error!(%error, "the coordinator answers nothing any more");
                self.has_failed.set(true);
            } else {
                self.kept_writes.set(writes);
            }
            for signal in self.waiting.take() {
                signal.raise();
            }
            if self.has_failed.get() {
                return;
            }
        }
    }

    /// Ends leases when they are due.
    async fn expire(&self) {
        loop {
            let next = self.coordinator.borrow().poll_timeout();
            match next {
                None => self.leased.raised().await,
                Some(due) => {
                    let wait = due.since(time::now());
                    let granted = time::timeout(wait, self.leased.raised()).await;
                    if granted.is_ok() {
                        continue;
                    }
                }
            }
            self.coordinator.borrow_mut().on_timeout(time::now());
            if self.settle().await.is_err() {
                return;
            }
        }
    }
}

/// The snapshots, given back when who keeps them ends: someone else may serve then.
struct Lent<'a> {
    hosted: &'a Hosted,
    snapshots: Option<Snapshots>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.hosted.snapshots.replace(self.snapshots.take());
        self.hosted.returned.raise();
    }
}

/// Serves connections to `listener` until `stop` ends; then each is closed. One at a time for each
/// coordinator.
pub async fn serve(
    listener: TcpListener,
    hosted: Rc<Hosted>,
    security: Option<Security>,
    stop: impl Future<Output = ()>,
) {
    let tasks = Scope::new();
    for task in 0..2 {
        let hosted = Rc::clone(&hosted);
        let spawned = tasks.spawn(async move {
            if task == 0 {
                hosted.keep().await;
            } else {
                hosted.expire().await;
            }
        });
        spawned.expect("a core has room for two tasks when it starts");
    }
    let connections = Scope::new();
    let mut stop = pin!(stop);
    loop {
        let accepted = {
            let mut accept = pin!(listener.accept());
            poll_fn(|cx| {
                if stop.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                accept.as_mut().poll(cx).map(Some)
            })
            .await
        };
        match accepted {
            None => return,
            Some(Err(error)) => {
                tracing::warn!(%error, "accept");
                time::sleep(ACCEPT_PAUSE).await;
            }
            Some(Ok(stream)) if connections.len() >= CONNECTIONS_MAX => drop(stream),
            Some(Ok(stream)) => {
                let (hosted, security) = (Rc::clone(&hosted), security.clone());
                let spawned = connections.spawn(async move {
                    let ended = serve_connection(stream, &hosted, security.as_ref()).await;
                    tracing::trace!(?ended, "a coordinator's connection");
                });
                if let Err(error) = spawned {
                    tracing::warn!(%error, "a connection is closed at once");
                }
            }
        }
    }
}

async fn serve_connection(
    stream: TcpStream,
    hosted: &Rc<Hosted>,
    security: Option<&Security>,
) -> Result<(), LinkFault> {
    let mut link = Link::accept(stream, security).await?;
    link.set_unanswered_max(UNANSWERED_MAX);
    let mut reader = RequestReader::default();
    let mut deadline = time::now() + FIRST_REQUEST_MAX;
    loop {
        let request = match reader.next_request() {
            Ok(Some(request)) => request,
            Ok(None) => {
                let left = deadline.since(time::now());
                let received = time::timeout(left, link.receive()).await;
                reader.push(&received.map_err(|_| LinkFault::TimedOut)??);
                continue;
            }
            Err(fault) => {
                let reason = fault.to_string();
                let told = answer(None, Err(CoordinationFault::Malformed { reason }));
                return link.send(told).await;
            }
        };
        deadline = time::now() + IDLE_MAX;
        match gateway::decode_request(&request.path, &request.body) {
            Err(fault) => link.send(answer(None, Err(fault))).await?,
            Ok(Asked::Ask(ask)) => {
                let answered = hosted.ask(&ask).await;
                link.send(answer(Some(&ask), answered)).await?;
            }
            Ok(Asked::Watch(from)) => return serve_watch(link, hosted, from).await,
        }
    }
}

fn answer(ask: Option<&Ask>, answered: Result<Answer, CoordinationFault>) -> Vec<u8> {
    let mut out = Vec::new();
    match (ask, answered) {
        (Some(ask), Ok(answer)) => {
            http::append_response(&mut out, 200, &gateway::encode_answer(ask, &answer));
        }
        (None, Ok(_)) => unreachable!("what was not asked is not answered"),
        (ask, Err(fault)) => {
            let (status, body) = gateway::encode_fault(ask, &fault);
            http::append_response(&mut out, status, &body);
        }
    }
    out
}

/// Ends the watch with its connection.
struct Watching<'a> {
    hosted: &'a Hosted,
    id: WatchId,
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.hosted.coordinator.borrow_mut().end_watch(self.id);
        self.hosted.watches.borrow_mut().remove(&self.id);
    }
}

async fn serve_watch(
    mut link: Link,
    hosted: &Rc<Hosted>,
    from: WatchFrom,
) -> Result<(), LinkFault> {
    let mut out = Vec::new();
    http::append_stream_head(&mut out);
    let begun = hosted.coordinator.borrow_mut().watch(from);
    let revision = hosted.coordinator.borrow().revision();
    // As etcd does: it says that it has begun, then that it cannot go on.
    append_created(&mut out, revision);
    let id = match begun {
        Ok(id) => id,
        Err(fault) => {
            append_line(&mut out, Err(&fault));
            http::append_stream_end(&mut out);
            return link.send(out).await;
        }
    };
    let watching = Watching { hosted, id };
    let signal = Rc::new(Signal::default());
    hosted.watches.borrow_mut().insert(id, Rc::clone(&signal));
    signal.raise();
    link.send(out).await?;
    loop {
        wait(&signal, &mut link).await?;
        while hosted.is_settled() {
            let told = hosted.coordinator.borrow_mut().poll_watch(watching.id);
            let mut out = Vec::new();
            match told {
                Ok(None) => break,
                Ok(Some(changes)) => append_line(&mut out, Ok(&changes)),
                Err(fault) => {
                    append_line(&mut out, Err(&fault));
                    http::append_stream_end(&mut out);
                    return link.send(out).await;
                }
            }
            link.send(out).await?;
        }
    }
}

fn append_created(out: &mut Vec<u8>, revision: Revision) {
    http::append_stream_line(out, &gateway::encode_created(revision));
}

fn append_line(
    out: &mut Vec<u8>,
    changes: Result<&[lunette_cluster_proto::coordination::Change], &CoordinationFault>,
) {
    http::append_stream_line(out, &gateway::encode_watch_line(changes));
}

/// Waits for the signal; a peer that closes, or says anything, ends the watch.
async fn wait(signal: &Signal, link: &mut Link) -> Result<(), LinkFault> {
    let mut raised = pin!(signal.raised());
    let mut received = pin!(link.receive());
    poll_fn(|cx| {
        if raised.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        received.as_mut().poll(cx).map(|received| match received {
            Ok(_) => Err(LinkFault::Closed),
            Err(fault) => Err(fault),
        })
    })
    .await
}
