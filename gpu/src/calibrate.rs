//! Which way is the fastest here: measured once, when a program starts.

use std::time::Duration;

use lunette_gpu_proto::layout::{Layout, LayoutError, PAGE_FIRST, Shape};
use lunette_gpu_proto::planner::{Cost, Direction, Method, PROBES, Planner, Probe};
use lunette_gpu_proto::transfer::{PagePair, PageTransfer};
use lunette_runtime::arena::RegionMut;
use lunette_runtime::{arena, time};
use thiserror::Error;

use crate::error::{CopyError, SetupError};
use crate::region::DeviceRegion;
use crate::stream::Stream;

/// How often each probe is run; the fastest counts.
const RUNS: usize = 4;

/// Why nothing was measured. Copies work without, one by one.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum CalibrateError {
    /// There is no room for what is copied, in the device or in the core's arena.
    #[error("no room for the copies: {0}")]
    Room(SetupError),
    /// A copy failed.
    #[error("a copy failed: {0}")]
    Copy(#[from] CopyError),
}

impl From<SetupError> for CalibrateError {
    fn from(error: SetupError) -> Self {
        Self::Room(error)
    }
}

/// What is copied.
struct Ground {
    spread: DeviceRegion,
    dense: DeviceRegion,
    host: Option<RegionMut>,
}

impl Stream {
    /// Measures each method in each direction with copies of at most 16 MiB and lets the device use
    /// what is the fastest from then on. It takes about 10 ms, and other streams make it worse.
    ///
    /// # Errors
    /// [`CalibrateError`]; nothing is changed then.
    pub async fn calibrate(&self) -> Result<Planner, CalibrateError> {
        let most = PROBES
            .iter()
            .map(|probe| probe.bytes())
            .max()
            .expect("probes");
        let len = usize::try_from(most).expect("a small number");
        let host = arena().alloc(len);
        let mut ground = Ground {
            spread: DeviceRegion::alloc(self.device(), 2 * most)?,
            dense: DeviceRegion::alloc(self.device(), most)?,
            host: Some(host.map_err(|_| SetupError::Full)?),
        };
        let mut planner = Planner::new();
        for direction in Direction::ALL {
            for method in Method::ALL {
                let cost = if self.can(method) {
                    self.cost(&mut ground, direction, method).await?
                } else {
                    None
                };
                planner.learn(direction, method, cost);
            }
        }
        self.device().set_planner(planner);
        Ok(planner)
    }

    fn can(&self, method: Method) -> bool {
        match method {
            Method::Dma => true,
            Method::BatchedDma => self.device().info().has_batches,
            Method::Kernel => self.options().blocks_max > 0,
        }
    }

    async fn cost(
        &self,
        ground: &mut Ground,
        direction: Direction,
        method: Method,
    ) -> Result<Option<Cost>, CalibrateError> {
        let mut times = [Duration::MAX; PROBES.len()];
        for (best, probe) in times.iter_mut().zip(PROBES) {
            for _ in 0..RUNS {
                match self.probe(ground, direction, method, probe).await {
                    Ok(took) => *best = took.min(*best),
                    // What every device has must work; of another method nothing is known then.
                    Err(CopyError::Failed(_)) if method != Method::Dma => return Ok(None),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(Cost::fit(times).ok())
    }

    /// One run of a probe: every other page of one cache, and all pages of another.
    async fn probe(
        &self,
        ground: &mut Ground,
        direction: Direction,
        method: Method,
        probe: Probe,
    ) -> Result<Duration, CopyError> {
        let transfer = spread_to_dense(probe).expect("probes are small");
        let page = |page| PagePair {
            from: 2 * page,
            to: page,
        };
        let pairs: Vec<PagePair> = (0..probe.pieces).map(page).collect();
        let back: Vec<PagePair> = pairs
            .iter()
            .map(|pair| PagePair {
                from: pair.to,
                to: pair.from,
            })
            .collect();
        let host = ground.host.take().expect("given back by each run");
        let by = Some(method);
        let began = time::now();
        let (result, host) = match direction {
            Direction::DeviceToHost => {
                let pages = (&transfer, pairs.as_slice());
                self.gather_pages(pages, &ground.spread, (host, 0), by)
                    .await
            }
            Direction::HostToDevice => {
                let reversed = transfer.reversed();
                let pages = (&reversed, back.as_slice());
                self.scatter_pages(pages, (host, 0), &ground.spread, by)
                    .await
            }
            Direction::DeviceToDevice => {
                let pages = (&transfer, pairs.as_slice());
                let moved = self.move_pages(pages, &ground.spread, &ground.dense, by);
                (moved.await.0, host)
            }
        };
        let took = time::now().since(began);
        ground.host = Some(host);
        result?;
        Ok(took)
    }
}

/// Every other page of one cache to the pages of another one.
fn spread_to_dense(probe: Probe) -> Result<PageTransfer, LayoutError> {
    let shape = Shape::latent(1, 1, probe.piece_bytes);
    let spread = Layout::new(shape, 2 * probe.pieces, PAGE_FIRST)?;
    let dense = Layout::new(shape, probe.pieces, PAGE_FIRST)?;
    Ok(PageTransfer::new(&spread, &dense).expect("of one shape"))
}
