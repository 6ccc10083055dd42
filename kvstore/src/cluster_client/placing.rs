//! Where the first copy of an object is tried: on the nodes that its writer prefers, then on the writer's own
//! node, then at the key's home, then where there is room.
//!
//! | who writes | the first copy goes to |
//! |---|---|
//! | a client inside of a node | its own core, where nothing has to leave for it; else the key's home |
//! | any other client | the key's home: one round trip |
//! | whoever prefers nodes | the first of them that takes it, though something has to leave there; else as above |
//! | whose home has no room, and does not make any in [`ROOM_PATIENCE`] | one of two nodes that are drawn by the room they have; else the home, for as long as there is time |
//!
//! Keys are spread over homes by the weights of nodes, so that what goes there is spread as well as by draws, without
//! asking anybody for room first, and without a claim.
//!
//! Nothing is tried again of which it is not known whether it was done: only who has said that nothing was
//! done, or was not reached at all, is passed over.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use lunette_cluster::proto::map::{ClusterMap, MapMember};
use lunette_kvstore_proto::key::{Fingerprint, Key};
use lunette_kvstore_proto::placement::choice::{Offer, choose};
use lunette_kvstore_proto::placement::{Seat, home_of, seat_at};
use lunette_runtime::{entropy, time};
use lunette_runtime_core::ids::{CoreIndex, NodeId};

use super::{ClusterClient, PutOptions, maps};
use crate::error::{StoreError, StoreErrorKind};
use crate::value::{Value, extent_bytes};

/// Most nodes that a writer may prefer.
pub const PREFERRED_MAX: usize = 4;
/// How long a node may take to say how much room it has.
const STAT_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a home without room is given to make some, before another node is drawn: what leaves a memory may have to be told to
/// another home first, which takes a message there and one back.
pub(super) const ROOM_PATIENCE: Duration = Duration::from_millis(250);
/// Nodes with room that are drawn for a batch that is to be on one.
const CANDIDATES: usize = 2;
/// Nodes that are asked for room at most.
const ASKED_MAX: usize = 8;

/// Nodes on which a writer wants its objects, by their names (`host:port`, as the cluster's map has them), the
/// most wanted first. What is no member, or is leaving, is passed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preferred([Option<SocketAddr>; PREFERRED_MAX]);

impl Preferred {
    /// These nodes.
    ///
    /// # Errors
    /// `Preferred`: more than [`PREFERRED_MAX`].
    pub fn new(names: &[SocketAddr]) -> Result<Self, StoreError> {
        let mut nodes = [None; PREFERRED_MAX];
        let count = names.len();
        let place = nodes.get_mut(..count);
        let place = place.ok_or(StoreError::local(StoreErrorKind::Preferred { count }))?;
        for (node, name) in place.iter_mut().zip(names) {
            *node = Some(*name);
        }
        Ok(Self(nodes))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0[0].is_none()
    }

    /// Those of them that can take objects, in order.
    fn members<'a>(&'a self, map: &'a ClusterMap) -> impl Iterator<Item = &'a MapMember> {
        let names = self.0.iter().flatten();
        names.filter_map(|name| {
            let mut members = map.members().iter();
            members.find(|member| member.address == *name && !member.is_draining)
        })
    }
}

/// A place that may take an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// This very core. If it is wished for, something else may have to leave.
    Here {
        is_wished: bool,
    },
    At(Seat),
    /// The key's home, whoever that is by then.
    Home,
}

/// The places that are tried for one object, one after the other; the home again and again.
///
/// ```text
/// what is left -> Home, now and then while it has no room -> drawn, if it has none for long -> Home, settled -> ...
/// ```
#[derive(Debug)]
pub(super) struct Places {
    left: VecDeque<Place>,
    /// Whether nothing else is tried any more, for as long as there is time.
    is_settled: bool,
    /// Places that were wished for and not tried yet.
    wished: usize,
    has_wish: bool,
    now: Option<(Place, bool)>,
}

impl Places {
    fn new(wished: Vec<Place>, has_wish: bool, is_inside: bool) -> Self {
        let own = Place::Here { is_wished: false };
        let is_tried = wished.contains(&Place::Here { is_wished: true });
        let count = wished.len();
        let mut left = VecDeque::from(wished);
        left.extend((is_inside && !is_tried).then_some(own));
        Self {
            left,
            is_settled: false,
            wished: count,
            has_wish,
            now: None,
        }
    }

