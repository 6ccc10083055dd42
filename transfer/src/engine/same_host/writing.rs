//! The asker's commands: what it has the peer copy.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::atomic::{Ordering, fence};
use std::task::Poll;

use lunette_runtime::arena::Words;
use lunette_runtime::{Signal, Source, SourceGuard, add_source, time};
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::same_host::commands::{
    ASKER_SLEEPS, CARRIED_OUT, COMMAND_BYTES_MAX, Command, OWNER_SLEEPS, SUBMITTED, WORDS,
    answer_at, answer_from_word, between, command_at,
};
use lunette_transfer_proto::engine::same_host::lane::{Lane, LaneId, LaneOptions, Piece};
use lunette_transfer_proto::engine::scheduler::{Outcome, TransferId, TransfersFull};
use lunette_transfer_proto::engine::segment::{SegmentId, Way};

use super::super::Inner;
use super::super::peer::Shared;
use super::super::posted::Posted;
use super::super::registry::InUse;
use super::link::{Link, SWEEP};
use super::seat::rouse;

/// Where a transfer is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) enum Under {
    /// It is over, or copied by ourselves.
    #[default]
    Nothing,
    /// On the rails.
    Rails(TransferId),
    /// With a peer of this host.
    Lane(LaneId),
}

/// A write, and what its bytes lie in.
#[derive(Debug)]
struct Write {
    posted: Rc<Posted>,
    /// For each request, the segment of ours and where in it.
    sources: Vec<(SegmentId, u64)>,
    _in_use: Vec<InUse>,
}

/// The writes of one link.
#[derive(Debug)]
pub(in crate::engine) struct Writing {
    words: Words,
    lane: RefCell<Lane>,
    under_way: RefCell<BTreeMap<LaneId, Write>>,
    submitted: Cell<u64>,
    answered: Cell<u64>,
    /// Wakes the task that keeps times, when there is an earlier one than it sleeps for.
    keeper: Signal,
    sleeps_until: Cell<Time>,
    guard: RefCell<Option<SourceGuard>>,
}

impl Writing {
    pub(super) fn new(commands: OwnedFd, engine: &Inner) -> io::Result<Self> {
        let options = engine.options.scheduler;
        let lane = Lane::new(LaneOptions {
            settle: options.settle,
            transfers_max: options.transfers_max,
            ..LaneOptions::default()
        });
        assert!(LaneOptions::default().piece_bytes_max <= COMMAND_BYTES_MAX);
        Ok(Self {
            words: Words::map(commands, WORDS).map_err(io::Error::other)?,
            lane: RefCell::new(lane),
            under_way: RefCell::default(),
            submitted: Cell::new(0),
            answered: Cell::new(0),
            keeper: Signal::default(),
            sleeps_until: Cell::new(Time::MAX),
            guard: RefCell::default(),
        })
    }

    fn uses(&self, segment: SegmentId) -> bool {
        let under_way = self.under_way.borrow();
        let mut sources = under_way.values().flat_map(|write| &write.sources);
        sources.any(|&(source, _)| source == segment)
    }

    /// Hands pieces to the owner, as many as it takes.
    fn hand_out(&self, link: &Link) {
        let mut lane = self.lane.borrow_mut();
        let under_way = self.under_way.borrow();
        let first = self.submitted.get();
        let mut next = first;
        while let Some(piece) = lane.next_piece() {
            let command = under_way[&piece.transfer].command(&piece);
            let words = &self.words[command_at(next)..];
            for (word, value) in words.iter().zip(command.to_words()) {
                word.store(value, Ordering::Relaxed);
            }
            next = next.wrapping_add(1);
        }
        if next != first {
            self.submitted.set(next);
            self.words[SUBMITTED].store(next, Ordering::Release);
            // The count before the look: who sleeps after the look has seen the count.
            fence(Ordering::SeqCst);
            rouse(&self.words[OWNER_SLEEPS], &link.channel);
        }
    }

