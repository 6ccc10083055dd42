//! What every device must do.

use lunette_gpu::proto::layout::{
    LAYER_FIRST, Layout, Order, PAGE_FIRST, PAGE_HEAD, Shape, TOKEN_FIRST,
};
use lunette_gpu::proto::planner::Method;
use lunette_gpu::proto::transfer::{Fragment, PagePair, PageTransfer, TransferError, copy_rows};
use lunette_gpu::{
    CopyError, Device, DevicePool, DeviceRegion, HostPiece, PAGES_MAX, SetupError, Stream,
    StreamOptions,
};
use lunette_runtime::{arena, time};

use super::together;
use super::{SOON, fill, host, pattern, region, seen, stream};

/// Every scene, one behind the other.
pub(crate) async fn all(device: &Device) {
    bytes_go_there_and_back(device).await;
    parts_are_copied_and_nothing_else(device).await;
    lists_are_one_operation(device).await;
    together::all(device).await;
    pages_move_by_every_method(device).await;
    lists_of_pages_are_kept_until_they_are_read(device).await;
    as_many_pages_as_one_operation_may_have(device).await;
    streams_wait_for_one_another(device).await;
    a_dropped_future_leaves_its_memory_with_the_device(device).await;
    what_does_not_fit_is_refused_and_comes_back(device).await;
    names_go_stale(device).await;
    pools_hand_out_what_they_have(device).await;
}

pub(crate) async fn bytes_go_there_and_back(device: &Device) {
    let stream = stream(device);
    for len in [1, 511, 4096, 1 << 20] {
        let bytes = pattern(len, 1);
        let (first, second) = (region(device, len as u64), region(device, len as u64));
        fill(&stream, &first, &bytes).await;
        assert_eq!(stream.copy(&first, &second).await.0, Ok(()));
        assert_eq!(seen(&stream, &second).await, bytes, "{len}");
        // A shared region is read as well.
        let shared = host(&pattern(len, 2)).freeze();
        let (result, shared) = stream.upload(shared, 0, &second).await;
        assert_eq!(result, Ok(()));
        assert_eq!(seen(&stream, &second).await, shared.as_slice());
    }
    assert_eq!(stream.in_flight(), 0);
}

async fn parts_are_copied_and_nothing_else(device: &Device) {
    let stream = stream(device);
    let memory = region(device, 4096);
    fill(&stream, &memory, &pattern(4096, 3)).await;
    let part = memory.slice(1000..1100);
    let (result, lent) = stream.upload(host(&pattern(300, 4)), 200, &part).await;
    assert_eq!((result, lent.len()), (Ok(()), 300));
    let mut expected = pattern(4096, 3);
    expected[1000..1100].copy_from_slice(&pattern(300, 4)[200..]);
    assert_eq!(seen(&stream, &memory).await, expected);
    let (result, got) = stream.download(&part, host(&[7; 300]), 100).await;
    assert_eq!(result, Ok(()));
    assert_eq!(got.as_slice()[100..200], expected[1000..1100]);
    assert!(got.as_slice()[..100].iter().all(|byte| *byte == 7));
    assert!(got.as_slice()[200..].iter().all(|byte| *byte == 7));
}

async fn lists_are_one_operation(device: &Device) {
    let stream = stream(device);
    let memory = region(device, 1 << 16);
    fill(&stream, &memory, &pattern(1 << 16, 5)).await;
    for by in [None, Some(Method::Dma), Some(Method::BatchedDma)] {
        let sources = (0..20u8).map(|index| host(&pattern(1000, index)).freeze());
        let piece = |index: usize| HostPiece {
            index,
            host_bytes: index,
            device_bytes: index as u64 * 3000,
            len_bytes: 900,
        };
        let pieces: Vec<HostPiece> = (0..20).map(piece).collect();
        let before = device.counts().operations;
        let uploaded = stream.upload_pieces(sources.collect::<Vec<_>>(), &pieces, &memory, by);
        let (result, sources) = uploaded.await;
        assert_eq!((result, sources.len()), (Ok(()), 20));
        assert_eq!(device.counts().operations, before + 1);
        let sinks: Vec<_> = (0..20).map(|_| host(&[0; 1000])).collect();
        let (result, sinks) = stream.download_pieces(&memory, &pieces, sinks, by).await;
        assert_eq!(result, Ok(()));
        for (index, sink) in sinks.iter().enumerate() {
            let which = u8::try_from(index).expect("twenty");
            assert_eq!(
                sink.as_slice()[index..index + 900],
                pattern(1000, which)[index..index + 900]
            );
        }
    }
    let turned = region(device, 1 << 16);
    let fragment = |index: u64| Fragment {
        from_bytes: index * 4096,
        to_bytes: (15 - index) * 4096,
        len_bytes: 4096,
    };
    let fragments: Vec<Fragment> = (0..16).map(fragment).collect();
    let result = stream.copy_pieces(&memory, &fragments, &turned, Some(Method::BatchedDma));
    assert_eq!(result.await.0, Ok(()));
    let (before, after) = (seen(&stream, &memory).await, seen(&stream, &turned).await);
    let turned: Vec<u8> = after.chunks(4096).rev().flatten().copied().collect();
    assert_eq!(before, turned);
}

