//! The catalogue, asked and written.

use lunette_cluster::proto::coordination::{
    Ask, CoordinationFault, KeyRange, KeyValue, LeaseId, Op, OpOutcome, Outcome, Revision, Txn,
    WatchFrom,
};
use lunette_cluster::{Client, Watch};
use lunette_p2p_proto::catalogue::{
    Catalogue, HolderRecord, LayoutPlace, ObjectRecord, PrefixFault, decode_sums,
};
use lunette_p2p_proto::layout::{Layout, decode_group};
use lunette_p2p_proto::{ObjectName, PeerId, Version};

use super::local::Local;
use super::{ASK_MAX, Found};
use crate::error::CatalogueError;

/// What came of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claimed {
    /// The name is this object's.
    Ours,
    /// It is another's.
    Taken(Version),
}

impl Claimed {
    fn of(version: Version, found: Version) -> Self {
        if found == version {
            Self::Ours
        } else {
            Self::Taken(found)
        }
    }
}

/// An object's key as it was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    modified: Revision,
    lease: Option<LeaseId>,
}

#[derive(Debug)]
pub(super) struct Books {
    client: Client,
    keys: Catalogue,
}

impl Books {
    pub(super) fn new(client: Client, prefix: &str) -> Result<Self, PrefixFault> {
        let keys = Catalogue::new(prefix)?;
        Ok(Self { client, keys })
    }

    pub(super) async fn grant(&self, lease: LeaseId, ttl_s: u32) -> Result<(), CoordinationFault> {
        let ask = Ask::Grant { lease, ttl_s };
        self.client.ask(&ask, ASK_MAX).await.map(|_| ())
    }

    pub(super) async fn keep_alive(&self, lease: LeaseId) -> Result<(), CoordinationFault> {
        let ask = Ask::KeepAlive(lease);
        self.client.ask(&ask, ASK_MAX).await.map(|_| ())
    }

    pub(super) async fn revoke(&self, lease: LeaseId) -> Result<(), CoordinationFault> {
        let ask = Ask::Revoke(lease);
        self.client.ask(&ask, ASK_MAX).await.map(|_| ())
    }

    async fn range(&self, range: KeyRange) -> Result<Vec<KeyValue>, CoordinationFault> {
        let answer = self.client.ask(&Ask::Op(Op::Range(range)), ASK_MAX).await?;
        let Outcome::Op(OpOutcome::Range(pairs)) = answer.outcome else {
            unreachable!("an answer is of the kind that was asked");
        };
        Ok(pairs)
    }

    async fn op(&self, op: Op) -> Result<(), CatalogueError> {
        self.client.ask(&Ask::Op(op), ASK_MAX).await?;
        Ok(())
    }

    async fn txn(&self, txn: Txn) -> Result<(bool, Vec<OpOutcome>), CatalogueError> {
        let answer = self.client.ask(&Ask::Txn(txn), ASK_MAX).await?;
        let Outcome::Txn {
            succeeded,
            outcomes,
        } = answer.outcome
        else {
            unreachable!("an answer is of the kind that was asked");
        };
        Ok((succeeded, outcomes))
    }

    /// Tells of objects' keys from now on.
    pub(super) async fn watch_objects(&self) -> Result<Watch, CoordinationFault> {
        let from = WatchFrom {
            range: self.keys.objects(""),
            revision: Revision(0),
        };
        self.client.watch(&from, ASK_MAX).await
    }

    /// The name in an object's key.
    pub(super) fn name_of(&self, key: &[u8]) -> Option<ObjectName> {
        self.keys.name_of(key)
    }

    /// What has a name.
    pub(super) async fn object(
        &self,
        name: &ObjectName,
    ) -> Result<Option<(ObjectRecord, Written)>, CatalogueError> {
        let found = self
            .range(KeyRange::one(self.keys.object_key(name)))
            .await?;
        let Some(pair) = found.first() else {
            return Ok(None);
        };
        let record = ObjectRecord::decode(&pair.value)?;
        let written = Written {
            modified: pair.modified,
            lease: pair.lease,
        };
        Ok(Some((record, written)))
    }

    /// The objects whose names begin so. What is none of ours is left out.
    pub(super) async fn objects(
        &self,
        beginning: &str,
    ) -> Result<Vec<(ObjectName, ObjectRecord)>, CatalogueError> {
        let pairs = self.range(self.keys.objects(beginning)).await?;
        let objects = pairs.iter().filter_map(|pair| {
            let name = self.keys.name_of(&pair.key)?;
            let record = ObjectRecord::decode(&pair.value).ok()?;
            Some((name, record))
        });
        Ok(objects.collect())
    }

    /// What is read of an object that is of a version, if one is wanted; `None` if there is none. What its keys say may go
    /// between two reads, with the lease of who wrote them, and another holder has written them then: so it is read
    /// again, as long as its record was.
    pub(super) async fn object_with<T>(
        &self,
        name: &ObjectName,
        version: Option<Version>,
        read: impl AsyncFn(&ObjectRecord) -> Result<Option<T>, CatalogueError>,
    ) -> Result<Option<(ObjectRecord, T)>, CatalogueError> {
        let mut seen = None;
        while let Some((record, written)) = self.object(name).await? {
            let is_wanted = version.is_none_or(|version| version == record.version);
            if !is_wanted || seen.replace(written.modified) == Some(written.modified) {
                break;
            }
            if let Some(read) = read(&record).await? {
                return Ok(Some((record, read)));
            }
        }
        Ok(None)
    }

