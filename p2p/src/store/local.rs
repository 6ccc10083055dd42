//! An object that is held here: its machine, driven.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use lunette_p2p_proto::catalogue::{Keeps, LayoutPlace, ObjectRecord};
use lunette_p2p_proto::layout::{Layout, encode_groups};
use lunette_p2p_proto::swarm::{Action, FetchId, Fetched, Member};
use lunette_p2p_proto::{ChunkSet, ObjectName, PeerId, Shape, Swarm, Version};
use lunette_runtime::arena::{Exposed, HugePages};
use lunette_runtime::{Signal, entropy, time};
use lunette_runtime_core::time::Time;
use lunette_transfer::engine::{Access, Engine, Kind, RegisterOptions, RegisterRefusal, SegmentId};

use super::Inner;
use super::backing::Backing;
use super::fetching::Flight;
use super::slicing::Slicing;
use crate::error::{HoldFault, SourceFault};
use crate::gate::{Gate, Turn, Turns, unless};

/// How often a receiver reads who else holds an object: at first, then twice as long each time up to the second.
const FOLLOW: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// What the catalogue says of an object, or is to say.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) record: ObjectRecord,
    pub(super) sums: Vec<u32>,
    pub(super) layout: Layout,
    /// The layout, as it is written.
    pub(super) layout_groups: Vec<Vec<u8>>,
}

impl Content {
    pub(super) fn new(
        record: ObjectRecord,
        sums: Vec<u32>,
        layout: Layout,
    ) -> Result<Self, HoldFault> {
        let groups = encode_groups(&layout);
        Ok(Self {
            record,
            sums,
            layout,
            layout_groups: groups.ok_or(HoldFault::LongLayout)?,
        })
    }

    /// Where the layout is if it is `writer` that writes it.
    pub(super) fn layout_place(&self, writer: PeerId) -> Option<LayoutPlace> {
        let groups = u32::try_from(self.layout_groups.len()).expect("groups are bounded");
        (groups > 0).then_some(LayoutPlace { writer, groups })
    }
}

/// What is held of an object, and what of it is here.
#[derive(Debug)]
pub(super) struct Holding {
    /// Where its chunks are: none, if they are not kept in memory.
    pub(super) buffers: Vec<Exposed>,
    /// The chunks that are here.
    pub(super) held: ChunkSet,
    /// What is taken of them, if it is not all.
    pub(super) slicing: Option<Slicing>,
    /// Where they are instead, if not in memory.
    pub(super) backing: Option<Backing>,
}

impl Holding {
    /// What the program is given back: what it lent.
    pub(super) fn into_lent(self) -> Vec<Exposed> {
        self.slicing.map_or(self.buffers, |it| it.lent())
    }
}

/// An object that is held here, whole or in part.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) name: ObjectName,
    pub(super) content: Content,
    /// Where its chunks are: none, if they are not kept in memory, or nobody asks for them any more.
    buffers: RefCell<Vec<Exposed>>,
    is_serving: bool,
    slicing: Option<Slicing>,
    pub(super) backing: Option<Backing>,
    pub(super) segments: Segments,
    pub(super) flights: RefCell<BTreeMap<FetchId, Rc<Flight>>>,
    swarm: RefCell<Swarm>,
    /// Bytes of the chunks that were here before.
    pub(super) resumed_bytes: u64,
    /// There is an earlier time than the keeper sleeps for.
    keeper: Signal,
    sleeps_until: Cell<Option<Time>>,
    /// All chunks are here, or it is being let go of.
    pub(super) settled: Gate,
    /// Nobody reads any more.
    closed: Signal,
    is_closing: Cell<bool>,
    /// How many are writing its keys to the catalogue again, and that none does any more.
    writing: Cell<u32>,
    unwritten: Signal,
    /// Its name is claimed by one of us at a time: what who comes too late has written of it is removed.
    claims: Turns,
    is_closed: Cell<bool>,
    /// No access to its memory is under way, and none begins.
    is_free: Cell<bool>,
    /// Nobody is given its memory back.
    is_abandoned: Cell<bool>,
    pub(super) let_go: Gate,
    /// It is being let go of.
    pub(super) closing: Gate,
    /// Why it is let go of, if that is for what it was registered of.
    pub(super) source_fault: RefCell<Option<SourceFault>>,
}

/// Keys of an object are being written to the catalogue again.
pub(super) struct Writing<'a>(&'a Local);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let left = self.0.writing.get() - 1;
        self.0.writing.set(left);
        if left == 0 {
            self.0.unwritten.raise();
        }
    }
}

