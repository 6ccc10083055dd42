//! What is seen of cores without asking them: which keys there are, and short objects, which are copied from where they lie.
//! So who asks waits for no core, and wakes none.
//!
//! The cores are those of the program's own node, for its threads, and those of other nodes on this host whose owners a
//! client has [met](crate::cluster_client), for its tasks, and the threads that ask them.

use std::sync::{Arc, PoisonError, RwLock};

use lunette_cluster::proto::map::ClusterMap;
use lunette_kvstore_proto::key::{Fingerprint, Key};
use lunette_kvstore_proto::message::directory::Peek;
use lunette_kvstore_proto::placement::{Seat, home_of};
use lunette_kvstore_proto::version::Version;
use lunette_runtime::arena::View;

use crate::member::{CatalogueView, Direct, Find, Lane, LeasedView, Listed, PresenceView};

/// Cores in whose catalogues a get looks, besides those where the object is likely to be.
const LOOKED_AT_MAX: usize = 8;

/// What one core shows.
#[derive(Debug)]
pub(crate) struct Shown {
    presence: Option<PresenceView>,
    catalogue: Option<CatalogueView>,
    leased: LeasedView,
    /// Which core of those who look may ask it: the core itself, or the one that has met it.
    core: usize,
    /// By what threads put objects there, where it is another process's.
    lane: Option<Arc<Lane>>,
    /// As long as these are kept, a core of this process shows it; none where it is another one's.
    kept: Vec<Arc<()>>,
}

impl Shown {
    /// What a core of this process shows, as long as all these are kept.
    pub(crate) const fn of_own(
        leased: LeasedView,
        presence: Option<PresenceView>,
        catalogue: Option<CatalogueView>,
        kept: Vec<Arc<()>>,
    ) -> Self {
        Self {
            presence,
            catalogue,
            leased,
            core: 0,
            lane: None,
            kept,
        }
    }

    /// What a core of another process shows as long as the channel to it is there.
    pub(crate) fn of_neighbour(
        leased: LeasedView,
        presence: Option<PresenceView>,
        catalogue: Option<CatalogueView>,
        lane: Option<Lane>,
    ) -> Self {
        Self {
            lane: lane.map(Arc::new),
            ..Self::of_own(leased, presence, catalogue, Vec::new())
        }
    }

    /// The channel by which it was shown is no more.
    pub(crate) fn end(&self) {
        if let Some(lane) = &self.lane {
            lane.end();
        }
    }

    /// It is this core of those who look that asks it.
    pub(crate) const fn asked_by(mut self, core: usize) -> Self {
        self.core = core;
        self
    }

    const fn is_own(&self) -> bool {
        !self.kept.is_empty()
    }

    /// A chunk that was asked for.
    pub(crate) fn has_chunk(&self, chunk: u32, view: Arc<View>) {
        if let Some(catalogue) = &self.catalogue {
            catalogue.has(chunk, view);
        }
    }

    /// A chunk could not be asked for now: somebody else tries again.
    pub(crate) fn is_not_asked_for(&self, chunk: u32) {
        if let Some(catalogue) = &self.catalogue {
            catalogue.is_not_asked_for(chunk);
        }
    }
}

/// What came of a read.
pub(crate) enum Look {
    /// The bytes are there.
    Read {
        version: Version,
        len_bytes: usize,
        /// The core that should hear of what was read.
        is_to_hear: Option<usize>,
    },
    /// Have this core ask for this chunk of that seat, and ask for the object as ever.
    Wants {
        core: usize,
        seat: Seat,
        chunk: u32,
        shown: Arc<Shown>,
    },
    /// Ask.
    Nothing,
}

/// A copy of an object that is seen.
#[derive(Debug)]
pub(crate) struct Spot {
    shown: Arc<Shown>,
    listed: Listed,
    view: Arc<View>,
}

impl Spot {
    /// Where it lies: from which byte on in the view, and how many bytes it has.
    pub(crate) const fn place(&self) -> (&Arc<View>, usize, usize) {
        (&self.view, self.listed.value_at, self.listed.len_bytes)
    }

