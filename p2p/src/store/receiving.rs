//! An object that others have.

use lunette_p2p_proto::layout::{Plan, Slice};
use lunette_p2p_proto::{ChunkSet, ObjectName, Shape};
use lunette_runtime::arena::Exposed;
use lunette_transfer::engine::DeviceSegment;

use super::backing::Backing;
use super::local::{self, Content, Holding};
use super::slicing::{Slicing, Targets, room_for_chunks};
use super::{BufferFile, Held, ReceiveOptions, SliceOptions, Store, failed};
use crate::error::{HoldError, HoldFault};

impl Store {
    /// Joins those who hold an object, and receives it into `buffers`, which have the lengths of the object's
    /// ([`find`](Self::find)). What has come is served from then on; [`Held::whole`] waits for all of it.
    ///
    /// # Errors
    /// [`HoldError`], with the buffers.
    pub async fn receive(
        &self,
        name: &ObjectName,
        buffers: Vec<Exposed>,
        options: ReceiveOptions,
    ) -> Result<Held, HoldError> {
        let found = self.inner.look_up(name, options.version).await;
        let found = found.and_then(|content| {
            let lens: Vec<_> = buffers.iter().map(|buffer| buffer.len() as u64).collect();
            check(&content.record.shape, &lens)?;
            Ok(content)
        });
        let content = match found {
            Ok(content) => content,
            Err(fault) => return Err(failed(fault, buffers)),
        };
        let shape = &content.record.shape;
        let held = if options.resume {
            local::verified(shape, &content.sums, &buffers).await
        } else {
            ChunkSet::empty(shape.chunks())
        };
        let holding = Holding {
            buffers,
            held,
            slicing: None,
            backing: None,
        };
        self.join(name, content, holding).await
    }

    /// Joins those who hold an object, and receives it into files, which have the lengths of its buffers. A chunk is in memory
    /// only while it comes and is verified; then it is written to its place, and served from there. It may be lost with the
    /// host until it is [synced](Held::sync).
    ///
    /// Nobody else is to write the files or make them shorter. Once all of it is there, that is looked after as for what is
    /// registered ([`register_files`](Self::register_files)): then it is let go of, and [`Held::source_fault`] says why.
    ///
    /// # Errors
    /// [`HoldFault`].
    pub async fn receive_files(
        &self,
        name: &ObjectName,
        files: Vec<BufferFile>,
        options: ReceiveOptions,
    ) -> Result<Held, HoldFault> {
        let receiving = self.receive_outside(name, Backing::to_write(files)?, options);
        let held = receiving.await?;
        self.watch_whole(&held).await?;
        Ok(held)
    }

    /// Joins those who hold an object, and receives it into memory of devices, which has the lengths of its buffers. A chunk is
    /// in the host's memory only while it comes and is verified; then it is copied to its place, and served from there: a copy
    /// in the host's memory would take as much of that as the object has. Nothing else is to write to the memory, and what is
    /// computed with it waits for [`Held::whole`].
    ///
    /// # Errors
    /// [`HoldFault`].
    pub async fn receive_devices(
        &self,
        name: &ObjectName,
        devices: Vec<DeviceSegment>,
        options: ReceiveOptions,
    ) -> Result<Held, HoldFault> {
        self.receive_outside(name, Backing::devices(devices), options)
            .await
    }

    async fn receive_outside(
        &self,
        name: &ObjectName,
        backing: Backing,
        options: ReceiveOptions,
    ) -> Result<Held, HoldFault> {
        let content = self.inner.look_up(name, options.version).await?;
        let shape = &content.record.shape;
        check(shape, &backing.lens())?;
        let held = if options.resume {
            backing.verified(shape, &content.sums).await?
        } else {
            ChunkSet::empty(shape.chunks())
        };
        let holding = Holding {
            buffers: Vec::new(),
            held,
            slicing: None,
            backing: Some(backing),
        };
        let joined = self.join(name, content, holding).await;
        joined.map_err(|error| error.fault)
    }

    /// Joins those who hold an object, and receives parts of its tensors into `buffers`, each part to where its slice
    /// says. So a receiver may be sharded, or laid out, otherwise than who registered the object; nothing is converted.
    ///
    /// What is fetched and verified are the chunks that the parts are in; how many bytes these have is
    /// [`Progress::len_bytes`](super::Progress::len_bytes). A chunk's part is in its place when the chunk has been verified.
    /// See [`SliceOptions::keep_chunks`] for what others have from here.
    ///
    /// # Errors
    /// [`HoldError`], with the buffers; [`HoldFault::Slices`] if the object does not have that, or it does not fit.
    pub async fn receive_slices(
        &self,
        name: &ObjectName,
        buffers: Vec<Exposed>,
        slices: &[Slice],
        options: SliceOptions,
    ) -> Result<Held, HoldError> {
        let targets = Targets::Memory(buffers.into());
        self.receive_into(name, targets, slices, options).await
    }

