//! Registered memory, and who is using it.

mod in_use;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lunette_auth::Request;
use lunette_runtime::arena::{Exposed, Share};
use lunette_transfer_proto::engine::message::{Descriptor, Refusal};
use lunette_transfer_proto::engine::one_sided::Window;
use lunette_transfer_proto::engine::segment::{
    Access, Kind, RegisterRefusal, Registration, Segment, SegmentId, Segments, Way,
};

use rustix::io::Errno;

use super::devices::DeviceSegment;
use super::error::RegisterError;
use super::files::{FileSegment, Piece};
use super::grants::request;
use super::namespaces::NamespaceSegment;
use super::rdma::CountedWindow;
use super::same_host::Board;
use in_use::Users;
pub(super) use in_use::{InUse, Unregistered};

/// How memory is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterOptions {
    /// The name by which peers open it.
    pub name: Option<String>,
    /// Whether peers may name places in it by their addresses here. Ranges that are known by address
    /// do not overlap.
    pub by_address: bool,
    /// What peers may do.
    pub access: Access,
    /// Whether peers on this host may map it, if they may read it and it is a whole mapping
    /// ([`Exposed::map`]). What they do not map is copied for them through a window, so it need not be
    /// sent either. A peer that keeps to the rules stops reading when the segment is unregistered;
    /// one that does not can go on, so memory that is later to hold what these peers must not see is not
    /// mapped. Memory of a device is opened by peers with which there is trust
    /// ([`same_host_trust`](super::EngineOptions::same_host_trust)), which reach the whole allocation in which it lies;
    /// unregistering waits until they have closed it.
    pub same_host: bool,
    /// Whether it is reached by those peers alone that have redeemed a capability for it
    /// ([`Engine::grant`](super::Engine::grant)). Neither its name nor its addresses describe it to anybody,
    /// and no peer maps it, whatever [`same_host`](Self::same_host) says.
    pub by_capability: bool,
}

impl RegisterOptions {
    /// Memory that peers open by this name and may read and write.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            by_address: false,
            access: Access::ReadWrite,
            same_host: true,
            by_capability: false,
        }
    }
}

/// What a segment is made of.
#[derive(Clone, Debug)]
pub(super) enum Content {
    Memory(Exposed),
    File(FileSegment),
    Device(DeviceSegment),
    Namespace(NamespaceSegment),
}

impl Content {
    pub(super) fn len_bytes(&self) -> u64 {
        match self {
            Self::Memory(memory) => memory.len() as u64,
            Self::File(file) => file.len_bytes(),
            Self::Device(device) => device.len_bytes(),
            Self::Namespace(namespace) => namespace.len_bytes(),
        }
    }
}

/// Memory of a segment, for whoever registered it.
#[derive(Debug)]
pub(super) enum Own {
    Memory(Exposed),
    Device(DeviceSegment),
}

/// What is behind a segment. It lies in the table itself, so that who reaches it looks there alone.
#[derive(Debug)]
struct Behind {
    content: Content,
    /// How peers of this host may read it by themselves.
    showing: Showing,
    /// If it is reached by capability: the epoch of those that hold, the same at all cores of the engine.
    capability_epoch: Option<Arc<AtomicU64>>,
    users: Rc<Users>,
    /// Where adapters reach it, by their number. They end when it is unregistered, before its memory is given
    /// back.
    windows: RefCell<BTreeMap<u16, CountedWindow>>,
}

impl Behind {
    fn new(content: Content, showing: Showing, capability_epoch: Option<Arc<AtomicU64>>) -> Self {
        Self {
            content,
            showing,
            capability_epoch,
            users: Rc::default(),
            windows: RefCell::default(),
        }
    }

    const fn kind(&self) -> Kind {
        match self.content {
            Content::Memory(_) => Kind::Memory,
            Content::File(_) => Kind::File,
            Content::Device(_) => Kind::Device,
            Content::Namespace(_) => Kind::Namespace,
        }
    }
}

/// How peers of this host read a segment by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Showing {
    /// They do not.
    Hidden,
    /// They map it.
    Mapped,
    /// Those that are trusted are told its address.
    ByAddress,
    /// Those that are trusted open it by a handle of its device's driver.
    ByHandle,
}

/// A device's segment for a peer of this host, which opens it.
#[derive(Debug)]
pub(super) struct HandedOut {
    pub(super) device: DeviceSegment,
    pub(super) access: Access,
    /// Until the peer has closed it.
    pub(super) in_use: InUse,
}