    /// The checksums of all chunks; `None` if some are gone.
    pub(super) async fn sums(
        &self,
        record: &ObjectRecord,
    ) -> Result<Option<Vec<u32>>, CatalogueError> {
        let mut sums = Vec::new();
        for group in 0..record.shape.groups() {
            let key = self.keys.sums_key(record.version, group);
            let found = self.range(KeyRange::one(key)).await?;
            let Some(pair) = found.first() else {
                return Ok(None);
            };
            let len = record.shape.group_len(group);
            sums.extend(decode_sums(&pair.value, len)?);
        }
        Ok(Some(sums))
    }

    /// The tensors that an object has, as they are told of; `None` if some of that is gone.
    pub(super) async fn layout(
        &self,
        record: &ObjectRecord,
    ) -> Result<Option<Layout>, CatalogueError> {
        let Some(LayoutPlace { writer, groups }) = record.layout else {
            return Ok(Some(Layout::default()));
        };
        let mut tensors = Vec::new();
        for group in 0..groups {
            let key = self.keys.layout_key(record.version, writer, group);
            let found = self.range(KeyRange::one(key)).await?;
            let Some(pair) = found.first() else {
                return Ok(None);
            };
            tensors.extend(decode_group(&pair.value)?);
        }
        Ok(Some(Layout::new(tensors, &record.shape)?))
    }

    /// Who has chunks of a version, or takes parts of them. What is none of ours is left out.
    pub(super) async fn holders(
        &self,
        version: Version,
    ) -> Result<Vec<(PeerId, HolderRecord)>, CatalogueError> {
        let pairs = self.range(self.keys.holders(version)).await?;
        let holders = pairs.iter().filter_map(|pair| {
            let holder = self.keys.holder_of(version, &pair.key)?;
            let record = HolderRecord::decode(&pair.value).ok()?;
            Some((holder, record))
        });
        Ok(holders.collect())
    }

    /// What is written of one holder.
    pub(super) async fn holder(
        &self,
        version: Version,
        holder: PeerId,
    ) -> Result<Option<HolderRecord>, CatalogueError> {
        let key = self.keys.holder_key(version, holder);
        let found = self.range(KeyRange::one(key)).await?;
        let record = found.first().map(|pair| HolderRecord::decode(&pair.value));
        Ok(record.transpose()?)
    }

    pub(super) async fn found(
        &self,
        name: ObjectName,
        record: ObjectRecord,
    ) -> Result<Found, CatalogueError> {
        let ObjectRecord { version, shape, .. } = record;
        let mut holders = self.holders(version).await?;
        holders.retain(|(_, holder)| holder.keeps.is_serving());
        let all = shape.chunks();
        let whole = holders.iter().filter(|(_, holder)| holder.chunks == all);
        Ok(Found {
            name,
            version,
            whole: whole.count(),
            holders: holders.len(),
            shape,
        })
    }

    /// Writes an object as ours: unless its name is taken, also by itself, or in the place of whatever has it.
    pub(super) async fn claim(
        &self,
        local: &Local,
        me: PeerId,
        lease: LeaseId,
        may_replace: bool,
    ) -> Result<Claimed, CatalogueError> {
        let _turn = local.turn_to_claim().await;
        let content = &local.content;
        let mut record = content.record.clone();
        record.layout = content.layout_place(me);
        let version = record.version;
        if record.layout.is_some() {
            // It may be long: where somebody else has written it nothing of it is sent.
            let found = self.object(&local.name).await?;
            if let Some((found, _)) = found.filter(|_| !may_replace) {
                return Ok(Claimed::of(version, found.version));
            }
            for txn in self
                .keys
                .put_layout(version, me, &content.layout_groups, lease)
            {
                self.txn(txn).await?;
            }
        }
        let txn = self
            .keys
            .claim(&local.name, &record, &content.sums, lease, may_replace);
        let (succeeded, outcomes) = self.txn(txn).await?;
        if succeeded {
            return Ok(Claimed::Ours);
        }
        let Some(OpOutcome::Range(pairs)) = outcomes.first() else {
            unreachable!("a range was asked");
        };
        let Some(pair) = pairs.first() else {
            unreachable!("it was there in the same transaction");
        };
        let other = ObjectRecord::decode(&pair.value)?;
        // It may be ours, of a claim that was heard after its answer was waited for.
        if record.layout.is_some() && other.layout != record.layout {
            self.op(self.keys.remove_layout(version, me)).await?;
        }
        Ok(Claimed::of(version, other.version))
    }

    pub(super) async fn put_holder(
        &self,
        version: Version,
        holder: PeerId,
        record: &HolderRecord,
        lease: LeaseId,
    ) -> Result<(), CatalogueError> {
        self.op(self.keys.put_holder(version, holder, record, lease))
            .await
    }

    pub(super) async fn remove_holder(
        &self,
        version: Version,
        holder: PeerId,
    ) -> Result<(), CatalogueError> {
        let key = self.keys.holder_key(version, holder);
        self.op(Op::Delete(KeyRange::one(key))).await
    }

    /// Removes an object that nobody holds any more, if its key is ours: else whoever has written it does that, or its
    /// lease. Whether nothing of it is left to be removed by us, now or later.
    pub(super) async fn remove_if_last(
        &self,
        name: &ObjectName,
        version: Version,
        lease: LeaseId,
    ) -> Result<bool, CatalogueError> {
        let Some((record, written)) = self.object(name).await? else {
            return Ok(true);
        };
        let is_ours = record.version == version && written.lease == Some(lease);
        if !is_ours {
            return Ok(true);
        }
        let holders = self.holders(version).await?;
        if holders.iter().any(|(_, holder)| holder.keeps.is_serving()) {
            return Ok(false);
        }
        let txn = self.keys.remove(name, version, written.modified);
        self.txn(txn).await?;
        Ok(true)
    }
}