/// Between an engine's cache and blocks of a store, in each order, by each method.
async fn pages_move_by_every_method(device: &Device) {
    let shapes = [Shape::multi_head(3, 4, 2, 64), Shape::latent(3, 16, 576)];
    for shape in shapes {
        for order in [PAGE_FIRST, TOKEN_FIRST, PAGE_HEAD] {
            for by in [
                None,
                Some(Method::Dma),
                Some(Method::BatchedDma),
                Some(Method::Kernel),
            ] {
                pages_there_and_back(device, shape, order, by).await;
            }
        }
    }
}

async fn pages_there_and_back(device: &Device, shape: Shape, order: Order, by: Option<Method>) {
    let stream = stream(device);
    let cache = Layout::new(shape, 9, LAYER_FIRST).expect("a layout");
    let blocks = Layout::new(shape, 4, order).expect("a layout");
    let transfer = PageTransfer::new(&cache, &blocks).expect("one shape");
    let pair = |from, to| PagePair { from, to };
    let pairs = [pair(8, 0), pair(2, 3), PagePair::SKIP, pair(5, 1)];
    let bytes = |layout: &Layout| usize::try_from(layout.len_bytes()).expect("small");
    let source = pattern(bytes(&cache), 6);
    let mut expected = vec![0; bytes(&blocks)];
    copy_rows((&cache, &source), (&blocks, &mut expected), &pairs).expect("pages are there");
    let memory = region(device, cache.len_bytes());
    fill(&stream, &memory, &source).await;

    let room = host(&vec![0; expected.len() + 32]);
    let (result, room) = stream
        .gather_pages((&transfer, &pairs), &memory, (room, 32), by)
        .await;
    assert_eq!(result, Ok(()));
    assert_eq!(room.as_slice()[32..], expected, "{order:?} {by:?}");

    let dense = region(device, blocks.len_bytes());
    fill(&stream, &dense, &vec![0; expected.len()]).await;
    let moved = stream.move_pages((&transfer, &pairs), &memory, &dense, by);
    assert_eq!(moved.await.0, Ok(()));
    assert_eq!(seen(&stream, &dense).await, expected, "{order:?} {by:?}");

    // Back into a cache that holds nothing, to the same pages.
    let back = [pair(0, 8), pair(3, 2), pair(1, 5)];
    let mut restored = vec![0; source.len()];
    copy_rows((&blocks, &expected), (&cache, &mut restored), &back).expect("pages are there");
    fill(&stream, &memory, &vec![0; source.len()]).await;
    let reversed = transfer.reversed();
    let (result, room) = stream
        .scatter_pages((&reversed, &back), (room, 32), &memory, by)
        .await;
    assert_eq!((result, room.len()), (Ok(()), expected.len() + 32));
    assert_eq!(seen(&stream, &memory).await, restored, "{order:?} {by:?}");
}