    /// As [`receive_slices`](Self::receive_slices), into files: what is wanted of a chunk is written when the chunk has been
    /// verified, and is in memory for as many chunks as are under way. Chunks that are kept for others are in memory as ever
    /// ([`SliceOptions::keep_chunks`]). What comes may be lost with the host until it is [synced](Held::sync).
    ///
    /// # Errors
    /// [`HoldFault`]; [`HoldFault::Slices`] if the object does not have that, or it does not fit.
    pub async fn receive_slices_files(
        &self,
        name: &ObjectName,
        files: Vec<BufferFile>,
        slices: &[Slice],
        options: SliceOptions,
    ) -> Result<Held, HoldFault> {
        let targets = Targets::Outside(Backing::to_write(files)?);
        let received = self.receive_into(name, targets, slices, options).await;
        received.map_err(|error| error.fault)
    }

    /// As [`receive_slices`](Self::receive_slices), into memory of devices, as [`receive_devices`](Self::receive_devices).
    /// Chunks that are kept for others are in memory of the host ([`SliceOptions::keep_chunks`]).
    ///
    /// # Errors
    /// [`HoldFault`]; [`HoldFault::Slices`] if the object does not have that, or it does not fit.
    pub async fn receive_slices_devices(
        &self,
        name: &ObjectName,
        devices: Vec<DeviceSegment>,
        slices: &[Slice],
        options: SliceOptions,
    ) -> Result<Held, HoldFault> {
        let targets = Targets::Outside(Backing::devices(devices));
        let received = self.receive_into(name, targets, slices, options).await;
        received.map_err(|error| error.fault)
    }

    async fn receive_into(
        &self,
        name: &ObjectName,
        targets: Targets,
        slices: &[Slice],
        options: SliceOptions,
    ) -> Result<Held, HoldError> {
        let lens = targets.lens();
        let found = self.inner.look_up(name, options.version).await;
        let planned = found.and_then(|content| {
            let shape = &content.record.shape;
            let plan = Plan::new(shape, &content.layout, slices, &lens)?;
            let chunks = if options.keep_chunks {
                room_for_chunks(shape)?
            } else {
                Vec::new()
            };
            Ok((content, plan, chunks))
        });
        let (content, plan, chunks) = match planned {
            Ok(planned) => planned,
            Err(fault) => return Err(failed(fault, targets.lent())),
        };
        let slicing = Slicing::new(plan, targets);
        let shape = &content.record.shape;
        let held = if options.resume {
            slicing.verified(shape, &content.sums, &chunks).await
        } else {
            Ok(ChunkSet::empty(shape.chunks()))
        };
        let held = match held {
            Ok(held) => held,
            Err(fault) => return Err(failed(fault, slicing.lent())),
        };
        let holding = Holding {
            buffers: chunks,
            held,
            slicing: Some(slicing),
            backing: None,
        };
        self.join(name, content, holding).await
    }

    /// Begins to receive.
    async fn join(
        &self,
        name: &ObjectName,
        content: Content,
        holding: Holding,
    ) -> Result<Held, HoldError> {
        let begun = self.inner.hold(name, content, holding).await?;
        let put = self.inner.put_holder(&begun.local).await;
        if let Err(fault) = put {
            let lent = self.inner.let_go(&begun.local).await;
            return Err(failed(fault.into(), lent));
        }
        Ok(Held::new(self.clone(), begun.done()))
    }
}

/// Whether buffers are as an object's.
fn check(shape: &Shape, lens: &[u64]) -> Result<(), HoldFault> {
    let (given, wanted) = (lens.len(), shape.buffers().len());
    if given != wanted {
        return Err(HoldFault::WrongCount { given, wanted });
    }
    let lens = lens.iter().copied();
    let mut both = lens.zip(shape.buffers().iter().copied()).enumerate();
    let differs = both.find(|(_, (given, wanted))| given != wanted);
    differs.map_or(Ok(()), |(buffer, (given_bytes, wanted_bytes))| {
        Err(HoldFault::WrongLength {
            buffer,
            given_bytes,
            wanted_bytes,
        })
    })
}
