//! Objects that adapters of this core write to where their readers want them, and those that readers' adapters read
//! where they lie.
//!
//! ```text
//!   reader                                                  owner
//!     Op::Adapters, Op::Pair, over the connection      -->    a queue pair, of that connection
//!     Op::FindPushed: places, an immediate             -->    pins the copy
//!     the object, then the answer with the immediate   <--    by one-sided writes
//!     the answer, over the connection                  <--    nothing is under way any more: unpins
//! ```
//!
//! What is asked over the queue pair itself, by a message, is answered by one; but who has been written to is told by
//! the immediate alone.
//!
//! Nothing is waited for on the way of bytes: where the memory is not registered yet, or as much is under way as a
//! queue pair takes, the bytes are sent over the connection. A queue pair ends with its connection, with an earlier
//! one's successor, and when a write over it fails; what its reader is told then has it give up its end.
//!
//! | file | subject |
//! |---|---|
//! | `messages` | requests that come by messages, and their answers |
//! | `pairs` | the queue pairs of those who came |
//! | `pulling` | values that adapters read in memory of their writers |
//! | `windows` | what readers' adapters may read |

mod messages;
mod pairs;
mod pulling;
mod windows;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore_proto::message::Status;
use lunette_kvstore_proto::message::directory::{PairMessage, PushWish};
use lunette_runtime::arena::Region;
use lunette_runtime::{Signal, time};
use lunette_runtime_core::time::Time;
use lunette_transfer::ConnectionId;
use lunette_transfer::adapters::{
    ASKED_MAX, Adapter, AdapterChoice, Adapters, Messages, RdmaOptions,
};
use lunette_verbs::{Context, Lent, QueuePair, Ready, RemoteMemory, Request, RequestError};

use super::bytes::Reachable;
use super::core::MemberCore;
pub(crate) use messages::Over;
use pairs::{Made, Pairs};
pub(crate) use pulling::Pulled;
use windows::{Wanted, Windows};

/// How long a write may take, those before it on its queue pair included. There is time left then to send the bytes.
const PUSH_MAX: Duration = Duration::from_secs(2);

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Pushing {
    options: RdmaOptions,
    /// Those that the options name, and those that the program has given.
    adapters: RefCell<Vec<Adapters>>,
    /// Where messages of each of them come.
    messages: RefCell<Vec<Option<Rc<Messages>>>>,
    /// Raised when there are more.
    added: Signal,
    pairs: RefCell<Pairs>,
    windows: RefCell<Windows>,
    /// Numbers of queue pairs, so that what fails ends the one that it was of.
    last_number: Cell<u64>,
}

/// A write that is under way.
pub(crate) struct Pushed {
    /// Behind all others of it.
    last: Request,
    over: (ConnectionId, u64, u64),
    /// When it is given up.
    until: Time,
}

impl Pushing {
    pub(crate) fn open(options: RdmaOptions) -> Self {
        let adapters = Adapters::open(&options, false, Vec::new());
        Self {
            messages: RefCell::new(messages::open(&adapters, options.messages)),
            options,
            adapters: RefCell::new(vec![adapters]),
            added: Signal::default(),
            pairs: RefCell::default(),
            windows: RefCell::default(),
            last_number: Cell::new(0),
        }
    }

    /// Uses adapters that the program has opened on this core, behind those that are used already.
    pub(crate) fn add(&self, given: Vec<Context>) {
        let nothing_else = RdmaOptions {
            adapters: AdapterChoice::None,
            ..self.options.clone()
        };
        let more = Adapters::open(&nothing_else, false, given);
        let messages = messages::open(&more, self.options.messages);
        self.messages.borrow_mut().extend(messages);
        self.adapters.borrow_mut().push(more);
        self.added.raise();
    }

    /// How many adapters readers may connect to.
    pub(crate) fn adapters(&self) -> usize {
        let adapters = self.adapters.borrow();
        adapters.iter().map(|some| some.all().len()).sum()
    }

    /// How many queue pairs there are.
    pub(crate) fn queue_pairs(&self) -> usize {
        self.pairs.borrow().len()
    }

    fn adapter(&self, index: usize) -> Option<Rc<Adapter>> {
        let adapters = self.adapters.borrow();
        let mut all = adapters.iter().flat_map(Adapters::all);
        all.nth(index).cloned()
    }

    /// Takes a step of a handshake, and says what the reader is to be told; of a queue pair over which it is to ask as
    /// well, if `is_asking`.
    pub(crate) fn step(
        &self,
        connection: ConnectionId,
        message: &PairMessage<'_>,
        is_asking: bool,
    ) -> Result<Vec<u8>, Status> {
        let index = usize::from(message.adapter);
        let adapter = self.adapter(index).ok_or(Status::Unsupported)?;
        let messages = self.messages.borrow();
        let messages = messages.get(index).and_then(Option::as_deref);
        if is_asking && messages.is_none() {
            return Err(Status::Unsupported);
        }
        let number = self.last_number.get() + 1;
        self.last_number.set(number);
        let made = Made {
            adapter: &adapter,
            messages: messages.filter(|_| is_asking),
            queue_pairs_max: self.options.queue_pairs_max,
            patience: self.options.patience,
        };
        let mut pairs = self.pairs.borrow_mut();
        pairs.step((connection, number), message, &made)
    }

