//! The way of a byte through leases, streams and the fake device, in a small world. Miri runs it: it
//! sees memory that a device still uses when it is freed, or borrowed while a device writes it.

use std::time::Duration;

use lunette_gpu_proto::layout::{LAYER_FIRST, Layout, PAGE_FIRST, Shape};
use lunette_gpu_proto::planner::Method;
use lunette_gpu_proto::transfer::{PagePair, PageTransfer};
use lunette_runtime::arena::{ArenaOptions, CHUNK_BYTES_MIN, Exposed, HugePages, RegionMut};
use lunette_runtime::sim::{World, WorldOptions};
use lunette_runtime::{CoreOptions, arena};

use super::{FakeMachine, FakeOptions, Fault};
use crate::{CopyError, Device, DeviceRegion, HostPiece, Stream, StreamOptions};

const LEN: usize = 1500;

fn host(byte: u8) -> RegionMut {
    let mut region = arena().alloc(LEN).expect("room");
    region.as_mut_slice().fill(byte);
    region
}

/// Runs a test with a device in a world.
fn in_world<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(FakeMachine, Device) -> F + 'static,
) {
    let mut world = World::new(4, WorldOptions::default());
    let options = CoreOptions {
        arena: ArenaOptions {
            bytes_max: CHUNK_BYTES_MIN,
            chunk_bytes: CHUNK_BYTES_MIN,
            ..ArenaOptions::default()
        },
        ..CoreOptions::default()
    };
    let process = world.start([10, 0, 0, 1].into(), 1, options);
    let done = world.spawn(process, 0, || async {
        let machine = FakeMachine::new(4);
        let index = machine.add_device(FakeOptions::default());
        let device = Device::fake(&machine, index).expect("added above");
        test(machine, device).await;
        assert_eq!(arena().used_bytes(), 0, "everything came back");
    });
    let until = world.now() + Duration::from_secs(1);
    assert!(world.run_until(until, || done.is_there()));
}

fn stream(device: &Device) -> Stream {
    Stream::new(device, StreamOptions::default()).expect("a stream")
}

fn region(device: &Device) -> DeviceRegion {
    DeviceRegion::alloc(device, LEN as u64).expect("device memory")
}

#[test]
fn bytes_go_there_and_back_and_futures_may_go() {
    in_world(|_machine, device| async move {
        let (stream, memory) = (stream(&device), region(&device));
        drop(stream.upload(host(1), 0, &memory));
        let got = stream.download(&memory, host(0), 0).await;
        assert_eq!((got.0, got.1.as_slice()[LEN - 1]), (Ok(()), 1));
        drop(stream.download(&memory, got.1, 0));
        drop(stream.upload(host(2).freeze(), 0, &memory));
        let piece = |index| HostPiece {
            index,
            host_bytes: 3,
            device_bytes: index as u64 * 700,
            len_bytes: 600,
        };
        let sinks = vec![host(0), host(0)];
        let got = stream.download_pieces(&memory, &[piece(0), piece(1)], sinks, None);
        let (result, sinks) = got.await;
        assert_eq!(result, Ok(()));
        assert!(sinks.iter().all(|sink| sink.as_slice()[3..603] == [2; 600]));
        assert!(sinks.iter().all(|sink| sink.as_slice()[603] == 0));
    });
}

#[test]
fn pages_are_moved_by_a_kernel_where_they_lie() {
    in_world(|machine, device| async move {
        let (stream, memory) = (stream(&device), region(&device));
        let layout = |order| Layout::new(Shape::latent(3, 2, 16), 5, order).expect("small");
        let transfer = PageTransfer::new(&layout(LAYER_FIRST), &layout(PAGE_FIRST));
        let transfer = transfer.expect("one shape");
        drop(stream.upload(host(7), 0, &memory));
        let pairs = [PagePair { from: 4, to: 0 }, PagePair { from: 1, to: 2 }];
        let pages = (&transfer, pairs.as_slice());
        let kernel = Some(Method::Kernel);
        let gathered = stream.gather_pages(pages, &memory, (host(0), 5), kernel);
        let (result, got) = gathered.await;
        assert_eq!(result, Ok(()));
        let page = usize::try_from(transfer.page_bytes()).expect("small");
        assert_eq!(got.as_slice()[5..5 + page], *vec![7; page]);
        assert_eq!(got.as_slice()[5 + page], 0);
        drop(stream.gather_pages(pages, &memory, (got, 5), kernel));
        assert_eq!(stream.flushed().await.0, Ok(()));
        assert_eq!(machine.counts().launches, 2);
    });
}

#[test]
fn exposed_memory_is_lent_and_pinned_where_it_is_an_arenas() {
    in_world(|machine, device| async move {
        let (stream, memory) = (stream(&device), region(&device));
        let piece = host(9).expose();
        drop(stream.upload(
            piece.slice(100, LEN - 100),
            0,
            &memory.slice(0..LEN as u64 - 100),
        ));
        let mapped = Exposed::map(LEN, HugePages::Never, &mut Vec::new()).expect("memory");
        let (result, mapped) = stream.download(&memory.slice(0..1000), mapped, 7).await;
        assert_eq!(result, Ok(()));
        assert_eq!(mapped.slice(7, 1000).to_vec(), [9; 1000]);
        assert_eq!(mapped.slice(1007, LEN - 1007).to_vec(), [0; LEN - 1007]);
        assert_eq!(machine.counts().unpinned, 1, "the mapping alone");
        let (result, _) = stream.download(&memory, piece.slice(1, 9), 0).await;
        assert_eq!(result, Err(CopyError::Range));
    });
}

#[test]
fn a_dead_context_gives_everything_back() {
    in_world(|machine, device| async move {
        let (stream, memory) = (stream(&device), region(&device));
        machine.inject(0, Fault::Poisoned { code: 700 });
        drop(stream.upload(host(1), 0, &memory));
        let (result, lent) = stream.download(&memory, host(3), 0).await;
        assert!(matches!(result, Err(CopyError::Poisoned(_))));
        assert_eq!(lent.as_slice(), [3; LEN]);
    });
}

#[test]
fn the_last_handle_of_a_device_waits_for_it() {
    in_world(|_machine, device| async move {
        let (stream, memory) = (stream(&device), region(&device));
        drop(stream.upload(host(1), 0, &memory));
        drop((stream, device, memory));
    });
}
