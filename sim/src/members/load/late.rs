//! A client that is there from the beginning and asks for nothing, before all is over: what it is told of all keys then is what
//! gets find.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore::{ClusterClient, Fetched, StoreError};
use lunette_runtime::{arena, time};
use lunette_transfer::Room;

use super::{KEYS, LATE_PAUSE, Load, VALUE_BYTES_MAX, is_striped, name, tenant_of};

/// How long members may take to have all of their room again.
const EMPTY_MAX: Duration = Duration::from_secs(3);

/// What is under a key, as it is told in each of the ways in which one may ask.
#[derive(Debug)]
struct Told {
    is_listed: bool,
    is_present: bool,
    /// As [`sizes`](ClusterClient::sizes) tells, then as a get does.
    len_bytes: [Option<usize>; 2],
}

impl Told {
    /// Whether all of it is true of a key under which nothing has changed meanwhile. `may_be_lost`: that it is, a get may be the first
    /// to find out.
    fn agrees(&self, may_be_lost: bool) -> bool {
        let [told, got] = self.len_bytes;
        if got.is_none() && may_be_lost {
            return true;
        }
        told == got && self.is_present == got.is_some() && self.is_listed == got.is_some()
    }
}

/// All pages.
pub(super) async fn list(client: &ClusterClient) -> Result<Vec<Vec<u8>>, StoreError> {
    let (mut keys, mut after) = (Vec::new(), None);
    loop {
        let listed = client.list(b"", after).await?;
        keys.extend(listed.keys);
        after = listed.next;
        if after.is_none() {
            return Ok(keys);
        }
    }
}

impl Load {
    pub(crate) async fn look_late(self, is_due: Rc<Cell<bool>>) {
        let client = self.connect().await;
        while !is_due.get() {
            time::sleep(LATE_PAUSE).await;
        }
        for tenant in [0, KEYS - 1].map(tenant_of) {
            let keys = (0..KEYS).filter(|&key| tenant_of(key) == tenant);
            let client = client.of_tenant(tenant.clone());
            let told = self.agree(&client, keys.collect()).await;
            let told = told.and(self.tidy_up(&client).await);
            if let Err(error) = told {
                self.fail(&format!("a client that asks late: {error}"));
            }
        }
        if let Err(error) = self.empty(&client).await {
            self.fail(&format!("what is left is not removed: {error}"));
        }
    }

    /// Removes all that is left, which are parts of objects that are not whole: members have all of their room again, whatever
    /// others have begun and not ended.
    async fn empty(&self, client: &ClusterClient) -> Result<(), StoreError> {
        client.clear().await?;
        let until = self.log.now() + EMPTY_MAX;
        loop {
            let mut left = Vec::new();
            for (seat, stat) in client.stat().await {
                let stat = stat?;
                let used = [
                    stat.shards.entries,
                    stat.shards.used_bytes,
                    stat.pinned_bytes,
                    stat.drive_entries,
                ];
                if used != [0; 4] {
                    left.push((seat.node, seat.core, used));
                }
            }
            if left.is_empty() {
                return Ok(());
            }
            if self.log.now() >= until {
                self.fail(&format!("when all is removed there are {left:?}"));
                return Ok(());
            }
            time::sleep(LATE_PAUSE).await;
        }
    }

    async fn agree(&self, client: &ClusterClient, keys: Vec<usize>) -> Result<(), StoreError> {
        let names: Vec<_> = keys.iter().map(|&key| name(key)).collect();
        let listed = list(client).await?;
        let present = client.exists(&names).await?;
        let sizes = client.sizes(&names).await;
        for (index, key) in keys.into_iter().enumerate() {
            let told = Told {
                is_listed: listed.contains(&names[index]),
                is_present: present[index],
                len_bytes: [sizes[index]?, self.len_of(client, key).await?],
            };
            let may_be_lost = self.has_drives || is_striped(key);
            if !told.agrees(may_be_lost) {
                self.fail(&format!(
                    "of key {key} a client that asks late is told {told:?}"
                ));
            }
        }
        Ok(())
    }

    async fn len_of(
        &self,
        client: &ClusterClient,
        key: usize,
    ) -> Result<Option<usize>, StoreError> {
        let room = Room::whole(arena().alloc(VALUE_BYTES_MAX).expect("room"));
        let fetched = client.get(&name(key), room).await;
        match fetched.map_err(|failure| failure.error)? {
            Fetched::Hit { len_bytes, .. } => Ok(Some(len_bytes)),
            Fetched::Miss { .. } => Ok(None),
        }
    }

    /// Removes whatever is listed: nothing is left of it. That a drive has lost a copy, its home may hear a moment later.
    async fn tidy_up(&self, client: &ClusterClient) -> Result<(), StoreError> {
        let removed = client.remove_listed(b"").await?;
        let listed = list(client).await?;
        let names: Vec<_> = (0..KEYS).map(name).collect();
        let present = client.exists(&names).await?;
        let present = (0..KEYS).zip(present).filter(|(_, is_present)| *is_present);
        let mut left = Vec::new();
        for (key, _) in present {
            if !self.has_drives || self.len_of(client, key).await?.is_some() {
                left.push(key);
            }
        }
        if !listed.is_empty() || !left.is_empty() {
            self.fail(&format!(
                "{removed} were removed, and left are {listed:?}, {left:?}"
            ));
        }
        Ok(())
    }

    fn fail(&self, text: &str) {
        self.ledger.borrow_mut().fail(self.log.now(), text);
    }
}
