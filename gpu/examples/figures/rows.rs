//! What is measured.

use lunette_gpu::proto::layout::{LAYER_FIRST, Layout, PAGE_FIRST, Shape};
use lunette_gpu::proto::planner::{Direction, Method};
use lunette_gpu::proto::transfer::{PagePair, PageTransfer};
use lunette_gpu::{CopyError, Device, DeviceRegion, HostPiece, Stream, StreamOptions};
use lunette_runtime::arena::RegionMut;
use lunette_runtime::{arena, time};

use crate::raw::{Plain, Way};
use crate::table::{Row, Table};

const GIB: usize = 1 << 30;
/// Longest region of the host that is used here.
const HOST_BYTES: usize = 64 << 20;
/// Bytes of one measurement, at least, where copies are short.
const BYTES_PER_RUN: usize = 256 << 20;
/// Copies of one measurement, at most.
const COPIES_MAX: usize = 128;
/// Measurements of one figure; the best counts.
const RUNS: usize = 5;
/// Fragments of a gather, and how many pages of the cache each fragment has.
const FRAGMENTS: u32 = 4096;
/// Blocks of a kernel that may take half of a device.
const WIDE_BLOCKS: u32 = 64;
/// Operations of the measurement of latency.
const LATENCIES: usize = 200;

/// Why a figure is missing.
type Failure = Box<dyn std::error::Error>;

/// Measures one after the other.
struct Bench<'a> {
    device: &'a Device,
    plain: Option<&'a Plain>,
    stream: Stream,
    table: Table,
}

/// All figures, or only those that differ when the core sleeps.
pub(crate) async fn all(device: &Device, plain: Option<&Plain>, latency_only: bool) -> Table {
    let stream = match Stream::new(device, StreamOptions::default()) {
        Ok(stream) => stream,
        Err(error) => return Table::pending(&error.to_string()),
    };
    let info = device.info();
    let mut bench = Bench {
        device,
        plain,
        stream,
        table: Table {
            device: format!("{} (driver {})", info.name, info.driver_version),
            ..Table::default()
        },
    };
    if latency_only {
        bench
            .take("event to future, asleep", Bench::latency_asleep)
            .await;
        return bench.table;
    }
    if plain.is_none() {
        let reason = "no room for plain copies, or no real device";
        bench
            .table
            .missing("what plain copies do beside ours", reason);
    }
    bench.take("large copies", Bench::large_copies).await;
    bench.take("lists", Bench::lists).await;
    bench.take("both directions", Bench::both_directions).await;
    bench.take("calibration", Bench::calibration).await;
    bench.take("gather", Bench::gathers).await;
    bench.take("layout transform", Bench::transform).await;
    bench.take("event to future", Bench::latency_awake).await;
    bench.table
}

fn host(len: usize) -> Result<RegionMut, Failure> {
    let mut region = arena().alloc(len)?;
    // Touched, so that it is memory.
    region.as_mut_slice().fill(1);
    Ok(region)
}

fn gigabytes(bytes: usize, seconds: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a figure of three digits")]
    let bytes = bytes as f64;
    bytes / seconds / 1e9
}

