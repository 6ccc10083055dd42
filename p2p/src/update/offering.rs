//! Weights that are offered in buckets.

use lunette_p2p_proto::layout::{Layout, Tensor};
use lunette_p2p_proto::update::{Bucket, BucketRecord, Manifest, pack, staged};
use lunette_p2p_proto::{ObjectName, Shape};
use lunette_runtime::arena::{Exposed, HugePages};
use lunette_runtime::entropy;

use super::UpdateFault;
use crate::buffers::Buffers;
use crate::error::HoldFault;
use crate::store::{Held, RegisterOptions, Store};

/// Chunks of the object that tells of the buckets.
const MANIFEST_CHUNK_BYTES: u32 = 64 << 10;

/// How weights are offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferOptions {
    /// About how long buckets are, in bytes: a tensor that is longer has one of its own.
    pub bucket_bytes: u64,
    /// How their chunks are, and whether the update takes the place of one of its name. Who follows that one goes on.
    pub register: RegisterOptions,
}

impl Default for OfferOptions {
    fn default() -> Self {
        Self {
            bucket_bytes: 256 << 20,
            register: RegisterOptions::default(),
        }
    }
}

/// Weights that are offered, until they are withdrawn. Dropping it withdraws nothing: the store serves them until it ends.
#[derive(Debug)]
pub struct Offer {
    id: u64,
    told: Held,
    buckets: Vec<Held>,
}

impl Offer {
    /// How many buckets there are.
    #[must_use]
    pub const fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// What tells it from others of its name.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// The update's name.
    #[must_use]
    pub fn name(&self) -> &ObjectName {
        self.told.name()
    }

    /// Serves them no more, when nobody reads them any more ([`Held::unregister`]): no rank begins from here on. Ranks that
    /// have begun go on with what others of them hold.
    pub async fn withdraw(&self) {
        drop(self.told.let_go().await);
        let_go(&self.buckets).await;
    }
}

async fn let_go(buckets: &[Held]) {
    for bucket in buckets {
        drop(bucket.let_go().await);
    }
}

/// Buckets that are registered, and of which nobody is told yet: they are let go of, if the future that is to tell is dropped.
#[derive(Debug, Default)]
struct Registered(Vec<Held>);

impl Registered {
    /// All of them are let go of, to the end.
    async fn undone(self) {
        let_go(&self.0).await;
    }

    fn done(mut self) -> Vec<Held> {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        for held in self.0.drain(..) {
            held.leave();
        }
    }
}

impl Store {
    /// Offers the tensors that lie in buffers, of the host or of devices, to ranks that follow, in buckets. The buffers must not
    /// change until the offer is withdrawn. Dropping the future lets go of what was registered of it.
    ///
    /// # Errors
    /// [`UpdateFault`]: nothing is offered.
    pub async fn offer(
        &self,
        name: &ObjectName,
        buffers: impl Into<Buffers>,
        tensors: Vec<Tensor>,
        options: OfferOptions,
    ) -> Result<Offer, UpdateFault> {
        let buffers = buffers.into();
        let shape = Shape::new(options.register.chunk_bytes, buffers.lens())?;
        // All of them lie where they say.
        let layout = Layout::new(tensors, &shape)?;
        let buckets = pack(layout.tensors().to_vec(), options.bucket_bytes)?;
        let id = entropy();
        let mut held = Registered::default();
        for (index, bucket) in (0..).zip(&buckets) {
            let registered = self
                .offer_bucket(name, (id, index), bucket, &buffers, options.register)
                .await;
            match registered {
                Ok(registered) => held.0.push(registered),
                Err(fault) => {
                    held.undone().await;
                    return Err(fault);
                }
            }
        }
        let records = held
            .0
            .iter()
            .zip(&buckets)
            .map(|(held, bucket)| BucketRecord {
                version: held.version(),
                staging_bytes: staging_bytes(bucket),
            });
        let manifest = Manifest {
            id,
            buckets: records.collect(),
        };
        match self.tell(name, &manifest, options.register).await {
            Ok(told) => Ok(Offer {
                id,
                told,
                buckets: held.done(),
            }),
            Err(fault) => {
                held.undone().await;
                Err(fault)
            }
        }
    }

    async fn offer_bucket(
        &self,
        name: &ObjectName,
        (id, index): (u64, u32),
        bucket: &Bucket,
        buffers: &Buffers,
        options: RegisterOptions,
    ) -> Result<Held, UpdateFault> {
        let name = Manifest::bucket_name(name, id, index)?;
        let runs = bucket.runs.iter();
        let runs = runs.map(|run| (run.buffer as usize, run.offset_bytes, run.len_bytes));
        let tensors = bucket.tensors.clone();
        Ok(match buffers.parts(runs) {
            Buffers::Host(runs) => {
                Box::pin(self.register_tensors(&name, runs, tensors, options)).await?
            }
            Buffers::Devices(runs) => {
                Box::pin(self.register_devices(&name, runs, tensors, options)).await?
            }
        })
    }

    /// Tells of the buckets, when all are there.
    async fn tell(
        &self,
        name: &ObjectName,
        manifest: &Manifest,
        options: RegisterOptions,
    ) -> Result<Held, UpdateFault> {
        let bytes = manifest.encode();
        let memory = Exposed::map(bytes.len(), HugePages::Never, &mut Vec::new());
        let memory = memory.map_err(|error| HoldFault::NoMemory(error.to_string()))?;
        memory.copy_in(0, &bytes);
        let options = RegisterOptions {
            chunk_bytes: MANIFEST_CHUNK_BYTES,
            ..options
        };
        Ok(self.register(name, vec![memory], options).await?)
    }
}

/// How much of a slot a bucket takes, whether it is taken as it lies or tensor by tensor.
fn staging_bytes(bucket: &Bucket) -> u64 {
    let (_, runs) = staged(bucket.runs.iter().map(|run| run.len_bytes));
    let lens = bucket.tensors.iter().filter_map(Tensor::len_bytes);
    let (_, tensors) = staged(lens);
    runs.max(tensors)
}