/// A segment's memory, for a peer of this host that may read it.
#[derive(Debug)]
pub(super) enum Shown {
    /// To be mapped.
    File(Share),
    /// To be read in this process.
    At { address: u64, len_bytes: u64 },
}

/// What one engine has registered.
#[derive(Debug, Default)]
pub(super) struct Registry {
    segments: Segments<Behind>,
    /// Segments that may be mapped, by where the mapping that each is begins.
    mappings: BTreeMap<usize, SegmentId>,
    /// Whether peers of this host may be trusted.
    has_trust: bool,
    /// If so, the other segments that they may read, by where each begins. Where several begin, the last.
    places: BTreeMap<usize, SegmentId>,
    /// Made when the first peer of this host comes.
    board: Option<Board>,
}

impl Registry {
    pub(super) fn new(has_trust: bool) -> Self {
        Self {
            has_trust,
            ..Self::default()
        }
    }

    pub(super) fn register(
        &mut self,
        exposed: Exposed,
        options: &RegisterOptions,
    ) -> Result<SegmentId, RegisterError> {
        let memory = self.behind(&exposed, options, first_epoch(options));
        let registered = self
            .segments
            .register(&of_memory(&exposed, options), memory);
        match registered {
            Ok(id) => {
                self.place(id, &exposed);
                Ok(id)
            }
            Err((refusal, _)) => Err(RegisterError {
                refusal,
                memory: exposed,
            }),
        }
    }

    /// Takes in memory under the id that the engine's directory has given it. `capability_epoch` is what
    /// its cores have in common, if it is reached by capability.
    pub(super) fn adopt(
        &mut self,
        id: SegmentId,
        exposed: Exposed,
        options: &RegisterOptions,
        capability_epoch: Option<Arc<AtomicU64>>,
    ) {
        let memory = self.behind(&exposed, options, capability_epoch);
        self.segments
            .adopt(id, &of_memory(&exposed, options), memory);
        self.place(id, &exposed);
    }

    fn behind(
        &self,
        exposed: &Exposed,
        options: &RegisterOptions,
        capability_epoch: Option<Arc<AtomicU64>>,
    ) -> Behind {
        let is_shared =
            options.same_host && !options.by_capability && options.access.allows(Way::Read);
        let showing = if !is_shared {
            Showing::Hidden
        } else if exposed.mapping() == Some((exposed.start(), exposed.len())) {
            Showing::Mapped
        } else if self.has_trust {
            Showing::ByAddress
        } else {
            Showing::Hidden
        };
        let content = Content::Memory(exposed.clone());
        Behind::new(content, showing, capability_epoch)
    }

    /// Has memory found by its addresses, if peers of this host may read it.
    fn place(&mut self, id: SegmentId, exposed: &Exposed) {
        let segment = self.segments.get(id).expect("just registered");
        let showing = segment.memory.showing;
        if let Some(by_start) = self.by_start(showing) {
            by_start.insert(exposed.start(), id);
        }
    }

    /// Registers what is no memory of this machine's.
    pub(super) fn register_content(
        &mut self,
        content: Content,
        options: &RegisterOptions,
    ) -> Result<SegmentId, RegisterRefusal> {
        let registration = of_content(&content, options);
        let showing = self.showing_of(&content, options);
        let behind = Behind::new(content, showing, first_epoch(options));
        let registered = self.segments.register(&registration, behind);
        registered.map_err(|(refusal, _)| refusal)
    }

    /// As [`adopt`](Self::adopt), of what is no memory of this machine's, and `len_bytes` of it.
    pub(super) fn adopt_content(
        &mut self,
        id: SegmentId,
        content: Content,
        len_bytes: u64,
        options: &RegisterOptions,
        capability_epoch: Option<Arc<AtomicU64>>,
    ) {
        let registration = Registration {
            len_bytes,
            ..of_content(&content, options)
        };
        let showing = self.showing_of(&content, options);
        let behind = Behind::new(content, showing, capability_epoch);
        self.segments.adopt(id, &registration, behind);
    }

    /// How peers of this host reach what is no memory of this machine's: nobody maps it.
    const fn showing_of(&self, content: &Content, options: &RegisterOptions) -> Showing {
        let is_shared = self.has_trust && options.same_host && !options.by_capability;
        match content {
            Content::Device(_) if is_shared => Showing::ByHandle,
            _ => Showing::Hidden,
        }
    }

