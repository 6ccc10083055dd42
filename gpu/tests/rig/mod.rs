//! What tests of any device share.

pub(crate) mod scenes;
mod together;

use std::time::Duration;

use lunette_gpu::{Device, DeviceRegion, Stream, StreamOptions};
use lunette_runtime::arena::RegionMut;
use lunette_runtime::{CoreOptions, Idle, arena, block_on};

/// Long enough for a busy machine, and an end for a test that hangs.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Runs a test on a core of its own.
pub(crate) fn on_core<F: Future<Output = ()> + 'static>(
    idle: Idle,
    test: impl FnOnce() -> F + Send,
) {
    let options = CoreOptions {
        idle,
        ..CoreOptions::default()
    };
    block_on(None, options, test).expect("a core");
}

/// Host memory that holds these bytes.
pub(crate) fn host(bytes: &[u8]) -> RegionMut {
    let mut region = arena().alloc(bytes.len()).expect("room in the arena");
    region.as_mut_slice().copy_from_slice(bytes);
    region
}

/// Bytes that tell where they come from, and from which call.
pub(crate) fn pattern(len: usize, which: u8) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at * 7 + at / 251) % 256).expect("below 256") ^ which;
    (0..len).map(byte).collect()
}

pub(crate) fn stream(device: &Device) -> Stream {
    Stream::new(device, StreamOptions::default()).expect("a stream")
}

pub(crate) fn region(device: &Device, len: u64) -> DeviceRegion {
    DeviceRegion::alloc(device, len).expect("device memory")
}

/// What a region holds.
pub(crate) async fn seen(stream: &Stream, region: &DeviceRegion) -> Vec<u8> {
    let len = usize::try_from(region.len()).expect("a small region");
    let (result, bytes) = stream.download(region, host(&vec![0; len]), 0).await;
    assert_eq!(result, Ok(()));
    bytes.as_slice().to_vec()
}

/// Fills a region.
pub(crate) async fn fill(stream: &Stream, region: &DeviceRegion, bytes: &[u8]) {
    let (result, _) = stream.upload(host(bytes), 0, region).await;
    assert_eq!(result, Ok(()));
}
