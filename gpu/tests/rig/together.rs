//! Copies of many pieces and regions as one operation, of what is seen of others, and what is summed on the way.

use std::sync::Arc;

use lunette_gpu::proto::crowd::LOOK_PERIOD;
use lunette_gpu::proto::planner::Method;
use lunette_gpu::{CopyError, Device, DeviceRegion, HostPiece, Stream, StreamOptions};
use lunette_runtime::arena::{RegionMut, View};
use lunette_runtime::time;
use lunette_runtime_core::checksum::crc32c;

use super::{SOON, host, pattern, region, seen, stream};

pub(super) async fn all(device: &Device) {
    pieces_go_to_regions_of_their_own(device).await;
    what_is_copied_is_summed(device).await;
    what_is_not_for_the_kernel_comes_back(device).await;
    memory_that_is_seen_is_copied_where_it_lies(device).await;
    looks_are_had_beside_what_is_under_way(device).await;
}

async fn pieces_go_to_regions_of_their_own(device: &Device) {
    let stream = stream(device);
    for by in [None, Some(Method::Dma), Some(Method::BatchedDma)] {
        let regions: Vec<DeviceRegion> = (1..20).map(|len| region(device, 100 * len)).collect();
        let whole = |index: usize, region: &DeviceRegion| {
            let piece = HostPiece {
                index,
                host_bytes: 7,
                device_bytes: 0,
                len_bytes: usize::try_from(region.len()).expect("short"),
            };
            (piece, region.clone())
        };
        let pieces = || -> Vec<_> {
            let each = regions.iter().enumerate();
            each.map(|(index, region)| whole(index, region)).collect()
        };
        let sources = (0..19u8).map(|which| host(&pattern(3000, which)).freeze());
        let sources: Vec<_> = sources.collect();
        let before = device.counts().operations;
        let (result, sources) = stream.upload_each(sources, &pieces(), by).await;
        assert_eq!((result, sources.len()), (Ok(()), 19));
        assert_eq!(device.counts().operations, before + 1);
        let rooms: Vec<_> = (0..19).map(|_| host(&[0; 3000])).collect();
        let (result, rooms) = stream.download_each(&pieces(), rooms, by).await;
        assert_eq!(result, Ok(()));
        for ((room, region), which) in rooms.iter().zip(&regions).zip(0..) {
            let len = usize::try_from(region.len()).expect("short");
            let expected = &pattern(3000, which)[7..7 + len];
            assert_eq!(room.as_slice()[7..7 + len], *expected);
            assert_eq!(seen(&stream, region).await, expected);
            assert!(room.as_slice()[7 + len..].iter().all(|byte| *byte == 0));
        }
        // Nothing is done of a list with a piece that does not fit.
        let mut wrong = pieces();
        wrong[18].0.device_bytes = 1;
        let (result, _) = stream.download_each(&wrong, rooms, by).await;
        assert_eq!(result, Err(CopyError::Range));
        let (result, _) = stream.upload_each(sources, &[], by).await;
        assert_eq!(result, Err(CopyError::Range));
    }
    assert_eq!(stream.in_flight(), 0);
}

async fn what_is_copied_is_summed(device: &Device) {
    let stream = stream(device);
    let lens = [16, 4096, (32 << 10) + 16, 300_000, 1 << 20];
    let regions: Vec<DeviceRegion> = lens.iter().map(|len| region(device, *len as u64)).collect();
    let piece = |index: usize| HostPiece {
        index,
        host_bytes: 32,
        device_bytes: 0,
        len_bytes: lens[index],
    };
    let pieces: Vec<_> = (regions.iter().cloned().enumerate())
        .map(|(index, region)| (piece(index), region))
        .collect();
    let bytes = |index: usize| pattern(lens[index] + 32, u8::try_from(index).expect("few"));
    let expected = |index: usize| crc32c(&bytes(index)[32..]);
    let sources = (0..lens.len()).map(|index| host(&bytes(index)).freeze());
    let before = device.counts().operations;
    let begun = stream.upload_summed(sources.collect::<Vec<_>>(), &pieces);
    let (result, summed) = begun.expect("whole vectors").await;
    assert_eq!((result, summed.host.len()), (Ok(()), lens.len()));
    assert_eq!(device.counts().operations, before + 1);
    for (index, region) in regions.iter().enumerate() {
        assert_eq!(
            summed.crc32c(index),
            expected(index),
            "{} bytes",
            lens[index]
        );
        assert!(seen(&stream, region).await == bytes(index)[32..]);
    }
    let rooms: Vec<RegionMut> = lens.map(|len| host(&vec![7; len + 40])).into();
    let begun = stream.download_summed(&pieces, rooms);
    let (result, summed) = begun.expect("whole vectors").await;
    assert_eq!(result, Ok(()));
    for (index, room) in summed.host.iter().enumerate() {
        assert_eq!(
            summed.crc32c(index),
            expected(index),
            "{} bytes",
            lens[index]
        );
        let room = room.as_slice();
        assert!(room[32..32 + lens[index]] == bytes(index)[32..]);
        assert!(
            room[..32]
                .iter()
                .chain(&room[32 + lens[index]..])
                .all(|byte| *byte == 7)
        );
    }
    assert_eq!(stream.in_flight(), 0);
}

