//! What a client [sees](crate::glance) of cores on this host, and need not ask for.

use std::rc::Rc;
use std::sync::Arc;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_kvstore_proto::key::{Fingerprint, Key};
use lunette_kvstore_proto::message::directory::Peek;
use lunette_kvstore_proto::placement::{Seat, home_of};
use lunette_transfer::Room;

use super::objects::Fetching;
use super::{ClusterClient, Fetched};
use crate::glance::{Glance, Likely, Look, Shown};
use crate::member::DIRECT_BYTES_MAX;

impl ClusterClient {
    /// What is seen of cores.
    pub(crate) fn glance(&self) -> Arc<Glance> {
        self.asking.sights.glance()
    }

    /// What this client sees of owners it shares with threads from now on, and with others, of which it is this one.
    pub(crate) fn look_by(&self, glance: &Arc<Glance>, core: usize) {
        // Those of a member's own process have that to put things at.
        let handing = self.local.is_none().then_some(self.timeout);
        self.asking.sights.look_by(glance, core, handing);
    }

    /// Whether it is on a core of a node, where it puts things first.
    pub(crate) const fn is_inside(&self) -> bool {
        self.local.is_some()
    }

    /// See [`MemberCore::hear_reads`](crate::member::MemberCore::hear_reads).
    pub(crate) fn hear_reads(&self) {
        if let Some(local) = self.inside() {
            local.hear_reads();
        }
    }

    /// Has a chunk of a core's memory looked at: of this core, or of an owner that this client has met.
    pub(crate) fn bring_chunk(&self, seat: Seat, chunk: u32, shown: Arc<Shown>) {
        if let Some(local) = self.inside()
            && local.seat() == seat
        {
            if let Some(view) = local.chunk_view(chunk) {
                shown.has_chunk(chunk, Arc::new(view));
            }
            return;
        }
        let asking = Rc::clone(&self.asking);
        self.asking.spawn(async move {
            let sights = &asking.sights;
            sights.bring_chunk(seat, chunk, &shown).await;
        });
    }

    /// What is seen of `wanted`, places in `keys`, is noted in `present`; the places of which nothing is seen are returned.
    pub(super) fn peek_seen(
        &self,
        keys: &[Fingerprint],
        wanted: Vec<usize>,
        present: &mut [bool],
    ) -> Vec<usize> {
        if self.asking.namespace() != NamespaceKind::Cache {
            return wanted;
        }
        let wanted_keys = wanted.iter().map(|&place| Some(keys[place]));
        let peeked = self.glance().peek(&self.asking.map(), wanted_keys);
        let mut unsure = Vec::new();
        for (place, peek) in wanted.into_iter().zip(peeked) {
            present[place] = peek == Peek::Present;
            if peek == Peek::Unsure {
                unsure.push(place);
            }
        }
        unsure
    }

    /// A short object that is seen; the room, if it is to be asked for.
    pub(super) fn get_seen(&self, key: &[u8], mut room: Room) -> Result<Fetching, Room> {
        let is_seen = self.asking.namespace() == NamespaceKind::Cache;
        let (true, Ok(key)) = (is_seen, Key::new(key)) else {
            return Err(room);
        };
        let len_max = room.len().min(DIRECT_BYTES_MAX);
        let likely = Likely {
            home: home_of(&self.asking.map(), key.fingerprint()),
            own_core: None,
        };
        let look = (self.glance()).read(key, likely, len_max, |view, from, len| {
            room.place_from(0, view, from, len)
        });
        match look {
            Look::Read {
                version, len_bytes, ..
            } => {
                self.asking.sights.has_read(len_bytes);
                Ok(Fetching::Done(Ok(Fetched::Hit {
                    room,
                    len_bytes,
                    object_len_bytes: len_bytes,
                    version,
                    is_cut_off: false,
                })))
            }
            Look::Wants {
                seat, chunk, shown, ..
            } => {
                self.bring_chunk(seat, chunk, shown);
                Err(room)
            }
            Look::Nothing => Err(room),
        }
    }
}
