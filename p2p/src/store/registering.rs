//! An object that this store has first.

use lunette_p2p_proto::catalogue::ObjectRecord;
use lunette_p2p_proto::layout::{Layout, Tensor};
use lunette_p2p_proto::{ChunkSet, ObjectName, Shape, Version};
use lunette_runtime::arena::Exposed;
use lunette_runtime::entropy;
use lunette_transfer::engine::DeviceSegment;

use super::backing::Backing;
use super::local::{self, Content, Holding};
use super::watching::Watch;
use super::{BufferFile, Held, RegisterOptions, Store, failed};
use crate::error::{HoldError, HoldFault};

impl Store {
    /// Registers an object: computes its checksums, and serves it from then on. The buffers must not change until
    /// they are given back ([`Held::unregister`]).
    ///
    /// # Errors
    /// [`HoldError`], with the buffers: [`HoldFault::NameTaken`] unless it may replace what has the name.
    pub async fn register(
        &self,
        name: &ObjectName,
        buffers: Vec<Exposed>,
        options: RegisterOptions,
    ) -> Result<Held, HoldError> {
        self.register_tensors(name, buffers, Vec::new(), options)
            .await
    }

    /// Registers an object, and tells which tensors it has where: receivers may then ask for parts of these
    /// ([`receive_slices`](Self::receive_slices)). Else as [`register`](Self::register).
    ///
    /// # Errors
    /// [`HoldError`], with the buffers; [`HoldFault::Layout`] if the tensors are none of them.
    pub async fn register_tensors(
        &self,
        name: &ObjectName,
        buffers: Vec<Exposed>,
        tensors: Vec<Tensor>,
        options: RegisterOptions,
    ) -> Result<Held, HoldError> {
        let lens = buffers.iter().map(|buffer| buffer.len() as u64).collect();
        let mut content = match described(lens, tensors, options) {
            Ok(content) => content,
            Err(fault) => return Err(failed(fault, buffers)),
        };
        content.sums = local::sums(&content.record.shape, &buffers).await;
        let holding = Holding {
            held: ChunkSet::full(content.record.shape.chunks()),
            buffers,
            slicing: None,
            backing: None,
        };
        self.announce(name, content, holding, options).await
    }

    /// Registers an object of files, each a buffer of it: they are read once for its checksums, in pieces of a chunk, and then
    /// chunk by chunk as others ask. Else as [`register_tensors`](Self::register_tensors).
    ///
    /// The files are not to be changed while they are held. It is looked four times a second whether one was, by what the
    /// system tells of its last change; then it is verified again, and if bytes are others, or are gone, the object is let go
    /// of, and [`Held::source_fault`] says why. Until then, and where the system tells nothing (of what a program writes to a
    /// mapping of its own the first byte alone), receivers refuse what is not as its checksum: they never take other bytes.
    /// A file that is replaced by another of its name stays what it was.
    ///
    /// # Errors
    /// [`HoldFault`]; [`HoldFault::Source`] if a file cannot be read, or changes while its checksums are computed.
    pub async fn register_files(
        &self,
        name: &ObjectName,
        files: Vec<BufferFile>,
        tensors: Vec<Tensor>,
        options: RegisterOptions,
    ) -> Result<Held, HoldFault> {
        let backing = Backing::files(files);
        let mut content = described(backing.lens(), tensors, options)?;
        let (watch, sums) = Watch::begin(&backing, &content.record.shape).await?;
        content.sums = sums;
        let holding = whole(&content, backing);
        let announced = self.announce(name, content, holding, options).await;
        let held = announced.map_err(|error| error.fault)?;
        self.watch(&held, watch).await?;
        Ok(held)
    }

    /// Registers an object of memory of devices, each a buffer of it, and tells which tensors it has where. Each chunk is
    /// copied to the host once for its checksum, and again each time that it is asked for, in pieces and by way of the core's
    /// arena; adapters that reach the device's memory read it there. The memory is not to be written to, neither by copies nor
    /// by kernels, until it is let go of. Else as [`register_tensors`](Self::register_tensors).
    ///
    /// # Errors
    /// [`HoldFault`]; [`HoldFault::Source`] if a device is not read.
    pub async fn register_devices(
        &self,
        name: &ObjectName,
        devices: Vec<DeviceSegment>,
        tensors: Vec<Tensor>,
        options: RegisterOptions,
    ) -> Result<Held, HoldFault> {
        let backing = Backing::devices(devices);
        let mut content = described(backing.lens(), tensors, options)?;
        content.sums = backing.sums(&content.record.shape).await?;
        let holding = whole(&content, backing);
        let announced = self.announce(name, content, holding, options).await;
        announced.map_err(|error| error.fault)
    }

    /// Holds what is whole, and writes it into the catalogue.
    async fn announce(
        &self,
        name: &ObjectName,
        content: Content,
        holding: Holding,
        options: RegisterOptions,
    ) -> Result<Held, HoldError> {
        let begun = self.inner.hold(name, content, holding).await?;
        match self.inner.announce(&begun.local, options.may_replace).await {
            Ok(()) => Ok(Held::new(self.clone(), begun.done())),
            Err(fault) => Err(failed(fault, self.inner.let_go(&begun.local).await)),
        }
    }
}

/// All of an object that lies elsewhere than in memory.
fn whole(content: &Content, backing: Backing) -> Holding {
    Holding {
        held: ChunkSet::full(content.record.shape.chunks()),
        buffers: Vec::new(),
        slicing: None,
        backing: Some(backing),
    }
}

/// A new object of buffers of these lengths, but for its checksums.
fn described(
    lens: Vec<u64>,
    tensors: Vec<Tensor>,
    options: RegisterOptions,
) -> Result<Content, HoldFault> {
    let shape = Shape::new(options.chunk_bytes, lens)?;
    let layout = Layout::new(tensors, &shape)?;
    let (version, layout_place) = (Version(entropy()), None);
    let record = ObjectRecord {
        version,
        shape,
        layout: layout_place,
    };
    Content::new(record, Vec::new(), layout)
}