fn name_of(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..GIB => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

impl Bench<'_> {
    async fn take(
        &mut self,
        name: &str,
        figure: impl AsyncFnOnce(&mut Self) -> Result<(), Failure>,
    ) {
        if let Err(failure) = figure(self).await {
            self.table.missing(name, failure);
        }
    }

    fn row(
        &mut self,
        name: String,
        ours: f64,
        beside: Option<(f64, &'static str)>,
        bar: Option<f64>,
    ) {
        self.table.rows.push(Row {
            name,
            ours,
            unit: "GB/s",
            beside,
            bar,
        });
    }

    /// The best of some runs of the driver alone, in GB/s.
    fn plainly(
        &self,
        way: Way,
        count: usize,
        len: usize,
        gap: usize,
    ) -> Option<(f64, &'static str)> {
        let plain = self.plain?;
        let runs = (0..RUNS).filter_map(|_| plain.seconds(way, count, len, gap));
        let best = runs.min_by(f64::total_cmp)?;
        Some((gigabytes(count * len, best), "plain"))
    }

    fn region(&self, len: usize) -> Result<DeviceRegion, Failure> {
        Ok(DeviceRegion::alloc(self.device, len as u64)?)
    }

    /// Copies of one length, one behind the other.
    async fn large_copies(&mut self) -> Result<(), Failure> {
        let memory = self.region(GIB)?;
        for len in [
            64 << 10,
            256 << 10,
            1 << 20,
            4 << 20,
            16 << 20,
            64 << 20,
            GIB,
        ] {
            for (way, name) in [(Way::HostToDevice, "H2D"), (Way::DeviceToHost, "D2H")] {
                let count = (BYTES_PER_RUN / len).clamp(1, COPIES_MAX);
                let mut best = f64::INFINITY;
                let mut parts = parts_of(count, len)?;
                for _ in 0..RUNS {
                    let began = time::now();
                    parts = self.copies(way, &memory, count, parts).await?;
                    best = best.min(time::now().since(began).as_secs_f64());
                }
                let beside = self.plainly(way, count, len, 0);
                let bar = (len >= 16 << 20).then_some(0.98);
                let ours = gigabytes(count * len, best);
                self.row(format!("{name} {}", name_of(len)), ours, beside, bar);
            }
        }
        Ok(())
    }

    /// `count` operations of the same parts of the host, all but the last one with host memory of
    /// their own.
    async fn copies(
        &self,
        way: Way,
        memory: &DeviceRegion,
        count: usize,
        parts: Vec<Vec<RegionMut>>,
    ) -> Result<Vec<Vec<RegionMut>>, Failure> {
        let mut operations = Vec::new();
        let mut waiting = std::collections::VecDeque::from(parts);
        for _ in 0..count {
            let lent = match waiting.pop_front() {
                Some(lent) => lent,
                // All host memory is in flight: the oldest operation gives some back.
                None => self.next(&mut operations).await?,
            };
            let pieces = pieces_of(&lent);
            operations.push(match way {
                Way::DeviceToHost => self.stream.download_pieces(memory, &pieces, lent, None),
                _ => self.stream.upload_pieces(lent, &pieces, memory, None),
            });
        }
        while !operations.is_empty() {
            waiting.push_back(self.next(&mut operations).await?);
        }
        Ok(waiting.into())
    }

    async fn next(
        &self,
        operations: &mut Vec<lunette_gpu::Operation<Vec<RegionMut>>>,
    ) -> Result<Vec<RegionMut>, Failure> {
        let (result, lent) = operations.remove(0).await;
        result?;
        Ok(lent)
    }

    /// Many small blocks as one operation, beside as many plain copies.
    async fn lists(&mut self) -> Result<(), Failure> {
        let memory = self.region(2 * HOST_BYTES)?;
        for (count, len) in [(4096, 4 << 10), (1024, 64 << 10)] {
            for (way, name) in [(Way::HostToDevice, "H2D"), (Way::DeviceToHost, "D2H")] {
                let piece = |index: usize| HostPiece {
                    index: 0,
                    host_bytes: index * len,
                    device_bytes: (index * 2 * len) as u64,
                    len_bytes: len,
                };
                let pieces: Vec<HostPiece> = (0..count).map(piece).collect();
                let methods = [(Method::Dma, "one by one"), (Method::BatchedDma, "batched")];
                for (method, how) in methods {
                    let mut best = f64::INFINITY;
                    let mut lent = host(count * len)?;
                    for _ in 0..RUNS {
                        let began = time::now();
                        let by = Some(method);
                        let operation = match way {
                            Way::DeviceToHost => {
                                self.stream.download_pieces(&memory, &pieces, lent, by)
                            }
                            _ => self.stream.upload_pieces(lent, &pieces, &memory, by),
                        };
                        let (result, back) = operation.await;
                        result?;
                        lent = back;
                        best = best.min(time::now().since(began).as_secs_f64());
                    }
                    let beside = self.plainly(way, count, len, len);
                    let bar = (method == Method::BatchedDma).then_some(1.0);
                    let name = format!("{name} list of {count} x {}, {how}", name_of(len));
                    self.row(name, gigabytes(count * len, best), beside, bar);
                }
            }
        }
        Ok(())
    }

    async fn both_directions(&mut self) -> Result<(), Failure> {
        let back = Stream::new(self.device, StreamOptions::default())?;
        let (first, second) = (self.region(HOST_BYTES)?, self.region(HOST_BYTES)?);
        let (mut up, mut down) = (host(HOST_BYTES)?, host(HOST_BYTES)?);
        let mut best = f64::INFINITY;
        for _ in 0..2 * RUNS {
            let began = time::now();
            let upload = self.stream.upload(up, 0, &first);
            let download = back.download(&second, down, 0);
            let ((sent, a), (got, b)) = (upload.await, download.await);
            sent.and(got)?;
            (up, down) = (a, b);
            best = best.min(time::now().since(began).as_secs_f64());
        }
        let ours = gigabytes(2 * HOST_BYTES, best);
        self.row(
            "both directions at once, 64 MiB each".to_owned(),
            ours,
            None,
            None,
        );
        Ok(())
    }

    async fn calibration(&mut self) -> Result<(), Failure> {
        let began = time::now();
        let planner = self.stream.calibrate().await?;
        let took = time::now().since(began).as_secs_f64();
        for direction in Direction::ALL {
            for method in Method::ALL {
                let cost = planner.cost(direction, method);
                eprintln!("{direction:?} {method:?}: {cost:?}");
            }
        }
        self.table.rows.push(Row {
            name: "calibration of all ways".to_owned(),
            ours: took * 1e6,
            unit: "us",
            beside: None,
            bar: None,
        });
        Ok(())
    }

    /// Every other page of a layer-first cache to dense blocks in the host.
    async fn gathers(&mut self) -> Result<(), Failure> {
        let wide = StreamOptions {
            blocks_max: WIDE_BLOCKS,
            ..StreamOptions::default()
        };
        let (narrow, wide) = (self.stream.clone(), Stream::new(self.device, wide)?);
        let ways = [
            (&narrow, Some(Method::Dma), "one by one"),
            (&narrow, Some(Method::BatchedDma), "batched"),
            (&narrow, Some(Method::Kernel), "kernel of 16 blocks"),
            (&wide, Some(Method::Kernel), "kernel of 64 blocks"),
            (&narrow, None, "as planned"),
        ];
        for len in [16 << 10, 32 << 10, 64 << 10] {
            let large = self.large(Direction::DeviceToHost).await?;
            for (stream, by, how) in ways {
                let seconds = self.gather(stream, len, by).await?;
                let bytes = FRAGMENTS as usize * len;
                let name = format!("gather {FRAGMENTS} x {} to the host, {how}", name_of(len));
                let bar = by.is_none().then_some(0.90);
                let beside = Some((large, "one large copy"));
                self.row(name, gigabytes(bytes, seconds), beside, bar);
            }
        }
        Ok(())
    }

    /// GB/s of copies of 64 MiB.
    async fn large(&self, direction: Direction) -> Result<f64, Failure> {
        let (from, to) = (self.region(HOST_BYTES)?, self.region(HOST_BYTES)?);
        let mut lent = host(HOST_BYTES)?;
        let mut best = f64::INFINITY;
        for _ in 0..2 * RUNS {
            let began = time::now();
            if direction == Direction::DeviceToDevice {
                self.stream.copy(&from, &to).await.0?;
            } else {
                let (result, back) = self.stream.download(&from, lent, 0).await;
                result?;
                lent = back;
            }
            best = best.min(time::now().since(began).as_secs_f64());
        }
        Ok(gigabytes(HOST_BYTES, best))
    }

    /// Seconds for all fragments, in operations of as much as a region of the host holds.
    async fn gather(
        &self,
        stream: &Stream,
        len: usize,
        by: Option<Method>,
    ) -> Result<f64, Failure> {
        let row_bytes = u32::try_from(len)?;
        // Two layers, so that a page is two fragments: keys and values of MLA are one.
        let shape = Shape::latent(2, 1, row_bytes);
        let pages_per_operation = u32::try_from(HOST_BYTES / (2 * len))?;
        let pages = FRAGMENTS / 2;
        let cache = Layout::new(shape, 2 * pages, LAYER_FIRST)?;
        let blocks = Layout::new(shape, pages_per_operation.min(pages), PAGE_FIRST)?;
        let transfer = PageTransfer::new(&cache, &blocks)?;
        let memory = DeviceRegion::alloc(self.device, cache.len_bytes())?;
        let all: Vec<PagePair> = (0..pages)
            .map(|page| PagePair {
                from: 2 * page,
                to: page % pages_per_operation,
            })
            .collect();
        let mut best = f64::INFINITY;
        let count = all.len().div_ceil(pages_per_operation as usize);
        let rooms = (0..count).map(|_| host(usize::try_from(blocks.len_bytes())?));
        let mut rooms: Vec<RegionMut> = rooms.collect::<Result<_, Failure>>()?;
        for _ in 0..RUNS {
            let began = time::now();
            let lists = all.chunks(pages_per_operation as usize);
            let operations: Vec<_> = lists
                .zip(rooms.drain(..))
                .map(|(pairs, room)| {
                    stream.gather_pages((&transfer, pairs), &memory, (room, 0), by)
                })
                .collect();
            for operation in operations {
                let (result, room) = operation.await;
                result?;
                rooms.push(room);
            }
            best = best.min(time::now().since(began).as_secs_f64());
        }
        Ok(best)
    }

    /// Pages of a layer-first cache of an 8-head model to dense blocks, all inside the device.
    async fn transform(&mut self) -> Result<(), Failure> {
        let shape = Shape::multi_head(32, 16, 8, 256);
        let cache = Layout::new(shape, 128, LAYER_FIRST)?;
        let blocks = Layout::new(shape, 64, PAGE_FIRST)?;
        let transfer = PageTransfer::new(&cache, &blocks)?;
        let from = DeviceRegion::alloc(self.device, cache.len_bytes())?;
        let to = DeviceRegion::alloc(self.device, blocks.len_bytes())?;
        let pair = |page| PagePair {
            from: 2 * page,
            to: page,
        };
        let pairs: Vec<PagePair> = (0..64).map(pair).collect();
        let large = self.large(Direction::DeviceToDevice).await?;
        let beside = self.plainly(Way::DeviceToDevice, 4, HOST_BYTES, 0);
        self.row("copy in the device, 64 MiB".to_owned(), large, beside, None);
        for blocks_max in [16, 64, 256] {
            let options = StreamOptions {
                blocks_max,
                ..StreamOptions::default()
            };
            let stream = Stream::new(self.device, options)?;
            let mut best = f64::INFINITY;
            for _ in 0..2 * RUNS {
                let began = time::now();
                let pages = (&transfer, pairs.as_slice());
                stream
                    .move_pages(pages, &from, &to, Some(Method::Kernel))
                    .await
                    .0?;
                best = best.min(time::now().since(began).as_secs_f64());
            }
            let bytes = usize::try_from(blocks.len_bytes())?;
            let name = format!("layout transform in the device, {} blocks", blocks_max);
            let beside = Some((large, "one large copy"));
            let bar = (blocks_max == 256).then_some(0.80);
            self.row(name, gigabytes(bytes, best), beside, bar);
        }
        Ok(())
    }

    async fn latency_awake(&mut self) -> Result<(), Failure> {
        let beside = self.plain.and_then(|plain| {
            let runs = (0..LATENCIES).filter_map(|_| plain.seconds(Way::HostToDevice, 1, 4096, 0));
            median(runs.collect())
        });
        let beside = beside.map(|seconds| (seconds * 1e6, "synchronised"));
        self.latency("4 KiB H2D to its future, core awake", beside)
            .await
    }

    async fn latency_asleep(&mut self) -> Result<(), Failure> {
        self.latency("4 KiB H2D to its future, core asleep", None)
            .await
    }

    async fn latency(
        &mut self,
        name: &str,
        beside: Option<(f64, &'static str)>,
    ) -> Result<(), Failure> {
        let memory = self.region(4096)?;
        let (mut lent, mut times) = (host(4096)?, Vec::new());
        for _ in 0..LATENCIES {
            let began = time::now();
            let (result, back) = self.stream.upload(lent, 0, &memory).await;
            result?;
            lent = back;
            times.push(time::now().since(began).as_secs_f64());
        }
        let ours = median(times).ok_or(CopyError::Range)? * 1e6;
        self.table.rows.push(Row {
            name: name.to_owned(),
            ours,
            unit: "us",
            beside,
            bar: None,
        });
        Ok(())
    }
}

fn median(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

/// Host memory for so many operations of so many bytes, as far as there is room.
fn parts_of(count: usize, len: usize) -> Result<Vec<Vec<RegionMut>>, Failure> {
    let operations = (8 * HOST_BYTES / len).clamp(1, count);
    let one = || -> Result<Vec<RegionMut>, Failure> {
        let regions = (0..len.div_ceil(HOST_BYTES)).map(|_| host(len.min(HOST_BYTES)));
        regions.collect()
    };
    (0..operations).map(|_| one()).collect()
}

fn pieces_of(regions: &[RegionMut]) -> Vec<HostPiece> {
    let piece = |(index, region): (usize, &RegionMut)| HostPiece {
        index,
        host_bytes: 0,
        device_bytes: (index * HOST_BYTES) as u64,
        len_bytes: region.len(),
    };
    regions.iter().enumerate().map(piece).collect()
}