    /// What a segment is made of.
    pub(super) fn kind(&self, id: SegmentId) -> Option<Kind> {
        Some(self.segments.get(id)?.memory.kind())
    }

    pub(super) fn content(&self, id: SegmentId) -> Option<Content> {
        Some(self.segments.get(id)?.memory.content.clone())
    }

    pub(super) fn unregister(&mut self, id: SegmentId) -> Option<Unregistered> {
        let memory = self.segments.unregister(id)?.memory;
        if let Some(by_start) = self.by_start(memory.showing)
            && let Content::Memory(exposed) = &memory.content
        {
            let base = exposed.start();
            if by_start.get(&base) == Some(&id) {
                by_start.remove(&base);
            }
        }
        if memory.showing != Showing::Hidden
            && let Some(board) = &mut self.board
        {
            board.hide(id);
        }
        Some(Unregistered {
            content: memory.content,
            users: memory.users,
        })
    }

    /// Where segments are found by the addresses of their memory.
    const fn by_start(&mut self, showing: Showing) -> Option<&mut BTreeMap<usize, SegmentId>> {
        match showing {
            Showing::Hidden | Showing::ByHandle => None,
            Showing::Mapped => Some(&mut self.mappings),
            Showing::ByAddress => Some(&mut self.places),
        }
    }

    /// The board, for a peer of this host.
    pub(super) fn board(&mut self) -> Result<OwnedFd, Errno> {
        let board = match self.board.take() {
            Some(board) => board,
            None => Board::new()?,
        };
        self.board.insert(board).file()
    }

    /// A segment's memory for a peer of this host, who may read it from now on.
    pub(super) fn share(&mut self, id: SegmentId, is_trusted: bool) -> Result<Shown, Refusal> {
        let share = self.lend(id, is_trusted)?;
        let board = self.board.as_mut().ok_or(Refusal::Session)?;
        board.show(id);
        Ok(share)
    }

    /// A device's segment for a peer of this host that is trusted, and may reach it until it has closed it.
    ///
    /// # Errors
    /// [`Refusal::Elsewhere`] of what is opened by nobody.
    pub(super) fn hand_out(&mut self, id: SegmentId) -> Result<HandedOut, Refusal> {
        let segment = self.segments.get(id).ok_or(Refusal::Stale)?;
        let (Content::Device(device), Showing::ByHandle) =
            (&segment.memory.content, segment.memory.showing)
        else {
            return Err(Refusal::Elsewhere);
        };
        let handed = HandedOut {
            device: device.clone(),
            access: segment.access,
            in_use: InUse::new(&segment.memory.users),
        };
        let board = self.board.as_mut().ok_or(Refusal::Session)?;
        board.show(id);
        Ok(handed)
    }

    /// A segment's memory for a peer of this host, who copies from it when it is told to.
    pub(super) fn lend(&self, id: SegmentId, is_trusted: bool) -> Result<Shown, Refusal> {
        let segment = self.segments.get(id).ok_or(Refusal::Stale)?;
        if !segment.access.allows(Way::Read) {
            return Err(Refusal::Forbidden);
        }
        if segment.memory.capability_epoch.is_some() {
            return Err(Refusal::NoCapability);
        }
        let Content::Memory(memory) = &segment.memory.content else {
            return Err(Refusal::Elsewhere);
        };
        match segment.memory.showing {
            Showing::Mapped => memory.share().map(Shown::File).map_err(|error| {
                tracing::warn!(%error, "memory is not shared");
                Refusal::Elsewhere
            }),
            Showing::ByAddress if is_trusted => Ok(Shown::At {
                address: memory.start() as u64,
                len_bytes: memory.len() as u64,
            }),
            Showing::ByAddress | Showing::ByHandle | Showing::Hidden => Err(Refusal::Elsewhere),
        }
    }

    /// The segment in which memory lies and that can be lent, and where in it.
    pub(super) fn lendable(&self, exposed: &Exposed, is_trusted: bool) -> Option<(SegmentId, u64)> {
        if let Some((base, _)) = exposed.mapping()
            && let Some(&id) = self.mappings.get(&base)
        {
            return Some((id, (exposed.start() - base) as u64));
        }
        if !is_trusted {
            return None;
        }
        let (&start, &id) = self.places.range(..=exposed.start()).next_back()?;
        let offset = (exposed.start() - start) as u64;
        let end = offset + exposed.len() as u64;
        let lies_inside = end <= self.segments.get(id)?.len_bytes;
        lies_inside.then_some((id, offset))
    }