    /// Takes in answers; `None` if there cannot be so many.
    fn take_answers(&self, shared: &Shared) -> Option<usize> {
        let carried_out = self.words[CARRIED_OUT].load(Ordering::Acquire);
        let mut lane = self.lane.borrow_mut();
        let first = self.answered.get();
        let count = between(first, carried_out).filter(|&count| count <= lane.with_owner())?;
        if count == 0 {
            return Some(0);
        }
        let now = time::now();
        let under_way = self.under_way.borrow();
        for _ in 0..count {
            let number = self.answered.get();
            let word = self.words[answer_at(number)].load(Ordering::Relaxed);
            let answer = answer_from_word(word);
            let piece = lane.on_answer(answer, now);
            if let (Ok(()), Some(write)) = (answer, under_way.get(&piece.transfer)) {
                let intent = write.posted.options.intent;
                let counts = &shared.engine.counts;
                counts.moved(Way::Write, intent, piece.len_bytes);
                counts.moved_here(piece.len_bytes);
            }
            self.answered.set(number.wrapping_add(1));
        }
        Some(count)
    }

    fn next_finished(&self) -> Option<(Rc<Posted>, Outcome)> {
        let (id, outcome) = self.lane.borrow_mut().next_finished()?;
        let write = self.under_way.borrow_mut().remove(&id);
        Some((write.expect("what finishes was begun").posted, outcome))
    }
}

impl Write {
    fn command(&self, piece: &Piece) -> Command {
        let (from, offset) = self.sources[piece.request as usize];
        let span = self.posted.batch.span(piece.request);
        Command {
            from,
            from_offset_bytes: offset + piece.offset_bytes,
            to: span.segment,
            to_offset_bytes: span.offset_bytes + piece.offset_bytes,
            len_bytes: piece.len_bytes,
        }
    }
}

