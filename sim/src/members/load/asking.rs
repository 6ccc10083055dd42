//! What a client of a world asks about keys, without their bytes.

use std::time::Duration;

use lunette_kvstore::{ClusterClient, Located, StoreError};
use lunette_kvstore_proto::message::directory::Found;
use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;

use super::{HOLD, KEYS, Load, late, name, tenant_of};
use crate::members::ledger::Hold;

/// What is told of a key.
#[derive(Clone, Copy, Debug)]
enum Told {
    Absent,
    Present,
    /// And of so many bytes.
    Long(usize),
}

impl Told {
    const fn is_present(is_present: bool) -> Self {
        if is_present {
            Self::Present
        } else {
            Self::Absent
        }
    }

    fn is_long(len_bytes: Option<usize>) -> Self {
        len_bytes.map_or(Self::Absent, Self::Long)
    }
}

impl Load {
    /// What there is under each of a tenant's keys, in one of the ways in which one may ask.
    pub(super) async fn ask(&self, client: &ClusterClient, key: usize, random: &mut SplitMix64) {
        let begun = self.log.now();
        let tenant = tenant_of(key);
        let keys: Vec<usize> = (0..KEYS).filter(|&key| tenant_of(key) == tenant).collect();
        let names: Vec<_> = keys.iter().map(|&key| name(key)).collect();
        let client = client.of_tenant(tenant);
        let (way, told): (_, Vec<_>) = match random.below(4) {
            0 => match client.exists(&names).await {
                Ok(present) => {
                    let told = present.into_iter().map(Told::is_present);
                    ("exists", told.map(Ok).collect())
                }
                Err(error) => return self.on_failure(begun, "exists", &error.kind),
            },
            1 => {
                let sizes = client.sizes(&names).await.into_iter();
                let told = sizes.map(|len_bytes| len_bytes.map(Told::is_long));
                ("sizes", told.collect())
            }
            2 => {
                let located = client.locate(&names).await.into_iter();
                let told = located.map(|located| located.map(|located| self.on_located(located)));
                ("locate", told.collect())
            }
            _ => return self.hold_all(&client, &keys, &names).await,
        };
        for (key, told) in keys.into_iter().zip(told) {
            self.on_told(begun, (way, key), told);
        }
    }

    fn on_located(&self, located: Option<Located>) -> Told {
        if let Some(Located { nodes, .. }) = &located
            && (nodes.is_empty() || nodes.iter().any(|node| !self.seeds.contains(node)))
        {
            let text = format!("something is said to be at {nodes:?}");
            self.ledger.borrow_mut().fail(self.log.now(), &text);
        }
        Told::is_long(located.map(|located| located.len_bytes))
    }

    /// While not all is calm, that a home does not know yet is told as "no".
    fn on_told(&self, begun: Time, (way, key): (&str, usize), told: Result<Told, StoreError>) {
        let now = self.log.now();
        self.log.note(&format!("{way} {key}: {told:?}"));
        let mut ledger = self.ledger.borrow_mut();
        ledger.hear(&self.log);
        match told {
            Ok(Told::Absent) if self.is_calm(begun) => ledger.on_miss(now, key, begun),
            Ok(Told::Absent) => {}
            Ok(Told::Present) => ledger.on_shown(now, key, begun, None),
            Ok(Told::Long(len_bytes)) => ledger.on_shown(now, key, begun, Some(len_bytes)),
            Err(error) => {
                drop(ledger);
                self.on_failure(begun, &format!("{way} {key}"), &error.kind);
            }
        }
    }

    /// Has several objects kept.
    async fn hold_all(&self, client: &ClusterClient, keys: &[usize], names: &[Vec<u8>]) {
        let asked = self.log.now();
        let found = client.hold_all(names, HOLD).await;
        for (&key, found) in keys.iter().zip(found) {
            self.on_held(key, asked, found);
        }
    }

    /// Has an object kept.
    pub(super) async fn hold(&self, client: &ClusterClient, key: usize) {
        let asked = self.log.now();
        let client = client.of_tenant(tenant_of(key));
        let found = client.lookup(&name(key), Some(HOLD)).await;
        self.on_held(key, asked, found);
    }

    fn on_held(&self, key: usize, asked: Time, found: Result<Option<Found>, StoreError>) {
        let told = self.log.now();
        self.log.note(&format!("hold {key}: {found:?}"));
        match found {
            Ok(Some(found)) if found.held_ms > 0 => {
                let hold = Hold {
                    version: found.version,
                    node: found.owners[0].node.0,
                    asked,
                    told,
                    until: asked + Duration::from_millis(found.held_ms.into()),
                };
                self.ledger.borrow_mut().on_hold(key, hold);
            }
            Ok(_) => {}
            Err(error) => self.on_failure(asked, &format!("hold {key}"), &error.kind),
        }
    }

    /// All keys of a key's tenant. What a drive cannot read is not named, and whoever has it tells of that later.
    pub(super) async fn list(&self, client: &ClusterClient, key: usize) {
        let begun = self.log.now();
        let tenant = tenant_of(key);
        let listed = match late::list(&client.of_tenant(tenant.clone())).await {
            Ok(listed) => listed,
            Err(error) => return self.on_failure(begun, "list", &error.kind),
        };
        let now = self.log.now();
        self.log.note(&format!("listed: {}", listed.len()));
        let mut ledger = self.ledger.borrow_mut();
        ledger.count("listed");
        ledger.hear(&self.log);
        let own = (0..KEYS).filter(|&key| tenant_of(key) == tenant);
        for key in own.filter(|&key| !listed.contains(&name(key))) {
            if !self.has_drives {
                ledger.on_unlisted(now, key, begun);
            }
        }
    }
}