    /// What has been read there, whose CRC32C is this, is the object if it has been there until now: its version.
    pub(crate) fn confirm(&self, crc32c: u32) -> Option<Version> {
        let catalogue = self.shown.catalogue.as_ref()?;
        match catalogue.confirm(&self.listed, crc32c) {
            // Whatever has become of the node, it was so at that time.
            Direct::Read { version, .. } if self.shown.leased.is_lasting() => Some(version),
            _ => None,
        }
    }
}

/// What came of a look for a copy.
pub(crate) enum Sighting {
    Seen(Spot),
    /// As [`Look::Wants`]. It is not seen yet.
    Wants {
        seat: Seat,
        chunk: u32,
        shown: Arc<Shown>,
    },
    Nothing,
}

/// Where an object is likely to be.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Likely {
    /// The home of its key.
    pub(crate) home: Option<Seat>,
    /// Which of the program's own cores is asked to put it.
    pub(crate) own_core: Option<usize>,
}

/// The cores that are seen, by their seats.
type Seen = Vec<(Seat, Arc<Shown>)>;

/// What those see of cores who share this. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Glance {
    seen: RwLock<Arc<Seen>>,
}

impl Glance {
    fn seen(&self) -> Arc<Seen> {
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&seen)
    }

    fn change(&self, change: impl FnOnce(&mut Seen)) {
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = Seen::clone(&seen);
        change(&mut changed);
        *seen = Arc::new(changed);
    }

    /// Whether this core is seen.
    pub(crate) fn sees(&self, seat: Seat) -> bool {
        place_of(&self.seen(), seat).is_ok()
    }

    /// A core shows this from now on, unless it is seen already.
    pub(crate) fn show(&self, seat: Seat, shown: Arc<Shown>) {
        self.change(|seen| {
            if let Err(place) = place_of(seen, seat) {
                seen.insert(place, (seat, shown));
            }
        });
    }

    /// What a core has shown is of no use any more.
    pub(crate) fn forget(&self, shown: &Arc<Shown>) {
        self.change(|seen| seen.retain(|(_, other)| !Arc::ptr_eq(other, shown)));
    }

    /// Neighbours that are in the map no more are forgotten.
    pub(crate) fn retain(&self, is_in_map: impl Fn(Seat) -> bool) {
        let is_kept = |(seat, shown): &(Seat, Arc<Shown>)| shown.is_own() || is_in_map(*seat);
        if !self.seen().iter().all(is_kept) {
            self.change(|seen| seen.retain(is_kept));
        }
    }

    /// By what threads put objects at this core, if it is another process's, and lets them.
    pub(crate) fn lane(&self, seat: Seat) -> Option<Arc<Lane>> {
        let seen = self.seen();
        let place = place_of(&seen, seat).ok()?;
        let lane = seen[place].1.lane.as_ref()?;
        (!lane.is_over()).then(|| Arc::clone(lane))
    }

    /// Whether there is any.
    pub(crate) fn has_lanes(&self) -> bool {
        self.seen().iter().any(|(_, shown)| shown.lane.is_some())
    }

    /// What is known of keys, in their order; of `None`, nothing.
    pub(crate) fn peek(
        &self,
        map: &ClusterMap,
        keys: impl ExactSizeIterator<Item = Option<Fingerprint>>,
    ) -> Vec<Peek> {
        let seen = self.seen();
        if seen.is_empty() {
            return vec![Peek::Unsure; keys.len()];
        }
        let peek = |key: Option<Fingerprint>| {
            let home = place_of(&seen, home_of(map, key?)?).ok()?;
            let presence = seen[home].1.presence.as_ref()?;
            Some((presence.peek(key?, Some(map.epoch())), home))
        };
        let peeks: Vec<Option<(Peek, usize)>> = keys.map(peek).collect();
        // Whatever has become of the nodes, it was so when it was looked at.
        let mut lasting: Vec<Option<bool>> = vec![None; seen.len()];
        let mut is_lasting =
            |home: usize| *lasting[home].get_or_insert_with(|| seen[home].1.leased.is_lasting());
        let known = peeks.into_iter().map(|peek| match peek {
            Some((peek, home)) if peek != Peek::Unsure && is_lasting(home) => peek,
            _ => Peek::Unsure,
        });
        known.collect()
    }

    /// Looks for a copy of an object of at most `len_max` bytes, for whoever reads it where it lies.
    pub(crate) fn spot(&self, key: Key<'_>, likely: Likely, len_max: usize) -> Sighting {
        let seen = self.seen();
        for place in looked_at(&seen, likely) {
            let (seat, shown) = &seen[place];
            let Some(catalogue) = &shown.catalogue else {
                continue;
            };
            let shown = || Arc::clone(shown);
            match catalogue.look_up(key, len_max) {
                Find::Listed(listed, view) => {
                    return Sighting::Seen(Spot {
                        shown: shown(),
                        listed,
                        view: Arc::clone(view),
                    });
                }
                Find::Wants { chunk } => {
                    let (seat, shown) = (*seat, shown());
                    return Sighting::Wants { seat, chunk, shown };
                }
                Find::Ask => {}
            }
        }
        Sighting::Nothing
    }

    /// Reads an object of at most `len_max` bytes, if it is short and listed: by its home, by the own core where its writers
    /// put it, or by one of a few others. `copy` copies so many bytes from there on in the view, and tells their CRC32C. What
    /// it has copied is the object only if this says so.
    pub(crate) fn read(
        &self,
        key: Key<'_>,
        likely: Likely,
        len_max: usize,
        mut copy: impl FnMut(&View, usize, usize) -> u32,
    ) -> Look {
        let seen = self.seen();
        for place in looked_at(&seen, likely) {
            let (seat, shown) = &seen[place];
            let Some(catalogue) = &shown.catalogue else {
                continue;
            };
            match catalogue.read(key, len_max, &mut copy) {
                // Whatever has become of the node, it was so at that time.
                Direct::Read {
                    version,
                    len_bytes,
                    is_to_hear,
                } if shown.leased.is_lasting() => {
                    return Look::Read {
                        version,
                        len_bytes,
                        // Others look from time to time.
                        is_to_hear: (is_to_hear && shown.is_own()).then_some(shown.core),
                    };
                }
                Direct::Wants { chunk } => {
                    return Look::Wants {
                        core: shown.core,
                        seat: *seat,
                        chunk,
                        shown: Arc::clone(shown),
                    };
                }
                Direct::Read { .. } | Direct::Ask => {}
            }
        }
        Look::Nothing
    }
}

