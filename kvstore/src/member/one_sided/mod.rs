//! Reads in which this core has no part: clients and members on its host map the memory in which its copies
//! lie, for reading, and copy out of it what they have been told the place of.
//!
//! ```text
//!   reader                                              owner
//!     Op::Meet, over the authenticated connection  -->    a ticket, the name of the local channel
//!     the ticket, over the local channel           -->    the board's file
//!     a chunk                                      -->    its file
//!     Op::FindNear                                 -->    a descriptor
//!     copies, and looks at the board
//!     lease, presence, catalogue                   -->    their files
//!     a ring, in which it tells what it has read   -->
//!     looks, copies, and asks nobody
//!     lane                                         -->    the file of its words
//!     a window                                     -->    accepted
//!     puts
//! ```
//!
//! | file | subject |
//! |---|---|
//! | `board` | which memory is whose |
//! | `tickets` | who may come in |
//!
//! What is mapped is an arena that holds copies and nothing else: buffers of connections, and what programs on
//! the node's cores have, lie in the cores' own arenas. Who has mapped it can read what other clients of the
//! cluster have written, as it could by asking; so only who proved the cluster's secret gets a ticket.
//! It can write nothing of that: what it [puts](super::lane) lies in memory of its own. What it has mapped it keeps for as long as it runs, whatever becomes of the secret.
//!
//! The packets are those of transfer engines that share memory, of which a chunk is a segment here. An engine
//! is not used: its segments are memory that anybody may write at any time, while copies are regions that
//! nobody writes and whose memory changes hands; and it would listen, authenticate and connect beside the
//! connections that are there.

mod board;
mod tickets;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lunette_kvstore_proto::message::Status;
use lunette_kvstore_proto::message::directory::{MeetMessage, MeetReply};
use lunette_runtime::net::{LocalChannel, LocalListener, Packet as Received};
use lunette_runtime::{JoinError, Scope, boot_id, entropy, time};
use lunette_transfer_proto::engine::same_host::packet::Packet;
use lunette_transfer_proto::engine::segment::SegmentId;

pub(crate) use board::Board;
use tickets::Tickets;

use super::core::MemberCore;
use super::lane::{LANE_WORDS, Taken};
use super::shown::Part;

/// Readers that one core lets in; others are sent the bytes.
const READERS_MAX: usize = 1024;
/// How long somebody who has come in may keep silent before it shows a ticket.
const JOIN_WAIT: Duration = Duration::from_secs(2);
/// Pause after a connection could not be accepted: no descriptor is free, say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// A number that nobody can guess.
pub(crate) fn draw() -> u128 {
    u128::from(entropy()) << 64 | u128::from(entropy())
}

/// What has a name on the local channel: it is called as segments are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// A chunk of the core's memory.
    Chunk(u32),
    /// What the core shows.
    Shown(Part),
    /// Where the reader tells what it has read.
    Told,
    /// By what it puts objects here.
    Lane,
}

impl Named {
    const SHOWN: [Self; 5] = [
        Self::Shown(Part::Lease),
        Self::Shown(Part::Presence),
        Self::Shown(Part::Catalogue),
        Self::Told,
        Self::Lane,
    ];
    const CHUNKS: u32 = 1;
    const OTHERS: u32 = 2;

    /// What it is called.
    pub(crate) fn segment(self) -> SegmentId {
        let (generation, index) = match self {
            Self::Chunk(chunk) => (Self::CHUNKS, u64::from(chunk)),
            other => {
                let index = Self::SHOWN.iter().position(|shown| *shown == other);
                (Self::OTHERS, index.expect("it is one of them") as u64)
            }
        };
        SegmentId::from_wire(u64::from(generation) << 32 | index)
    }

