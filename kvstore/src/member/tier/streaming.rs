//! Long copies leave for who has asked while they are still being read from the drive.

use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore_proto::message::directory::CopyPlace;
use lunette_kvstore_proto::version::{CopyInfo, Form};
use lunette_runtime::{can_spawn, spawn_local, time};
use lunette_transfer::{Feed, Payload};

use super::fetching::Fetching;
use super::notes::{fingerprint_of, is_of};
use crate::counting::CopyCounts;
use crate::drive::{InPieces, PIECE_BYTES};
use crate::member::core::MemberCore;

/// What is shorter comes sooner whole ([`PIECE_BYTES`]).
const STREAMED_BYTES_MIN: usize = 2 * PIECE_BYTES;
/// Longest that the rest of a copy is waited for whose first bytes have been sent: what else goes to the same peer
/// waits with it. The peer is then to ask again.
const REST_WAIT_MAX: Duration = Duration::from_millis(250);
/// For how long after that copies are read whole before they are sent.
const SLOW: Duration = Duration::from_secs(10);

impl MemberCore {
    /// Whether the bytes of a copy that is on the drive are to be [streamed](Self::stream).
    pub(crate) fn is_to_stream(&self, info: &CopyInfo) -> bool {
        let Some(tier) = self.tier() else {
            return false;
        };
        info.form == Form::Whole
            && info.len_bytes as usize >= STREAMED_BYTES_MIN
            && time::now() >= tier.is_slow_until.get()
            && tier.drive.reads_in_pieces()
            && can_spawn()
    }

    /// The bytes of a copy that is on the drive, from when the first of them have been read: they are not compared with
    /// their checksum before they are sent, but by who receives them. `None` as of [`fetch`](Self::fetch).
    pub(crate) async fn stream(
        self: Rc<Self>,
        place: CopyPlace,
        info: CopyInfo,
        key: Box<[u8]>,
        fetching: Fetching,
    ) -> Option<Payload> {
        let tier = self.tier()?;
        let fingerprint = fingerprint_of(place);
        let read = async || (tier.drive).read_in_pieces(fingerprint, &key, &tier.memory);
        let mut pieces = tier.tried(place, read).await?;
        if !is_of(&pieces.record, &info) {
            return None;
        }
        let first = pieces.next().await?;
        // It may have been removed meanwhile.
        self.machines().borrow().owner.copy(place)?;
        let (payload, mut feed) = Payload::fed(info.len_bytes as usize, info.crc32c);
        feed.push(first);
        let core = Rc::clone(&self);
        let rest = async move {
            core.stream_rest(place, pieces, feed).await;
            drop(fetching);
        };
        // Where it finds no task, the payload stays short, and its reader asks again.
        drop(spawn_local(rest));
        CopyCounts::add(&tier.counts.streamed);
        Some(payload)
    }

    async fn stream_rest(&self, place: CopyPlace, mut pieces: InPieces, mut feed: Feed) {
        let Some(tier) = self.tier() else {
            return;
        };
        let feeding = async {
            while let Some(piece) = pieces.next().await {
                feed.push(piece);
            }
        };
        if time::timeout(REST_WAIT_MAX, feeding).await.is_err() {
            tracing::debug!(
                ?place,
                "the drive is slow: copies are read before they are sent"
            );
            tier.is_slow_until.set(time::now() + SLOW);
        }
        drop(feed);
        match pieces.whole().await {
            Ok(found) => {
                let extent = tier.has_read(place, &found);
                let fetched = extent.and_then(|extent| self.take_in(tier, place, extent));
                if let Some(id) = fetched.and_then(|fetched| fetched.pinned) {
                    self.bytes().borrow_mut().unpin(id);
                }
            }
            Err(error) => tracing::debug!(?place, %error, "a copy was not read from the drive"),
        }
    }
}
