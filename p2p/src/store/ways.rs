//! The way to each other holder: what is said to it.
//!
//! What is said to one holder is said in its order, one thing at a time, as notifications of the engine. Where that
//! fails all that waits is given up, and the machines are told: they greet whoever it is anew.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use lunette_p2p_proto::message::Message;
use lunette_p2p_proto::{PeerId, Version};
use lunette_runtime::time;
use lunette_transfer::engine::{Batch, Intent, Peer, PostOptions, Priority, RemoteSegment};

use super::{Inner, local};

/// Most holders that there is a way to. Beyond, nothing is said to others.
pub(super) const WAYS_MAX: usize = 4096;
/// Most messages that wait for one holder.
const QUEUED_MAX: usize = 1024;
/// How long a message may take.
const SAY_MAX: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub(super) struct Ways {
    by_peer: RefCell<BTreeMap<PeerId, Rc<Way>>>,
}

#[derive(Debug, Default)]
struct Way {
    addresses: RefCell<Vec<SocketAddr>>,
    queue: RefCell<VecDeque<(Version, Vec<u8>)>>,
    is_speaking: Cell<bool>,
    peer: RefCell<Option<Peer>>,
    segments: RefCell<BTreeMap<(Version, u32), RemoteSegment>>,
}

impl Ways {
    fn way(&self, peer: PeerId) -> Option<Rc<Way>> {
        let mut by_peer = self.by_peer.borrow_mut();
        if !by_peer.contains_key(&peer) && by_peer.len() >= WAYS_MAX {
            // Those over which nothing is said are made again when they are needed.
            by_peer.retain(|_, way| way.is_speaking.get() || way.peer.borrow().is_some());
            if by_peer.len() >= WAYS_MAX {
                return None;
            }
        }
        Some(Rc::clone(by_peer.entry(peer).or_default()))
    }

    /// Where a holder listens.
    pub(super) fn know(&self, peer: PeerId, addresses: &[SocketAddr]) {
        if let Some(way) = self.way(peer) {
            let mut known = way.addresses.borrow_mut();
            known.clear();
            known.extend_from_slice(addresses);
        }
    }

    /// The engine of a holder that has been spoken to.
    pub(super) fn peer(&self, peer: PeerId) -> Option<Peer> {
        let by_peer = self.by_peer.borrow();
        let peer = by_peer.get(&peer)?.peer.borrow();
        peer.clone()
    }

    pub(super) fn segment(&self, peer: PeerId, of: (Version, u32)) -> Option<RemoteSegment> {
        let by_peer = self.by_peer.borrow();
        let segments = by_peer.get(&peer)?.segments.borrow();
        segments.get(&of).copied()
    }

    pub(super) fn keep_segment(&self, peer: PeerId, of: (Version, u32), segment: RemoteSegment) {
        if let Some(way) = self.by_peer.borrow().get(&peer) {
            way.segments.borrow_mut().insert(of, segment);
        }
    }

    /// Nothing of a version is read from a holder any more by what was known of its segments.
    pub(super) fn forget_segments(&self, peer: PeerId, version: Version) {
        if let Some(way) = self.by_peer.borrow().get(&peer) {
            let mut segments = way.segments.borrow_mut();
            segments.retain(|&(of, _), _| of != version);
        }
    }
}

impl Inner {
    /// Says something to a holder.
    pub(super) fn say(self: &Rc<Self>, to: PeerId, version: Version, message: &Message) {
        let Some(way) = self.ways.way(to) else {
            self.unreachable(to, [version].into());
            return;
        };
        if way.queue.borrow().len() >= QUEUED_MAX {
            let given_up = way.give_up();
            self.unreachable(to, given_up);
            return;
        }
        let bytes = message.encode(version);
        way.queue.borrow_mut().push_back((version, bytes));
        if !way.is_speaking.replace(true) && !self.spawn(Rc::clone(self).speak(to, Rc::clone(&way)))
        {
            way.is_speaking.set(false);
            let given_up = way.give_up();
            self.unreachable(to, given_up);
        }
    }

    async fn speak(self: Rc<Self>, to: PeerId, way: Rc<Way>) {
        loop {
            let next = way.queue.borrow_mut().pop_front();
            let Some((version, bytes)) = next else {
                way.is_speaking.set(false);
                return;
            };
            if !self.deliver(to, &way, version, bytes).await {
                way.peer.borrow_mut().take();
                way.segments.borrow_mut().clear();
                let mut given_up = way.give_up();
                given_up.insert(version);
                self.unreachable(to, given_up);
            }
        }
    }

    /// Whether something was brought to a holder.
    async fn deliver(&self, to: PeerId, way: &Way, version: Version, bytes: Vec<u8>) -> bool {
        let Some(peer) = self.open(to, way, version).await else {
            return false;
        };
        let options = PostOptions {
            timeout: SAY_MAX,
            intent: Intent::Weights,
            priority: Some(Priority::Foreground),
            notification: Some(bytes),
        };
        match peer.post(&Batch::new(), options) {
            Ok(posted) => posted.await.is_ok(),
            Err(_) => false,
        }
    }

    async fn open(&self, to: PeerId, way: &Way, version: Version) -> Option<Peer> {
        if let Some(peer) = way.peer.borrow().clone() {
            return Some(peer);
        }
        let mut addresses = way.addresses.borrow().clone();
        if addresses.is_empty() {
            // It has come since the catalogue was last read.
            let holder = self.books.holder(version, to).await.ok().flatten()?;
            way.addresses.borrow_mut().clone_from(&holder.addresses);
            addresses = holder.addresses;
        }
        let opened = self.engine.open(&addresses).await.ok()?;
        if PeerId(opened.epoch()) != to {
            // Somebody else listens there now.
            way.addresses.borrow_mut().clear();
            return None;
        }
        *way.peer.borrow_mut() = Some(opened.clone());
        Some(opened)
    }

    /// Tells the machines of these versions that there is no way to a holder.
    fn unreachable(self: &Rc<Self>, peer: PeerId, versions: BTreeSet<Version>) {
        for version in versions {
            if let Some(local) = self.local(version) {
                // Not from within the machine, which may have asked for it.
                let inner = Rc::clone(self);
                let told = async move {
                    local.on(&inner, |swarm| swarm.on_unreachable(time::now(), peer));
                };
                if !self.spawn(told) {
                    tracing::warn!("the core takes no more tasks");
                }
            }
        }
    }

    /// A segment of a holder that has been spoken to.
    pub(super) async fn remote(
        &self,
        source: PeerId,
        version: Version,
        buffer: u32,
    ) -> Option<(Peer, RemoteSegment)> {
        let peer = self.ways.peer(source)?;
        let of = (version, buffer);
        if let Some(segment) = self.ways.segment(source, of) {
            return Some((peer, segment));
        }
        let name = local::segment_name(version, buffer);
        let segment = peer.segment(&name).await.ok()?;
        self.ways.keep_segment(source, of, segment);
        Some((peer, segment))
    }
}

impl Way {
    /// The versions of all that waits, which is said no more.
    fn give_up(&self) -> BTreeSet<Version> {
        let queue = self.queue.take();
        queue.into_iter().map(|(version, _)| version).collect()
    }
}
