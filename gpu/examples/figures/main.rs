//! Every figure of this crate in one run and one table: `figures [DEVICE | fake]`.
//!
//! Where there is no GPU the table says `pending` and why. `fake` runs the whole program against the
//! fake device, whose figures say nothing about anything but that the program works.

mod raw;
mod rows;
mod table;

use std::process::ExitCode;

use lunette_gpu::fake::{FakeMachine, FakeOptions};
use lunette_gpu::{Device, OpenError};
use lunette_runtime::arena::ArenaOptions;
use lunette_runtime::{CoreOptions, Idle, block_on};

use raw::Plain;
use table::Table;

/// Room for copies of a GiB there and back.
const ARENA_BYTES: usize = 5 << 29;

/// Which device.
#[derive(Clone, Copy, Debug)]
enum Choice {
    Number(usize),
    Fake,
}

fn main() -> ExitCode {
    let argument = std::env::args().nth(1);
    let choice = match argument.as_deref() {
        None => Some(Choice::Number(0)),
        Some("fake") => Some(Choice::Fake),
        Some(number) => number.parse().ok().map(Choice::Number),
    };
    let Some(choice) = choice else {
        eprintln!("usage: figures [DEVICE | fake]");
        return ExitCode::FAILURE;
    };
    let table = run(choice);
    print!("{table}");
    if table.is_complete() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(2)
    }
}

fn run(choice: Choice) -> Table {
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
            match open(choice) {
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
fn open(choice: Choice) -> Result<(Device, Option<Plain>), OpenError> {
    match choice {
        Choice::Number(index) => {
            let device = Device::open(index)?;
            let plain = Plain::new();
            Ok((device, plain))
        }
        Choice::Fake => {
            let machine = FakeMachine::new(1);
            let options = FakeOptions {
                memory_bytes: 8 << 30,
                ..FakeOptions::default()
            };
            let index = machine.add_device(options);
            Device::fake(&machine, index).map(|device| (device, None))
        }
    }
}