/// In which order cores are looked at for an object.
fn looked_at(seen: &Seen, likely: Likely) -> impl Iterator<Item = usize> + use<'_> {
    let home = likely.home.and_then(|home| place_of(seen, home).ok());
    let is_own = move |(_, shown): &(Seat, Arc<Shown>)| {
        shown.is_own() && Some(shown.core) == likely.own_core
    };
    let own = seen
        .iter()
        .position(is_own)
        .filter(|own| Some(*own) != home);
    let others = (0..seen.len()).filter(move |place| ![home, own].contains(&Some(*place)));
    let places = home.into_iter().chain(own);
    places.chain(others.take(LOOKED_AT_MAX))
}

/// Where a seat is, or would be.
fn place_of(seen: &Seen, seat: Seat) -> Result<usize, usize> {
    seen.binary_search_by_key(&seat, |(seat, _)| *seat)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use lunette_runtime::arena::Words;
    use lunette_runtime_core::ids::{CoreIndex, NodeId};

    use super::*;
    use crate::member::tests::{leased, listing};

    fn seat(node: u64) -> Seat {
        Seat {
            node: NodeId(node),
            incarnation: 7,
            core: CoreIndex(0),
        }
    }

    /// A core that lists an object, and its words.
    fn lists(key: Key<'_>, value: &[u8], kept: Vec<Arc<()>>) -> (Words, Arc<Shown>) {
        let (words, catalogue) = listing(key, value);
        let leased = leased(true);
        (
            words,
            Arc::new(Shown::of_own(leased, None, Some(catalogue), kept)),
        )
    }

    fn read(glance: &Glance, key: Key<'_>) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let look = glance.read(key, Likely::default(), 100, |view, from, len| {
            bytes.resize(len, 0);
            view.copy_out_summed(from, &mut bytes)
        });
        matches!(look, Look::Read { .. }).then_some(bytes)
    }

    #[test]
    fn a_core_is_seen_from_when_it_shows_something_until_it_is_forgotten() {
        let (glance, key) = (Glance::default(), Key::new(b"one").expect("a key"));
        assert_eq!(read(&glance, key), None);
        let (_words, first) = lists(key, b"first", vec![Arc::default()]);
        let (_words, second) = lists(key, b"second", Vec::new());
        glance.show(seat(1), Arc::clone(&first));
        glance.show(seat(1), Arc::clone(&second));
        assert!(glance.sees(seat(1)) && !glance.sees(seat(2)));
        assert_eq!(
            read(&glance, key),
            Some(b"first".to_vec()),
            "the first stays"
        );
        glance.forget(&second);
        assert!(glance.sees(seat(1)), "that was not it");
        glance.show(seat(2), Arc::clone(&second));
        glance.retain(|_| false);
        assert!(glance.sees(seat(1)) && !glance.sees(seat(2)), "but its own");
        glance.show(seat(2), second);
        glance.retain(|seat| seat.node == NodeId(2));
        glance.forget(&first);
        assert!(!glance.sees(seat(1)) && glance.sees(seat(2)));
        assert_eq!(read(&glance, key), Some(b"second".to_vec()));
    }

    #[test]
    fn a_get_looks_on_where_a_copy_is_gone_or_a_lease_has_ended_and_at_so_many() {
        let (glance, key) = (Glance::default(), Key::new(b"one").expect("a key"));
        let other = Key::new(b"other").expect("a key");
        let (words, gone) = lists(key, b"gone", Vec::new());
        for word in &words[8..8 + 4 * 8] {
            word.store(0, Ordering::Relaxed);
        }
        glance.show(seat(1), gone);
        let (_words, catalogue) = listing(key, b"ended");
        let ended = Shown::of_neighbour(leased(false), None, Some(catalogue), None);
        glance.show(seat(2), Arc::new(ended));
        let nothing = Shown::of_neighbour(leased(true), None, None, None);
        glance.show(seat(3), Arc::new(nothing));
        let mut held = Vec::new();
        for node in 4..LOOKED_AT_MAX as u64 {
            let (words, shown) = lists(other, b"other", Vec::new());
            held.push(words);
            glance.show(seat(node), shown);
        }
        let (_words, last) = lists(key, b"here", vec![Arc::default()]);
        let last = Arc::into_inner(last).expect("nobody else has it");
        glance.show(seat(1000), Arc::new(last.asked_by(3)));
        assert_eq!(read(&glance, key), Some(b"here".to_vec()), "it is the last");
        assert_eq!(read(&glance, other), Some(b"other".to_vec()));
        let (_words, one_more) = lists(other, b"other", Vec::new());
        glance.show(seat(500), one_more);
        assert_eq!(read(&glance, key), None, "it is asked for");
        for (home, own_core, is_seen) in [
            (Some(seat(1000)), None, true),
            (Some(seat(1000)), Some(3), true),
            (Some(seat(2)), Some(3), true),
            (Some(seat(2)), Some(0), true),
            (None, Some(0), false),
            (Some(seat(7000)), None, false),
        ] {
            let likely = Likely { home, own_core };
            let look = glance.read(key, likely, 100, |view, from, len| {
                let mut bytes = vec![0; len];
                view.copy_out_summed(from, &mut bytes)
            });
            assert_eq!(matches!(look, Look::Read { .. }), is_seen, "{likely:?}");
        }
    }
}