    /// What is to be reached by adapters, what peers may do there, and a hold on it.
    ///
    /// # Errors
    /// [`Refusal::NoCapability`] if it is reached by capability, [`Refusal::Elsewhere`] of a file.
    pub(super) fn exposed(&self, id: SegmentId) -> Result<(Content, Access, InUse), Refusal> {
        let segment = self.reached_by_adapters(id)?;
        let in_use = InUse::new(&segment.memory.users);
        Ok((segment.memory.content.clone(), segment.access, in_use))
    }

    /// Whether an adapter reaches a segment.
    ///
    /// # Errors
    /// As [`exposed`](Self::exposed).
    pub(super) fn has_window(&self, id: SegmentId, adapter: u16) -> Result<bool, Refusal> {
        let windows = &self.reached_by_adapters(id)?.memory.windows;
        Ok(windows.borrow().contains_key(&adapter))
    }

    /// Keeps a window as long as its segment is registered.
    pub(super) fn put_window(&self, id: SegmentId, adapter: u16, window: CountedWindow) {
        if let Some(segment) = self.segments.get(id) {
            let mut windows = segment.memory.windows.borrow_mut();
            // One that is there already may be in use.
            windows.entry(adapter).or_insert(window);
        }
    }

    /// Where adapters reach a segment.
    ///
    /// # Errors
    /// As [`exposed`](Self::exposed).
    pub(super) fn windows(&self, id: SegmentId) -> Result<Vec<Window>, Refusal> {
        let windows = self.reached_by_adapters(id)?.memory.windows.borrow();
        let windows = windows.iter().map(|(&adapter, counted)| {
            let remote = counted.remote();
            Window {
                adapter,
                address: remote.address,
                key: remote.rkey,
            }
        });
        Ok(windows.collect())
    }

    fn reached_by_adapters(&self, id: SegmentId) -> Result<&Segment<Behind>, Refusal> {
        let segment = self.segments.get(id).ok_or(Refusal::Stale)?;
        if segment.memory.capability_epoch.is_some() {
            return Err(Refusal::NoCapability);
        }
        match segment.memory.content {
            Content::Memory(_) | Content::Device(_) => Ok(segment),
            Content::File(_) | Content::Namespace(_) => Err(Refusal::Elsewhere),
        }
    }

    /// Whether a segment is registered.
    pub(super) fn has(&self, id: SegmentId) -> bool {
        self.segments.get(id).is_some()
    }

    pub(super) fn len(&self) -> usize {
        self.segments.len()
    }

    pub(super) fn find(&self, start: u64, len_bytes: u64) -> Option<(SegmentId, u64)> {
        self.segments.by_address(start, len_bytes)
    }

    /// Memory, for whoever registered it: whatever peers may do with it.
    pub(super) fn memory(&self, id: SegmentId, offset: u64, len: u64) -> Option<Exposed> {
        match self.own(id, offset, len)? {
            Own::Memory(exposed) => Some(exposed),
            Own::Device(_) => None,
        }
    }

    /// As [`memory`](Self::memory), also of a device.
    pub(super) fn own(&self, id: SegmentId, offset: u64, len: u64) -> Option<Own> {
        let segment = self.segments.get(id)?;
        let end = offset.checked_add(len)?;
        if end > segment.len_bytes {
            return None;
        }
        match &segment.memory.content {
            Content::Memory(exposed) => {
                let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
                Some(Own::Memory(exposed.slice(offset, len)))
            }
            Content::Device(device) => Some(Own::Device(device.slice(offset..end))),
            Content::File(_) | Content::Namespace(_) => None,
        }
    }

    /// What peers are told of the segment of a name.
    pub(super) fn open(&self, name: &[u8]) -> Result<Descriptor, Refusal> {
        let (id, segment) = self.segments.by_name(name).ok_or(Refusal::Stale)?;
        if segment.memory.capability_epoch.is_some() {
            return Err(Refusal::NoCapability);
        }
        Ok(describe(id, segment))
    }

    /// What peers are told of the segment in which a range of addresses lies, and where in it.
    pub(super) fn open_at(&self, start: u64, len: u64) -> Result<(Descriptor, u64), Refusal> {
        let (id, offset) = self.find(start, len).ok_or(Refusal::OutOfRange)?;
        if self.capability_epoch(id).is_some() {
            return Err(Refusal::NoCapability);
        }
        let descriptor = self.descriptor(id).expect("just found");
        Ok((descriptor, offset))
    }