/// Many lists at a time, in several streams, each of which is the device's until it has been read.
async fn lists_of_pages_are_kept_until_they_are_read(device: &Device) {
    let streams = [stream(device), stream(device), stream(device)];
    let shape = Shape::latent(2, 4, 64);
    let cache = Layout::new(shape, 16, LAYER_FIRST).expect("a layout");
    let block = Layout::new(shape, 1, PAGE_FIRST).expect("a layout");
    let transfer = PageTransfer::new(&cache, &block).expect("one shape");
    let source = pattern(usize::try_from(cache.len_bytes()).expect("small"), 8);
    let memory = region(device, cache.len_bytes());
    fill(&streams[0], &memory, &source).await;
    let len = usize::try_from(block.len_bytes()).expect("small");
    let pair = |from| [PagePair { from, to: 0 }];
    let gathers: Vec<_> = (0..16)
        .map(|page| {
            let stream = &streams[page as usize % 3];
            let pages = pair(page);
            let room = (host(&vec![0; len]), 0);
            stream.gather_pages((&transfer, &pages), &memory, room, Some(Method::Kernel))
        })
        .collect();
    for (gather, page) in gathers.into_iter().zip(0..) {
        let mut expected = vec![0; len];
        copy_rows((&cache, &source), (&block, &mut expected), &pair(page)).expect("a page");
        let (result, room) = gather.await;
        assert_eq!(
            (result, room.as_slice()),
            (Ok(()), &*expected),
            "page {page}"
        );
    }
}

async fn as_many_pages_as_one_operation_may_have(device: &Device) {
    let stream = stream(device);
    let layout = Layout::new(Shape::latent(1, 1, 16), 2, PAGE_FIRST).expect("a layout");
    let transfer = PageTransfer::new(&layout, &layout).expect("one shape");
    let (from, to) = (region(device, 32), region(device, 32));
    let moved_by = async |pages: &[PagePair], method| {
        let moved = stream.move_pages((&transfer, pages), &from, &to, Some(method));
        moved.await.0
    };
    let moved = async |pages: &[PagePair]| moved_by(pages, Method::Kernel).await;
    for method in Method::ALL {
        assert_eq!(
            moved_by(&[PagePair::SKIP], method).await,
            Ok(()),
            "{method:?}"
        );
    }
    let mut pages = vec![PagePair::SKIP; PAGES_MAX];
    pages[PAGES_MAX - 1] = PagePair { from: 1, to: 0 };
    assert_eq!(moved(&pages).await, Ok(()));
    pages.push(PagePair::SKIP);
    assert_eq!(moved(&pages).await, Err(CopyError::Pieces));
    assert_eq!(moved(&[]).await, Err(CopyError::Range));
    let absent = PagePair { from: 2, to: 0 };
    let error = CopyError::Pages(TransferError::Page { from: 2, to: 0 });
    assert_eq!(moved(&[absent]).await, Err(error));
}

async fn streams_wait_for_one_another(device: &Device) {
    let urgent = StreamOptions {
        is_urgent: true,
        ..StreamOptions::default()
    };
    let urgent = Stream::new(device, urgent).expect("a stream");
    let (first, second) = (stream(device), urgent);
    let memory = region(device, 1 << 20);
    for round in 0..10u8 {
        let bytes = pattern(1 << 20, round);
        let filled = first.upload(host(&bytes), 0, &memory);
        let ordered = second.after(&first);
        let got = second.download(&memory, host(&vec![0; 1 << 20]), 0).await;
        assert!(filled.is_over() || ordered.is_over());
        assert_eq!(got.0, Ok(()));
        assert_eq!(got.1.as_slice(), bytes, "round {round}");
        assert_eq!((filled.await.0, ordered.await.0), (Ok(()), Ok(())));
    }
    assert_eq!(first.flushed().await.0, Ok(()));
}

pub(crate) async fn a_dropped_future_leaves_its_memory_with_the_device(device: &Device) {
    let stream = stream(device);
    let used = arena().used_bytes();
    let memory = region(device, 1 << 20);
    let bytes = pattern(1 << 20, 9);
    drop(stream.upload(host(&bytes), 0, &memory));
    assert!(arena().used_bytes() > used, "the device has it");
    let waits = time::timeout(
        std::time::Duration::ZERO,
        stream.copy(&memory, &memory.slice(0..1 << 20)),
    );
    let _timed_out_or_done = waits.await;
    // Handles go, operations stay.
    let other = region(device, 1 << 20);
    drop((stream.copy(&memory, &other), memory));
    let nobodys = region(device, 1 << 20);
    drop((stream.copy(&other, &nobodys), nobodys));
    assert_eq!(seen(&stream, &other).await, bytes);
    assert_eq!(stream.in_flight(), 0);
    assert_eq!(arena().used_bytes(), used, "and gives it back");
    // A stream goes on without its handle, too.
    drop(stream.upload(host(&bytes), 0, &other));
    drop(stream);
    let began = time::now();
    while arena().used_bytes() > used {
        assert!(time::now().since(began) < SOON);
        time::sleep(std::time::Duration::from_micros(100)).await;
    }
}