    /// This seat is tried before all others, unless places were wished for.
    fn first(&mut self, seat: Option<Seat>) {
        if let Some(seat) = seat.filter(|_| !self.has_wish) {
            self.left.push_front(Place::At(seat));
        }
    }

    pub(super) fn next(&mut self) -> Place {
        let place = self.left.pop_front().unwrap_or(Place::Home);
        self.now = Some((place, self.wished > 0));
        self.wished = self.wished.saturating_sub(1);
        place
    }

    /// Whether the home was tried last.
    pub(super) fn is_at_home(&self) -> bool {
        matches!(self.now, Some((Place::Home, _)))
    }

    /// Whether the home was tried last, for as long as there was time: nothing is left but to wait for another.
    pub(super) fn is_last(&self) -> bool {
        self.is_at_home() && self.is_settled
    }

    /// The home is all that is left, after this seat if there is one.
    pub(super) fn settle(&mut self, seat: Option<Seat>) {
        self.left.extend(seat.map(Place::At));
        self.is_settled = true;
    }

    /// Whether places were wished for, and the one that was tried last is none of them.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.has_wish && !matches!(self.now, Some((_, true)))
    }
}

impl ClusterClient {
    /// Where an object is tried. All of `together` go to that node.
    pub(super) fn places(
        &self,
        key: Key<'_>,
        options: &PutOptions,
        together: Option<NodeId>,
    ) -> Places {
        let map = self.asking.map();
        let own = self.inside().map(|local| local.seat());
        let place = |node| place_at(&map, own, node, key.fingerprint());
        let preferred = options.preferred.members(&map).map(|member| member.id);
        let wished = preferred.chain(together).filter_map(place).collect();
        let has_wish = !options.preferred.is_empty() || together.is_some();
        Places::new(wished, has_wish, own.is_some())
    }

    /// Where a part of an object is tried: where it is wished to be, else at its own home, so that parts are spread; before
    /// that where it was drawn to be.
    pub(super) fn places_of_part(
        &self,
        key: Key<'_>,
        options: &PutOptions,
        together: Option<NodeId>,
        drawn: Option<Seat>,
    ) -> Places {
        let mut places = self.places(key, options, together);
        places
            .left
            .retain(|place| *place != Place::Here { is_wished: false });
        places.first(drawn);
        places
    }

    /// The node that takes a whole batch: this one if it has room, else one of two that are drawn.
    pub(super) async fn one_node<'a>(
        &self,
        objects: impl Iterator<Item = (&'a [u8], &'a Value)>,
    ) -> Option<NodeId> {
        // What is no object is refused later.
        let valid = objects.filter(|(key, _)| Key::new(key).is_ok());
        let sizes = valid.map(|(key, value)| match value.check() {
            Ok(()) => extent_bytes(key.len(), value.len()),
            // In parts.
            Err(_) => value.len() as u64,
        });
        let total_bytes = sizes.sum();
        if let Some(local) = self.inside()
            && local.has_room(total_bytes)
        {
            return Some(local.seat().node);
        }
        self.draw(total_bytes, None).await
    }

    /// A seat for an object whose home has no room for it, if there are other nodes, and those that are drawn tell soon.
    pub(super) async fn draw_seat(&self, key: Key<'_>, len_bytes: usize) -> Option<Seat> {
        let map = self.asking.map();
        let home = home_of(&map, key.fingerprint())?;
        let needed_bytes = extent_bytes(key.bytes().len(), len_bytes);
        let drawn = self.draw(needed_bytes, Some(home.node));
        let node = time::timeout(STAT_TIMEOUT, drawn).await.ok().flatten()?;
        seat_at(&self.asking.map(), node, key.fingerprint())
    }

    /// One of two nodes that are drawn among those which have so much room; where nobody has, that of those which were asked
    /// where there is most. None is `but`.
    async fn draw(&self, len_bytes: u64, but: Option<NodeId>) -> Option<NodeId> {
        let map = self.asking.map();
        let mut others: Vec<&MapMember> = map.members().iter().collect();
        others.retain(|member| !member.is_draining && Some(member.id) != but);
        let mut offers = Vec::new();
        for _ in 0..ASKED_MAX {
            let have_room = |offer: &&Offer| offer.free_bytes >= len_bytes;
            if others.is_empty() || offers.iter().filter(have_room).count() == CANDIDATES {
                break;
            }
            let count = others.len() as u64;
            let drawn = usize::try_from(entropy() % count).expect("an index");
            let member = others.swap_remove(drawn);
            offers.extend(self.offer(member).await);
        }
        let draws = [entropy(), entropy()];
        let chosen = choose(&offers, len_bytes, &[], draws);
        let chosen = chosen.map(|index| offers[index].node);
        // Something leaves there.
        let roomiest = || offers.iter().max_by_key(|offer| offer.free_bytes);
        chosen.or_else(|| Some(roomiest()?.node))
    }

    /// What a node offers, by what its first core says.
    async fn offer(&self, member: &MapMember) -> Option<Offer> {
        let seat = Seat {
            node: member.id,
            incarnation: member.incarnation,
            core: CoreIndex(0),
        };
        let stat = maps::stat(&self.asking.seats, seat, STAT_TIMEOUT).await;
        let stat = stat.ok()?;
        Some(Offer {
            node: member.id,
            free_bytes: stat.free_bytes().saturating_mul(member.cores.into()),
            load: u16::try_from(stat.load_permille).unwrap_or(u16::MAX),
            rack: member.rack,
            is_open: true,
        })
    }
}

