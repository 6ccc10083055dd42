//! The device that is measured, on a core of its own.

use std::str::FromStr;

use lunette_gpu::fake::{FakeMachine, FakeOptions};
use lunette_gpu::{Device, OpenError};
use lunette_runtime::arena::ArenaOptions;
use lunette_runtime::{CoreOptions, Idle, block_on};

use crate::raw::Plain;
use crate::rows;
use crate::table::Table;

/// Room for copies of a GiB there and back.
const ARENA_BYTES: usize = 5 << 29;

/// Which device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice {
    Number(usize),
    Fake,
}

impl FromStr for Choice {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "fake" => Ok(Self::Fake),
            number => number.parse().map(Self::Number),
        }
    }
}

/// Measures what is measured of this package.
pub(crate) fn run(choice: Choice) -> Table {
    let arena = ArenaOptions {
        bytes_max: ARENA_BYTES,
        chunk_bytes: 1 << 30,
        ..ArenaOptions::default()
    };
    let on = |idle, latency_only| {
        let options = CoreOptions {
            idle,
            arena,
            ..CoreOptions::default()
        };
        let done = block_on(None, options, move || async move {
            match with_plain(choice) {
                Ok((device, plain)) => rows::all(&device, plain.as_ref(), latency_only).await,
                Err(absent) => Table::pending(&absent.to_string()),
            }
        });
        done.unwrap_or_else(|error| Table::pending(&error.to_string()))
    };
    let mut table = on(Idle::Latency, false);
    if !table.is_pending() {
        table.extend(on(Idle::Efficient, true));
    }
    table
}

/// The device, and beside a real one the driver without us.
fn with_plain(choice: Choice) -> Result<(Device, Option<Plain>), OpenError> {
    let device = open(choice)?;
    let plain = match choice {
        Choice::Number(_) => Plain::new(),
        Choice::Fake => None,
    };
    Ok((device, plain))
}

pub(crate) fn open(choice: Choice) -> Result<Device, OpenError> {
    match choice {
        Choice::Number(index) => Device::open(index),
        Choice::Fake => {
            let machine = FakeMachine::new(1);
            let options = FakeOptions {
                memory_bytes: 8 << 30,
                ..FakeOptions::default()
            };
            let index = machine.add_device(options);
            Device::fake(&machine, index)
        }
    }
}
