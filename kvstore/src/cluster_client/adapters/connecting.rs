//! Queue pairs to a seat, over the connection to it.

use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore_proto::message::directory::{AdaptersMessage, AdaptersReply, PairMessage};
use lunette_kvstore_proto::message::{Op, Status};
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime::time;
use lunette_transfer::{Attachments, Reply};
use lunette_verbs::connect::{ConnectError, Exchange, HANDSHAKE_MAX};
use lunette_verbs::{QueuePair, Ready, SetupError};
use thiserror::Error;

use super::super::asking::Asking;
use crate::rails::{Missing, Rail, name_of};
use crate::seats::Link;

/// How long the seat is waited for.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

/// Why a rail was not connected.
#[derive(Debug, Error)]
enum PairError {
    #[error("the seat does not answer")]
    Unanswered,
    #[error("the seat answers {0:?}")]
    Refused(Status),
    #[error(transparent)]
    Adapter(#[from] SetupError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the seat has ended the handshake early")]
    Short,
}

/// Asks a seat for its adapters.
pub(super) async fn ask(asking: Rc<Asking>, seat: Seat, link: Link) {
    let message = AdaptersMessage { to: seat };
    let body = |out: &mut Vec<u8>| message.encode(link.version, out);
    let asked = called(&link, Op::Adapters, body).await;
    let theirs = asked.ok().and_then(|reply| {
        let reply = AdaptersReply::decode(link.version, &reply.body);
        reply.ok().map(|reply| usize::from(reply.count))
    });
    let (ours, theirs) = (asking.adapters.len(), theirs.unwrap_or(0));
    link.rails.on_adapters(ours, theirs);
    if ours == 0 || theirs == 0 {
        return;
    }
    let (ended, rails) = (link.ending(), Rc::downgrade(&link.rails));
    // Neither is kept by what waits for its end.
    drop((asking, link));
    // Who waits for an answer by a message would not learn that nobody is there any more.
    ended.await;
    if let Some(rails) = rails.upgrade() {
        rails.close_all();
    }
}

async fn called(link: &Link, op: Op, body: impl FnOnce(&mut Vec<u8>)) -> Result<Reply, PairError> {
    let asked = link.call(op.code(), body, Attachments::default(), ANSWER_WAIT);
    let reply = asked.await.map_err(|_failure| PairError::Unanswered)?;
    match Status::from_code(reply.status) {
        Status::Ok => Ok(reply),
        status => Err(PairError::Refused(status)),
    }
}

/// Connects a rail.
pub(super) async fn connect(asking: Rc<Asking>, seat: Seat, link: Link, missing: Missing) {
    let ears = &asking.adapters.ears;
    let name = name_of(missing.rail, missing.connection);
    let mut has_messages = asking.adapters.options.messages;
    let op = if has_messages {
        Op::PairAsking
    } else {
        Op::Pair
    };
    let mut pair = pair_up(&asking, (seat, &link), op, (name, missing)).await;
    // It has none, or is of an earlier version.
    if has_messages && matches!(pair, Err(PairError::Refused(Status::Unsupported))) {
        has_messages = false;
        pair = pair_up(&asking, (seat, &link), Op::Pair, (name, missing)).await;
    }
    let refused = |error: &PairError| tracing::debug!(?seat, ?missing, %error, "adapters");
    let pair = pair.inspect_err(refused).ok();
    let asked = has_messages.then(|| ears.asked(missing.ours));
    let rail = pair.and_then(|pair| Rail::new(name, missing.ours, pair, asked));
    if let Some(rail) = &rail {
        ears.listen(rail);
    }
    link.rails.on_connected(missing, rail);
}

async fn pair_up(
    asking: &Asking,
    (seat, link): (Seat, &Link),
    op: Op,
    (name, missing): (u64, Missing),
) -> Result<QueuePair<Ready>, PairError> {
    let (ears, patience) = (&asking.adapters.ears, asking.adapters.options.patience);
    let adapter = ears.adapter(missing.ours);
    let pair = adapter.written(ears.receives(missing.ours))?;
    let deadline = time::now() + HANDSHAKE_MAX;
    let mut exchange = Exchange::initiator(pair, patience, adapter.epoch(), deadline);
    let mut received: Option<Vec<u8>> = None;
    loop {
        let step = exchange.step(time::now(), received.as_deref());
        let Some(message) = step.message else {
            // The seat's last word was no message, or a refusal.
            return step.outcome?.ok_or(PairError::Short);
        };
        let pairing = PairMessage {
            to: seat,
            connection: name,
            adapter: missing.theirs,
            message: &message,
        };
        let body = |out: &mut Vec<u8>| pairing.encode(link.version, out);
        let reply = called(link, op, body).await?;
        if let Some(pair) = step.outcome? {
            return Ok(pair);
        }
        received = Some(reply.body);
    }
}
