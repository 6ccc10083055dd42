//! What is told of drives.

use lunette::kvstore::{CoreReport, DriveReport};

use super::exposition::{Text, core_label};

/// What is told of a drive by one number.
struct OfDrive {
    name: &'static str,
    help: &'static str,
    is_counter: bool,
    value: fn(&DriveReport) -> u64,
}

const OF_DRIVES: [OfDrive; 13] = [
    OfDrive {
        name: "drive_objects",
        help: "Objects on the drive, whether or not they are in memory too.",
        is_counter: false,
        value: |drive| drive.records,
    },
    OfDrive {
        name: "drive_live_bytes",
        help: "Bytes that those take.",
        is_counter: false,
        value: |drive| drive.live_bytes,
    },
    OfDrive {
        name: "drive_capacity_bytes",
        help: "Bytes that the drive has.",
        is_counter: false,
        value: |drive| drive.capacity_bytes,
    },
    OfDrive {
        name: "drive_failed",
        help: "1 if the drive has failed: it takes nothing any more.",
        is_counter: false,
        value: |drive| drive.has_failed.into(),
    },
    OfDrive {
        name: "drive_away",
        help: "1 if the drive is remote and cannot be reached at this time.",
        is_counter: false,
        value: |drive| drive.is_away.into(),
    },
    OfDrive {
        name: "drive_remembers",
        help: "1 if the drive has what its core knows of removals: what it holds is believed then also if all members crash.",
        is_counter: false,
        value: |drive| drive.remembers.into(),
    },
    OfDrive {
        name: "drive_written_bytes_total",
        help: "Bytes written to the drive, for whatever reason.",
        is_counter: true,
        value: |drive| drive.written_bytes,
    },
    OfDrive {
        name: "drive_demoted_total",
        help: "Objects that left memory because they were on the drive.",
        is_counter: true,
        value: |drive| drive.demoted,
    },
    OfDrive {
        name: "drive_promoted_total",
        help: "Objects that are in memory again because they were read.",
        is_counter: true,
        value: |drive| drive.promoted,
    },
    OfDrive {
        name: "drive_reads_total",
        help: "Objects that were read from the drive.",
        is_counter: true,
        value: |drive| drive.read,
    },
    OfDrive {
        name: "drive_streamed_total",
        help: "Objects that were sent on while they were being read from the drive.",
        is_counter: true,
        value: |drive| drive.streamed,
    },
    OfDrive {
        name: "drive_refused_total",
        help: "Objects that left altogether since the drive was full, slow or failing.",
        is_counter: true,
        value: |drive| drive.refused,
    },
    OfDrive {
        name: "drive_lost_total",
        help: "Objects that are gone from the drive: to make room, or damaged.",
        is_counter: true,
        value: |drive| drive.lost,
    },
];

pub(super) fn append_drives(text: &mut Text, reports: &[CoreReport]) {
    let drives = reports.iter().filter_map(|report| {
        let drive = report.member.as_ref()?.drive.as_ref()?;
        Some((core_label(report), drive))
    });
    let drives: Vec<_> = drives.collect();
    if drives.is_empty() {
        return;
    }
    for family in OF_DRIVES {
        text.single(family.name, family.help, family.is_counter);
        for (core, drive) in &drives {
            text.sample(family.name, core, (family.value)(drive));
        }
    }
}
