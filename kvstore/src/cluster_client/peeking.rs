//! Lookups in batches: what homes know at once takes a few bytes for each key, and no operation.

use std::collections::BTreeMap;
use std::rc::Rc;

use futures_channel::oneshot;
use lunette_cluster::proto::map::Epoch;
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::{PEEKS_MAX, Peek};
use lunette_kvstore_proto::placement::{Seat, home_of};

use super::{ClusterClient, calls, objects};

/// Keys of one home.
#[derive(Debug)]
struct Part {
    home: Seat,
    /// Which of the keys they are.
    places: Vec<usize>,
}

impl ClusterClient {
    /// What the homes of `wanted`, places in `keys`, know at once is noted in `present`; the places of which they
    /// are not sure, or do not answer soon, are returned. Those have to be asked for.
    pub(super) async fn peek_homes(
        &self,
        keys: &[Fingerprint],
        wanted: Vec<usize>,
        present: &mut [bool],
    ) -> Vec<usize> {
        let map = self.asking.map();
        let mut unsure = Vec::new();
        let mut homes: BTreeMap<Seat, Vec<usize>> = BTreeMap::new();
        for place in wanted {
            match home_of(&map, keys[place]) {
                Some(home) => homes.entry(home).or_default().push(place),
                None => unsure.push(place),
            }
        }
        let mut note = |places: Vec<usize>, peeked: Option<Vec<Peek>>| match peeked {
            None => unsure.extend(places),
            Some(peeked) => {
                for (place, peek) in places.into_iter().zip(peeked) {
                    present[place] = peek == Peek::Present;
                    if peek == Peek::Unsure {
                        unsure.push(place);
                    }
                }
            }
        };
        for home in homes.keys() {
            self.asking.sights.is_asked(&self.asking, *home);
        }
        let mut parts = parts_of(homes);
        if parts.len() == 1 {
            let Part { home, places } = parts.remove(0);
            let keys = places.iter().map(|&place| keys[place]).collect();
            note(
                places,
                calls::peek(&self.asking, home, map.epoch(), keys).await,
            );
        } else {
            let begun = parts
                .into_iter()
                .map(|part| self.begin(part, map.epoch(), keys));
            let ended = objects::batch(begun, async |(places, peeked)| (places, peeked.await.ok()));
            for (places, peeked) in ended.await {
                note(places, peeked.flatten());
            }
        }
        unsure
    }

    fn begin(
        &self,
        part: Part,
        epoch: Epoch,
        keys: &[Fingerprint],
    ) -> (Vec<usize>, oneshot::Receiver<Option<Vec<Peek>>>) {
        let Part { home, places } = part;
        let keys = places.iter().map(|&place| keys[place]).collect();
        let (told, peeked) = oneshot::channel();
        let asking = Rc::clone(&self.asking);
        self.asking.spawn(async move {
            if told
                .send(calls::peek(&asking, home, epoch, keys).await)
                .is_err()
            {
                tracing::trace!("who looked keys up has given up");
            }
        });
        (places, peeked)
    }
}

/// One for each message.
fn parts_of(homes: BTreeMap<Seat, Vec<usize>>) -> Vec<Part> {
    let parts = homes.into_iter().flat_map(|(home, places)| {
        let parts = places.chunks(PEEKS_MAX).map(<[usize]>::to_vec);
        let parts: Vec<_> = parts.map(|places| Part { home, places }).collect();
        parts
    });
    parts.collect()
}