    /// A connection has ended, and its queue pairs with it.
    pub(crate) fn on_ended(&self, connection: ConnectionId) {
        let ended = self.pairs.borrow_mut().end_all(connection);
        // What was under way ends here.
        drop(ended);
    }

    /// Whether a reader's queue pair is there still; else the reader is to be told, who cannot know.
    pub(crate) fn check(&self, connection: ConnectionId, name: u64) -> Result<(), Status> {
        let pairs = self.pairs.borrow();
        let pair = pairs.ready(connection, name);
        let is_open = pair.is_some_and(|(pair, ..)| pair.is_open());
        is_open.then_some(()).ok_or(Status::PushFailed)
    }

    /// Begins to write pieces of an object to where they are wanted, one after the other, and then their answer.
    /// `None` if they are to be sent over the connection: nothing was begun.
    pub(crate) fn begin(
        &self,
        core: &Rc<MemberCore>,
        connection: ConnectionId,
        wish: &PushWish,
        (pieces, answer): (&[Region], &[u8]),
    ) -> Option<Pushed> {
        let pairs = self.pairs.borrow();
        let (pair, index, number) = pairs.ready(connection, wish.connection)?;
        let lens = pieces.iter().map(|piece| u32::try_from(piece.len()).ok());
        let writes = wish.writes(&lens.collect::<Option<Vec<u32>>>()?)?;
        if !pair.is_open() || (pair.credits() as usize) < writes.len() + 1 + self.spared() {
            return None;
        }
        let adapter = self.adapter(index)?;
        let mut lent = Vec::with_capacity(writes.len());
        for write in &writes {
            let (start, there) = (write.offset_bytes as usize, write.there);
            let region = pieces[write.piece].slice(start, there.len_bytes as usize);
            let some = self.lend(core, (index, &adapter), region)?;
            lent.push((some, remote(there.address, there.key)));
        }
        for (some, there) in lent {
            // It ends before the last one does, or that one fails too.
            drop(pair.write_lent(some, there, Time::MAX));
        }
        Some(Pushed {
            last: answered(pair, wish, answer),
            over: (connection, wish.connection, number),
            until: time::now() + PUSH_MAX,
        })
    }

    /// Requests of each queue pair that are kept for answers by messages.
    fn spared(&self) -> usize {
        ASKED_MAX.min(self.options.requests_max / 2) as usize
    }

    /// A copy's memory, for a request, if it is registered; else that is begun.
    fn lend(
        &self,
        core: &Rc<MemberCore>,
        adapter: (usize, &Rc<Adapter>),
        region: Region,
    ) -> Option<Lent> {
        if core.bytes().borrow().is_readable() {
            let wanted = self.wanted(core, adapter);
            return self.windows.borrow_mut().lend(&wanted, region);
        }
        // What lies beside it is nobody's to read.
        let extent = region.extent();
        let lent = adapter.1.lend(region.into());
        if lent.is_none() {
            adapter.1.begin_register(extent);
        }
        lent
    }

    const fn wanted<'a>(
        &self,
        core: &'a Rc<MemberCore>,
        adapter: (usize, &'a Rc<Adapter>),
    ) -> Wanted<'a> {
        Wanted {
            core,
            adapter,
            windows_max: self.options.windows_max,
        }
    }

    /// What the reader at the other end of a queue pair names a copy by, and the word that says whose its memory is.
    /// `None` if they are not registered: that is begun then.
    pub(crate) fn reach(
        &self,
        core: &Rc<MemberCore>,
        (connection, name): (ConnectionId, u64),
        reachable: &Reachable,
    ) -> Option<(RemoteMemory, RemoteMemory)> {
        let pairs = self.pairs.borrow();
        let (_, index, _) = pairs.ready(connection, name)?;
        let adapter = self.adapter(index)?;
        let wanted = self.wanted(core, (index, &adapter));
        let mut windows = self.windows.borrow_mut();
        let (value, (board, word)) = (&reachable.value, &reachable.word);
        let start = value.as_slice().as_ptr().addr();
        let bytes = windows.remote(&wanted, value.extent(), start);
        let whole = board.part(board.start().as_ptr().addr(), board.len_bytes())?;
        let word = windows.remote(&wanted, whole, *word);
        Some((bytes?, word?))
    }

    /// What came of a write. If it failed, or took too long, its queue pair has ended: an adapter that never speaks
    /// again is not waited for.
    pub(crate) async fn ended(&self, pushed: Pushed) -> Result<(), RequestError> {
        let Pushed { last, over, until } = pushed;
        let ended = time::timeout(until.since(time::now()), last).await;
        let result = ended.map_or(Err(RequestError::TimedOut), |(result, _nothing)| result);
        if result.is_err() {
            let ended = self.pairs.borrow_mut().end(over);
            drop(ended);
        }
        result
    }
}

fn answered(pair: &QueuePair<Ready>, wish: &PushWish, answer: &[u8]) -> Request {
    let there = remote(wish.answer.address, wish.answer.key);
    pair.write_inline_immediate(answer, there, wish.immediate, Time::MAX)
}

const fn remote(address: u64, rkey: u32) -> RemoteMemory {
    RemoteMemory { address, rkey }
}
