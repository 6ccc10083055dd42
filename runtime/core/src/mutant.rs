//! Bugs that can be switched on, to see whether the simulator finds them.
//!
//! Without the feature `mutants`, which nothing but the simulator's own check asks for, there are
//! none, and each question is answered at compile time.

/// A bug, each at one place of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A completion does not wake its task, now and then.
    WakeUpLost,
    /// A receive that was cancelled gives its memory back while it is under way.
    BufferReleasedEarly,
    /// The answer to a call that is over is taken for another's, which has its slot now.
    SlotClaimedTwice,
    /// A put is acknowledged and not kept, now and then.
    PutDropped,
    /// A payload's checksum is not compared.
    ChecksumIgnored,
    /// What is being sent is evicted like anything else.
    PinIgnored,
    /// Calls do not end at their deadlines.
    DeadlineIgnored,
    /// A request whose connection was lost is sent again, whatever it was.
    RequestReplayed,
    /// A coordinator believes any snapshot behind any header.
    SnapshotUntied,
    /// A home grants a claim although the key is taken or claimed.
    ClaimUnchecked,
    /// A home records a put of its own core in one step although another write of the key is under way.
    DirectUnchecked,
    /// A home records a copy that nobody has claimed, or whose claim is over.
    PublishUnclaimed,
    /// A home has an owner drop what it gives up, and goes on showing it.
    RetractUnrecorded,
    /// A home acts before everybody has reported.
    BarrierSkipped,
    /// Some tombstones are not kept.
    TombstoneLost,
    /// What homes that have left knew of removals is believed although others are missing that knew more.
    MemoryOverrated,
    /// What members that have left together knew of removals counts as known, whoever comes back.
    LossOverrated,
    /// A removal ends although a home has kept that it knew of all before.
    MemoryOutdated,
    /// An upsert that nobody waits for any more leaves, although what it replaces may be gone.
    UpsertLetGo,
    /// A publication that nobody waits for stays under the next map, although nobody has said that it is recorded.
    GivenUpKept,
    /// A member that was away speaks of what it has before that has been judged.
    UnjudgedServed,
    /// Nobody heeds the end of its lease.
    FenceIgnored,
    /// What is held is evicted like anything else.
    HoldIgnored,
    /// What is pinned for ever is evicted like anything else.
    HardPinIgnored,
    /// Where there are copies too many, all of them are dropped.
    SurplusMiscounted,
    /// Copies that are missing are not made again.
    RepairForgotten,
    /// Replicas are made where there are copies already.
    ReplicaDoubled,
    /// What was written before "remove all" lives on.
    GenerationIgnored,
    /// The log announces a record before what is behind it has been written.
    LogAnnouncedEarly,
    /// The log reads headers and records without comparing their checksums.
    LogChecksumIgnored,
    /// The log takes what a segment held before for what it holds now.
    LogStaleAccepted,
    /// Recovery of the log does not heed removals.
    LogTombstoneIgnored,
    /// The log frees a segment whose records have not all moved or been released.
    LogLiveFreed,
    /// The log frees a segment that is being read.
    LogPinIgnored,
    /// Recovery of the log shows records of earlier generations.
    LogGenerationIgnored,
    /// The log frees removals of what is still on the drive.
    LogTombstoneDropped,
    /// What could not be read when the log was recovered is there again the next time.
    LogDamageForgotten,
    /// The log takes for durable what was written before a flush that failed, once a later one has not.
    LogFlushTrusted,
}

impl Mutant {
    /// Those of the home protocol, which its own simulation is to find.
    pub const HOME: [(&'static str, Self); 16] = [
        ("claim-unchecked", Self::ClaimUnchecked),
        ("direct-unchecked", Self::DirectUnchecked),
        ("publish-unclaimed", Self::PublishUnclaimed),
        ("retract-unrecorded", Self::RetractUnrecorded),
        ("barrier-skipped", Self::BarrierSkipped),
        ("tombstone-lost", Self::TombstoneLost),
        ("memory-overrated", Self::MemoryOverrated),
        ("loss-overrated", Self::LossOverrated),
        ("memory-outdated", Self::MemoryOutdated),
        ("given-up-kept", Self::GivenUpKept),
        ("unjudged-served", Self::UnjudgedServed),
        ("fence-ignored", Self::FenceIgnored),
        ("hold-ignored", Self::HoldIgnored),
        ("surplus-miscounted", Self::SurplusMiscounted),
        ("repair-forgotten", Self::RepairForgotten),
        ("generation-ignored", Self::GenerationIgnored),
    ];

    /// Those of the drive's log, which its own crash tests are to find.
    pub const LOG: [(&'static str, Self); 10] = [
        ("log-announced-early", Self::LogAnnouncedEarly),
        ("log-checksum-ignored", Self::LogChecksumIgnored),
        ("log-stale-accepted", Self::LogStaleAccepted),
        ("log-tombstone-ignored", Self::LogTombstoneIgnored),
        ("log-live-freed", Self::LogLiveFreed),
        ("log-pin-ignored", Self::LogPinIgnored),
        ("log-generation-ignored", Self::LogGenerationIgnored),
        ("log-tombstone-dropped", Self::LogTombstoneDropped),
        ("log-damage-forgotten", Self::LogDamageForgotten),
        ("log-flush-trusted", Self::LogFlushTrusted),
    ];

    /// Those that the simulator of whole clusters is to find, by the names that it takes.
    pub const ALL: [(&'static str, Self); 9] = [
        ("wake-up-lost", Self::WakeUpLost),
        ("buffer-released-early", Self::BufferReleasedEarly),
        ("slot-claimed-twice", Self::SlotClaimedTwice),
        ("put-dropped", Self::PutDropped),
        ("checksum-ignored", Self::ChecksumIgnored),
        ("pin-ignored", Self::PinIgnored),
        ("deadline-ignored", Self::DeadlineIgnored),
        ("request-replayed", Self::RequestReplayed),
        ("snapshot-untied", Self::SnapshotUntied),
    ];
}

#[cfg(feature = "mutants")]
mod switch {
    use core::sync::atomic::{AtomicU8, Ordering};

    use super::Mutant;

    static CHOSEN: AtomicU8 = AtomicU8::new(u8::MAX);

    /// Switches a bug on, and any other off.
    pub fn choose(mutant: Mutant) {
        CHOSEN.store(mutant as u8, Ordering::Relaxed);
    }

    /// Whether this bug is on.
    #[must_use]
    pub fn is_on(mutant: Mutant) -> bool {
        CHOSEN.load(Ordering::Relaxed) == mutant as u8
    }
}

#[cfg(feature = "mutants")]
pub use switch::{choose, is_on};

/// Whether this bug is on: never.
#[cfg(not(feature = "mutants"))]
#[must_use]
pub const fn is_on(_mutant: Mutant) -> bool {
    false
}
