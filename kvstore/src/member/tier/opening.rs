//! Which drives, cut how.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore_log::format::BLOCK_BYTES;
use lunette_kvstore_log::format::superblock::Identity;
use lunette_kvstore_log::options::LogOptions;
use lunette_kvstore_proto::key::Key;
use lunette_nvmeof::NamespaceOptions;
use lunette_runtime::arena::Arena;
use lunette_runtime::time;
use lunette_runtime_core::ids::CoreIndex;

use super::keeping::Keeping;
use super::remembering::Remembered;
use super::returning::Former;
use super::{Tier, TierCounts};
use crate::drive::{ClaimTerms, Drive, DriveError, DriveOptions, Format, Medium, Opened};

/// Segments of a log that is cut short: enough for reclaim to choose from.
const SEGMENTS_WANTED: u64 = 64;
const SEGMENT_BYTES_MIN: u64 = 1 << 20;
const SEGMENT_BYTES_MAX: u64 = 64 << 20;
/// [`TierOptions::object_bytes`] where nothing else is said.
const OBJECT_BYTES: u64 = 64 << 10;
/// [`TierOptions::park_timeout`], where nobody says.
const PARK_TIMEOUT: Duration = Duration::from_secs(10);
const RECORDS_MIN: u64 = 4096;
const RECORDS_MAX: u64 = 1 << 22;
/// Most of the index that may be on its way to the drive: an eighth, which is what reclaim keeps free.
const QUEUED_RECORDS_SHARE: usize = 8;
/// Most of a core's memory that may be on its way to the drive: a quarter.
const QUEUED_SHARE: u64 = 4;
const QUEUED_BYTES_MIN: u64 = 4 << 20;
const QUEUED_BYTES_MAX: u64 = 64 << 20;

/// What parts of devices begin at multiples of.
const PART_ALIGN_BYTES: u64 = 1 << 20;

/// How long a drive may be taken by what a process that has ended had begun: the system ends that by and by.
const TAKEN_WAIT: Duration = Duration::from_secs(3);
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// The drives that a member's cores have what leaves memory written to.
#[derive(Clone, Debug)]
pub struct TierOptions {
    /// Where they are. Cores take them in turn. At least one, and no more than cores.
    pub places: Vec<TierPlace>,
    /// What they take in all, in bytes. The cores have equal parts of it.
    pub capacity_bytes: u64,
    /// How long objects are in the mean, in bytes: each core's index has room for as many as its part of the drives has
    /// then, between 4,096 and 4,194,304, and takes 75 to 149 bytes of memory for each. Where they are shorter the index
    /// is full first, and the oldest leave although there are bytes left.
    pub object_bytes: u64,
    /// [`DriveOptions::holders`]: without, a node that starts again after a crash waits until its claims of devices and
    /// namespaces have lapsed.
    pub holders: Option<PathBuf>,
    /// How long a member that [leaves](crate::Node::leave) goes on to write to its drives what only its memory has, what was used
    /// again first, and no more than half of what they take: who starts again with them has it then. Zero: not at all.
    pub park_timeout: Duration,
}

/// Where a drive is.
#[derive(Clone, Debug)]
pub enum TierPlace {
    /// A folder, on a drive of its own: a file for each core is made there.
    Folder(PathBuf),
    /// A device ([`Medium::Device`]), of which each core that takes it has a part.
    Device(PathBuf),
    /// A namespace ([`Medium::Namespace`]), of which each core that takes it has a part, over connections of its own.
    Namespace(Box<NamespaceOptions>),
}

impl TierOptions {
    /// Drives in folders.
    #[must_use]
    pub fn in_folders(folders: Vec<PathBuf>, capacity_bytes: u64) -> Self {
        Self {
            places: folders.into_iter().map(TierPlace::Folder).collect(),
            capacity_bytes,
            object_bytes: OBJECT_BYTES,
            holders: None,
            park_timeout: PARK_TIMEOUT,
        }
    }