async fn what_is_not_for_the_kernel_comes_back(device: &Device) {
    let stream = stream(device);
    let memory = region(device, 4096);
    let whole = HostPiece {
        index: 0,
        host_bytes: 32,
        device_bytes: 0,
        len_bytes: 4096,
    };
    // No whole vectors, from no multiple of one, beyond the end, of nobody's, and nothing.
    let wrong = |change: &dyn Fn(&mut HostPiece)| {
        let mut piece = whole;
        change(&mut piece);
        [(piece, memory.clone())]
    };
    for pieces in [
        wrong(&|piece| piece.len_bytes = 8),
        wrong(&|piece| piece.host_bytes = 24),
        wrong(&|piece| piece.device_bytes = 16),
        wrong(&|piece| piece.len_bytes = 0),
        wrong(&|piece| piece.index = 9),
    ] {
        let begun = stream.download_summed(&pieces, vec![host(&[0; 8192])]);
        assert_eq!(begun.err().map(|rooms| rooms.len()), Some(1));
    }
    let begun = stream.download_summed(&[], vec![host(&[0; 8192])]);
    assert!(begun.is_err());
    let none = StreamOptions {
        blocks_max: 0,
        ..StreamOptions::default()
    };
    let without = Stream::new(device, none).expect("a stream");
    let source = host(&[0; 8192]).freeze();
    let begun = without.upload_summed(vec![source], &wrong(&|_| {}));
    assert!(begun.is_err());
    assert_eq!(stream.in_flight(), 0);
}

/// Memory that is mapped for reading, as another process's is.
async fn memory_that_is_seen_is_copied_where_it_lies(device: &Device) {
    let (stream, unpinned) = (stream(device), device.counts().unpinned);
    let bytes = pattern(1 << 20, 3);
    let ours = host(&bytes).expose();
    let share = ours.share();
    // A world has no such memory.
    let Ok(share) = share else {
        return;
    };
    let view = View::map(share.memfd, share.offset_bytes, share.len_bytes).expect("sealed");
    let view = Arc::new(view);
    let parts = [region(device, 1000), region(device, 1 << 19)];
    let pieces: Vec<_> = parts
        .iter()
        .zip([5, 1 << 19])
        .map(|(part, host_bytes)| {
            let len_bytes = usize::try_from(part.len()).expect("short");
            let piece = HostPiece {
                index: 0,
                host_bytes,
                device_bytes: 0,
                len_bytes,
            };
            (piece, part.clone())
        })
        .collect();
    assert!(device.may_pin(&view) && !device.is_pinned(&view));
    assert_eq!(device.pin_view(&view).await, Ok(()));
    assert!(device.is_pinned(&view) && !device.may_pin(&view));
    assert_eq!(device.pin_view(&view).await, Ok(()), "again");
    for by in [Method::Dma, Method::BatchedDma] {
        let views = vec![Arc::clone(&view)];
        let (result, views) = stream.upload_each(views, &pieces, Some(by)).await;
        assert_eq!((result, views.len()), (Ok(()), 1));
        let kernel = stream.upload_summed(views, &pieces[1..]).expect("pinned");
        let (result, summed) = kernel.await;
        assert_eq!(
            (result, summed.crc32c(0)),
            (Ok(()), crc32c(&bytes[1 << 19..]))
        );
        assert_eq!(seen(&stream, &parts[0]).await, bytes[5..1005]);
        assert_eq!(seen(&stream, &parts[1]).await, bytes[1 << 19..]);
    }
    assert_eq!(device.counts().unpinned, unpinned);
    // The copy keeps it. Nobody else has it then, and it is let go of when something else is pinned.
    let copy = stream.upload_each(vec![view], &pieces[..1], None);
    let (result, views) = copy.await;
    assert_eq!((result, Arc::strong_count(&views[0])), (Ok(()), 2));
    drop(views);
    let share = ours.share().expect("as before");
    let other = View::map(share.memfd, share.offset_bytes, 4096).expect("sealed");
    assert_eq!(device.pin_view(&Arc::new(other)).await, Ok(()));
}

/// How long kernels wait is found out, by one look at a time, and by no more than one in a while.
async fn looks_are_had_beside_what_is_under_way(device: &Device) {
    let (mut judged, mut rounds) = (0, 0);
    while judged < 3 {
        rounds += 1;
        assert!(rounds < 1000, "this core is always held up");
        let before = device.counts().operations;
        let first_asked = time::now();
        let looked = async {
            // The end of the one before is told by a task: until then none is due.
            while device.counts().operations == before {
                (0..5).for_each(|_| device.look());
                time::sleep(LOOK_PERIOD / 10).await;
            }
        };
        assert_eq!(time::timeout(SOON, looked).await, Ok(()));
        time::yield_now().await;
        device.look();
        let operations = device.counts().operations - before;
        // The next one is due so long after the end of this one, and may be had by a core that was held up.
        if time::now() < first_asked + LOOK_PERIOD {
            assert_eq!(operations, 1);
            judged += 1;
        } else {
            time::sleep(LOOK_PERIOD * 2).await;
        }
    }
    println!("kernels wait {:?}", device.kernel_wait());
}