impl Shared {
    /// Polls the answers of a link's peer, and keeps its times.
    pub(in crate::engine) async fn keep_link(self: Rc<Self>, link: Rc<Link>) {
        let source = LinkSource {
            link: Rc::downgrade(&link),
            shared: Rc::downgrade(&self),
        };
        match add_source(source) {
            Ok(guard) => *link.writing.guard.borrow_mut() = Some(guard),
            Err(_) => {
                tracing::warn!("the core polls too much to write to peers of this host");
                link.broken.raise();
            }
        }
        while link.is_alive() {
            let writing = &link.writing;
            let now = time::now();
            let sweep = link.holds_memory().then(|| now + SWEEP);
            let due = writing.lane.borrow().poll_timeout();
            let next = [sweep, due]
                .into_iter()
                .flatten()
                .min()
                .unwrap_or(Time::MAX);
            writing.sleeps_until.set(next);
            let mut sleep = (next < Time::MAX).then(|| time::sleep_until(next));
            poll_fn(|cx| {
                let is_called = writing.keeper.poll(cx.waker()).is_ready();
                let is_due = match &mut sleep {
                    Some(sleep) => Pin::new(sleep).poll(cx).is_ready(),
                    None => false,
                };
                if is_called || is_due {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
            writing.lane.borrow_mut().on_timeout(time::now());
            link.sweep(&self.engine, |segment| writing.uses(segment));
            self.pump_link(&link);
        }
    }

    /// Begins a write whose bytes the peer can copy; `false` if it cannot.
    pub(in crate::engine) fn write_here(
        self: &Rc<Self>,
        link: &Rc<Link>,
        posted: &Rc<Posted>,
    ) -> Result<bool, TransfersFull> {
        let writing = &link.writing;
        if writing.guard.borrow().is_none() {
            return Ok(false);
        }
        let spans = posted.batch.spans();
        let mut sources = Vec::with_capacity(spans.len());
        let mut in_use = Vec::with_capacity(spans.len());
        for span in spans {
            let registry = self.engine.registry.borrow();
            let Some((segment, offset)) = registry.lendable(&span.local) else {
                return Ok(false);
            };
            let len_bytes = span.local.len() as u64;
            let reached = registry.reach(segment, Way::Read, offset, len_bytes, |_, _| Ok(()));
            drop(registry);
            let Ok((_, hold)) = reached else {
                return Ok(false);
            };
            if !link.is_lent(&self.engine, segment) {
                return Ok(false);
            }
            sources.push((segment, offset));
            in_use.push(hold);
        }
        let lens = spans.iter().map(|span| span.local.len() as u64);
        let id = writing
            .lane
            .borrow_mut()
            .submit(lens, posted.asked(), posted.began)?;
        let write = Write {
            posted: Rc::clone(posted),
            sources,
            _in_use: in_use,
        };
        writing.under_way.borrow_mut().insert(id, write);
        posted.under.set(Under::Lane(id));
        self.pump_link(link);
        let next = writing.lane.borrow().poll_timeout();
        if next.is_some_and(|next| next < writing.sleeps_until.get()) {
            writing.keeper.raise();
        }
        Ok(true)
    }

    pub(in crate::engine) fn cancel_here(self: &Rc<Self>, id: LaneId) {
        let link = self.same_host.borrow().clone();
        if let Some(link) = link {
            let writing = &link.writing;
            writing.lane.borrow_mut().cancel(id, time::now());
            writing.keeper.raise();
            self.pump_link(&link);
        }
    }

    /// What was under way on a link that has ended goes over the rails.
    pub(super) fn reroute(self: &Rc<Self>, link: &Rc<Link>) {
        let writing = &link.writing;
        let guard = writing.guard.take();
        drop(guard);
        let left = writing.lane.borrow_mut().on_lost(time::now());
        self.pump_link(link);
        for id in left {
            let write = writing.under_way.borrow_mut().remove(&id);
            let posted = write.expect("it was under way").posted;
            posted.is_touched.set(true);
            self.to_rails(&posted);
        }
        writing.keeper.raise();
    }

    /// Hands out what can be, and ends what is over.
    fn pump_link(self: &Rc<Self>, link: &Rc<Link>) {
        let writing = &link.writing;
        if link.is_alive() {
            writing.hand_out(link);
        }
        while let Some((posted, outcome)) = writing.next_finished() {
            self.copied(&posted, outcome);
        }
    }
}

struct LinkSource {
    link: Weak<Link>,
    shared: Weak<Shared>,
}

impl Source for LinkSource {
    fn poll(&mut self, _budget: usize) -> usize {
        let (Some(link), Some(shared)) = (self.link.upgrade(), self.shared.upgrade()) else {
            return 0;
        };
        match link.writing.take_answers(&shared) {
            Some(0) => 0,
            Some(count) => {
                shared.pump_link(&link);
                count
            }
            None => {
                link.broken.raise();
                0
            }
        }
    }

    fn try_park(&mut self) -> bool {
        let Some(link) = self.link.upgrade() else {
            return true;
        };
        let writing = &link.writing;
        writing.words[ASKER_SLEEPS].store(1, Ordering::Relaxed);
        // That we may sleep before the look: who answers after the look sees that we may.
        fence(Ordering::SeqCst);
        let is_quiet = writing.words[CARRIED_OUT].load(Ordering::Acquire) == writing.answered.get();
        if !is_quiet {
            self.unpark();
        }
        is_quiet
    }

    fn unpark(&mut self) {
        if let Some(link) = self.link.upgrade() {
            link.writing.words[ASKER_SLEEPS].store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lunette_runtime::arena::{Exposed, HugePages};
    use lunette_runtime::{CoreOptions, block_on};

    use super::super::super::{
        Batch, Cause, Engine, EngineOptions, Peer, PostOptions, Refusal, RegisterOptions, Rights,
        Transfer,
    };
    use super::*;

    const LEN: usize = 8 << 20;

    fn engine() -> Engine {
        let options = EngineOptions {
            listen: vec!["127.0.0.1:0".parse().expect("an address")],
            ..EngineOptions::default()
        };
        Engine::start(options).expect("an engine")
    }

    /// Two engines, the second's memory, and a write to it that is copied.
    struct Scene {
        here: Engine,
        there: Engine,
        peer: Peer,
        link: Rc<Link>,
        target: Exposed,
        local: Exposed,
        batch: Batch,
    }

    impl Scene {
        async fn new() -> Self {
            let (here, there) = (engine(), engine());
            let memory = || Exposed::map(LEN, HugePages::Never, &mut Vec::new()).expect("memory");
            let (target, local) = (memory(), memory());
            let named = RegisterOptions::named("kv");
            there.register(target.clone(), &named).expect("registered");
            here.register(local.clone(), &named).expect("registered");
            let peer = here.open(there.addresses()).await.expect("open");
            let remote = peer.segment("kv").await.expect("a segment");
            let mut batch = Batch::new();
            batch.write(local.clone(), &remote, 0).expect("a write");
            while here.statistics().same_host_bytes == 0 {
                let posted = peer.post(&batch, PostOptions::default());
                posted.expect("posted").await.expect("done");
            }
            let link = peer.shared.link().expect("it is here");
            Self {
                here,
                there,
                peer,
                link,
                target,
                local,
                batch,
            }
        }

        fn post(&self) -> Transfer {
            let posted = self.peer.post(&self.batch, PostOptions::default());
            posted.expect("posted")
        }

        /// The link is gone, and writes go over the rails.
        async fn goes_on(&self) {
            time::sleep(Duration::from_millis(5)).await;
            assert!(!self.peer.is_same_host());
            assert!(self.link.writing.under_way.borrow().is_empty());
            let copied = self.here.statistics().same_host_bytes;
            self.local.copy_in(0, b"later");
            self.post().await.expect("done");
            assert_eq!(self.target.slice(0, 5).to_vec(), b"later");
            assert_eq!(self.here.statistics().same_host_bytes, copied);
        }
    }

    #[test]
    fn an_owner_survives_counts_that_cannot_be_and_what_was_under_way_is_done() {
        block_on(None, CoreOptions::default(), || async {
            let scene = Scene::new().await;
            scene.local.copy_in(LEN - 3, b"end");
            let under_way = [scene.post(), scene.post(), scene.post()];
            assert!(scene.link.writing.lane.borrow().with_owner() > 0);
            scene.link.writing.words[SUBMITTED].store(1 << 40, Ordering::Release);
            for transfer in under_way {
                let done = transfer.await.expect("done");
                assert_eq!(done.len_bytes, LEN as u64);
            }
            assert_eq!(scene.target.slice(LEN - 3, 3).to_vec(), b"end");
            scene.goes_on().await;
        })
        .expect("a core");
    }

    #[test]
    fn an_owner_does_not_copy_to_what_is_reached_by_capability() {
        block_on(None, CoreOptions::default(), || async {
            let scene = Scene::new().await;
            let kept = Exposed::map(LEN, HugePages::Never, &mut Vec::new()).expect("memory");
            let by_capability = RegisterOptions {
                by_capability: true,
                ..RegisterOptions::named("kept")
            };
            let kept_id = scene.there.register(kept.clone(), &by_capability);
            let kept_id = kept_id.expect("registered");
            assert!(
                scene
                    .there
                    .inner
                    .registry
                    .borrow_mut()
                    .share(kept_id)
                    .is_err()
            );
            let (here, rights) = (scene.here.epoch(), Rights::READ_WRITE);
            let token = scene.there.grant(kept_id, here, rights, 0..LEN as u64);
            let redeemed = scene.peer.redeem(&token.expect("granted")).await;
            let remote = redeemed.expect("redeemed");
            let mut batch = Batch::new();
            batch
                .write(scene.local.clone(), &remote, 0)
                .expect("a write");
            let posted = Rc::new(Posted::new(&batch, PostOptions::default(), time::now()));
            // An engine would not: it knows that it goes over the rails.
            let shared = &scene.peer.shared;
            assert_eq!(shared.post_here(&posted), Ok(false));
            assert_eq!(shared.write_here(&scene.link, &posted), Ok(true));
            let peer = scene.peer.clone();
            let error = Transfer { peer, posted }.await.expect_err("refused");
            let cause = Cause::Refused(Refusal::NoCapability);
            assert_eq!(error.failures[0].cause, cause);
            assert_eq!(kept.slice(0, 100).to_vec(), vec![0; 100]);
        })
        .expect("a core");
    }

    #[test]
    fn an_asker_survives_counts_that_cannot_be() {
        block_on(None, CoreOptions::default(), || async {
            let scene = Scene::new().await;
            scene.link.writing.words[CARRIED_OUT].store(1 << 40, Ordering::Release);
            scene.goes_on().await;
        })
        .expect("a core");
    }
}
