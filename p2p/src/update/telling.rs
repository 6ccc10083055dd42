//! What is told of an update.

use std::time::Duration;

use lunette_p2p_proto::layout::{Layout, Tensor};
use lunette_p2p_proto::update::{Manifest, ManifestFault};
use lunette_p2p_proto::{ObjectName, Shape};
use lunette_runtime::arena::{Exposed, HugePages};

use super::UpdateFault;
use crate::error::HoldFault;
use crate::store::{ReceiveOptions, Store};

/// Longest object that may tell of buckets, in bytes.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// Chunks of what all buckets are together: it is never fetched, and may be as long as there is.
const TOGETHER_CHUNK_BYTES: u32 = 1 << 30;

impl Store {
    /// What is told of an update: how many buckets it has, and how much memory each takes.
    ///
    /// # Errors
    /// [`UpdateFault`].
    pub async fn offered(
        &self,
        name: &ObjectName,
        patience: Duration,
    ) -> Result<Manifest, UpdateFault> {
        let found = self.find(name).await?;
        let found = found.ok_or_else(|| HoldFault::NotFound { name: name.clone() })?;
        let len_bytes = match found.shape.buffers() {
            [len_bytes] if *len_bytes <= MANIFEST_BYTES_MAX => *len_bytes,
            _ => return Err(ManifestFault::NoManifest.into()),
        };
        let len = usize::try_from(len_bytes).expect("it is bounded");
        let memory = Exposed::map(len, HugePages::Never, &mut Vec::new());
        let memory = memory.map_err(|error| HoldFault::NoMemory(error.to_string()))?;
        let options = ReceiveOptions {
            resume: false,
            version: Some(found.version),
        };
        let held = self.receive(name, vec![memory.clone()], options).await?;
        let came = held.whole(patience).await;
        drop(held.unregister().await);
        came?;
        Ok(Manifest::decode(&memory.to_vec())?)
    }

    /// The tensors of all buckets of an update that is [offered](Self::offered), as if they lay one behind the other in the
    /// one buffer of an object of this shape. So a rank sees which it wants, and whether they are all there
    /// ([`Plan`](lunette_p2p_proto::layout::Plan)), before any is fetched.
    ///
    /// # Errors
    /// [`UpdateFault`]: [`HoldFault::NotFound`] if a bucket is gone, [`UpdateFault::Layout`] if they contradict each other.
    pub async fn offered_tensors(
        &self,
        name: &ObjectName,
        manifest: &Manifest,
    ) -> Result<(Shape, Layout), UpdateFault> {
        let mut tensors = Vec::new();
        let mut end = 0_u64;
        for (index, bucket) in (0..).zip(&manifest.buckets) {
            let name = Manifest::bucket_name(name, manifest.id, index)?;
            let layout = self.layout_of(&name, bucket.version).await?;
            let layout = layout.ok_or(HoldFault::NotFound { name })?;
            for tensor in layout.tensors() {
                let len_bytes = tensor.len_bytes().unwrap_or_default();
                tensors.push(Tensor {
                    buffer: 0,
                    offset_bytes: end,
                    ..tensor.clone()
                });
                end = end.saturating_add(len_bytes);
            }
        }
        let shape = Shape::new(TOGETHER_CHUNK_BYTES, vec![end])?;
        let layout = Layout::new(tensors, &shape)?;
        Ok((shape, layout))
    }
}
