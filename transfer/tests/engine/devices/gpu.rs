//! A device that is opened here: for tests of this package, and of those above it.

use lunette_gpu::fake::FakeMachine;
use lunette_gpu::{Device, DeviceRegion, Stream, StreamOptions};
use lunette_runtime::arena;
use lunette_transfer::engine::DeviceSegment;

/// Bytes that go at once: more do not fit into one region of an arena.
const PIECE_BYTES: usize = 1 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Gpu {
    pub(crate) device: Device,
    pub(crate) stream: Stream,
}

impl Gpu {
    pub(crate) fn of(device: Device) -> Self {
        Self::with(device, StreamOptions::default())
    }

    pub(crate) fn with(device: Device, options: StreamOptions) -> Self {
        let stream = Stream::new(&device, options).expect("a stream");
        Self { device, stream }
    }

    /// A device of a fake machine, which was added.
    pub(crate) fn open(machine: &FakeMachine, index: usize) -> Self {
        Self::of(Device::fake(machine, index).expect("it was added"))
    }

    /// Memory of it, full of these bytes.
    pub(crate) async fn full_of(&self, bytes: &[u8]) -> DeviceSegment {
        let region = DeviceRegion::alloc(&self.device, bytes.len() as u64).expect("memory");
        let memory = DeviceSegment::new(region, self.stream.clone());
        Self::fill(&memory, bytes).await;
        memory
    }

    /// Fills the front of memory of it.
    pub(crate) async fn fill(memory: &DeviceSegment, bytes: &[u8]) {
        for (piece, at) in bytes.chunks(PIECE_BYTES).zip((0..).step_by(PIECE_BYTES)) {
            let mut from = arena().alloc(piece.len()).expect("room");
            from.as_mut_slice().copy_from_slice(piece);
            let to = memory.slice(at..at + piece.len() as u64);
            to.upload(from.freeze()).await.expect("filled");
        }
    }

    /// What lies there.
    pub(crate) async fn bytes_of(&self, memory: &DeviceSegment) -> Vec<u8> {
        let mut bytes = Vec::new();
        for at in (0..memory.len_bytes()).step_by(PIECE_BYTES) {
            let end = memory.len_bytes().min(at + PIECE_BYTES as u64);
            let len = usize::try_from(end - at).expect("little");
            let to = arena().alloc(len).expect("room");
            let region = memory.region().slice(at..end);
            let (read, piece) = self.stream.download(&region, to, 0).await;
            read.expect("read");
            bytes.extend_from_slice(piece.as_slice());
        }
        bytes
    }
}
