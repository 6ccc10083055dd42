//! Gets of the store into a device's memory, end to end: of a member on this host, on a core of its own.

use std::time::Duration;

use lunette_bench::coordinator::{self, loopback};
use lunette_gpu::{Device, DeviceRegion, Stream, StreamOptions};
use lunette_kvstore::{
    ClusterClient, ClusterClientOptions, ClusterOptions, DeviceClient, DeviceFetched, Node,
    NodeOptions, PutOptions,
};
use lunette_runtime::{CoreOptions, Idle, Placement, arena, block_on, time};
use lunette_runtime_core::ids::NodeId;
use lunette_transfer::engine::DeviceSegment;

use crate::device::{Choice, open};
use crate::table::{Row, Table};

/// What is got: so many pages, each an object of its own.
pub(crate) const PAGES: usize = 256;
pub(crate) const PAGE_BYTES: usize = 64 << 10;
/// Memory of the member.
const MEMBER_BYTES: u64 = 256 << 20;
/// Bytes on their way between the store and the device.
const STAGING_BYTES_MAX: usize = 64 << 20;
/// Measurements of one figure; the best counts, of those of one page the middle.
const RUNS: usize = 20;
const SINGLE_RUNS: usize = 200;
/// What its rows begin with.
pub(crate) const NAME: &str = "store get";

/// Why a figure is missing.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Adds what is measured of the store.
pub(crate) fn measure(choice: Choice, table: &mut Table) {
    match rows(choice) {
        Ok(rows) => table.rows.extend(rows),
        Err(failure) => table.missing("store get into device memory, end to end", failure),
    }
}

fn rows(choice: Choice) -> Result<Vec<Row>, Failure> {
    let (_coordinator, coordinator) = coordinator::start()?;
    let mut options = NodeOptions::new(NodeId(1), loopback(), MEMBER_BYTES);
    options.placement = Placement::Anywhere(1);
    options.idle = Idle::Adaptive(Duration::from_micros(100));
    options.cluster = Some(ClusterOptions::new("gpu", vec![coordinator]));
    let node = Node::start(options)?;
    node.joined()?;
    let address = node.address();
    let core = CoreOptions {
        idle: Idle::Latency,
        ..CoreOptions::default()
    };
    block_on(None, core, move || async move {
        // First: without one there is nothing to measure.
        let device = open(choice)?;
        let mut rows = Vec::new();
        for (how, one_sided_from_bytes) in [("copied by who asks", Some(1)), ("sent", None)] {
            let options = ClusterClientOptions {
                one_sided_from_bytes,
                ..ClusterClientOptions::new(vec![address])
            };
            let client = ClusterClient::connect(options).await?;
            let client = DeviceClient::new(client, STAGING_BYTES_MAX);
            rows.extend(gets(&device, &client, how).await?);
        }
        Ok(rows)
    })?
}