    /// What a core's log lies on, and where it begins there, if it has so many bytes.
    fn medium(&self, core: CoreIndex, capacity_bytes: u64) -> Option<(Medium, u64)> {
        let count = self.places.len().max(1);
        let place = self.places.get(usize::from(core.0) % count)?;
        // The cores before this one that have taken the same place.
        let before = (usize::from(core.0) / count) as u64;
        let begin_bytes = capacity_bytes.next_multiple_of(PART_ALIGN_BYTES) * before;
        Some(match place {
            TierPlace::Folder(folder) => {
                let path = folder.join(format!("lunette-{}.log", core.0));
                (Medium::File(path), 0)
            }
            TierPlace::Device(path) => (Medium::Device(path.clone()), begin_bytes),
            TierPlace::Namespace(options) => {
                let mut options = options.clone();
                options.seed = options.seed.wrapping_add(core.0.into());
                (Medium::Namespace(options), begin_bytes)
            }
        })
    }

    /// How the log of one of so many cores works, each with so much memory.
    fn log(&self, cluster: &str, core: CoreIndex, cores: usize, memory_bytes: u64) -> LogOptions {
        let part_bytes = self.capacity_bytes / (cores as u64).max(1);
        let capacity_bytes = part_bytes - part_bytes % u64::from(BLOCK_BYTES);
        let cluster = Key::new(cluster.as_bytes()).map_or(0, |key| key.fingerprint().0);
        let identity = Identity {
            cluster,
            device: core.0.into(),
        };
        let mut log = LogOptions::new(identity, capacity_bytes);
        let segment_bytes = (capacity_bytes / SEGMENTS_WANTED).next_power_of_two();
        let segment_bytes = segment_bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        let segment_bytes = u32::try_from(segment_bytes).expect("bounded");
        log.geometry.segment_bytes = segment_bytes;
        log.batch_bytes_max = log.batch_bytes_max.min(segment_bytes / 2);
        // As many removals are an eighth of a segment at most.
        log.queued_records_max = (log.queued_records_max).min(segment_bytes as usize / 512);
        let records = (capacity_bytes / self.object_bytes.max(1)).clamp(RECORDS_MIN, RECORDS_MAX);
        log.records_max = usize::try_from(records).expect("bounded");
        let queued_records = log.records_max / QUEUED_RECORDS_SHARE;
        log.queued_records_max = log.queued_records_max.min(queued_records);
        let queued = memory_bytes / QUEUED_SHARE;
        log.queued_bytes_max = queued.clamp(QUEUED_BYTES_MIN, QUEUED_BYTES_MAX);
        log
    }
}

impl Tier {
    /// Opens the drive of a core of a member, whose copies are in this memory.
    ///
    /// # Errors
    /// [`DriveError`].
    pub(crate) async fn open(
        options: &TierOptions,
        cluster: &str,
        (core, cores): (CoreIndex, usize),
        (memory, memory_bytes): (Arena, u64),
    ) -> Result<Option<Self>, DriveError> {
        let log = options.log(cluster, core, cores, memory_bytes);
        let Some((medium, begin_bytes)) = options.medium(core, log.geometry.capacity_bytes) else {
            return Ok(None);
        };
        let keeping = Rc::new(Keeping::new(log.geometry.capacity_bytes));
        let (records_max, park_timeout) = (log.records_max, options.park_timeout);
        let options = DriveOptions {
            medium,
            begin_bytes,
            claim: ClaimTerms::default(),
            holders: options.holders.clone(),
            log,
            format: Format::BlankOrDamaged,
        };
        let drive_name = options.medium.to_string();
        let (drive, opened) = open_within(TAKEN_WAIT, &options, &keeping).await?;
        tracing::info!(
            drive = drive_name,
            is_direct = opened.is_direct,
            recovery = ?opened.recovery,
            "a drive takes what leaves memory"
        );
        let former = Former::of(&drive);
        Ok(Some(Self {
            drive,
            memory,
            keeping,
            records_max,
            former: RefCell::new(former),
            cluster: Cell::default(),
            remembered: Remembered::default(),
            dead: RefCell::default(),
            fetching: Rc::default(),
            is_slow_until: Cell::default(),
            park_timeout,
            counts: TierCounts::default(),
        }))
    }
}

async fn open_within(
    wait: Duration,
    options: &DriveOptions,
    keeping: &Rc<Keeping>,
) -> Result<(Drive, Opened), DriveError> {
    let until = time::now() + wait;
    loop {
        let opened = Drive::open(options.clone(), 0, Rc::clone(keeping) as _).await;
        let is_taken = matches!(opened, Err(DriveError::Taken { .. }));
        if !is_taken || time::now() >= until {
            return opened;
        }
        time::sleep(TRY_AGAIN).await;
    }
}
