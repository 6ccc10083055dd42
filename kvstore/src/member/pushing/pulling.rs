//! Values that adapters of this core read where they lie, in memory of their writers.
//!
//! A value is read into the room that was made for it, over the writer's queue pair. Its writer is answered over the
//! connection, as if it had sent the bytes there. What it changes meanwhile does not match its checksum, as what is sent.

use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore_proto::message::Status;
use lunette_kvstore_proto::message::directory::PullWish;
use lunette_runtime::arena::Exposed;
use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_transfer::adapters::Adapter;
use lunette_transfer::{ConnectionId, Room, SplitRoom};
use lunette_verbs::{Lent, RemoteMemory, Request, RequestError};

use super::{Pushing, remote};
use crate::value::sum_of;

/// How long the reads of a value may take, those before them on its queue pair included.
const PULL_MAX: Duration = Duration::from_secs(2);

/// What came of reading a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pulled {
    /// It is there, and as its writer says.
    Whole,
    /// It is there, and does not match its checksum.
    Corrupt,
    /// Nothing was read: it is to be sent.
    NotNow,
    /// A read has failed, and its queue pair has been given up.
    Failed,
}

impl Pushing {
    /// Whether a value could be read now.
    pub(crate) fn check_pull(
        &self,
        connection: ConnectionId,
        wish: &PullWish,
    ) -> Result<(), Status> {
        self.check(connection, wish.connection)?;
        let pairs = self.pairs.borrow();
        let (pair, ..) = pairs
            .ready(connection, wish.connection)
            .ok_or(Status::PushFailed)?;
        let has_room = pair.credits() as usize >= wish.places.len() + self.spared();
        let may_read = pair.agreement().reads_out > 0;
        (has_room && may_read)
            .then_some(())
            .ok_or(Status::OverConnection)
    }

    /// Reads a value into a room of its length. `None` in place of the room, if something may land there still.
    ///
    /// Dropped, it leaves reads under way, until their queue pair has ended: so it is dropped with that.
    pub(crate) async fn pull(
        &self,
        connection: ConnectionId,
        wish: &PullWish,
        room: Room,
    ) -> (Option<Room>, Pulled) {
        let split = room.split();
        let pulled = self.pull_into(connection, wish, &split).await;
        let Ok(room) = split.join() else {
            return (None, Pulled::Failed);
        };
        let is_right = pulled != Pulled::Whole || sum_of(&room, room.len()).await == wish.crc32c;
        let pulled = if is_right { pulled } else { Pulled::Corrupt };
        (Some(room), pulled)
    }

    async fn pull_into(
        &self,
        connection: ConnectionId,
        wish: &PullWish,
        split: &SplitRoom,
    ) -> Pulled {
        let index = {
            let pairs = self.pairs.borrow();
            let ready = pairs.ready(connection, wish.connection);
            ready.map(|(_, index, _)| index)
        };
        let Some(adapter) = index.and_then(|index| self.adapter(index)) else {
            return Pulled::NotNow;
        };
        let whole = split.part(std::iter::once(0..split.len()));
        // All of an arena's chunk, once; those that follow find it registered.
        for piece in whole.pieces().unwrap_or_default() {
            adapter.register(piece.extent()).await;
        }
        let lent = lend(&adapter, wish, whole.pieces().unwrap_or_default());
        drop(whole);
        let begun = lent.and_then(|lent| self.begin_reads(connection, wish, lent));
        let Some((reads, over)) = begun else {
            return Pulled::NotNow;
        };
        let all = async {
            for read in reads {
                read.await.0?;
            }
            Ok::<_, RequestError>(())
        };
        match time::timeout(PULL_MAX, all).await {
            Ok(Ok(())) => Pulled::Whole,
            Ok(Err(_)) | Err(_) => {
                // What is under way ends here.
                let ended = self.pairs.borrow_mut().end(over);
                drop(ended);
                Pulled::Failed
            }
        }
    }

    /// Begins the reads; `None` if the queue pair has ended, or has no room for them.
    fn begin_reads(
        &self,
        connection: ConnectionId,
        wish: &PullWish,
        lent: Vec<(Lent, RemoteMemory)>,
    ) -> Option<(Vec<Request>, (ConnectionId, u64, u64))> {
        let pairs = self.pairs.borrow();
        let (pair, _, number) = pairs.ready(connection, wish.connection)?;
        let has_room = pair.credits() as usize >= lent.len() + self.spared();
        if !pair.is_open() || !has_room {
            return None;
        }
        let reads = lent.into_iter();
        let reads = reads.map(|(into, from)| pair.read_lent(into, from, Time::MAX));
        Some((reads.collect(), (connection, wish.connection, number)))
    }
}

/// Memory of the room for each place, one after the other; `None` if it is not registered, or not as long.
fn lend(
    adapter: &Rc<Adapter>,
    wish: &PullWish,
    pieces: &[Exposed],
) -> Option<Vec<(Lent, RemoteMemory)>> {
    // A room of this core's memory is one piece.
    let [piece] = pieces else {
        return None;
    };
    if piece.len() != wish.len_bytes() as usize {
        return None;
    }
    let mut at = 0;
    let lent = wish.places.iter().map(|place| {
        let part = piece.slice(at, place.len_bytes as usize);
        at += part.len();
        let lent = adapter.lend(part.into())?;
        Some((lent, remote(place.address, place.key)))
    });
    lent.collect()
}
