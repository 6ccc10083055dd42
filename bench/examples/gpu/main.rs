//! Every figure of memory of devices in one run and one table: `gpu [DEVICE | fake]`.
//!
//! What `lunette-gpu` measures of itself, gets of the store into a device's memory end to end, and beside them what torch does
//! with the same pages, where there is a Python (`PYTHON`, or `python3`) that has it. What is not measured is `pending`, with
//! the reason, and the exit status is 2.
//!
//! It leaves out figures of adapters.

#[path = "../../../gpu/examples/figures/device.rs"]
mod device;
#[path = "../../../gpu/examples/figures/raw.rs"]
mod raw;
#[path = "../../../gpu/examples/figures/rows.rs"]
mod rows;
mod store;
#[path = "../../../gpu/examples/figures/table.rs"]
mod table;
mod torch;

use std::process::ExitCode;

use device::Choice;

fn main() -> ExitCode {
    let argument = std::env::args().nth(1);
    let argument = argument.as_deref().unwrap_or("0");
    let Ok(choice) = argument.parse::<Choice>() else {
        eprintln!("usage: gpu [DEVICE | fake]");
        return ExitCode::FAILURE;
    };
    let mut table = device::run(choice);
    store::measure(choice, &mut table);
    torch::measure(argument, &mut table);
    print!("{table}");
    if table.is_complete() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(2)
    }
}
