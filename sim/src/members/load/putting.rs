//! What a client of a world puts, and what it tells the ledger of it.

use lunette_kvstore::{
    ClusterClient, CommitFailure, Preferred, PutOptions, Reserved, StoreError, StoreErrorKind,
    Stored, Value,
};
use lunette_kvstore_proto::retention::Pin;
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::arena::Region;
use lunette_runtime_core::time::Time;

use super::{
    CHANGED_BELOW, KEYS, Load, RESERVED_KEEP, SEVERAL, STRIPE_BYTES, bytes_of, group_of,
    is_striped, name, parent_of, pin_of, tenant_of,
};
use crate::members::history::End;

/// How often a commit is tried of which nothing was done.
const COMMIT_TRIES: usize = 3;

/// What came of room that was reserved.
enum InRanges {
    Put(Stored),
    /// It was given back.
    Revoked,
}

/// Room is reserved, and written from its end: the beginning twice. Then it is given back, if it is `revoked`.
async fn put_in_ranges(
    client: &ClusterClient,
    key: &[u8],
    bytes: &Region,
    (options, is_revoked): (PutOptions, bool),
) -> Result<InRanges, StoreError> {
    let len = bytes.len();
    let reserved = client.reserve(key, len, options, RESERVED_KEEP).await?;
    let reservation = match reserved {
        Reserved::Room(reservation) => reservation,
        Reserved::Exists { version } => return Ok(InRanges::Put(Stored::Exists { version })),
    };
    let middle = len / 2;
    for (start, end) in [(middle, len), (0, middle / 2), (0, middle)] {
        let part = Value::new(bytes.slice(start, end - start));
        reservation.write(start, part).await?;
    }
    if is_revoked {
        reservation.revoke().await?;
        return Ok(InRanges::Revoked);
    }
    let mut committed = reservation.commit().await;
    for _ in 1..COMMIT_TRIES {
        match committed {
            Err(CommitFailure {
                reservation: Some(again),
                ..
            }) => committed = again.commit().await,
            ended => {
                committed = ended;
                break;
            }
        }
    }
    let committed = committed.map(InRanges::Put);
    committed.map_err(|failure| failure.error)
}

impl Load {
    pub(super) async fn put(&self, client: &ClusterClient, key: usize, kind: WriteKind) {
        let client = &client.of_tenant(tenant_of(key));
        let begun = self.log.now();
        let value = self.ledger.borrow_mut().begin_write(begun, key, kind);
        let value_copies = u8::try_from(value % 3).expect("small");
        let copies = 1 + value_copies % self.copies_max;
        let pin = pin_of(key, value);
        let is_pinned = pin == Pin::Hard;
        (self.ledger.borrow_mut()).on_wanted((key, value), copies, is_pinned);
        // A third of them is wanted on one node, whatever has become of it.
        let nodes = self.seeds.len() as u64;
        let node = usize::try_from(value / 3 % nodes).expect("an index");
        let named = &self.seeds[node..][..usize::from(value % 3 == 1)];
        let options = PutOptions {
            kind,
            copies,
            preferred: Preferred::new(named).expect("one"),
            stripe_len: is_striped(key).then_some(STRIPE_BYTES),
            pin,
            group: group_of(key, value),
            behind: parent_of(client, key, value),
            ..PutOptions::default()
        };
        let bytes = bytes_of(value);
        let put = if value % 4 == 3 {
            let is_revoked = value % 32 == 31;
            put_in_ranges(client, &name(key), &bytes, (options, is_revoked)).await
        } else {
            let put = client.put(&name(key), Value::new(bytes), options).await;
            put.map(InRanges::Put)
        };
        match put {
            Ok(InRanges::Revoked) => self.on_revoked(key, value),
            Ok(InRanges::Put(stored)) => self.on_put((key, value), begun, kind, Ok(stored)),
            Err(error) => self.on_put((key, value), begun, kind, Err(error)),
        }
    }

    /// Several keys of one tenant, in one call.
    pub(super) async fn put_several(&self, client: &ClusterClient, first: usize, kind: WriteKind) {
        let begun = self.log.now();
        let tenant = tenant_of(first);
        let keys = (first..first + SEVERAL).map(|key| key % KEYS);
        let keys = keys.filter(|&key| tenant_of(key) == tenant && !is_striped(key));
        // Those of few keys may be replaced.
        let (keys, kind) = match kind {
            WriteKind::Put => (keys.collect::<Vec<_>>(), kind),
            WriteKind::Upsert => (keys.filter(|&key| key < CHANGED_BELOW).collect(), kind),
        };
        let (mut written, mut objects) = (Vec::new(), Vec::new());
        for key in keys {
            let mut ledger = self.ledger.borrow_mut();
            let value = ledger.begin_write(begun, key, kind);
            ledger.on_wanted((key, value), self.copies_max, false);
            written.push((key, value));
            objects.push((name(key), Value::new(bytes_of(value))));
        }
        let options = PutOptions {
            kind,
            copies: self.copies_max,
            ..PutOptions::default()
        };
        let client = client.of_tenant(tenant);
        // Half of them are of no use without the one before.
        let put = if first.is_multiple_of(2) {
            client.put_all(&objects, options).await
        } else {
            client.put_chain(None, &objects, options).await
        };
        for (written, put) in written.into_iter().zip(put) {
            self.on_put(written, begun, kind, put);
        }
    }

    /// Nobody ever sees it.
    fn on_revoked(&self, key: usize, value: u64) {
        let now = self.log.now();
        let mut ledger = self.ledger.borrow_mut();
        ledger.count("revoked");
        ledger.end_write(now, (key, value), End::Undone, None);
    }

    fn on_put(
        &self,
        (key, value): (usize, u64),
        begun: Time,
        kind: WriteKind,
        put: Result<Stored, StoreError>,
    ) {
        let now = self.log.now();
        self.log.note(&format!("{kind:?} {key} {value}: {put:?}"));
        let (what, end, version) = match &put {
            Ok(Stored::Written {
                version,
                is_cut_off,
                ..
            }) => {
                let end = if *is_cut_off {
                    End::DoneCutOff
                } else {
                    End::Done
                };
                ("written", end, Some(*version))
            }
            Ok(Stored::Exists { .. }) => ("exists", End::Undone, None),
            Err(error) => {
                let what = format!("{kind:?} {key}");
                if self.may_lack_room(begun, key, &error.kind) || self.was_late(begun, &error.kind)
                {
                    self.on_error(&what, &error.kind);
                } else {
                    self.on_failure(begun, &what, &error.kind);
                }
                match error.kind {
                    StoreErrorKind::TimedOut => ("timed out", End::Undone, None),
                    StoreErrorKind::ReservationLost | StoreErrorKind::Refused(_) => {
                        ("room lost", End::Undone, None)
                    }
                    _ => ("interrupted", End::Doubt, None),
                }
            }
        };
        let mut ledger = self.ledger.borrow_mut();
        ledger.count(what);
        ledger.end_write(now, (key, value), end, version);
    }
}