    /// What is called so. Others than these have no name here, and those that come later have none at members of before.
    pub(crate) fn of(segment: SegmentId) -> Option<Self> {
        match segment.generation() {
            Self::CHUNKS => Some(Self::Chunk(u32::try_from(segment.index()).ok()?)),
            Self::OTHERS => Self::SHOWN.get(segment.index()).copied(),
            _ => None,
        }
    }
}

/// What lets readers in.
#[derive(Debug)]
pub(crate) struct Sharing {
    boot_id: u128,
    /// Of its listener, which nobody can guess.
    name: u128,
    words: u32,
    tickets: RefCell<Tickets>,
}

/// The board of a core whose memory readers may read. `None` where the system refuses.
pub(crate) fn board(entries_max: usize) -> Option<Board> {
    let refused = |error: &io::Error| {
        tracing::warn!(%error, "readers are sent what they could read themselves");
    };
    Board::new(entries_max).inspect_err(refused).ok()
}

/// Lets readers of this host in, who look at this board. `None` where there is no such thing: in a simulated world,
/// or where the system refuses.
pub(crate) fn open(board: &Board) -> Option<(Sharing, LocalListener)> {
    let (boot_id, name) = (boot_id()?, draw());
    let refused = |error: &io::Error| {
        tracing::warn!(%error, "readers on this host are sent what they could read themselves");
    };
    let listener = LocalListener::bind(&name.to_le_bytes());
    let listener = listener.inspect_err(refused).ok()?;
    let sharing = Sharing {
        boot_id,
        name,
        words: u32::try_from(board.len()).ok()?,
        tickets: RefCell::default(),
    };
    Some((sharing, listener))
}

impl Sharing {
    /// Tells an authenticated reader where to go.
    pub(crate) fn meet(&self, message: &MeetMessage) -> Result<MeetReply, Status> {
        if message.boot_id != self.boot_id {
            return Err(Status::Unsupported);
        }
        let ticket = draw();
        let mut tickets = self.tickets.borrow_mut();
        if !tickets.give(ticket, message.proof, time::now()) {
            return Err(Status::Busy);
        }
        Ok(MeetReply {
            ticket,
            name: self.name,
            words: self.words,
        })
    }

    fn redeem(&self, ticket: u128) -> Option<u128> {
        self.tickets.borrow_mut().redeem(ticket, time::now())
    }
}