fn place_at(map: &ClusterMap, own: Option<Seat>, node: NodeId, key: Fingerprint) -> Option<Place> {
    if own.is_some_and(|own| own.node == node) {
        return Some(Place::Here { is_wished: true });
    }
    seat_at(map, node, key).map(Place::At)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Place = Place::Here { is_wished: false };
    const WISHED: Place = Place::Here { is_wished: true };

    fn at(node: u64) -> Place {
        Place::At(Seat {
            node: NodeId(node),
            incarnation: 1,
            core: CoreIndex(0),
        })
    }

    /// The places in order, and which of them are elsewhere.
    fn tried(mut places: Places) -> Vec<(Place, bool)> {
        let mut tried = Vec::new();
        while !places.is_at_home() {
            tried.push((places.next(), places.is_elsewhere()));
        }
        assert_eq!(places.next(), Place::Home, "again");
        assert!(!places.is_last());
        places.settle(None);
        assert_eq!(places.next(), Place::Home, "and again");
        assert!(places.is_last());
        tried
    }

    #[test]
    fn what_is_wished_for_comes_first_and_the_home_last() {
        let home = (Place::Home, false);
        assert_eq!(tried(Places::new(vec![], false, false)), [home]);
        assert_eq!(
            tried(Places::new(vec![], false, true)),
            [(OWN, false), home]
        );
        let away = (Place::Home, true);
        assert_eq!(tried(Places::new(vec![], true, false)), [away], "no member");
        let expected = [(at(3), false), (at(2), false), (OWN, true), away];
        let wished = vec![at(3), at(2)];
        assert_eq!(tried(Places::new(wished.clone(), true, true)), expected);
        let expected = [(at(3), false), (at(2), false), away];
        assert_eq!(tried(Places::new(wished, true, false)), expected);
        let expected = [(WISHED, false), (at(2), false), away];
        assert_eq!(
            tried(Places::new(vec![WISHED, at(2)], true, true)),
            expected
        );
    }

    #[test]
    fn who_has_room_is_tried_once_before_the_home_is_for_good() {
        let mut places = Places::new(vec![at(3)], true, false);
        assert_eq!(places.next(), at(3));
        assert!(!places.is_at_home() && !places.is_last());
        assert_eq!(places.next(), Place::Home);
        assert!(places.is_at_home() && !places.is_last());
        let Place::At(seat) = at(5) else {
            unreachable!("a seat");
        };
        places.settle(Some(seat));
        assert_eq!(places.next(), at(5));
        assert!(places.is_elsewhere() && !places.is_at_home() && !places.is_last());
        assert_eq!(places.next(), Place::Home);
        assert!(places.is_last());
    }

    #[test]
    fn the_nodes_that_are_preferred_are_bounded() {
        let name = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let names: Vec<_> = (1..).map(name).take(PREFERRED_MAX + 1).collect();
        assert!(Preferred::new(&names[1..]).is_ok_and(|preferred| !preferred.is_empty()));
        let kind = StoreErrorKind::Preferred {
            count: PREFERRED_MAX + 1,
        };
        assert_eq!(Preferred::new(&names), Err(StoreError::local(kind)));
        assert_eq!(Preferred::new(&[]), Ok(Preferred::default()));
    }
}
