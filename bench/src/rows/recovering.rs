//! How long a drive's log takes to open, by who has not written it, and how much of it is read for that: beside reading
//! all of it. It was not closed: the segment that was being written has no seal, and is read whole.

use std::path::Path;
use std::time::{Duration, Instant};

use lunette_bench::harness::{Goal, Sample};
use lunette_kvstore::drive::{Drive, DriveError, Opened};
use lunette_runtime::time;

use super::store_rows::bound;
use super::{Asking, Row, drive};

pub(super) const GIB: u64 = 1 << 30;
pub(super) const MS_PER_S: f64 = 1e3;
const MIB: f64 = (1 << 20) as f64;
const GIB_IN_MIB: f64 = 1024.0;
/// How often it is looked whether the former life has ended.
const TRY_AGAIN: Duration = Duration::from_millis(1);

/// What is told of a log of a GiB of objects of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fact {
    /// Milliseconds until it is open.
    Time {
        /// Length of an object.
        object_bytes: usize,
    },
    /// MiB that are read.
    Read {
        /// Length of an object.
        object_bytes: usize,
    },
}

/// Nothing is to be reached: it is told which is less.
const fn time_of(name: &'static str, object_bytes: usize) -> Row {
    Row {
        unit: "ms/GiB",
        rival_name: "fio, all of it",
        goal: Goal::Below,
        ..drive(name, drive::Work::Recover(Fact::Time { object_bytes }))
    }
}

const fn read_of(name: &'static str, object_bytes: usize) -> Row {
    Row {
        rival_name: "all of it",
        asking: Asking::Drive(drive::Work::Recover(Fact::Read { object_bytes })),
        ..bound(name, "MiB/GiB", Goal::Below, GIB_IN_MIB)
    }
}

pub(super) const ROWS: [Row; 4] = [
    time_of("drive_recover_1m", 1 << 20),
    time_of("drive_recover_64k", 64 << 10),
    read_of("drive_recover_reads_1m", 1 << 20),
    read_of("drive_recover_reads_64k", 64 << 10),
];

pub(super) async fn run(path: &Path, fact: Fact) -> Result<Sample, String> {
    let (Fact::Time { object_bytes } | Fact::Read { object_bytes }) = fact;
    let (drive, _) = drive::open(path).await.map_err(|error| error.to_string())?;
    let count = GIB / object_bytes as u64;
    drive::fill(&drive, count, object_bytes).await?;
    drop(drive);
    let (drive, opened, took) = reopen(path).await?;
    let recovery = opened.recovery.ok_or("there is a log")?;
    if drive.stats().records != count || !recovery.is_whole() {
        return Err(format!("{count} objects, and there are {recovery:?}"));
    }
    let gib = (count * object_bytes as u64) as f64 / GIB as f64;
    let value = match fact {
        Fact::Time { .. } => took.as_secs_f64() * MS_PER_S / gib,
        Fact::Read { .. } => recovery.read_bytes as f64 / MIB / gib,
    };
    let p99 = f64::NAN;
    Ok(Sample { value, p99 })
}

/// Opens what its former life is about to let go of.
async fn reopen(path: &Path) -> Result<(Drive, Opened, Duration), String> {
    loop {
        let begun = Instant::now();
        match drive::open(path).await {
            Ok((drive, opened)) => return Ok((drive, opened, begun.elapsed())),
            Err(DriveError::Taken { .. }) => time::sleep(TRY_AGAIN).await,
            Err(error) => return Err(error.to_string()),
        }
    }
}