impl Local {
    pub(super) fn new(
        inner: &Inner,
        name: ObjectName,
        content: Content,
        holding: Holding,
        segments: Segments,
    ) -> Self {
        let Holding {
            buffers,
            held,
            slicing,
            backing,
        } = holding;
        let (rack, mut options) = (inner.rack, inner.swarm);
        let is_serving = !buffers.is_empty() || backing.is_some();
        options.is_serving = is_serving;
        let resumed_bytes = bytes_of(&content.record.shape, &held);
        let mut swarm = Swarm::new(time::now(), inner.me(), rack, held, options, entropy());
        if let Some(slicing) = &slicing {
            swarm = swarm.wanting(slicing.plan.chunks().clone());
        }
        Self {
            name,
            content,
            buffers: RefCell::new(buffers),
            is_serving,
            slicing,
            backing,
            segments,
            flights: RefCell::default(),
            swarm: RefCell::new(swarm),
            resumed_bytes,
            keeper: Signal::default(),
            sleeps_until: Cell::default(),
            settled: Gate::default(),
            closed: Signal::default(),
            is_closing: Cell::default(),
            writing: Cell::default(),
            unwritten: Signal::default(),
            claims: Turns::default(),
            is_closed: Cell::default(),
            is_free: Cell::default(),
            is_abandoned: Cell::default(),
            let_go: Gate::default(),
            closing: Gate::default(),
            source_fault: RefCell::default(),
        }
    }

    /// Which chunks it is to have.
    pub(super) fn keeps(&self) -> Keeps {
        match (&self.slicing, self.is_serving()) {
            (None, _) => Keeps::All,
            (Some(_), true) => Keeps::Some,
            (Some(_), false) => Keeps::Nothing,
        }
    }

    /// Whether it keeps its chunks, and others have them from here.
    pub(super) const fn is_serving(&self) -> bool {
        self.is_serving
    }

    /// What the program is given back: what it lent.
    pub(super) fn lent(&self) -> Vec<Exposed> {
        let slicing = self.slicing.as_ref();
        slicing.map_or_else(|| self.buffers.borrow().clone(), Slicing::lent)
    }

    /// How many chunks are wanted.
    pub(super) fn wanted_chunks(&self) -> u32 {
        let slicing = self.slicing.as_ref();
        slicing.map_or_else(
            || self.content.record.shape.chunks(),
            |it| it.plan.chunks().count(),
        )
    }

    /// How many bytes these have.
    pub(super) fn len_bytes(&self) -> u64 {
        let slicing = self.slicing.as_ref();
        slicing.map_or_else(
            || self.content.record.shape.len_bytes(),
            |it| it.plan.fetched_bytes(),
        )
    }

    /// Takes what is wanted out of a chunk that is right. Whether it is in its place.
    pub(super) async fn take_slices(&self, chunk: u32, bytes: Exposed) -> bool {
        let Some(slicing) = &self.slicing else {
            return true;
        };
        let is_there = slicing.take(chunk, &bytes).await;
        let chunk_bytes = self.content.record.shape.chunk_bytes() as usize;
        if !self.is_serving() && bytes.len() == chunk_bytes {
            slicing.reuse(bytes);
        }
        is_there
    }

    /// Where what comes goes to, if that is no memory of the host.
    pub(super) fn outside(&self) -> Option<&Backing> {
        let of_slices = || self.slicing.as_ref().and_then(Slicing::backing);
        self.backing.as_ref().or_else(of_slices)
    }

    /// Memory of its own for a chunk; `None` if there is none.
    pub(super) fn own_room(&self, chunk: u32) -> Option<Exposed> {
        let place = self.content.record.shape.place(chunk);
        let len = place.expect("a chunk of the object").len_bytes as usize;
        let slicing = self.slicing.as_ref();
        let of_slicing = slicing.and_then(|slicing| slicing.used_room(len));
        let backing = self.backing.as_ref();
        let used = of_slicing.or_else(|| backing?.used_room(len));
        if used.is_some() {
            return used;
        }
        match Exposed::map(len, HugePages::Prefer, &mut Vec::new()) {
            Ok(room) => Some(room),
            Err(error) => {
                tracing::warn!(chunk, %error, "no memory for a chunk");
                None
            }
        }
    }

