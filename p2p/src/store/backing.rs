//! Buffers that lie elsewhere than in memory of the host: in files, or in memory of devices. Their chunks are in memory only
//! while they are on their way.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use lunette_p2p_proto::object::Place;
use lunette_p2p_proto::{ChunkSet, Shape, Version};
use lunette_runtime::OpError;
use lunette_runtime::arena::{Exposed, HugePages};
use lunette_runtime::fs::FileStamp;
use lunette_runtime::time;
use lunette_transfer::engine::{
    Access, DeviceFault, DeviceSegment, Engine, Kind, RegisterOptions, RegisterRefusal,
};
use rustix::io::Errno;
use thiserror::Error;

use super::filing::{BufferFile, of_file};
use super::local::{Segments, segment_name};
use crate::error::{HoldFault, SourceFault};
use crate::gate::Gate;

/// How often an access is tried for which the core has no room, and the pause between.
const TRIES_MAX: u32 = 10_000;
const TRY_PAUSE: Duration = Duration::from_millis(1);

/// Where one buffer lies.
#[derive(Clone, Debug)]
enum Backed {
    File(BufferFile),
    Device(DeviceSegment),
}

/// Why bytes of a buffer were not read or written.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum BackingFault {
    #[error(transparent)]
    Disk(#[from] OpError),
    #[error(transparent)]
    Device(#[from] DeviceFault),
}

impl BackingFault {
    fn is_backpressure(&self) -> bool {
        match self {
            Self::Disk(error) => error.is_backpressure(),
            Self::Device(fault) => fault.is_backpressure(),
        }
    }
}

impl Backed {
    const fn kind(&self) -> Kind {
        match self {
            Self::File(_) => Kind::File,
            Self::Device(_) => Kind::Device,
        }
    }

    const fn len_bytes(&self) -> u64 {
        match self {
            Self::File(file) => file.len_bytes(),
            Self::Device(device) => device.len_bytes(),
        }
    }

    /// Writes bytes to their place; waits while the core has no operation or no memory free for that.
    async fn write(&self, at: u64, from: Exposed) -> Result<(), BackingFault> {
        let write = async || match self {
            Self::File(file) => {
                let (from, len) = (from.clone(), from.len());
                let written = file.file.write_all_at(from, 0, len, at).await;
                Ok(written.0?)
            }
            Self::Device(device) => {
                let part = device.slice(at..at + from.len() as u64);
                Ok(part.upload(from.clone()).await?)
            }
        };
        with_room(write).await
    }

    /// Reads bytes over all of `to`; waits as [`write`](Self::write).
    async fn read(&self, at: u64, to: Exposed) -> Result<(), BackingFault> {
        let read = async || match self {
            Self::File(file) => {
                let (to, len) = (to.clone(), to.len());
                let read = file.file.read_exact_at(to, 0, len, at).await;
                Ok(read.0?)
            }
            Self::Device(device) => {
                let part = device.slice(at..at + to.len() as u64);
                Ok(part.download(to.clone()).await?)
            }
        };
        with_room(read).await
    }
}

/// Tries an access until the core has an operation for it, and memory to stage it in: others that are under way give theirs
/// back.
async fn with_room(access: impl AsyncFn() -> Result<(), BackingFault>) -> Result<(), BackingFault> {
    let mut tries = 1;
    loop {
        match access().await {
            Err(fault) if fault.is_backpressure() && tries < TRIES_MAX => {
                tries += 1;
                time::sleep(TRY_PAUSE).await;
            }
            ended => return ended,
        }
    }
}

/// The buffers of an object, and memory for what is on its way.
#[derive(Debug)]
pub(super) struct Backing {
    buffers: Vec<Backed>,
    /// Memory of chunks that are written, for the next ones: as much as was under way at a time.
    rooms: RefCell<Vec<Exposed>>,
    /// What was said first when something was not written.
    fault: RefCell<Option<BackingFault>>,
    /// Opens with the next thing that is not written.
    next_fault: RefCell<Rc<Gate>>,
}

impl Backing {
    pub(super) fn files(files: Vec<BufferFile>) -> Self {
        Self::new(files.into_iter().map(Backed::File).collect())
    }

    pub(super) fn devices(devices: Vec<DeviceSegment>) -> Self {
        Self::new(devices.into_iter().map(Backed::Device).collect())
    }

    fn new(buffers: Vec<Backed>) -> Self {
        Self {
            buffers,
            rooms: RefCell::default(),
            fault: RefCell::default(),
            next_fault: RefCell::default(),
        }
    }

    /// # Errors
    /// [`HoldFault::ReadOnly`], if one was opened to be read.
    pub(super) fn to_write(files: Vec<BufferFile>) -> Result<Self, HoldFault> {
        match files.iter().position(|file| !file.is_to_write) {
            Some(buffer) => Err(HoldFault::ReadOnly { buffer }),
            None => Ok(Self::files(files)),
        }
    }

    pub(super) fn lens(&self) -> Vec<u64> {
        self.buffers.iter().map(Backed::len_bytes).collect()
    }

    /// Memory that a chunk of that length was in before.
    pub(super) fn used_room(&self, len: usize) -> Option<Exposed> {
        let mut rooms = self.rooms.borrow_mut();
        let at = rooms.iter().position(|room| room.len() == len)?;
        Some(rooms.swap_remove(at))
    }

    /// Memory of that length.
    pub(super) fn room(&self, len: usize) -> Result<Exposed, Errno> {
        match self.used_room(len) {
            Some(room) => Ok(room),
            None => Exposed::map(len, HugePages::Prefer, &mut Vec::new()),
        }
    }

    /// Memory that something is through with, for the next.
    pub(super) fn reuse(&self, room: Exposed) {
        self.rooms.borrow_mut().push(room);
    }

    /// Writes a chunk to its place. Whether it is there.
    pub(super) async fn write(&self, place: &Place, chunk: Exposed) -> bool {
        let at = place.offset_bytes;
        let is_written = self.write_at(place.buffer, at, chunk.clone()).await;
        self.reuse(chunk);
        is_written
    }

    /// Writes bytes to a buffer. Whether they are there.
    pub(super) async fn write_at(&self, buffer: u32, at: u64, bytes: Exposed) -> bool {
        let written = self.buffers[buffer as usize].write(at, bytes).await;
        let Err(error) = written else {
            return true;
        };
        tracing::warn!(%error, buffer, "a chunk is not written");
        self.fault.borrow_mut().get_or_insert(error);
        self.next_fault.take().open();
        false
    }

    /// Reads bytes of a buffer over all of `to`. Whether they are there.
    pub(super) async fn read_at(
        &self,
        buffer: u32,
        at: u64,
        to: Exposed,
    ) -> Result<(), BackingFault> {
        self.buffers[buffer as usize].read(at, to).await
    }

    /// What was said first when something was not written.
    pub(super) fn fault(&self) -> Option<BackingFault> {
        *self.fault.borrow()
    }

    /// Waits until something more is not written.
    pub(super) async fn next_fault(&self) {
        let next = Rc::clone(&self.next_fault.borrow());
        next.opened().await;
    }

    /// The checksum of a chunk as it lies there, read by way of `room`, which has a chunk's length.
    async fn sum(&self, shape: &Shape, chunk: u32, room: &Exposed) -> Result<u32, BackingFault> {
        let place = shape.place(chunk).expect("a chunk of the object");
        let bytes = room.slice(0, place.len_bytes as usize);
        let reading = self.read_at(place.buffer, place.offset_bytes, bytes.clone());
        reading.await?;
        time::yield_now().await;
        Ok(bytes.crc32c())
    }

    /// The checksums of all chunks. Others run between chunks.
    pub(super) async fn sums(&self, shape: &Shape) -> Result<Vec<u32>, HoldFault> {
        let (mut sums, room) = (Vec::new(), room_of(shape)?);
        for chunk in 0..shape.chunks() {
            let sum = self.sum(shape, chunk, &room).await;
            sums.push(sum.map_err(|error| unreadable(shape, chunk, error))?);
        }
        Ok(sums)
    }

    /// The chunks that are right already. Others run between chunks.
    pub(super) async fn verified(
        &self,
        shape: &Shape,
        sums: &[u32],
    ) -> Result<ChunkSet, HoldFault> {
        let (mut held, room) = (ChunkSet::empty(shape.chunks()), room_of(shape)?);
        for (chunk, &sum) in (0..shape.chunks()).zip(sums) {
            // What cannot be read is received.
            if self.sum(shape, chunk, &room).await == Ok(sum) {
                held.insert(chunk);
            }
        }
        Ok(held)
    }

    /// Whether all chunks of a buffer are right. Others run between chunks.
    pub(super) async fn verify(
        &self,
        buffer: usize,
        shape: &Shape,
        sums: &[u32],
    ) -> Result<(), SourceFault> {
        // What cannot be verified is not served on.
        let room = room_of(shape).map_err(|fault| SourceFault::Unreadable {
            buffer,
            said: fault.to_string(),
        })?;
        for (chunk, &sum) in (0..shape.chunks()).zip(sums) {
            let place = shape.place(chunk).expect("a chunk of the object");
            if place.buffer as usize != buffer {
                continue;
            }
            match self.sum(shape, chunk, &room).await {
                Ok(found) if found == sum => {}
                Ok(_) => return Err(SourceFault::Changed { buffer }),
                Err(error) => return Err(unreadable(shape, chunk, error)),
            }
        }
        Ok(())
    }

    /// When the file of a buffer was changed last; `None` for what is no file.
    pub(super) async fn stamp(&self, buffer: usize) -> Result<Option<FileStamp>, SourceFault> {
        let Backed::File(file) = &self.buffers[buffer] else {
            return Ok(None);
        };
        let stamp = file.file.stamp().await;
        stamp.map(Some).map_err(|error| SourceFault::Unreadable {
            buffer,
            said: error.to_string(),
        })
    }

    /// When each file was changed last.
    pub(super) async fn stamps(&self) -> Result<Vec<Option<FileStamp>>, SourceFault> {
        let mut stamps = Vec::new();
        for buffer in 0..self.buffers.len() {
            stamps.push(self.stamp(buffer).await?);
        }
        Ok(stamps)
    }

    /// Waits until all that was written to files is on the disk.
    pub(super) async fn sync(&self) -> Result<(), io::Error> {
        for buffer in &self.buffers {
            if let Backed::File(file) = buffer {
                file.file.sync_data().await.map_err(of_file)?;
            }
        }
        Ok(())
    }

    /// Registers them for reading, those without a byte apart.
    ///
    /// # Errors
    /// Why one was not, and what was registered before.
    pub(super) fn register(
        &self,
        engine: &Engine,
        version: Version,
    ) -> Result<Segments, (Segments, RegisterRefusal)> {
        let mut segments = Vec::new();
        for (buffer, index) in self.buffers.iter().zip(0..) {
            if buffer.len_bytes() == 0 {
                continue;
            }
            let options = RegisterOptions {
                access: Access::Read,
                ..RegisterOptions::named(&segment_name(version, index))
            };
            let registered = match buffer {
                Backed::File(file) => engine
                    .register_file(file.segment.clone(), &options)
                    .map_err(|error| error.refusal),
                Backed::Device(device) => engine
                    .register_device(device.clone(), &options)
                    .map_err(|error| error.refusal),
            };
            match registered {
                Ok(segment) => segments.push((buffer.kind(), segment)),
                Err(refusal) => return Err((segments, refusal)),
            }
        }
        Ok(segments)
    }
}

/// Memory for a chunk of an object, or of nothing.
fn room_of(shape: &Shape) -> Result<Exposed, HoldFault> {
    let len = shape.chunk_bytes() as usize;
    let room = Exposed::map(len, HugePages::Prefer, &mut Vec::new());
    room.map_err(|error| HoldFault::NoMemory(error.to_string()))
}

fn unreadable(shape: &Shape, chunk: u32, error: BackingFault) -> SourceFault {
    let place = shape.place(chunk).expect("a chunk of the object");
    SourceFault::Unreadable {
        buffer: place.buffer as usize,
        said: error.to_string(),
    }
}
