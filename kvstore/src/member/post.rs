//! What one seat has for others, until it is sent: what one turn has for one seat goes together.
//!
//! Messages between seats may be lost: whoever misses an answer asks again. So nothing here waits for
//! room, and what is beyond a bound is dropped.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use futures_channel::oneshot;
use lunette_cluster::proto::fence::Fence;
use lunette_cluster::proto::map::{ClusterMap, Epoch};
use lunette_kvstore_proto::message::directory::{Content, ITEMS_MAX, SeatMessage, ToHome, ToOwner};
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime::{Sender, Signal};

use super::quotas::QuotaList;

/// Messages that may wait at one core of a node, from the others.
pub(crate) const MAIL_MAX: usize = 4096;
/// Contents that may wait for one seat.
const WAITING_MAX: usize = 16 * 1024;

/// What one core of a node sends to another.
#[derive(Debug)]
pub(crate) enum Mail {
    /// A message between seats.
    Told(Box<SeatMessage>),
    /// Which cluster it is, before its first map.
    Cluster(u64),
    /// The map is another one.
    Map(Arc<ClusterMap>),
    /// The quotas of tenants are others.
    Quotas(Arc<QuotaList>),
    /// The node's lease, as it is known now.
    Fence(Fence),
    /// The node is to leave: its drive is to take what only memory has. To be told when that is done, or has taken too long.
    Park(oneshot::Sender<()>),
    /// The node is about to leave: nothing new is to be written or removed here. To be told when what was begun is done, or
    /// has taken too long.
    Leaving(oneshot::Sender<()>),
    /// The node has left: nothing is served from here on.
    Left,
    /// Behind that: the drive is to keep what the home knew. To be told when that is done, or has taken too long.
    Remember(oneshot::Sender<()>),
}

/// Messages on their way out of one core.
pub(crate) struct Post {
    own: Seat,
    /// The cores of this node.
    cores: Vec<Sender<Mail>>,
    waiting: RefCell<BTreeMap<Seat, VecDeque<(Epoch, Content)>>>,
    /// Raised when something waits.
    pub(crate) wake: Signal,
    sent: Cell<u64>,
    dropped: Cell<u64>,
}

impl Post {
    pub(crate) fn new(own: Seat, cores: Vec<Sender<Mail>>) -> Self {
        Self {
            own,
            cores,
            waiting: RefCell::default(),
            wake: Signal::default(),
            sent: Cell::new(0),
            dropped: Cell::new(0),
        }
    }

    pub(crate) fn to_home(&self, to: Seat, epoch: Epoch, item: ToHome) {
        self.put(to, epoch, Content::ToHome(vec![item]));
    }

    pub(crate) fn to_owner(&self, to: Seat, epoch: Epoch, item: ToOwner) {
        self.put(to, epoch, Content::ToOwner(vec![item]));
    }

    /// Adds what is to be sent, behind what the same seat is to have before it: to a message of the
    /// same kind and epoch, if that is the last one.
    pub(crate) fn put(&self, to: Seat, epoch: Epoch, content: Content) {
        let mut waiting = self.waiting.borrow_mut();
        let line = waiting.entry(to).or_default();
        let content = match (line.back_mut(), content) {
            (Some((its, Content::ToHome(items))), Content::ToHome(more))
                if *its == epoch && items.len() + more.len() <= ITEMS_MAX =>
            {
                items.extend(more);
                return;
            }
            (Some((its, Content::ToOwner(items))), Content::ToOwner(more))
                if *its == epoch && items.len() + more.len() <= ITEMS_MAX =>
            {
                items.extend(more);
                return;
            }
            (Some((_, Content::Groups(items))), Content::Groups(more))
                if items.len() + more.len() <= ITEMS_MAX =>
            {
                items.extend(more);
                return;
            }
            (Some((its, Content::Credit(items))), Content::Credit(more))
                if *its == epoch && items.len() + more.len() <= ITEMS_MAX =>
            {
                items.extend(more);
                return;
            }
            (_, content) => content,
        };
        if line.len() >= WAITING_MAX {
            tracing::warn!(?to, "too much waits for a node: a message is dropped");
            self.count_dropped();
            return;
        }
        line.push_back((epoch, content));
        drop(waiting);
        self.wake.raise();
    }

    /// A message has reached its seat, as far as is known.
    pub(crate) fn count_sent(&self) {
        self.sent.set(self.sent.get() + 1);
    }

    /// A message is lost, as far as is known.
    pub(crate) fn count_dropped(&self) {
        self.dropped.set(self.dropped.get() + 1);
    }