async fn what_does_not_fit_is_refused_and_comes_back(device: &Device) {
    let stream = stream(device);
    let memory = region(device, 1000);
    for (len, at) in [(999, 0), (1000, 1), (1000, usize::MAX)] {
        let (result, lent) = stream.upload(host(&pattern(len, 0)), at, &memory).await;
        assert_eq!((result, lent.len()), (Err(CopyError::Range), len));
    }
    let (result, _) = stream.upload(host(&pattern(1001, 0)), 1, &memory).await;
    assert_eq!(result, Ok(()));
    let empty = memory.slice(1000..1000);
    assert_eq!(stream.copy(&empty, &empty).await.0, Err(CopyError::Range));
    let other = region(device, 1001);
    assert_eq!(stream.copy(&memory, &other).await.0, Err(CopyError::Range));
    assert_eq!(
        stream.copy_pieces(&memory, &[], &other, None).await.0,
        Err(CopyError::Range)
    );
    let piece = |index, device_bytes| HostPiece {
        index,
        host_bytes: 0,
        device_bytes,
        len_bytes: 500,
    };
    for (pieces, error) in [
        ([piece(0, 0), piece(0, 500)], Ok(())),
        ([piece(0, 0), piece(0, 501)], Err(CopyError::Range)),
        ([piece(0, 0), piece(1, 0)], Err(CopyError::Range)),
    ] {
        let (result, _) = stream
            .upload_pieces(host(&[1; 500]), &pieces, &memory, None)
            .await;
        assert_eq!(result, error);
    }
    assert_eq!(stream.in_flight(), 0);
}

async fn names_go_stale(device: &Device) {
    let memory = region(device, 4096);
    let part = memory.slice(10..30);
    let name = part.name();
    let found = device.region(name).expect("it is there");
    assert_eq!((found.address(), found.len()), (part.address(), 20));
    let mut longer = name;
    longer.len_bytes = 4096 - 9;
    assert!(device.region(longer).is_none(), "it ends behind the region");
    drop((memory, part));
    assert!(device.region(name).is_some(), "held by what was found");
    drop(found);
    assert!(device.region(name).is_none());
    let next = region(device, 4096);
    assert_ne!(
        next.name().generation,
        name.generation,
        "a later one at its place"
    );
    assert!(device.region(name).is_none());
}

async fn pools_hand_out_what_they_have(device: &Device) {
    let stream = stream(device);
    let pool = DevicePool::new(device, 64 << 10).expect("device memory");
    let parts: Vec<_> = (0..16u8).map(|_| pool.alloc(4096).expect("room")).collect();
    assert_eq!(pool.alloc(1).err(), Some(SetupError::Full));
    assert!(SetupError::Full.is_backpressure());
    assert_eq!(pool.alloc(0).err(), Some(SetupError::Size));
    for (part, which) in parts.iter().zip(0..) {
        fill(&stream, part, &pattern(4096, which)).await;
    }
    for (part, which) in parts.iter().zip(0..) {
        assert_eq!(seen(&stream, part).await, pattern(4096, which));
    }
    // A part in flight is not handed out again.
    let last = pool.used_bytes();
    let reading = stream.download(&parts[3], host(&[0; 4096]), 0);
    drop(parts);
    assert!(pool.used_bytes() >= 4096 || reading.is_over());
    let (result, bytes) = reading.await;
    assert_eq!(
        (result, bytes.as_slice()),
        (Ok(()), pattern(4096, 3).as_slice())
    );
    assert_eq!((last, pool.used_bytes()), (64 << 10, 0));
    assert_eq!(DeviceRegion::alloc(device, 0).err(), Some(SetupError::Size));
}
