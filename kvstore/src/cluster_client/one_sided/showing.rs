//! What an owner on this host shows to those who do not ask it, handed out over its local channel.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use lunette_kvstore_proto::message::FormatVersion;
use lunette_kvstore_proto::message::directory::AskerId;
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime::entropy;
use lunette_runtime::net::LocalChannel;
use lunette_transfer_proto::engine::same_host::packet::Packet;

use super::sight::nonsense;
use crate::glance::Shown;
use crate::member::{
    CatalogueView, LANE_WINDOW_BYTES, LANE_WORDS, LEASED_WORDS, Lane, LeasedView, Named, Part,
    PresenceView, TOLD_WORDS, Told,
};

/// Most words of one file: 32 GiB, which take memory as far as the owner has written them.
const WORDS_MAX: u64 = 1 << 32;

/// Who looks, and at whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looking {
    pub(super) seat: Seat,
    /// That of the connection to it.
    pub(super) version: FormatVersion,
    /// How long what it is handed may take; `None` if it is not to be handed anything.
    pub(super) handing: Option<Duration>,
}

/// Asks for all that is shown, first on a channel: `None` if the owner does not show anything, or has another clock.
///
/// # Errors
/// The system's, and that the owner keeps no rules: the channel is of no use then.
pub(super) async fn by(channel: &LocalChannel, looking: Looking) -> io::Result<Option<Shown>> {
    let lease = file(channel, Named::Shown(Part::Lease)).await?;
    let presence = file(channel, Named::Shown(Part::Presence)).await?;
    let catalogue = file(channel, Named::Shown(Part::Catalogue)).await?;
    let Some((lease, words)) = lease else {
        return Ok(None);
    };
    if words != LEASED_WORDS {
        return Err(nonsense());
    }
    let leased = match LeasedView::map(lease) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(None),
        leased => leased?,
    };
    let map = |(file, words)| PresenceView::map(file, words).map_err(io::Error::other);
    let presence = presence.map(map).transpose()?;
    let catalogue = match catalogue {
        Some((file, words)) => {
            let told = Told::new()?;
            tell_in(channel, &told)?;
            Some(CatalogueView::map(file, words, told).map_err(io::Error::other)?)
        }
        None => None,
    };
    let lane = match looking.handing {
        Some(timeout) => open_lane(channel, looking, timeout).await?,
        None => None,
    };
    Ok(Some(Shown::of_neighbour(leased, presence, catalogue, lane)))
}

/// A lane; `None` if the owner has none for this.
async fn open_lane(
    channel: &LocalChannel,
    looking: Looking,
    timeout: Duration,
) -> io::Result<Option<Lane>> {
    let Some((words, count)) = file(channel, Named::Lane).await? else {
        return Ok(None);
    };
    if count != LANE_WORDS {
        return Err(nonsense());
    }
    let (asker, sender) = (AskerId(entropy()), channel.sender()?);
    let by = (looking.seat, looking.version);
    let (lane, window) = Lane::new(by, (asker, timeout), words, sender)?;
    let len_bytes = LANE_WINDOW_BYTES.into();
    channel.send(&Packet::Window { len_bytes }.encode(), &[window.as_fd()])?;
    let said = channel.recv().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let named = Named::Lane.segment();
    match Packet::decode(&said.bytes) {
        Ok(Packet::Accepted { segment }) if segment == named => Ok(Some(lane)),
        Ok(Packet::Declined { segment }) if segment == named => Ok(None),
        _ => Err(nonsense()),
    }
}

/// The file of what has this name, and how many words it has; `None` if it is not handed out.
async fn file(channel: &LocalChannel, named: Named) -> io::Result<Option<(OwnedFd, usize)>> {
    let segment = named.segment();
    channel.send(&Packet::Map { segment }.encode(), &[])?;
    let said = channel.recv().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    match Packet::decode(&said.bytes) {
        Ok(Packet::Refused { segment: refused }) if refused == segment => Ok(None),
        Ok(Packet::Memory {
            segment: handed_out,
            offset_bytes: 0,
            len_bytes,
        }) if handed_out == segment && len_bytes / 8 <= WORDS_MAX => {
            let [file] = <[OwnedFd; 1]>::try_from(said.descriptors).map_err(|_| nonsense())?;
            let words = usize::try_from(len_bytes / 8).map_err(|_| nonsense())?;
            Ok(Some((file, words)))
        }
        _ => Err(nonsense()),
    }
}

/// Hands the ring out in which reads are told.
fn tell_in(channel: &LocalChannel, told: &Told) -> io::Result<()> {
    let packet = Packet::Memory {
        segment: Named::Told.segment(),
        offset_bytes: 0,
        len_bytes: TOLD_WORDS as u64 * 8,
    };
    let file = told.file()?;
    channel.send(&packet.encode(), &[file.as_fd()])
}
