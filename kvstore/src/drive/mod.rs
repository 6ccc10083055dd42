//! A drive of a core: the log of `kvstore/log` in a file, on a device, or in a namespace over NVMe/TCP.
//!
//! ```text
//!   append, remove ----> Log ----> effects ----> tasks: gather, write, read, flush ----> Device
//!                         ^                                                      |      file, device, namespace
//!                         +---------------- how they have ended -----------------+
//! ```
//!
//! It leaves out which objects go to a drive and when: that is the owner's ([`Keeper`]). Files are opened around
//! the page cache where that can be.
//!
//! | module | subject |
//! |---|---|
//! | `medium` | [`Medium`]: what the log lies on |
//! | `opening` | the lock or the claim, the room, recovery or formatting |
//! | `front` | what is where a log would begin |
//! | `device` | the block seam: reads and writes of whole blocks, wherever they lie |
//! | `remote` | a namespace over NVMe/TCP behind it |
//! | `holding` | the claim of a device, kept alive |
//! | `holder` | who holds it, as its host knows |
//! | `recovering` | the log of a drive is read |
//! | `driving` | effects are done, events are told |
//! | `staging` | memory that writes are gathered in |
//! | `reading` | an object comes back, and is compared with its checksum |
//! | `pieces` | the same piece by piece, for who sends it on |
//! | `ended` | how something has ended, for one who waits |

mod device;
mod driving;
mod ended;
mod front;
mod holder;
mod holding;
mod medium;
mod opening;
mod pieces;
mod reading;
mod recovering;
mod remote;
mod staging;

use std::fmt;
use std::rc::Rc;

use lunette_kvstore_log::effect::{
    AppendFailure, AppendRefused, LossCause, MemoryId, RemoveRefused, Removing,
};
use lunette_kvstore_log::log::LogStats;
use lunette_kvstore_log::record::{Fingerprint, Record, Version};
use lunette_runtime::arena::Region;
use lunette_runtime::time;
use thiserror::Error;

use driving::Shared;
use ended::Ended;
pub use lunette_kvstore_log::claim::{ClaimRefused, ClaimTerms};
pub use medium::Medium;
pub use opening::{DriveError, DriveOptions, Format, Opened};
pub use pieces::{InPieces, PIECE_BYTES};
pub use reading::{OnDrive, ReadError};

/// What the owner of a drive's records decides, and is told. It is called between two operations, and must not ask
/// the drive anything meanwhile.
pub trait Keeper {
    /// Whether a record stays whose segment is made free. It is written anew then.
    fn keeps(&self, record: Record) -> bool;

    /// A record is gone, and nobody has asked for that.
    fn lost(&self, fingerprint: Fingerprint, version: Version, loss: Loss);

    /// The drive has failed: nothing is written any more. What is there is still read.
    fn failed(&self);
}

/// Why a record is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It was not to stay when its segment was made free, or there was no room for it.
    Reclaimed,
    /// What is on the drive is not what was written, or cannot be read.
    Drive(LossCause),
}

/// A removal may be undone by a restart: remove the record then.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the drive did not take the removal")]
pub struct RemovalLost;

/// A drive. Clones are handles to the same one; when the last is dropped, what was begun goes on to its end, and then
/// the drive's lock is given up.
#[derive(Clone)]
pub struct Drive {
    shared: Rc<Shared>,
}

impl fmt::Debug for Drive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drive")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Drive {
    /// Opens a drive: recovers its log, or formats it if it is blank and that is allowed. Records of generations
    /// before `generation` are dead. Dropped before it is ready, it may have formatted the drive.
    ///
    /// # Errors
    /// [`DriveError`]: nothing of another log is overwritten.
    pub async fn open(
        options: DriveOptions,
        generation: u64,
        keeper: Rc<dyn Keeper>,
    ) -> Result<(Self, Opened), DriveError> {
        let (shared, opened) = opening::open(options, generation, keeper).await?;
        Ok((Self { shared }, opened))
    }

    /// Begins to write a record, whose payload `bytes` is, with the length and checksum that the record says. It is
    /// found, and stays whatever happens, once the returned future says so. The region is held until then; dropping
    /// the future changes nothing.
    ///
    /// # Errors
    /// [`AppendRefused`]: nothing is held. It never waits for the drive.
    pub fn append(
        &self,
        key: &[u8],
        record: Record,
        bytes: Region,
    ) -> Result<impl Future<Output = Result<Record, AppendFailure>> + use<>, AppendRefused> {
        let shared = &self.shared;
        let memory = shared.sources.borrow_mut().lent.insert(bytes);
        let appended =
            shared.with_log(|log| log.append(time::now(), key, record, MemoryId(memory as u64)));
        match appended {
            Ok(append) => {
                let ended = Ended::new();
                let waiting = driving::Append {
                    memory,
                    ended: Rc::clone(&ended),
                };
                shared.appends.borrow_mut().insert(append, waiting);
                shared.pump();
                Ok(async move { ended.wait().await })
            }
            Err(refused) => {
                shared.sources.borrow_mut().lent.remove(memory);
                shared.pump();
                Err(refused)
            }
        }
    }

    /// The record of a key, if it is durable here.
    #[must_use]
    pub fn find(&self, fingerprint: Fingerprint) -> Option<Record> {
        self.shared.with_log(|log| log.get(fingerprint))
    }

    /// All records that are durable here, in no order.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        self.shared.with_log(|log| log.records().collect())
    }

    /// Removes the record of this version, and with it what it replaced: it is not found from now on, and not after a
    /// restart either once the returned future says so. Dropping that changes nothing. Where this version is not here,
    /// nothing is removed: a copy of an earlier version may come late, and be dropped, while the drive has the one that is
    /// served.
    ///
    /// # Errors
    /// [`RemoveRefused`].
    pub fn remove(
        &self,
        fingerprint: Fingerprint,
        version: Version,
    ) -> Result<impl Future<Output = Result<(), RemovalLost>> + use<>, RemoveRefused> {
        let shared = &self.shared;
        let ended = Ended::new();
        let found = self.find(fingerprint);
        let removing = if found.is_some_and(|record| record.version > version) {
            Removing::Done
        } else {
            shared.with_log(|log| log.remove(time::now(), fingerprint, version))?
        };
        match removing {
            Removing::Done => ended.end(Ok(())),
            Removing::Written(removal) => {
                let mut removals = shared.removals.borrow_mut();
                removals.insert(removal, Rc::clone(&ended));
            }
        }
        shared.pump();
        Ok(async move { ended.wait().await })
    }

    /// Whether it cannot be reached at this time: what is there cannot be read, and what is written waits.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.shared.device.is_away()
    }

    /// What the log holds and has done.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        self.shared.with_log(|log| log.stats())
    }
}