    /// The epoch of the capabilities that hold for a segment; `None` if it is not reached by them.
    pub(super) fn capability_epoch(&self, id: SegmentId) -> Option<u64> {
        let epoch = self.segments.get(id)?.memory.capability_epoch.as_ref()?;
        Some(epoch.load(Ordering::Acquire))
    }

    /// Goes on to the next epoch of a segment's capabilities, at all cores. False if it has none.
    pub(super) fn revoke(&self, id: SegmentId) -> bool {
        let segment = self.segments.get(id);
        let Some(epoch) = segment.and_then(|segment| segment.memory.capability_epoch.as_ref())
        else {
            return false;
        };
        epoch.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// What a segment is.
    pub(super) fn descriptor(&self, id: SegmentId) -> Option<Descriptor> {
        Some(describe(id, self.segments.get(id)?))
    }

    /// What an access reaches, and a hold on it. If its segment is reached by capability,
    /// `permit` says whether it may, by the epoch of those that hold: first, so that nobody else learns
    /// anything of the segment.
    pub(super) fn reach(
        &self,
        id: SegmentId,
        way: Way,
        offset_bytes: u64,
        len_bytes: u64,
        permit: impl FnOnce(&Request, u64) -> Result<(), Refusal>,
    ) -> Result<(Piece, InUse), Refusal> {
        if let Some(epoch) = self.capability_epoch(id) {
            permit(&request(id, way, offset_bytes, len_bytes), epoch)?;
        }
        let segment = self.segments.reach(id, way, offset_bytes, len_bytes)?;
        let in_memory = |bytes: u64| usize::try_from(bytes).map_err(|_| Refusal::OutOfRange);
        let len = in_memory(len_bytes)?;
        let piece = match &segment.memory.content {
            Content::Memory(exposed) => Piece::Memory(exposed.slice(in_memory(offset_bytes)?, len)),
            Content::File(file) => Piece::File(file.part(offset_bytes, len)),
            Content::Device(device) => Piece::Device(device.part(offset_bytes, len)),
            Content::Namespace(namespace) => Piece::Namespace(namespace.part(offset_bytes, len)?),
        };
        Ok((piece, InUse::new(&segment.memory.users)))
    }

    /// As [`reach`](Self::reach), of memory alone.
    pub(super) fn reach_memory(
        &self,
        id: SegmentId,
        way: Way,
        offset_bytes: u64,
        len_bytes: u64,
        permit: impl FnOnce(&Request, u64) -> Result<(), Refusal>,
    ) -> Result<(Exposed, InUse), Refusal> {
        match self.reach(id, way, offset_bytes, len_bytes, permit)? {
            (Piece::Memory(exposed), in_use) => Ok((exposed, in_use)),
            (Piece::File(_) | Piece::Device(_) | Piece::Namespace(_), _) => Err(Refusal::Elsewhere),
        }
    }
}

/// What a segment that is no memory of this machine's is to be. Memory of a device alone has addresses.
fn of_content<'a>(content: &Content, options: &'a RegisterOptions) -> Registration<'a> {
    let start = match content {
        Content::Memory(_) => unreachable!("memory is registered as such"),
        Content::File(_) | Content::Namespace(_) => None,
        Content::Device(device) => Some(device.region().address()),
    };
    Registration {
        name: options.name.as_deref().map(str::as_bytes),
        start: start.filter(|_| options.by_address),
        len_bytes: content.len_bytes(),
        access: options.access,
    }
}

/// What a segment of memory is to be.
fn of_memory<'a>(exposed: &Exposed, options: &'a RegisterOptions) -> Registration<'a> {
    Registration {
        name: options.name.as_deref().map(str::as_bytes),
        start: options.by_address.then_some(exposed.start() as u64),
        len_bytes: exposed.len() as u64,
        access: options.access,
    }
}

/// The epoch of a new segment's capabilities, if it is reached by them.
pub(super) fn first_epoch(options: &RegisterOptions) -> Option<Arc<AtomicU64>> {
    options.by_capability.then(|| Arc::new(AtomicU64::new(1)))
}

fn describe(id: SegmentId, segment: &Segment<Behind>) -> Descriptor {
    Descriptor {
        segment: id,
        len_bytes: segment.len_bytes,
        start: segment.start().unwrap_or(0),
        access: segment.access,
        kind: segment.memory.kind(),
    }
}
