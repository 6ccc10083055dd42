//! Our host, as those have it who try it on the kernel's target.

use std::time::Duration;

use lunette_nvmeof::proto::pdu::Digests;
use lunette_nvmeof::{NamespaceOptions, RemoteNamespace};
use lunette_runtime::arena::RegionMut;
use lunette_runtime::{CoreOptions, arena, block_on};

use crate::rig::{bring_target_up, config, target_address, target_name};

/// How long a command may take in a machine that is emulated.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a scenario on a core, with a target that is up.
pub(crate) fn run(scenario: impl AsyncFnOnce() + 'static) {
    bring_target_up();
    block_on(None, CoreOptions::default(), move || async move {
        scenario().await
    })
    .expect("a core");
}

/// The target's namespace.
pub(crate) async fn connect(digests: Digests) -> RemoteNamespace {
    let options = NamespaceOptions {
        path_timeout: TIMEOUT,
        ..NamespaceOptions::new(target_address(), target_name(), config(digests))
    };
    RemoteNamespace::connect(options).await.expect("connected")
}

/// Bytes that another seed would make others.
pub(crate) fn filled(len: usize, seed: usize) -> RegionMut {
    let mut region = arena().alloc(len).expect("room");
    for (index, byte) in region.as_mut_slice().iter_mut().enumerate() {
        *byte = u8::try_from((index * 5 + index / 512 + seed) % 251).expect("a byte");
    }
    region
}

/// Writes, and reads the same back.
pub(crate) async fn write_and_read(
    namespace: &RemoteNamespace,
    first: u64,
    len: usize,
    seed: usize,
) {
    let region = filled(len, seed).freeze();
    let written = namespace.write(first, region.clone(), false, TIMEOUT).await;
    written.expect("written");
    let read = namespace
        .read(first, arena().alloc(len).expect("room"), TIMEOUT)
        .await;
    assert!(
        read.expect("read").as_slice() == region.as_slice(),
        "{len} bytes"
    );
}
