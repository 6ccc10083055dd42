//! Keeping one way to a namespace connected, and listening to what its controller says of it.

use std::future::{Future, pending, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use lunette_nvmeof_proto::completion::Status;
use lunette_nvmeof_proto::host::{PathFacts, Reconnect, Retry};
use lunette_nvmeof_proto::identify::{IdentifyNamespace, NSID_ALL, NamespaceNames};
use lunette_nvmeof_proto::log_page::AnaState;
use lunette_runtime::time;
use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;

use super::super::controller::RemoteController;
use super::super::events::ControllerEvent;
use super::super::queue::Queue;
use super::ways::Way;
use super::{Inner, NamespaceOptions};
use crate::error::{CloseReason, CommandError, ConnectError};

/// How often a controller is asked whether a namespace can be reached again, beside what it tells
/// unasked.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// A way that has just been made.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) way: Way,
    pub(super) identity: IdentifyNamespace,
    pub(super) names: NamespaceNames,
    pub(super) facts: PathFacts,
}

/// Makes a way.
pub(super) async fn connect(
    options: &NamespaceOptions,
    address: SocketAddr,
) -> Result<Connected, ConnectError> {
    let config = options.config.clone();
    let controller = RemoteController::connect(address, &options.subsystem, config).await?;
    let identity = controller.namespace(options.nsid).await?;
    let absent = Status::INVALID_NAMESPACE.do_not_retry();
    let identity = identity.ok_or(CommandError::Status(absent))?;
    let names = controller.names(options.nsid).await?;
    let facts = facts_of(&controller, &identity).await?;
    let queue = controller.queue().await?;
    Ok(Connected {
        way: Way { queue, controller },
        identity,
        names,
        facts,
    })
}

async fn facts_of(
    controller: &RemoteController,
    identity: &IdentifyNamespace,
) -> Result<PathFacts, CommandError> {
    let about = &controller.association().identity;
    let mut facts = PathFacts {
        group: identity.ana_group,
        state: AnaState::Optimized,
        transition: Duration::from_secs(u64::from(about.ana_transition_s)),
    };
    if about.has_ana {
        let groups = controller.paths().await?;
        let group = groups.iter().find(|group| group.id == facts.group);
        facts.state = group.map_or(AnaState::Inaccessible, |group| group.state);
    }
    Ok(facts)
}

/// What makes a namespace another one, whatever path it is reached by.
const fn shape(identity: &IdentifyNamespace) -> IdentifyNamespace {
    IdentifyNamespace {
        ana_group: 0,
        ..*identity
    }
}

/// Makes the way `index` whenever there is none, and listens to its controller while there is one.
/// The first one may have been made already.
pub(super) async fn keep(inner: Rc<Inner>, index: usize, first: Option<Connected>) {
    let mut maker = Maker::new(&inner, index);
    let mut made = first;
    if made.is_none() {
        made = maker.try_once().await;
    }
    let mut reason = CloseReason::Peer;
    loop {
        let connected = match made.take() {
            Some(connected) => connected,
            None => match maker.make(reason).await {
                Some(connected) => connected,
                None => return,
            },
        };
        if !inner.is_same(&connected) {
            let address = inner.options.addresses[index];
            tracing::error!(%address, "another namespace answers there");
            inner.ways.on_lost(index, reason);
            return;
        }
        let Connected { way, facts, .. } = connected;
        inner.ways.on_up(index, way.clone(), facts);
        reason = used(&inner, index, &way).await;
        tracing::warn!(%reason, "connection lost");
        inner.ways.on_down(index);
    }
}

impl Inner {
    /// Whether a way leads to this namespace: its names say so, and its shape is the same.
    fn is_same(&self, connected: &Connected) -> bool {
        self.is_this(&connected.identity, &connected.names)
    }

    fn is_this(&self, identity: &IdentifyNamespace, names: &NamespaceNames) -> bool {
        self.names == *names && shape(&self.identity) == shape(identity)
    }
}

/// Makes one way, again and again.
struct Maker<'a> {
    inner: &'a Inner,
    index: usize,
    reconnect: Reconnect,
    random: SplitMix64,
}

impl<'a> Maker<'a> {
    fn new(inner: &'a Inner, index: usize) -> Self {
        let options = &inner.options;
        Self {
            inner,
            index,
            reconnect: Reconnect::new(options.reconnect),
            random: SplitMix64::new(options.seed.wrapping_add(index as u64)),
        }
    }

    async fn try_once(&self) -> Option<Connected> {
        let options = &self.inner.options;
        match connect(options, options.addresses[self.index]).await {
            Ok(connected) => Some(connected),
            Err(error) => {
                tracing::debug!(%error, "connecting again");
                None
            }
        }
    }

    /// Makes it after a pause; `None` if it was given up.
    async fn make(&mut self, reason: CloseReason) -> Option<Connected> {
        loop {
            match self.reconnect.on_failure(time::now(), self.random.next()) {
                Retry::At(at) => time::sleep_until(at).await,
                // As long as there are others this one may still be of use.
                Retry::Never if self.inner.ways.is_any_up() => self.reconnect.on_success(),
                Retry::Never => {
                    self.inner.ways.on_lost(self.index, reason);
                    return None;
                }
            }
            if let Some(connected) = self.try_once().await {
                self.reconnect.on_success();
                let reconnects = &self.inner.reconnects;
                reconnects.set(reconnects.get() + 1);
                return Some(connected);
            }
        }
    }
}