    /// Messages that have reached their seats.
    pub(crate) const fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// Messages that are lost.
    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// The next message to this seat.
    pub(crate) fn take(&self, to: Seat) -> Option<SeatMessage> {
        let mut waiting = self.waiting.borrow_mut();
        let line = waiting.get_mut(&to)?;
        let (epoch, content) = line.pop_front()?;
        if line.is_empty() {
            waiting.remove(&to);
        }
        Some(SeatMessage::new(epoch, self.own, to, content))
    }

    /// For whom something waits.
    pub(crate) fn seats(&self) -> Vec<Seat> {
        self.waiting.borrow().keys().copied().collect()
    }

    /// What waits for seats that are no more is of use to nobody.
    pub(crate) fn retain(&self, is_seat: impl Fn(Seat) -> bool) {
        self.waiting.borrow_mut().retain(|&seat, _| is_seat(seat));
    }

    /// Hands a message to another core of this node.
    pub(crate) fn hand_over(&self, message: SeatMessage) {
        let core = usize::from(message.to.core.0);
        let mail = Mail::Told(Box::new(message));
        let sent = self.cores.get(core).map(|core| core.try_send(mail));
        if matches!(sent, Some(Ok(()))) {
            self.count_sent();
        } else {
            tracing::warn!(core, "too much waits for a core: a message is dropped");
            self.count_dropped();
        }
    }
}

#[cfg(test)]
mod tests {
    use lunette_kvstore_proto::key::Fingerprint;
    use lunette_kvstore_proto::message::directory::OpId;
    use lunette_runtime::channel;
    use lunette_runtime_core::ids::{CoreIndex, NodeId};

    use super::*;

    fn seat(node: u64, core: u16) -> Seat {
        Seat {
            node: NodeId(node),
            incarnation: 1,
            core: CoreIndex(core),
        }
    }

    fn item(number: usize) -> ToHome {
        ToHome::Abandon {
            op: OpId(number as u64),
            key: Fingerprint(1),
        }
    }

    fn items(post: &Post, to: Seat) -> Option<Vec<ToHome>> {
        match post.take(to)?.content {
            Content::ToHome(items) => Some(items),
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn one_turns_messages_go_together_in_their_order_and_within_their_epoch() {
        let post = Post::new(seat(1, 0), Vec::new());
        let to = seat(2, 0);
        for number in 0..=ITEMS_MAX {
            post.to_home(to, Epoch(1), item(number));
        }
        post.to_home(to, Epoch(2), item(7));
        post.to_owner(to, Epoch(2), ToOwner::Settled);
        post.to_home(seat(3, 0), Epoch(2), item(8));
        assert_eq!(post.seats(), [to, seat(3, 0)]);
        let first: Vec<_> = (0..ITEMS_MAX).map(item).collect();
        assert_eq!(items(&post, to), Some(first));
        assert_eq!(items(&post, to), Some(vec![item(ITEMS_MAX)]));
        assert_eq!(items(&post, to), Some(vec![item(7)]));
        let last = post
            .take(to)
            .map(|message| (message.epoch, message.content));
        let settled = Content::ToOwner(vec![ToOwner::Settled]);
        assert_eq!(last, Some((Epoch(2), settled)));
        assert_eq!(post.take(to), None);
        post.retain(|_| false);
        assert_eq!(post.seats(), [], "what waits for who is gone is dropped");
    }

    #[test]
    fn what_waits_for_a_seat_is_bounded() {
        let post = Post::new(seat(1, 0), Vec::new());
        let to = seat(2, 0);
        for number in 0..=WAITING_MAX {
            // Of other epochs, so that each goes by itself.
            post.to_home(to, Epoch(number as u64), item(number));
        }
        for number in 0..WAITING_MAX {
            assert_eq!(items(&post, to), Some(vec![item(number)]));
        }
        assert_eq!(post.take(to), None, "one too many");
    }

    #[test]
    fn a_core_that_does_not_read_its_mail_holds_nobody_up() {
        let (sender, port) = channel(2);
        let post = Post::new(seat(1, 0), vec![sender]);
        let message = |number| {
            post.to_home(seat(1, 0), Epoch(1), item(number));
            post.take(seat(1, 0)).expect("it waits")
        };
        for number in 0..9 {
            post.hand_over(message(number));
        }
        let elsewhere = SeatMessage {
            to: seat(1, 5),
            ..message(0)
        };
        post.hand_over(elsewhere);
        assert_eq!((post.sent(), post.dropped()), (2, 8), "two have room");
        drop(port);
        post.hand_over(message(0));
        assert_eq!(post.dropped(), 9);
    }
}
