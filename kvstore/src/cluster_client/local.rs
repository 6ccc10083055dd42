//! The short way of a client on a core of a member: what that core has or is the home of needs no message.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::rc::Rc;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_cluster::proto::map::{ClusterMap, Epoch};
use lunette_kvstore_proto::key::{Fingerprint, Key};
use lunette_kvstore_proto::message::directory::{Answer, Ask, AskerId, Peek};
use lunette_kvstore_proto::owner::{WriteAnswer, WriteAsk};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::retention::Pin;
use lunette_runtime::arena::{RegionMut, View};
use lunette_runtime::entropy;
use lunette_runtime_core::ids::RequestId;
use lunette_transfer::Room;

use crate::counting::{Counting, Outcome};
use crate::member::{AtOnce, Here, LentCopy, LentRoom, MemberCore, Placed, Put, RoomHere, Waiting};
use crate::value::Value;

/// See the [module](self).
pub(super) struct Local {
    core: Rc<MemberCore>,
    asker: AskerId,
    last: Cell<u64>,
    /// Writes that wait.
    waiting: RefCell<BTreeSet<RequestId>>,
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local")
            .field("seat", &self.core.seat())
            .finish_non_exhaustive()
    }
}

/// A write of one client, until it is over, however that comes.
pub(super) struct Waits<'a> {
    local: &'a Local,
    request: RequestId,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.local.waiting.borrow_mut().remove(&self.request);
        self.local.tell_over();
    }
}

/// A write that was begun on this core.
pub(super) enum Begun<'a> {
    Done(WriteAnswer),
    Waits(Waits<'a>, Waiting<WriteAnswer>, Counting),
}

impl Begun<'_> {
    pub(super) async fn end(self) -> WriteAnswer {
        match self {
            Self::Done(answer) => answer,
            Self::Waits(_waits, waiting, mut counting) => {
                let answer = waiting.await.unwrap_or(WriteAnswer::Interrupted);
                counting.end(Outcome::from(&answer));
                answer
            }
        }
    }
}

impl Local {
    pub(super) fn new(core: Rc<MemberCore>) -> Self {
        Self {
            core,
            asker: AskerId(entropy()),
            last: Cell::new(0),
            waiting: RefCell::default(),
        }
    }

    pub(super) fn peek(
        &self,
        keys: &[Fingerprint],
        namespace: NamespaceKind,
        tell: impl FnMut(Peek),
    ) {
        self.core.peek(keys, namespace, tell);
    }

    /// Tells the core's map, if it is newer.
    pub(super) fn if_newer(&self, known: Epoch, tell: impl FnOnce(&ClusterMap)) {
        let map = self.core.map();
        if map.epoch() > known {
            tell(&map);
        }
    }

    /// Asks this core as a home, for this asker.
    ///
    /// # Errors
    /// The questions, if they are to be sent.
    pub(super) async fn ask(
        &self,
        who: (AskerId, RequestId),
        epoch: Epoch,
        asks: Vec<Ask>,
    ) -> Result<Vec<(RequestId, Answer)>, Vec<Ask>> {
        self.core.ask_here(who, epoch, asks).await
    }

    pub(super) fn hear_reads(&self) {
        self.core.hear_reads();
    }

    pub(super) fn chunk_view(&self, chunk: u32) -> Option<View> {
        let refused = |error: &io::Error| {
            tracing::warn!(%error, chunk, "threads ask for what lies there: it cannot be mapped");
        };
        let view = self.core.chunk_view(chunk).inspect_err(refused);
        view.ok().flatten()
    }

    /// The core.
    pub(super) fn seat(&self) -> Seat {
        self.core.seat()
    }

    /// Whether so much fits without anything that would have to leave.
    pub(super) fn has_room(&self, extent_bytes: u64) -> bool {
        self.core.has_room(extent_bytes)
    }

    /// The length of an object that this core has.
    pub(super) fn len_of(&self, key: Key<'_>, namespace: NamespaceKind) -> Option<usize> {
        self.core.len_here(key, namespace)
    }

    pub(super) fn get(
        &self,
        key: Key<'_>,
        namespace: NamespaceKind,
        ranges: &[ByteRange],
        room: &mut Room,
    ) -> Here {
        self.core.get_here(key, namespace, ranges, room)
    }

    /// An object that is long, but no longer than that, for a thread to read.
    pub(super) fn lend(
        &self,
        key: Key<'_>,
        namespace: NamespaceKind,
        len_max: usize,
    ) -> Option<LentCopy> {
        self.core.lend_here(key, namespace, len_max)
    }

    /// Room for an object that this core takes, for a thread to fill.
    pub(super) fn lend_room(&self, key: Key<'_>, len_bytes: u32, pin: Pin) -> Option<LentRoom> {
        self.core.lend_room(key, len_bytes, pin)
    }

    /// Room for an object that this core takes, for a device to fill.
    pub(super) fn room_here(
        &self,
        key: Key<'_>,
        len_bytes: u32,
        pin: Pin,
    ) -> Option<(RoomHere, RegionMut)> {
        self.core.room_here(key, len_bytes, pin)
    }

    pub(super) fn filled(&self, room: LentRoom, crc32c: u32) -> Placed {
        self.core.filled(room, crc32c)
    }

    /// Begins a write on this core; if it is not wished for, only where nothing has to leave for it, or where
    /// this is the key's home. `None`: it is to be written elsewhere.
    pub(super) fn begin(
        &self,
        key: Key<'_>,
        value: (&Value, Option<&Placed>),
        ask: WriteAsk,
        is_wished: bool,
    ) -> Option<Begun<'_>> {
        match self.core.put_at_once(key, value, ask) {
            AtOnce::Done(answer) => return Some(Begun::Done(answer)),
            AtOnce::NoRoom => return None,
            AtOnce::Unsure => {}
        }
        let request = RequestId(self.last.get() + 1);
        self.last.set(request.0);
        let put = (self.core).put_here((self.asker, request), key, value, (ask, is_wished));
        match put {
            Some(Put::Done(answer)) => {
                self.tell_over();
                Some(Begun::Done(answer))
            }
            Some(Put::Waits(waiting, counting)) => {
                self.waiting.borrow_mut().insert(request);
                let local = self;
                Some(Begun::Waits(Waits { local, request }, waiting, counting))
            }
            None => {
                self.tell_over();
                None
            }
        }
    }

    fn tell_over(&self) {
        let first = self.waiting.borrow().first().copied();
        let over = first.unwrap_or(RequestId(self.last.get() + 1));
        self.core.over(self.asker, over);
    }
}
