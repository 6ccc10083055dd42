//! Every figure of this crate in one run and one table: `figures [DEVICE | fake]`.
//!
//! Where there is no GPU the table says `pending` and why. `fake` runs the whole program against the
//! fake device, whose figures say nothing about anything but that the program works. Those of the store, and torch's
//! beside them, are of `lunette-bench`, whose example `gpu` prints all in one table.

mod device;
mod raw;
mod rows;
mod table;

use std::process::ExitCode;

use device::Choice;

fn main() -> ExitCode {
    let argument = std::env::args().nth(1);
    let Ok(choice) = argument.as_deref().unwrap_or("0").parse::<Choice>() else {
        eprintln!("usage: figures [DEVICE | fake]");
        return ExitCode::FAILURE;
    };
    let table = device::run(choice);
    print!("{table}");
    if table.is_complete() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(2)
    }
}