/// Lets readers in, for as long as it is polled.
pub(crate) async fn accept(core: Rc<MemberCore>, listener: LocalListener) {
    let readers = Scope::new();
    loop {
        match listener.accept().await {
            // Closed at once: it is sent the bytes.
            Ok(_) if readers.len() >= READERS_MAX => {}
            Ok(channel) => {
                // Without a task it is closed, and who came sees that.
                let spawned: Result<(), JoinError> =
                    readers.spawn(serve(Rc::clone(&core), channel));
                if let Err(error) = spawned {
                    tracing::warn!(%error, "a reader on this host is not let in");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "accept, from this host");
                time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(core: Rc<MemberCore>, channel: LocalChannel) {
    match converse(&core, &channel).await {
        Ok(()) => tracing::debug!("a reader on this host has gone"),
        Err(error) => tracing::debug!(%error, "a channel to a reader on this host ends"),
    }
}

async fn converse(core: &Rc<MemberCore>, channel: &LocalChannel) -> io::Result<()> {
    let sharing = core.sharing().ok_or_else(nonsense)?;
    let first = time::timeout(JOIN_WAIT, channel.recv()).await;
    let Some(first) = first.map_err(|_| io::ErrorKind::TimedOut)?? else {
        return Ok(());
    };
    let Ok(Packet::Join { ticket }) = Packet::decode(&first.bytes) else {
        return Err(nonsense());
    };
    let proof = sharing.redeem(ticket).ok_or_else(nonsense)?;
    let board = core.bytes().borrow().board_file()?;
    channel.send(&Packet::Welcome { proof }.encode(), &[board.as_fd()])?;
    let mut looking = Looking::default();
    while let Some(received) = looking.recv(channel).await? {
        match Packet::decode(&received.bytes) {
            Ok(Packet::Map { segment }) => {
                let (packet, file) = handed_out(core, segment, &mut looking)?;
                let file = file.as_ref().map(AsFd::as_fd);
                channel.send(&packet.encode(), file.as_slice())?;
            }
            // It is awake now, and looks at its lanes.
            Ok(Packet::Wake) => {}
            Ok(Packet::Window { len_bytes }) => {
                let [file] =
                    <[OwnedFd; 1]>::try_from(received.descriptors).map_err(|_| nonsense())?;
                let lane = looking.lane.as_ref().ok_or_else(nonsense)?;
                let segment = Named::Lane.segment();
                let packet = match lane.open_window(file, len_bytes) {
                    true => Packet::Accepted { segment },
                    false => Packet::Declined { segment },
                };
                channel.send(&packet.encode(), &[])?;
            }
            Ok(Packet::Memory { segment, .. })
                if looking.told.is_none() && Named::of(segment) == Some(Named::Told) =>
            {
                let [file] =
                    <[OwnedFd; 1]>::try_from(received.descriptors).map_err(|_| nonsense())?;
                looking.told = core.listen_to_file(file)?;
            }
            _ => return Err(nonsense()),
        }
    }
    Ok(())
}

/// What keeps being shown to one reader.
#[derive(Debug, Default)]
struct Looking {
    shown: BTreeMap<SegmentId, Arc<()>>,
    told: Option<Arc<()>>,
    lane: Option<Taken>,
}

impl Looking {
    /// The next packet, unless the reader breaks the rules of its lane meanwhile.
    async fn recv(&self, channel: &LocalChannel) -> io::Result<Option<Received>> {
        let Some(lane) = &self.lane else {
            return channel.recv().await;
        };
        let (mut received, mut broken) = (pin!(channel.recv()), pin!(lane.broken()));
        poll_fn(|cx| {
            if broken.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(nonsense()));
            }
            received.as_mut().poll(cx)
        })
        .await
    }
}

/// The answer to a reader that asks for a file.
fn handed_out(
    core: &Rc<MemberCore>,
    segment: SegmentId,
    looking: &mut Looking,
) -> io::Result<(Packet, Option<OwnedFd>)> {
    let (offset_bytes, len_bytes, file) = match Named::of(segment) {
        Some(Named::Chunk(chunk)) => match core.bytes().borrow().share(chunk)? {
            Some(share) => (share.offset_bytes, share.len_bytes, share.memfd),
            None => return Ok((Packet::Refused { segment }, None)),
        },
        Some(Named::Shown(part)) => match core.show(part)? {
            Some(part) => {
                looking.shown.insert(segment, part.kept);
                (0, part.words as u64 * 8, part.file)
            }
            None => return Ok((Packet::Refused { segment }, None)),
        },
        Some(Named::Lane) if looking.lane.is_none() => match Taken::begin(core)? {
            Some(lane) => {
                let words = lane.words()?;
                looking.lane = Some(lane);
                (0, LANE_WORDS as u64 * 8, words)
            }
            None => return Ok((Packet::Refused { segment }, None)),
        },
        Some(Named::Lane | Named::Told) | None => return Ok((Packet::Refused { segment }, None)),
    };
    let packet = Packet::Memory {
        segment,
        offset_bytes,
        len_bytes,
    };
    Ok((packet, Some(file)))
}

/// What a reader says that keeps no rules.
fn nonsense() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_name_has_one() {
        let chunks = [0, 1, 63, 1 << 19, u32::MAX].map(Named::Chunk);
        for named in chunks.into_iter().chain(Named::SHOWN) {
            assert_eq!(Named::of(named.segment()), Some(named));
        }
        for wire in [7, 2 << 32 | 5, 3 << 32, u64::MAX] {
            assert_eq!(Named::of(SegmentId::from_wire(wire)), None, "{wire:#x}");
        }
    }
}
