//! The post of one core on its way: out to other cores and nodes, and in from the cores of this node.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore_proto::message::directory::SeatMessage;
use lunette_kvstore_proto::message::{Op, Status};
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime::{Receiver, Scope};
use lunette_transfer::Attachments;

use super::core::MemberCore;
use super::post::Mail;
use crate::seats::{SeatFault, Seats};

/// How long another seat may take to acknowledge a message; its sender says it again if it matters.
const TELL_TIMEOUT: Duration = Duration::from_secs(2);
/// Messages to one seat that are not acknowledged yet; further ones wait, and are sent together.
const TELLS_MAX: usize = 32;

/// Sends what waits, once a turn: to the other cores of this node at once, to other nodes over
/// connections.
pub(super) async fn send_post(core: Rc<MemberCore>, seats: Rc<Seats>) {
    let calls = Scope::new();
    let under_way: Rc<RefCell<BTreeMap<Seat, usize>>> = Rc::default();
    loop {
        core.post.wake.raised().await;
        for seat in core.post.seats() {
            if seat.node == core.seat().node {
                while let Some(message) = core.post.take(seat) {
                    core.post.hand_over(message);
                }
                continue;
            }
            while under_way.borrow().get(&seat).copied().unwrap_or(0) < TELLS_MAX {
                let Some(message) = core.post.take(seat) else {
                    break;
                };
                *under_way.borrow_mut().entry(seat).or_default() += 1;
                let telling = tell(
                    Rc::clone(&core),
                    Rc::clone(&seats),
                    message,
                    Rc::clone(&under_way),
                );
                if let Err(error) = calls.spawn(telling) {
                    tracing::warn!(%error, "a message to another node is lost");
                    has_ended(&under_way, seat);
                }
            }
        }
    }
}

/// Sends one message; what comes back with the acknowledgement is taken in.
async fn tell(
    core: Rc<MemberCore>,
    seats: Rc<Seats>,
    message: SeatMessage,
    under_way: Rc<RefCell<BTreeMap<Seat, usize>>>,
) {
    let to = message.to;
    let answer = told(&seats, &message).await;
    has_ended(&under_way, to);
    // There may be room for what waited.
    core.post.wake.raise();
    if matches!(answer, Ok(Told::Not) | Err(_)) {
        core.post.count_dropped();
    } else {
        core.post.count_sent();
    }
    match answer {
        Ok(Told::AndTells(message)) if message.from == to => core.on_told(*message),
        Ok(_) => {}
        Err(fault) => tracing::debug!(?to, %fault, "a message to another node is lost"),
    }
}

/// A message to this seat is under way no more.
fn has_ended(under_way: &RefCell<BTreeMap<Seat, usize>>, to: Seat) {
    let mut under_way = under_way.borrow_mut();
    let count = under_way.get_mut(&to).expect("it was counted");
    *count -= 1;
    if *count == 0 {
        under_way.remove(&to);
    }
}

/// What is known of a message that was sent.
enum Told {
    /// No acknowledgement has come, or another answer.
    Not,
    /// It is there.
    There,
    /// It is there, and there is one back.
    AndTells(Box<SeatMessage>),
}

async fn told(seats: &Seats, message: &SeatMessage) -> Result<Told, SeatFault> {
    let link = seats.connection(message.to).await?;
    let write = |out: &mut Vec<u8>| message.encode(link.version, out);
    let nothing = Attachments::default();
    let reply = link.call(Op::Tell.code(), write, nothing, TELL_TIMEOUT);
    let Ok(reply) = reply.await else {
        return Ok(Told::Not);
    };
    if Status::from_code(reply.status) != Status::Ok {
        return Ok(Told::Not);
    }
    if reply.body.is_empty() {
        return Ok(Told::There);
    }
    let back = SeatMessage::decode(&reply.body)?;
    Ok(Told::AndTells(Box::new(back)))
}

/// Takes in what the other cores of this node, and its membership, have to say.
pub(super) async fn take_mail(core: Rc<MemberCore>, seats: Rc<Seats>, mut mail: Receiver<Mail>) {
    while let Some(mail) = mail.recv().await {
        match mail {
            Mail::Told(message) => core.on_told(*message),
            Mail::Cluster(id) => core.on_cluster(id).await,
            Mail::Map(map) => {
                seats.on_map(&map);
                core.on_map(&map);
            }
            Mail::Quotas(list) => core.on_quotas(list),
            Mail::Fence(fence) => core.on_fence(fence),
            Mail::Park(done) => core.begin_to_park(done),
            Mail::Leaving(done) => core.begin_to_leave(done),
            Mail::Left => core.leave(),
            Mail::Remember(done) => core.begin_to_remember(done),
        }
    }
}
