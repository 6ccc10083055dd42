//! A drive of a core, beside fio on a file as long: records of 1 MiB, around the page cache. Sixteen are read at a
//! time, as fio does. More wait to be written, as they do where memory is short: how many of them go to the drive at
//! a time is the drive's choice, and what fio writes is not made durable.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lunette_bench::harness::{Failure, Plan, Sample};
use lunette_kvstore::drive::{
    ClaimTerms, Drive, DriveError, DriveOptions, Format, Keeper, Loss, Medium, Opened,
};
use lunette_kvstore_log::format::superblock::Identity;
use lunette_kvstore_log::options::LogOptions;
use lunette_kvstore_log::record::{Fingerprint, Record, Version};
use lunette_runtime::arena::Region;
use lunette_runtime::{CoreOptions, arena, block_on, spawn_local, time};
use lunette_runtime_core::checksum::crc32c;

use super::{recovering, tier};

/// Room of each side.
const CAPACITY_BYTES: u64 = 2 << 30;
pub(super) const RECORD_BYTES: usize = 1 << 20;
pub(super) const AT_A_TIME: usize = 16;
/// Records that wait to be durable.
const WAITING: usize = 48;
/// Longest latency that is told apart from longer ones.
pub(super) const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// What a run appends: once and a half what there is room for.
const APPENDED: u64 = 3 << 10;
/// What a run reads, all of which is there.
const READ: u64 = 1 << 10;

/// As many and as long as everything else here.
pub(super) const SIXTEEN: Gets = Gets {
    depth: AT_A_TIME,
    bytes: RECORD_BYTES,
};

/// What is done again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Records are appended, and the oldest make room.
    Append,
    /// Records are read in an order that no drive foresees.
    Read,
    /// A member's memory is full, and what leaves it is written.
    Demote,
    /// What has left it is got by a client.
    Cold(Gets),
    /// A short object is got while what leaves memory is written, beside as many puts without a drive.
    GetBeside,
    /// A log of a GiB is opened by who has not written it.
    Recover(recovering::Fact),
}

/// Gets of what is on the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gets {
    /// How many at a time.
    pub(super) depth: usize,
    /// Length of the objects: a multiple of that of others.
    pub(super) bytes: usize,
}

/// Where both sides have their files; it goes with them.
pub(super) struct Files {
    folder: PathBuf,
    /// What our side has put in a second, if it was last that.
    puts_per_s: Cell<Option<f64>>,
}

