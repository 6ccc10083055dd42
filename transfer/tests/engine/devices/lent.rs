//! Memory of devices that threads register, on a driver that the test builds: an access by the host ends the process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lunette_gpu::{Device, Driver, EngineStream};
use lunette_runtime::{CoreOptions, Placement, arena, block_on, time};
use lunette_transfer::engine::{ALLOCATIONS_MAX, DeviceLendError, DeviceLent, LentDevices};
use lunette_transfer::engine::{
    Access, DeviceSegment, EngineHandle, EngineHost, EngineOptions, HandleError, HandleRequest,
    PeerHandle, PostOptions, RegisterOptions, SegmentId, Way,
};

use super::Gpu;
use crate::scene::{MIB, options, pattern};
use crate::stub::stub;

const LEN: usize = 9 * MIB + 5;

fn host(cores: usize, same_host: bool) -> EngineHost {
    let options = EngineOptions {
        same_host,
        ..options()
    };
    let placement = Placement::Anywhere(cores);
    EngineHost::start(&placement, CoreOptions::default(), &options).expect("an engine")
}

fn by_address() -> RegisterOptions {
    RegisterOptions {
        name: None,
        by_address: true,
        access: Access::ReadWrite,
        same_host: true,
        by_capability: false,
    }
}

/// A device whose memory a program lends.
struct Program {
    driver: Driver,
    gpu: Gpu,
    /// Held by everything that is lent.
    keeper: Arc<()>,
}

impl Program {
    fn new(driver: Driver) -> Self {
        Self {
            driver,
            gpu: Gpu::of(Device::open_with(driver, 0).expect("one device")),
            keeper: Arc::new(()),
        }
    }

    fn lent(&self, memory: &DeviceSegment, len_bytes: usize) -> DeviceLent {
        DeviceLent {
            driver: self.driver,
            device: 0,
            address: memory.region().address(),
            len_bytes,
            after: Arc::new([EngineStream::DEFAULT]),
            keeper: Arc::clone(&self.keeper) as _,
        }
    }

    async fn is_let_go_of(&self) {
        for _ in 0..10_000 {
            if Arc::strong_count(&self.keeper) == 1 {
                return;
            }
            time::sleep(Duration::from_millis(1)).await;
        }
        unreachable!("memory is not let go of");
    }
}

async fn moved(
    peer: &PeerHandle,
    way: Way,
    local: SegmentId,
    (start, len_bytes): (u64, usize),
) -> Result<(), HandleError> {
    let len_bytes = len_bytes as u64;
    let (remote, remote_offset_bytes) = peer.segment_at(start, len_bytes).await?;
    let request = HandleRequest {
        way,
        local,
        local_offset_bytes: 0,
        len_bytes,
        remote,
        remote_offset_bytes,
    };
    let done = peer.post(vec![request], PostOptions::default()).await?;
    assert_eq!(done.len_bytes, len_bytes);
    Ok(())
}

