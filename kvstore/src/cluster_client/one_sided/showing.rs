//! What an owner on this host shows to those who do not ask it, handed out over its local channel.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use lunette_runtime::net::LocalChannel;
use lunette_transfer_proto::engine::same_host::packet::Packet;

use super::sight::nonsense;
use crate::glance::Shown;
use crate::member::{
    CatalogueView, LEASED_WORDS, LeasedView, Named, Part, PresenceView, TOLD_WORDS, Told,
};

/// Most words of one file: 32 GiB, which take memory as far as the owner has written them.
const WORDS_MAX: u64 = 1 << 32;

/// Asks for all that is shown, first on a channel: `None` if the owner does not show anything, or has another clock.
///
/// # Errors
/// The system's, and that the owner keeps no rules: the channel is of no use then.
pub(super) async fn by(channel: &LocalChannel) -> io::Result<Option<Shown>> {
    let lease = file(channel, Part::Lease).await?;
    let presence = file(channel, Part::Presence).await?;
    let catalogue = file(channel, Part::Catalogue).await?;
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
    Ok(Some(Shown::of_neighbour(leased, presence, catalogue)))
}

/// The file of a part, and how many words it has; `None` if it is not handed out.
async fn file(channel: &LocalChannel, part: Part) -> io::Result<Option<(OwnedFd, usize)>> {
    let segment = Named::Shown(part).segment();
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
