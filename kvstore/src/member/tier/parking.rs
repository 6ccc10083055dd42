//! A node that ends has its drive take what only memory has: who comes back with the drive has all of that again.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore_log::effect::AppendRefused;
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::CopyPlace;
use lunette_runtime::{can_spawn, spawn_local, time};
use lunette_runtime_core::time::Time;

use super::Tier;
use super::notes::{self, fingerprint_of, is_of};
use crate::member::core::MemberCore;

/// Copies that are looked at before others on the core have their turn.
const LOOKED_PER_TURN: usize = 256;
/// How long a drive that has enough to write is left alone.
const PAUSE: Duration = Duration::from_millis(1);
/// Of how much of the drive what is parked may be, so that what comes first is not written over by what comes last: a half.
const SHARE: u64 = 2;

/// What came of one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parking {
    /// The drive has it already, or never will.
    Passed,
    /// So many bytes are being written.
    Begun(u64),
    /// The drive has enough to write now.
    Later,
}

/// What was parked.
#[derive(Debug, Default)]
struct Parked {
    copies: u64,
    bytes: u64,
    /// Copies that are being written.
    under_way: Rc<Cell<usize>>,
}

impl Tier {
    /// How long a node that ends parks.
    pub(in crate::member) const fn park_timeout(&self) -> Duration {
        self.park_timeout
    }

    /// Begins to write a copy, which stays where it is. What is not wanted any more when it is written goes as all that is dead.
    fn park(&self, core: &MemberCore, place: CopyPlace, under_way: &Rc<Cell<usize>>) -> Parking {
        let copy = core.machines().borrow().owner.copy(place);
        let extent = core.bytes().borrow().extent(place);
        let (Some((info, namespace)), Some(extent), Some(cluster)) =
            (copy, extent, self.cluster.get())
        else {
            return Parking::Passed;
        };
        if let Some(record) = self.drive.find(fingerprint_of(place))
            && (is_of(&record, &info) || self.is_wanted(core, &record))
        {
            return Parking::Passed;
        }
        if !can_spawn() {
            return Parking::Later;
        }
        let Some(record) = notes::record_of(cluster, place, &info, namespace) else {
            return Parking::Passed;
        };
        match (self.drive).append(extent.key().bytes(), record, extent.value()) {
            Ok(durable) => {
                under_way.set(under_way.get() + 1);
                let under_way = Rc::clone(under_way);
                spawn_local(async move {
                    if let Err(failure) = durable.await {
                        tracing::debug!(%failure, "a copy is not parked");
                    }
                    under_way.set(under_way.get() - 1);
                });
                Parking::Begun(u64::from(info.len_bytes))
            }
            Err(AppendRefused::Here) => Parking::Passed,
            Err(refused) if refused.is_retryable() => Parking::Later,
            Err(refused) => {
                tracing::debug!(?place, %refused, "a copy is not parked");
                Parking::Passed
            }
        }
    }
}

impl MemberCore {
    /// Has the drive take what only memory has, until then; what was used again goes first. All is served meanwhile.
    pub(in crate::member) async fn park(self: Rc<Self>, until: Time) {
        let Some(tier) = self.tier() else {
            return;
        };
        let mut parked = Parked::default();
        for is_reused in [true, false] {
            self.park_some(tier, is_reused, until, &mut parked).await;
        }
        while parked.under_way.get() > 0 && time::now() < until {
            time::sleep(PAUSE).await;
        }
        let (copies, bytes, left) = (parked.copies, parked.bytes, parked.under_way.get());
        tracing::info!(copies, bytes, left, "parked on the drive");
    }

    /// Parks those copies that were used after the first time, or those that were not.
    async fn park_some(&self, tier: &Tier, is_reused: bool, until: Time, parked: &mut Parked) {
        let bytes_max = tier.keeping.capacity_bytes() / SHARE;
        let mut after: Option<Fingerprint> = None;
        loop {
            let places: Vec<(Fingerprint, Option<CopyPlace>)> = {
                let owner = &self.machines().borrow().owner;
                let keys = owner.keys_after(after).take(LOOKED_PER_TURN);
                keys.map(|(key, latest)| (key, latest.map(|(place, _)| place)))
                    .collect()
            };
            let Some(&(last, _)) = places.last() else {
                return;
            };
            after = Some(last);
            for place in places.into_iter().filter_map(|(_, place)| place) {
                if (self.bytes().borrow().reuses(place) > 0) != is_reused {
                    continue;
                }
                loop {
                    if time::now() >= until || parked.bytes >= bytes_max {
                        return;
                    }
                    match tier.park(self, place, &parked.under_way) {
                        Parking::Passed => {}
                        Parking::Begun(bytes) => {
                            parked.copies += 1;
                            parked.bytes += bytes;
                        }
                        Parking::Later => {
                            time::sleep(PAUSE).await;
                            continue;
                        }
                    }
                    break;
                }
            }
            time::yield_now().await;
        }
    }
}