/// Moves memory of devices between two engines, both ways, and takes it back.
async fn move_both_ways(driver: Driver, near: EngineHandle, far: EngineHandle, at: SocketAddr) {
    let program = Program::new(driver);
    let (mine, other) = (
        program.gpu.full_of(&pattern(LEN, 1)).await,
        program.gpu.full_of(&vec![0; LEN]).await,
    );
    let here = near.register_device(program.lent(&mine, LEN), by_address());
    let here = here.await.expect("registered");
    let there = far.register_device(program.lent(&other, LEN), by_address());
    let there = there.await.expect("registered");
    let again = far.register_device(program.lent(&other, 10), by_address());
    assert!(
        matches!(again.await, Err(HandleError::Register(_))),
        "it overlaps"
    );
    assert_eq!(far.len_bytes(there).await.expect("a segment"), LEN as u64);
    assert!(matches!(
        far.bytes(there, 0, 1).await,
        Err(HandleError::NoMemory)
    ));
    let peer = near.open(vec![at]).await.expect("a peer");
    let start = other.region().address();
    moved(&peer, Way::Write, here, (start, LEN))
        .await
        .expect("written");
    assert!(program.gpu.bytes_of(&other).await == pattern(LEN, 1));
    let full = program.gpu.full_of(&pattern(LEN, 2)).await;
    let host = near.allocate(LEN, by_address()).await.expect("memory");
    near.fill(host, 0, pattern(LEN, 3)).await.expect("filled");
    moved(&peer, Way::Write, host, (start, LEN))
        .await
        .expect("written");
    moved(&peer, Way::Read, here, (start + 7, LEN - 7))
        .await
        .expect("read");
    let found = program.gpu.bytes_of(&mine).await;
    assert!(found[..LEN - 7] == pattern(LEN, 3)[7..]);
    assert!(found[LEN - 7..] == pattern(LEN, 1)[LEN - 7..]);
    let outside = moved(&peer, Way::Read, here, (start + 8, LEN - 7)).await;
    assert!(matches!(outside, Err(HandleError::Open(_))));
    assert!(near.unregister(here).await.expect("an answer"));
    let gone = moved(&peer, Way::Read, here, (start, 1)).await;
    assert!(matches!(gone, Err(HandleError::NoMemory)));
    assert!(far.unregister(there).await.expect("an answer"));
    program.is_let_go_of().await;
    // What is none of the device's, or leaves it.
    let beyond = far.register_device(program.lent(&full, LEN + 1), by_address());
    let beyond = beyond.await.expect_err("it leaves its allocation");
    let expected = HandleError::Device(DeviceLendError::NotOfDevice);
    assert_eq!(format!("{beyond:?}"), format!("{expected:?}"));
    program.is_let_go_of().await;
}

#[test]
fn threads_register_memory_of_devices_at_engines_of_several_cores() {
    let driver = Driver::probe_at(&stub("lent", &[])).expect("it works");
    for (cores, same_host) in [([1, 1], true), ([1, 2], false), ([2, 2], true)] {
        let hosts = cores.map(|cores| host(cores, same_host));
        let (near, far) = (hosts[0].handle(), hosts[1].handle());
        let at = hosts[1].addresses()[0];
        let moving = move || move_both_ways(driver, near, far, at);
        block_on(None, CoreOptions::default(), moving).expect("a core");
        hosts.into_iter().for_each(EngineHost::close);
    }
}

#[test]
fn a_range_is_of_so_many_allocations_at_most() {
    const PAGE: usize = 4096;
    let driver = Driver::probe_at(&stub("split", &["SPLIT"])).expect("it works");
    let lending = move || async move {
        let program = Program::new(driver);
        let memory = program.gpu.full_of(&pattern(9 * PAGE, 1)).await;
        let devices = LentDevices::default();
        let three = devices.import(&program.lent(&memory, 3 * PAGE)).await;
        let three = three.expect("memory of the device");
        let lens: Vec<u64> = three.iter().map(DeviceSegment::len_bytes).collect();
        assert_eq!(lens, [PAGE as u64; 3]);
        let there = arena().alloc(PAGE).expect("room").expose();
        three[2].download(there.clone()).await.expect("read");
        assert!(there.to_vec() == pattern(9 * PAGE, 1)[2 * PAGE..3 * PAGE]);
        let several = devices.import_one(&program.lent(&memory, PAGE + 1)).await;
        let several = several.map(drop);
        assert!(matches!(several, Err(DeviceLendError::SeveralAllocations)));
        drop((three, memory));
        let memory = program
            .gpu
            .full_of(&vec![0; (ALLOCATIONS_MAX + 1) * PAGE])
            .await;
        let count = async |len_bytes| {
            let lent = program.lent(&memory, len_bytes);
            devices.import(&lent).await.map(|all| all.len())
        };
        let most = count(ALLOCATIONS_MAX * PAGE).await;
        assert_eq!(most.ok(), Some(ALLOCATIONS_MAX));
        let more = count(ALLOCATIONS_MAX * PAGE + 1).await;
        assert!(matches!(more, Err(DeviceLendError::NotOfDevice)));
        program.is_let_go_of().await;
    };
    block_on(None, CoreOptions::default(), lending).expect("a core");
}
