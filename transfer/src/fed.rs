//! Bytes that come while they are sent.

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_util::StreamExt;
use lunette_runtime::arena;
use lunette_runtime::arena::Region;
use lunette_runtime::net::{Outbox, Stretch};
use lunette_runtime::vectored::Pin;
use lunette_runtime_core::ids::RequestId;
use lunette_transfer_proto::frame::{FrameKind, PayloadDigest, encode_frame};

use crate::server::Response;

/// What is sent at a time in place of what has not come.
const ZEROS_BYTES: usize = 64 * 1024;

/// The end of a [payload](crate::Payload::fed) at which its bytes are put in. Dropped before all of them are, the answer
/// is sent with zeros in their place: its reader finds that it does not fit its checksum.
#[derive(Debug)]
pub struct Feed {
    pieces: UnboundedSender<Region>,
    /// Bytes that are still to be fed.
    left_bytes: usize,
}

impl Feed {
    /// Puts the next bytes in, pinned until they have been sent, or will not be.
    ///
    /// # Panics
    /// If they are more than were said.
    pub fn push(&mut self, piece: Region) {
        let left_bytes = self.left_bytes.checked_sub(piece.len());
        self.left_bytes = left_bytes.expect("no more is fed than was said");
        if self.pieces.unbounded_send(piece).is_err() {
            tracing::trace!("a payload is fed whose connection has ended");
        }
    }
}

/// The other end. What waits in between is bounded by the payload's length.
#[derive(Debug)]
pub(crate) struct Fed {
    pieces: UnboundedReceiver<Region>,
    /// Goes with the last piece.
    pub(crate) pin: Option<Pin>,
}

impl Fed {
    pub(crate) fn new(len_bytes: usize) -> (Self, Feed) {
        let (pieces, fed) = unbounded();
        let left_bytes = len_bytes;
        let fed = Self {
            pieces: fed,
            pin: None,
        };
        (fed, Feed { pieces, left_bytes })
    }
}

/// Sends an answer whose payload is fed. Others wait behind it from its head on, as the connection is one stream.
pub(crate) async fn answer_fed(
    outbox: &Outbox,
    id: RequestId,
    Response { status, body, .. }: Response,
    (Fed { mut pieces, pin }, digest): (Fed, PayloadDigest),
) {
    let head = |out: &mut Vec<u8>| {
        encode_frame(out, FrameKind::Response, status, id, &body, Some(digest));
    };
    let len_bytes = digest.len_bytes as usize;
    let begun = outbox.begin(1, |message| message.control(head), len_bytes);
    let Some(mut stretch) = begun.await else {
        return;
    };
    while stretch.left_bytes() > 0
        && let Some(piece) = pieces.next().await
    {
        stretch.append(piece);
    }
    if stretch.left_bytes() > 0 {
        tracing::debug!(
            ?id,
            left_bytes = stretch.left_bytes(),
            "what is missing of an answer"
        );
        append_zeros(&mut stretch);
    }
    if let Some(pin) = pin {
        stretch.pin(pin);
    }
}

/// Fills what is left of a stretch. Without memory it is left as it is, and ends the connection.
fn append_zeros(stretch: &mut Stretch) {
    let Ok(mut zeros) = arena().alloc(ZEROS_BYTES) else {
        return;
    };
    zeros.as_mut_slice().fill(0);
    let zeros = zeros.freeze();
    while stretch.left_bytes() > 0 {
        stretch.append(zeros.slice(0, stretch.left_bytes().min(ZEROS_BYTES)));
    }
}
