//! One bucket, from the catalogue to its slot.

use std::collections::BTreeMap;

use lunette_p2p_proto::ObjectName;
use lunette_p2p_proto::layout::{Block, PlanFault, Slice, Tensor};
use lunette_p2p_proto::update::{BucketRecord, staged};

use super::UpdateFault;
use crate::buffers::Buffers;
use crate::error::HoldFault;
use crate::store::{Found, Held, ReceiveOptions, SliceOptions, Store};

/// What a rank takes of an update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Parts {
    /// All of it: ranks that do feed each other every chunk.
    #[default]
    All,
    /// These parts of these tensors: the chunks that they are in are fetched.
    Of {
        /// The part of each, by the tensors' names. Others are left out.
        blocks: BTreeMap<String, Block>,
        /// Whether the chunks are kept beside, and served to others ([`SliceOptions::keep_chunks`]).
        keep_chunks: bool,
    },
}

/// A bucket that is under way: nothing is held of one that has nothing that is wanted.
pub(super) struct Begun {
    pub(super) held: Option<Held>,
    /// Where its tensors are in the slot. Their buffer is the slot's number.
    pub(super) tensors: Vec<Tensor>,
}

/// Begins to receive a bucket into a slot.
pub(super) async fn begin(
    store: &Store,
    name: &ObjectName,
    record: BucketRecord,
    (slot, slots): (u32, &Buffers),
    parts: &Parts,
) -> Result<Begun, UpdateFault> {
    let found = store.find(name).await?;
    let found = found.filter(|found| found.version == record.version);
    let found = found.ok_or_else(|| not_found(name))?;
    match parts {
        Parts::All => all(store, &found, (slot, slots)).await,
        Parts::Of {
            blocks,
            keep_chunks,
        } => some(store, &found, (slot, slots), blocks, *keep_chunks).await,
    }
}

async fn all(
    store: &Store,
    found: &Found,
    (slot, slots): (u32, &Buffers),
) -> Result<Begun, UpdateFault> {
    let lens = found.shape.buffers();
    let (offsets, end) = staged(lens.iter().copied());
    check(slots, slot, end)?;
    let buffers = offsets.iter().zip(lens);
    let buffers = buffers.map(|(&offset, &len)| (slot as usize, offset, len));
    let options = ReceiveOptions {
        resume: false,
        version: Some(found.version),
    };
    let held = match slots.parts(buffers) {
        Buffers::Host(buffers) => Box::pin(store.receive(&found.name, buffers, options)).await?,
        Buffers::Devices(buffers) => {
            let receiving = store.receive_devices(&found.name, buffers, options);
            Box::pin(receiving).await?
        }
    };
    let tensors = held.layout().tensors().iter().cloned();
    let tensors = tensors.map(|tensor| Tensor {
        buffer: slot,
        offset_bytes: offsets[tensor.buffer as usize] + tensor.offset_bytes,
        ..tensor
    });
    let tensors = tensors.collect();
    Ok(Begun {
        held: Some(held),
        tensors,
    })
}

async fn some(
    store: &Store,
    found: &Found,
    (slot, slots): (u32, &Buffers),
    blocks: &BTreeMap<String, Block>,
    keep_chunks: bool,
) -> Result<Begun, UpdateFault> {
    let layout = store.layout(found).await?;
    let layout = layout.ok_or_else(|| not_found(&found.name))?;
    let mut tensors = Vec::new();
    for tensor in layout.tensors() {
        let Some(block) = blocks.get(&tensor.name) else {
            continue;
        };
        if !block.is_within(&tensor.shape) {
            let tensor = tensor.name.clone();
            return Err(HoldFault::Slices(PlanFault::Block { tensor }).into());
        }
        // Of a tensor that is in parts, what this one has of it.
        if let Some(block) = tensor.block.common(block) {
            let tensor = tensor.clone();
            tensors.push(Tensor { block, ..tensor });
        }
    }
    let lens: Option<Vec<_>> = tensors.iter().map(Tensor::len_bytes).collect();
    // What is no number of bytes is refused with its name by the plan.
    let (offsets, end) = staged(lens.unwrap_or_else(|| vec![0; tensors.len()]));
    check(slots, slot, end)?;
    for (tensor, offset) in tensors.iter_mut().zip(offsets) {
        (tensor.buffer, tensor.offset_bytes) = (slot, offset);
    }
    if tensors.is_empty() {
        let held = None;
        return Ok(Begun { held, tensors });
    }
    let slices = tensors.iter().cloned().map(|tensor| Slice {
        tensor: tensor.name,
        dtype: tensor.dtype,
        shape: tensor.shape,
        block: tensor.block,
        buffer: 0,
        offset_bytes: tensor.offset_bytes,
    });
    let slices: Vec<_> = slices.collect();
    let options = SliceOptions {
        keep_chunks,
        resume: false,
        version: Some(found.version),
    };
    let whole = slots.lens()[slot as usize];
    let held = match slots.parts([(slot as usize, 0, whole)].into_iter()) {
        Buffers::Host(buffers) => {
            let receiving = store.receive_slices(&found.name, buffers, &slices, options);
            Box::pin(receiving).await?
        }
        Buffers::Devices(buffers) => {
            let receiving = store.receive_slices_devices(&found.name, buffers, &slices, options);
            Box::pin(receiving).await?
        }
    };
    let held = Some(held);
    Ok(Begun { held, tensors })
}

fn not_found(name: &ObjectName) -> UpdateFault {
    HoldFault::NotFound { name: name.clone() }.into()
}

fn check(slots: &Buffers, slot: u32, wanted_bytes: u64) -> Result<(), UpdateFault> {
    let slot_bytes = slots.lens()[slot as usize];
    if wanted_bytes <= slot_bytes {
        return Ok(());
    }
    Err(UpdateFault::Slots {
        slots: 1,
        slot_bytes,
        wanted_bytes,
    })
}
