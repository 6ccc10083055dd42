//! Weights in buckets, from any thread.

use std::sync::Arc;
use std::time::Duration;

use lunette_p2p_proto::ObjectName;
use lunette_p2p_proto::layout::Tensor;
use lunette_p2p_proto::update::Manifest;

use super::handle::{Claim, Pending, StoreHandle};
use super::lending::LentBuffers;
use crate::update::{FollowOptions, LentBucket, Offer, OfferOptions};

impl StoreHandle {
    /// Offers weights in buckets. See [`Store::offer`](crate::Store::offer). What nobody waits for is given up.
    #[must_use]
    pub fn offer(
        &self,
        name: ObjectName,
        buffers: impl Into<LentBuffers>,
        tensors: Vec<Tensor>,
        options: OfferOptions,
    ) -> Pending<OfferHandle> {
        let buffers = buffers.into();
        self.begin(move |hosted, telling| {
            let (store, devices) = (hosted.store(), hosted.devices());
            let offering = async move {
                let here = Box::pin(buffers.here(&devices)).await?;
                Ok(Box::pin(store.offer(&name, here, tensors, options)).await?)
            };
            hosted.offer(offering, telling);
        })
    }

    /// What is told of an update. See [`Store::offered`](crate::Store::offered).
    #[must_use]
    pub fn offered(&self, name: ObjectName, patience: Duration) -> Pending<Manifest> {
        self.questions.put(move |hosted, sender| {
            let store = hosted.store();
            let asking = async move { Ok(store.offered(&name, patience).await?) };
            hosted.answer(asking, sender);
        })
    }

    /// Takes an update through slots of memory. See [`Store::follow`](crate::Store::follow).
    #[must_use]
    pub fn follow(
        &self,
        name: ObjectName,
        manifest: Manifest,
        slots: impl Into<LentBuffers>,
        options: FollowOptions,
    ) -> Pending<UpdateHandle> {
        let slots = slots.into();
        self.begin(move |hosted, telling| {
            let (store, devices) = (hosted.store(), hosted.devices());
            let following = async move {
                let here = Box::pin(slots.here(&devices)).await?;
                Ok(store.follow(&name, manifest, here, options)?)
            };
            hosted.follow(following, telling);
        })
    }
}

/// Weights that a hosted store offers. Clones are handles to the same; when the last is dropped, they are withdrawn.
#[derive(Clone, Debug)]
pub struct OfferHandle {
    buckets: usize,
    claim: Arc<Claim>,
}

impl OfferHandle {
    pub(super) fn new(claim: Claim, offer: &Offer) -> Self {
        Self {
            buckets: offer.buckets(),
            claim: Arc::new(claim),
        }
    }

    /// How many buckets there are.
    #[must_use]
    pub const fn buckets(&self) -> usize {
        self.buckets
    }

    /// Serves them no more, and lets go of their memory. See [`Offer::withdraw`]. Again, it waits for the same. Dropping the
    /// answer changes nothing.
    #[must_use]
    pub fn withdraw(&self) -> Pending<()> {
        self.claim.let_go()
    }
}

/// An update that a hosted store takes. Clones are handles to the same; when the last is dropped, it is closed.
#[derive(Clone, Debug)]
pub struct UpdateHandle {
    claim: Arc<Claim>,
}

impl UpdateHandle {
    pub(super) fn new(claim: Claim) -> Self {
        let claim = Arc::new(claim);
        Self { claim }
    }

    /// The next bucket; `None` behind the last. See [`Update::next`](crate::Update::next).
    #[must_use]
    pub fn next(&self, copied: Option<u32>) -> Pending<Option<LentBucket>> {
        let number = self.claim.number;
        self.claim.questions.put(move |hosted, sender| {
            let update = hosted.update(number);
            let asking = async move { Ok(update?.next(copied).await?) };
            hosted.answer(asking, sender);
        })
    }

    /// Ends it, and lets go of its slots. See [`Update::close`](crate::Update::close). Again, it waits for the same. Dropping
    /// the answer changes nothing.
    #[must_use]
    pub fn close(&self) -> Pending<()> {
        self.claim.let_go()
    }
}