    /// Waits until nobody else here claims its name.
    pub(super) async fn turn_to_claim(&self) -> Turn<'_> {
        self.claims.turn().await
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.get()
    }

    /// From now on the catalogue is told nothing of it.
    pub(super) fn begin_closing(&self) {
        assert!(!self.is_closing.replace(true), "it is let go once");
        self.settled.open();
        self.closing.open();
    }

    /// Its keys are written again until the end of that: not if it is being let go of.
    pub(super) fn begin_writing(&self) -> Option<Writing<'_>> {
        if self.is_closing() {
            return None;
        }
        self.writing.set(self.writing.get() + 1);
        Some(Writing(self))
    }

    /// Waits until nobody writes its keys again: what is removed then stays removed. For whom is letting it go.
    pub(super) async fn unwritten(&self) {
        assert!(self.is_closing(), "nobody begins to any more");
        while self.writing.get() > 0 {
            self.unwritten.raised().await;
        }
    }

    /// Nobody is to be given its memory back: it is dropped as soon as it is free, whatever else is still told of it.
    pub(super) fn abandon(&self) {
        self.is_abandoned.set(true);
        self.forget_memory();
    }

    /// No access to its memory is under way, and none begins.
    pub(super) fn set_free(&self) {
        self.is_free.set(true);
        self.forget_memory();
    }

    fn forget_memory(&self) {
        if self.is_free.get() && self.is_abandoned.get() {
            self.buffers.take();
            if let Some(slicing) = &self.slicing {
                slicing.forget_memory();
            }
        }
    }

    pub(super) fn held_chunks(&self) -> u32 {
        self.swarm.borrow().held().count()
    }

    pub(super) fn holds(&self, chunk: u32) -> bool {
        self.swarm.borrow().held().contains(chunk)
    }

    pub(super) fn neighbours(&self) -> usize {
        self.swarm.borrow().neighbours()
    }

    pub(super) fn is_whole(&self) -> bool {
        self.swarm.borrow().is_complete()
    }

    /// Bytes of the chunks that are here.
    pub(super) fn held_bytes(&self) -> u64 {
        bytes_of(&self.content.record.shape, self.swarm.borrow().held())
    }

    /// Tells the machine something, and does what it asks for.
    pub(super) fn on(self: &Rc<Self>, inner: &Rc<Inner>, event: impl FnOnce(&mut Swarm)) {
        event(&mut self.swarm.borrow_mut());
        loop {
            let action = self.swarm.borrow_mut().poll_action();
            let Some(action) = action else {
                break;
            };
            self.act(inner, action);
        }
        let deadline = self.swarm.borrow().deadline();
        let sleeps_until = self.sleeps_until.get();
        let is_earlier = deadline.is_some_and(|at| sleeps_until.is_none_or(|until| at < until));
        if is_earlier {
            self.keeper.raise();
        }
    }

    fn act(self: &Rc<Self>, inner: &Rc<Inner>, action: Action) {
        let version = self.content.record.version;
        match action {
            Action::Send { to, message } => inner.say(to, version, &message),
            Action::Fetch {
                fetch,
                source,
                chunk,
                is_copy,
            } => {
                let flight = Rc::new(Flight::new(source, chunk, is_copy));
                self.flights.borrow_mut().insert(fetch, Rc::clone(&flight));
                let fetching = Rc::clone(self).fetch(Rc::clone(inner), fetch, flight);
                if !inner.spawn(fetching) {
                    self.flights.borrow_mut().remove(&fetch);
                    let mut swarm = self.swarm.borrow_mut();
                    swarm.on_fetched(time::now(), fetch, Fetched::Failed);
                }
            }
            Action::Cancel(fetch) => {
                if let Some(flight) = self.flights.borrow().get(&fetch) {
                    flight.cancel();
                }
            }
            Action::Whole => {
                self.settled.open();
                let told = Rc::clone(self).tell_whole(Rc::clone(inner));
                if !inner.spawn(told) {
                    tracing::warn!("the core takes no more tasks");
                }
            }
            Action::Closed => {
                self.is_closed.set(true);
                self.closed.raise();
                self.keeper.raise();
            }
        }
    }

    /// Those who come later greet whole holders rather.
    async fn tell_whole(self: Rc<Self>, inner: Rc<Inner>) {
        if !self.is_serving() || self.is_closing() {
            return;
        }
        let mut told = inner.put_holder(&self).await;
        if self.is_closing() {
            // It was let go meanwhile, and must not come back.
            let version = self.content.record.version;
            told = told.and(inner.books.remove_holder(version, inner.me()).await);
        }
        if let Err(error) = told {
            tracing::debug!(%error, "the catalogue learns it with the lease");
        }
    }

    /// Keeps the machine's times.
    pub(super) async fn drive(self: Rc<Self>, inner: Rc<Inner>) {
        while !self.is_closed.get() {
            let deadline = self.swarm.borrow().deadline();
            self.sleeps_until.set(deadline);
            let is_due = match deadline {
                Some(at) => {
                    let left = at.since(time::now());
                    time::timeout(left, self.keeper.raised()).await.is_err()
                }
                None => {
                    self.keeper.raised().await;
                    false
                }
            };
            if is_due && !self.is_closed.get() {
                self.on(&inner, |swarm| swarm.on_time(time::now()));
            }
        }
    }

    /// Reads who else holds the object, as long as something is lacking.
    pub(super) async fn follow(self: Rc<Self>, inner: Rc<Inner>) {
        let version = self.content.record.version;
        let (mut pause, pause_max) = FOLLOW;
        while !self.is_whole() && !self.is_closing() {
            let asking = inner.books.holders(version);
            let Some(asked) = unless(&self.settled, asking).await else {
                break;
            };
            match asked {
                Ok(holders) => {
                    let members = holders.into_iter().filter_map(|(id, holder)| {
                        inner.ways.know(id, &holder.addresses);
                        holder.keeps.is_serving().then(|| Member {
                            id,
                            rack: holder.rack,
                            keeps_all: holder.keeps == Keeps::All,
                            is_whole: holder.chunks == self.content.record.shape.chunks(),
                        })
                    });
                    let members: Vec<_> = members.collect();
                    self.on(&inner, |swarm| swarm.on_members(time::now(), &members));
                }
                Err(error) => tracing::debug!(%error, "who holds {version}"),
            }
            // Over as soon as nothing is lacking, or it is let go.
            let _settled = time::timeout(pause, self.settled.opened()).await;
            pause = (pause * 2).min(pause_max);
        }
    }

    /// Lets nobody read any more, and waits for those who do.
    pub(super) async fn close(self: &Rc<Self>, inner: &Rc<Inner>) {
        self.on(inner, |swarm| swarm.close(time::now()));
        while !self.is_closed.get() {
            self.closed.raised().await;
        }
    }
}