/// Listens to the controller of a way until one of its connections has ended; the other one then
/// ends, too.
async fn used(inner: &Inner, index: usize, way: &Way) -> CloseReason {
    let (queue, admin) = (&way.queue, way.controller.admin());
    let mut ended = pin!(first_end(queue, admin));
    let mut listening = pin!(listen(inner, index, way));
    let reason = poll_fn(|cx| {
        if let Poll::Ready(reason) = ended.as_mut().poll(cx) {
            return Poll::Ready(reason);
        }
        listening.as_mut().poll(cx)
    })
    .await;
    queue.end(reason);
    admin.end(reason);
    reason
}

/// Waits until one of two connections has ended.
async fn first_end(queue: &Queue, admin: &Queue) -> CloseReason {
    let mut ends = [Box::pin(queue.ended()), Box::pin(admin.ended())];
    poll_fn(|cx| {
        let mut polled = ends.iter_mut().map(|end| end.as_mut().poll(cx));
        polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
}

/// What makes a way worth a look.
enum Heard {
    Event(Result<ControllerEvent, CommandError>),
    Look,
}

/// Follows what the controller of a way says; ends when the way is to be made anew.
async fn listen(inner: &Inner, index: usize, way: &Way) -> CloseReason {
    let controller = &way.controller;
    loop {
        match heard(inner, index, controller).await {
            Heard::Event(Ok(ControllerEvent::Paths(groups))) => {
                inner.ways.on_groups(index, &groups);
            }
            Heard::Event(Ok(ControllerEvent::Namespaces(nsids))) => {
                let nsid = inner.options.nsid;
                let is_meant = nsids.iter().any(|&told| told == nsid || told == NSID_ALL);
                if is_meant && !look_at_namespace(inner, index, way).await {
                    return CloseReason::Peer;
                }
            }
            Heard::Event(Ok(ControllerEvent::Discovery)) => {}
            Heard::Event(Err(CommandError::Disconnected(_) | CommandError::NotSent(_))) => {
                // Whoever waits for the end of the connection sees to that.
                pending().await
            }
            Heard::Event(Err(error)) => {
                tracing::warn!(%error, "what has changed is not known");
                time::sleep(LOOK_PAUSE).await;
                look_at_groups(inner, index, controller).await;
            }
            Heard::Look => {
                let state = inner.ways.state(index);
                if state.is_some_and(AnaState::is_accessible) {
                    look_at_groups(inner, index, controller).await;
                } else if !look_at_namespace(inner, index, way).await {
                    return CloseReason::Peer;
                }
            }
        }
    }
}

/// Waits for an event, or for anything else that makes a way worth a look.
async fn heard(inner: &Inner, index: usize, controller: &RemoteController) -> Heard {
    let mut event = pin!(controller.event());
    let signal = inner.ways.look(index);
    loop {
        let overdue_at = inner.ways.end_overdue().unwrap_or(Time::MAX);
        let state = inner.ways.state(index);
        let is_closed = state.is_some_and(|state| !state.is_accessible());
        let look_at = if is_closed {
            time::now() + LOOK_PAUSE
        } else {
            Time::MAX
        };
        let mut sleep = pin!(time::sleep_until(look_at.min(overdue_at)));
        let heard = poll_fn(|cx| {
            if let Poll::Ready(event) = event.as_mut().poll(cx) {
                return Poll::Ready(Some(Heard::Event(event)));
            }
            if signal.poll(cx.waker()).is_ready() {
                return Poll::Ready(Some(Heard::Look));
            }
            sleep.as_mut().poll(cx).map(|()| None)
        })
        .await;
        match heard {
            Some(heard) => return heard,
            None if is_closed => return Heard::Look,
            None => {}
        }
    }
}

async fn look_at_groups(inner: &Inner, index: usize, controller: &RemoteController) {
    if !controller.association().identity.has_ana {
        return;
    }
    match controller.paths().await {
        Ok(groups) => inner.ways.on_groups(index, &groups),
        Err(error) => tracing::debug!(%error, "reading how the namespace can be reached"),
    }
}

/// Looks whether the namespace is still there, and the same. Whether the way may be used on.
async fn look_at_namespace(inner: &Inner, index: usize, way: &Way) -> bool {
    let (controller, nsid) = (&way.controller, inner.options.nsid);
    let looked = async {
        let Some(identity) = controller.namespace(nsid).await? else {
            return Ok(None);
        };
        let names = controller.names(nsid).await?;
        let facts = facts_of(controller, &identity).await?;
        Ok::<_, CommandError>(Some((identity, names, facts)))
    };
    match looked.await {
        Ok(Some((identity, names, facts))) => {
            let is_same = inner.is_this(&identity, &names);
            if is_same {
                inner.ways.on_up(index, way.clone(), facts);
            }
            is_same
        }
        Ok(None) | Err(CommandError::Status(_)) => {
            inner.ways.on_absent(index);
            true
        }
        Err(error) => {
            tracing::debug!(%error, "looking at a namespace that has changed");
            true
        }
    }
}

/// The first of several ways that is there, with its index.
pub(super) async fn first_of(
    options: &NamespaceOptions,
) -> Result<(usize, Connected), ConnectError> {
    let addresses = options.addresses.iter();
    let mut tries: Vec<_> = addresses
        .map(|&address| Some(Box::pin(connect(options, address))))
        .collect();
    let mut first_error = None;
    poll_fn(|cx| {
        for (index, trying) in tries.iter_mut().enumerate() {
            let Some(running) = trying else { continue };
            match running.as_mut().poll(cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(connected)) => return Poll::Ready(Ok((index, connected))),
                Poll::Ready(Err(error)) => {
                    first_error.get_or_insert(error);
                    *trying = None;
                }
            }
        }
        match first_error {
            Some(error) if tries.iter().all(Option::is_none) => Poll::Ready(Err(error)),
            _ => Poll::Pending,
        }
    })
    .await
}