async fn gets(device: &Device, client: &DeviceClient, how: &str) -> Result<[Row; 2], Failure> {
    let stream = Stream::new(device, StreamOptions::default())?;
    let memory = || -> Result<DeviceSegment, Failure> {
        let region = DeviceRegion::alloc(device, (PAGES * PAGE_BYTES) as u64)?;
        Ok(DeviceSegment::new(region, stream.clone()))
    };
    let (from, to) = (memory()?, memory()?);
    let pages = bytes();
    upload(&from, &pages).await?;
    let page = |memory: &DeviceSegment, at: usize| {
        let begin = (at * PAGE_BYTES) as u64;
        memory.slice(begin..begin + PAGE_BYTES as u64)
    };
    let key = |at: usize| format!("gpu/{how}/{at}").into_bytes();
    let objects: Vec<_> = (0..PAGES)
        .map(|at| (key(at), vec![page(&from, at)]))
        .collect();
    for stored in client.put_all(&objects, PutOptions::default()).await {
        stored?;
    }
    // To other places than they lay: as a cache has them.
    let wanted: Vec<_> = (0..PAGES)
        .map(|at| (key(at), vec![page(&to, place(at))]))
        .collect();
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let began = time::now();
        let fetched = client.get_all(&wanted).await;
        best = best.min(time::now().since(began).as_secs_f64());
        for fetched in fetched {
            is_there(fetched?)?;
        }
    }
    let found = download(&to).await?;
    let is_right = (0..PAGES).all(|at| {
        let (from, to) = (at * PAGE_BYTES, place(at) * PAGE_BYTES);
        pages[from..from + PAGE_BYTES] == found[to..to + PAGE_BYTES]
    });
    if !is_right {
        return Err("what was got is not what was put".into());
    }
    let mut times = Vec::new();
    for at in 0..SINGLE_RUNS {
        let (key, to) = &wanted[at % PAGES];
        let began = time::now();
        let fetched = client.get(key, to).await;
        times.push(time::now().since(began).as_secs_f64());
        is_there(fetched?)?;
    }
    times.sort_by(f64::total_cmp);
    let bytes = u32::try_from(PAGES * PAGE_BYTES)?;
    Ok([
        row(
            format!("{NAME} of {PAGES} pages of 64 KiB to the device, {how}"),
            f64::from(bytes) / best / 1e9,
            "GB/s",
        ),
        row(
            format!("{NAME} of a page of 64 KiB to the device, {how}"),
            times[times.len() / 2] * 1e6,
            "us",
        ),
    ])
}

const fn row(name: String, ours: f64, unit: &'static str) -> Row {
    Row {
        name,
        ours,
        unit,
        beside: None,
        bar: None,
    }
}

/// Where a page goes.
const fn place(page: usize) -> usize {
    (page * 101 + 7) % PAGES
}

fn bytes() -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at.wrapping_mul(2_654_435_761) >> 7) & 0xff);
    (0..PAGES * PAGE_BYTES)
        .map(|at| byte(at).expect("a byte"))
        .collect()
}

async fn upload(to: &DeviceSegment, bytes: &[u8]) -> Result<(), Failure> {
    for (piece, at) in bytes.chunks(PAGE_BYTES).zip((0..).step_by(PAGE_BYTES)) {
        let mut from = arena().alloc(piece.len())?;
        from.as_mut_slice().copy_from_slice(piece);
        to.slice(at..at + piece.len() as u64)
            .upload(from.freeze())
            .await?;
    }
    Ok(())
}

async fn download(from: &DeviceSegment) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    for at in (0..from.len_bytes()).step_by(PAGE_BYTES) {
        let room = arena().alloc(PAGE_BYTES)?.expose();
        let part = from.slice(at..at + PAGE_BYTES as u64);
        part.download(room.clone()).await?;
        bytes.extend(room.to_vec());
    }
    Ok(bytes)
}

fn is_there(fetched: DeviceFetched) -> Result<(), Failure> {
    match fetched {
        DeviceFetched::Hit { .. } => Ok(()),
        DeviceFetched::Miss { .. } => Err("an object is gone".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gets_are_measured_on_the_fake_device() {
        let mut table = Table::default();
        measure(Choice::Fake, &mut table);
        assert!(table.missing.is_empty(), "{table}");
        let units: Vec<_> = table.rows.iter().map(|row| row.unit).collect();
        assert_eq!(units, ["GB/s", "us", "GB/s", "us"], "{table}");
        assert!(table.rows.iter().all(|row| row.ours > 0.0), "{table}");
    }

    #[test]
    fn without_a_device_the_figure_is_pending() {
        let mut table = Table::default();
        measure(Choice::Number(1000), &mut table);
        assert!(table.rows.is_empty());
        let [(what, reason)] = &table.missing[..] else {
            unreachable!("{table}");
        };
        assert!(what.contains("store get"), "{what}");
        assert!(
            reason.contains("CUDA") || reason.contains("no device"),
            "{reason}"
        );
    }
}