/// What the engine has of an object.
pub(super) type Segments = Vec<(Kind, SegmentId)>;

/// What a buffer of a version is called at its holders' engines.
pub(super) fn segment_name(version: Version, buffer: u32) -> String {
    format!("p2p/{version}/{buffer}")
}

/// Registers buffers for reading, those without a byte apart.
///
/// # Errors
/// Why one was not, and what was registered before.
pub(super) fn register(
    engine: &Engine,
    version: Version,
    buffers: &[Exposed],
) -> Result<Segments, (Segments, RegisterRefusal)> {
    let mut segments = Vec::new();
    for (buffer, index) in buffers.iter().zip(0..) {
        if buffer.is_empty() {
            continue;
        }
        let options = RegisterOptions {
            access: Access::Read,
            ..RegisterOptions::named(&segment_name(version, index))
        };
        match engine.register(buffer.clone(), &options) {
            Ok(segment) => segments.push((Kind::Memory, segment)),
            Err(error) => return Err((segments, error.refusal)),
        }
    }
    Ok(segments)
}

/// Takes segments away; ends when no reader of them is left.
pub(super) async fn unregister(engine: &Engine, segments: &Segments) {
    for &(kind, segment) in segments {
        let was_there = match kind {
            Kind::File => engine.unregister_file(segment).await.is_some(),
            Kind::Device => engine.unregister_device(segment).await.is_some(),
            _ => engine.unregister(segment).await.is_some(),
        };
        assert!(was_there, "it was registered by us");
    }
}

pub(super) fn chunk_of(shape: &Shape, buffers: &[Exposed], chunk: u32) -> Exposed {
    let place = shape.place(chunk).expect("a chunk of the object");
    let offset = usize::try_from(place.offset_bytes).expect("it is in memory");
    buffers[place.buffer as usize].slice(offset, place.len_bytes as usize)
}

/// The checksums of all chunks. Others run between chunks.
pub(super) async fn sums(shape: &Shape, buffers: &[Exposed]) -> Vec<u32> {
    let mut sums = Vec::new();
    for chunk in 0..shape.chunks() {
        sums.push(chunk_of(shape, buffers, chunk).crc32c());
        time::yield_now().await;
    }
    sums
}

/// Bytes of these chunks.
fn bytes_of(shape: &Shape, chunks: &ChunkSet) -> u64 {
    if chunks.is_full() {
        return shape.len_bytes();
    }
    let places = chunks.iter().filter_map(|chunk| shape.place(chunk));
    places.map(|place| u64::from(place.len_bytes)).sum()
}

/// The chunks that are right already. Others run between chunks.
pub(super) async fn verified(shape: &Shape, sums: &[u32], buffers: &[Exposed]) -> ChunkSet {
    let mut held = ChunkSet::empty(shape.chunks());
    for (chunk, &sum) in (0..shape.chunks()).zip(sums) {
        if chunk_of(shape, buffers, chunk).crc32c() == sum {
            held.insert(chunk);
        }
        time::yield_now().await;
    }
    held
}

impl Local {
    /// Where a chunk goes; `None` if it is not kept in memory.
    pub(super) fn room(&self, chunk: u32) -> Option<Exposed> {
        let is_in_memory = self.is_serving() && self.backing.is_none();
        is_in_memory.then(|| chunk_of(&self.content.record.shape, &self.buffers.borrow(), chunk))
    }
}
