//! GPU memory and copies on the core's own loop.
//!
//! A core opens a device, makes regions and streams of it, and copies: each copy is a future that
//! owns the host's memory and holds the device's until the device has let go, and the core's loop
//! polls for that beside everything else. The driver is looked for when the program runs, so one
//! binary works with and without a GPU:
//!
//! ```text
//!   Device ── DeviceRegion, DevicePool   memory of the device, counted
//!      │          └── export, dma_buf, ipc ──▶ other processes, adapters
//!      └───── Stream ── upload, download, copy, gather_pages ... ──▶ Operation (a future)
//!                └── polled by the core's loop
//! ```
//!
//! Another provider stands behind the same objects: [`fake`], a machine of devices that are
//! stricter than any real one, and fail when told to.
//!
//! It leaves out what the pages mean and where they go (`kvstore`, `transfer`), and everything that
//! computes.
//!
//! | module | subject |
//! |---|---|
//! | [`device`] | [`Device`], polled by its core |
//! | [`region`] | [`DeviceRegion`], [`DevicePool`] |
//! | [`stream`], [`operation`] | [`Stream`], and the futures of what is queued there |
//! | [`copy`], [`pages`] | copies, lists of copies, pages between layouts |
//! | [`summed`] | copies that are summed on the way |
//! | [`staging`] | between files and the device, through the host |
//! | [`engine`] | order with the streams of a serving engine |
//! | [`calibrate`] | measuring which way is the fastest |
//! | [`import`], [`dlpack`] | memory of somebody else in this process |
//! | [`share`] | memory for other processes, and for adapters |
//! | [`lease`] | host memory that operations own |
//! | [`fake`] | the fake machine and its faults |
//! | [`error`] | what can go wrong, per operation |
//! | `crowd` | how long kernels wait for SMs |
//! | `pins`, `listing` | chunks that are pinned, names of regions |
//! | `provider`, `cuda` | the seam, and the CUDA driver behind it |
//!
//! ```
//! use lunette_gpu::fake::{FakeMachine, FakeOptions};
//! use lunette_gpu::{Device, DeviceRegion, Stream, StreamOptions};
//! use lunette_runtime::{CoreOptions, arena, block_on};
//!
//! let got = block_on(None, CoreOptions::default(), || async {
//!     // Device::open(0), where there is one.
//!     let machine = FakeMachine::new(7);
//!     let device = Device::fake(&machine, machine.add_device(FakeOptions::default())).unwrap();
//!     let stream = Stream::new(&device, StreamOptions::default()).unwrap();
//!     let memory = DeviceRegion::alloc(&device, 5).unwrap();
//!     let mut bytes = arena().alloc(5).unwrap();
//!     bytes.as_mut_slice().copy_from_slice(b"pages");
//!     let (sent, mut bytes) = stream.upload(bytes, 0, &memory).await;
//!     sent.unwrap();
//!     bytes.as_mut_slice().fill(0);
//!     let (got, bytes) = stream.download(&memory, bytes, 0).await;
//!     got.unwrap();
//!     bytes.as_slice().to_vec()
//! });
//! assert_eq!(got.unwrap(), b"pages");
//! ```

pub mod calibrate;
pub mod copy;
mod crowd;
mod cuda;
pub mod device;
pub mod dlpack;
pub mod engine;
pub mod error;
pub mod fake;
pub mod import;
pub mod lease;
mod listing;
pub mod operation;
pub mod pages;
mod pins;
mod provider;
pub mod region;
pub mod share;
pub mod staging;
pub mod stream;
pub mod summed;

pub use copy::{HostPiece, PIECES_MAX};
pub use cuda::{Driver, Located, MEETINGS, is_in_use, locate, meeting_stream};
pub use device::{Device, DeviceCounts, STREAMS_MAX};
pub use engine::EngineStream;
pub use error::{CopyError, ImportError, OpenError, SetupError, Unavailable};
pub use lease::Summed;
pub use listing::{REGIONS_MAX, RegionName};
pub use lunette_gpu_proto as proto;
pub use operation::Operation;
pub use pages::PAGES_MAX;
pub use provider::DeviceInfo;
pub use region::{DevicePool, DeviceRegion};
pub use stream::{Notice, Stream, StreamOptions};