impl Files {
    /// Writes both files once, so that neither side is measured while the file system gives it its room.
    pub(super) fn make() -> Result<Self, Failure> {
        // Below the folder of builds, which is on a drive: the one of temporary files may be in memory.
        let program = std::env::current_exe()?;
        let builds = program.parent().ok_or("a program lies in a folder")?;
        let folder = builds.join(format!("bench-drive.{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let files = Self {
            folder,
            puts_per_s: Cell::default(),
        };
        let zeros = vec![0; RECORD_BYTES];
        for path in [files.ours(), files.rivals()] {
            let mut file = File::create(path)?;
            for _ in 0..CAPACITY_BYTES / RECORD_BYTES as u64 {
                file.write_all(&zeros)?;
            }
            file.sync_all()?;
        }
        Ok(files)
    }

    fn ours(&self) -> PathBuf {
        self.folder.join("lunette-0.log")
    }

    fn rivals(&self) -> PathBuf {
        self.folder.join("rivals")
    }

    /// Our side, once: a drive that was just formatted.
    pub(super) fn measure(&self, work: Work, plan: &Plan) -> Result<Sample, Failure> {
        let path = self.ours();
        blank(&path)?;
        match work {
            Work::Demote => return tier::demoted(self.folder.clone(), CAPACITY_BYTES, plan),
            Work::Cold(gets) => {
                return tier::cold((self.folder.clone(), CAPACITY_BYTES), gets, plan);
            }
            Work::GetBeside => {
                let drive = Some((self.folder.clone(), CAPACITY_BYTES));
                let (sample, puts_per_s) = tier::got_beside(drive, None, plan)?;
                self.puts_per_s.set(Some(puts_per_s));
                return Ok(sample);
            }
            Work::Append | Work::Read | Work::Recover(_) => {}
        }
        let cpu = plan.client_cpu;
        let sample = std::thread::spawn(move || {
            block_on(Some(cpu), CoreOptions::default(), move || run(path, work))
                .map_err(|error| error.to_string())?
        });
        Ok(sample.join().map_err(|_| "the core panicked")??)
    }

    /// fio's, as the program tells it, or that of a member without a drive.
    pub(super) fn rival(&self, work: Work, plan: &Plan) -> Result<Sample, Failure> {
        let (how, section, count) = match work {
            Work::GetBeside => {
                let puts_per_s = self.puts_per_s.get();
                return Ok(tier::got_beside(None, puts_per_s, plan)?.0);
            }
            Work::Append | Work::Demote => ("write", "write", APPENDED),
            Work::Read | Work::Cold(_) => ("randread", "read", READ),
            Work::Recover(_) => ("read", "read", READ),
        };
        let Gets { depth, bytes } = match work {
            Work::Cold(gets) => gets,
            _ => SIXTEEN,
        };
        let mut fio = Command::new("fio");
        fio.args(["--name=row", "--ioengine=io_uring", "--direct=1"])
            .arg(format!("--bs={bytes}"))
            .args(["--output-format=json", &format!("--rw={how}")])
            .arg(format!("--filename={}", self.rivals().display()))
            .arg(format!("--iodepth={depth}"))
            .arg(format!("--size={CAPACITY_BYTES}"))
            .arg(format!("--io_size={}", count * RECORD_BYTES as u64))
            .arg(format!("--cpus_allowed={}", plan.client_cpu));
        let output = fio.output().map_err(|error| format!("fio: {error}"))?;
        let told: serde_json::Value = serde_json::from_slice(&output.stdout)
            .map_err(|_| format!("fio: {}", String::from_utf8_lossy(&output.stderr)))?;
        let told = &told["jobs"][0][section];
        let number = |value: &serde_json::Value| value.as_f64().ok_or("fio told no number");
        if let Work::Recover(_) = work {
            let ms = recovering::MS_PER_S * recovering::GIB as f64 / number(&told["bw_bytes"])?;
            let p99 = f64::NAN;
            return Ok(Sample { value: ms, p99 });
        }
        Ok(Sample {
            value: number(&told["bw_bytes"])? / 1e9,
            p99: number(&told["clat_ns"]["percentile"]["99.000000"])? / 1e3,
        })
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// Nothing where superblocks would be.
fn blank(path: &Path) -> Result<(), Failure> {
    let mut file = File::options().write(true).open(path)?;
    file.write_all(&[0; 64 << 10])?;
    Ok(file.sync_all()?)
}

/// What is oldest goes.
struct Nothing;

impl Keeper for Nothing {
    fn keeps(&self, _record: Record) -> bool {
        false
    }

    fn lost(&self, _fingerprint: Fingerprint, _version: Version, _loss: Loss) {}

    fn failed(&self) {}
}

/// The drive in this file, and what was read of it for that.
pub(super) async fn open(path: &Path) -> Result<(Drive, Opened), DriveError> {
    let identity = Identity {
        cluster: 1,
        device: 1,
    };
    let mut log = LogOptions::new(identity, CAPACITY_BYTES);
    log.records_max = 1 << 16;
    let options = DriveOptions {
        medium: Medium::File(path.to_owned()),
        begin_bytes: 0,
        claim: ClaimTerms::default(),
        holders: None,
        log,
        format: Format::Blank,
    };
    Drive::open(options, 0, Rc::new(Nothing)).await
}

/// Appends so many records of this length.
pub(super) async fn fill(drive: &Drive, count: u64, record_bytes: usize) -> Result<Sample, String> {
    let region = arena().alloc(record_bytes);
    let mut region = region.map_err(|error| error.to_string())?;
    region.as_mut_slice().fill(0x5a);
    let bytes = region.freeze();
    let crc = crc32c(bytes.as_slice());
    let append = |number| append(drive.clone(), bytes.clone(), crc, number);
    at_a_time(WAITING, count, append).await
}

async fn run(path: PathBuf, work: Work) -> Result<Sample, String> {
    if let Work::Recover(fact) = work {
        return recovering::run(&path, fact).await;
    }
    let (drive, _) = open(&path).await.map_err(|error| error.to_string())?;
    let appended = if work == Work::Append { APPENDED } else { READ };
    let sample = fill(&drive, appended, RECORD_BYTES).await?;
    if work == Work::Append {
        return Ok(sample);
    }
    at_a_time(AT_A_TIME, READ, |number| read(drive.clone(), number)).await
}

/// Does `count` things, `lanes` of which are under way.
pub(super) async fn at_a_time<F>(
    lanes: usize,
    count: u64,
    what: impl Fn(u64) -> F,
) -> Result<Sample, String>
where
    F: Future<Output = Result<(), String>> + 'static,
{
    let latencies = Histogram::<u64>::new_with_bounds(1, LATENCY_NS_MAX, 3)
        .map_err(|error| error.to_string())?;
    let latencies = Rc::new(Cell::new(Some(latencies)));
    let begun = Instant::now();
    let under_way: Vec<_> = (0..lanes as u64)
        .map(|lane| {
            let todo: Vec<F> = (lane..count).step_by(lanes).map(&what).collect();
            let latencies = Rc::clone(&latencies);
            spawn_local(async move {
                for each in todo {
                    let begun = Instant::now();
                    each.await?;
                    let took = begun.elapsed();
                    if let Some(mut all) = latencies.take() {
                        all.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
                        latencies.set(Some(all));
                    }
                }
                Ok::<(), String>(())
            })
        })
        .collect();
    for lane in under_way {
        lane.await.map_err(|error| error.to_string())??;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let latencies = latencies.take().ok_or("the latencies are back")?;
    Ok(Sample {
        value: (count * RECORD_BYTES as u64) as f64 / seconds / 1e9,
        p99: latencies.value_at_quantile(0.99) as f64 / 1e3,
    })
}

fn name(number: u64) -> Vec<u8> {
    format!("model/layer/block/{number:016x}").into_bytes()
}

async fn append(drive: Drive, bytes: Region, crc: u32, number: u64) -> Result<(), String> {
    let record = Record {
        fingerprint: Fingerprint(u128::from(number)),
        version: Version {
            epoch: 1,
            sequence: number,
        },
        len_bytes: u32::try_from(bytes.len()).map_err(|error| error.to_string())?,
        crc32c: crc,
        ..Record::default()
    };
    loop {
        match drive.append(&name(number), record, bytes.clone()) {
            Ok(durable) => return durable.await.map(drop).map_err(|error| error.to_string()),
            Err(refused) if refused.is_backpressure() => {
                time::sleep(Duration::from_micros(200)).await;
            }
            Err(refused) => return Err(refused.to_string()),
        }
    }
}

async fn read(drive: Drive, number: u64) -> Result<(), String> {
    // An odd factor: each once.
    let number = number.wrapping_mul(0x9e37_79b9) % READ;
    let (key, arena) = (name(number), arena());
    let fingerprint = Fingerprint(u128::from(number));
    match drive.read(fingerprint, Some(&key), &arena).await {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(format!("record {number} is not there")),
        Err(error) => Err(error.to_string()),
    }
}
