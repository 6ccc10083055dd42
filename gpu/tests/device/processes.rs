//! Two processes with one device: memory of the one is opened by the other, by a handle and by a descriptor. On the GPU of
//! this machine, and on the driver that tests build.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use lunette_gpu::share::{HANDLE_WIRE_BYTES, IpcHandle};
use lunette_gpu::{Device, DeviceRegion};
use lunette_runtime::Idle;

use crate::rig::{fill, on_core, pattern, region, seen, stream};
use crate::tests::driver_for;

/// Tells the other process that it is that, and what it opens.
const OTHER: &str = "LUNETTE_TEST_OPENS";
const LEN: usize = 3 << 20;

/// The other process: opens what it is given, says whether the bytes are there, and leaves others.
fn opens(test: &str, what: &str) {
    let what = what.to_owned();
    let driver = driver_for(test).expect("the other process has it");
    on_core(Idle::Efficient, move || async move {
        let device = Device::open_with(driver, 0).expect("it is there");
        let memory = if let Some(bytes) = what.strip_prefix("fd ") {
            let len: u64 = bytes.parse().expect("a length");
            let opened = DeviceRegion::import_shared(&device, std::io::stdin().as_fd(), len);
            opened.expect("exported").slice(0..LEN as u64)
        } else {
            let handle = IpcHandle::from_bytes(&unhexed(&what));
            DeviceRegion::open_ipc(&device, &handle).expect("exported")
        };
        let stream = stream(&device);
        assert!(
            seen(&stream, &memory).await == pattern(LEN, 1),
            "what is left there"
        );
        fill(&stream, &memory, &pattern(LEN, 2)).await;
        println!("\nopened");
    });
}

fn hexed(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhexed(text: &str) -> [u8; HANDLE_WIRE_BYTES] {
    let digits = text.as_bytes().chunks(2);
    let bytes: Vec<u8> = digits
        .map(|pair| {
            let pair = std::str::from_utf8(pair).expect("text");
            u8::from_str_radix(pair, 16).expect("a byte")
        })
        .collect();
    bytes.try_into().expect("as many as a handle has")
}

/// Runs the other process of this test to its end.
fn other(test: &str, what: &str, input: Stdio) {
    let mut command = Command::new(env::current_exe().expect("a path"));
    command
        .args([test, "--exact", "--nocapture"])
        .env(OTHER, what);
    let mut child = command
        .stdin(input)
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program");
    let said = BufReader::new(child.stdout.take().expect("piped"));
    let lines: Vec<String> = said.lines().map(|line| line.expect("text")).collect();
    let ended = child.wait().expect("it ends");
    std::io::stdout().flush().expect("written");
    assert!(
        ended.success() && lines.iter().any(|line| line == "opened"),
        "{lines:?}"
    );
}

#[test]
fn a_handle_opens_memory_of_another_process() {
    const TEST: &str = "processes::a_handle_opens_memory_of_another_process";
    if let Ok(what) = env::var(OTHER) {
        return opens("a_handle_opens_memory_of_another_process", &what);
    }
    let Some(driver) = driver_for("a_handle_opens_memory_of_another_process") else {
        return;
    };
    on_core(Idle::Efficient, move || async move {
        let device = Device::open_with(driver, 0).expect("it is there");
        let memory = region(&device, 2 * LEN as u64);
        let part = memory.slice(1000..1000 + LEN as u64);
        fill(&stream(&device), &part, &pattern(LEN, 1)).await;
        let handle = part.ipc_handle().expect("plain memory").to_bytes();
        other(TEST, &hexed(&handle), Stdio::null());
        assert!(seen(&stream(&device), &part).await == pattern(LEN, 2));
        let nobody = IpcHandle::from_bytes(&[0; HANDLE_WIRE_BYTES]);
        assert!(DeviceRegion::open_ipc(&device, &nobody).is_err());
        // And whoever is refused goes on.
        fill(&stream(&device), &part, &pattern(LEN, 3)).await;
    });
}

#[test]
fn a_descriptor_opens_memory_of_another_process() {
    const TEST: &str = "processes::a_descriptor_opens_memory_of_another_process";
    if let Ok(what) = env::var(OTHER) {
        return opens("a_descriptor_opens_memory_of_another_process", &what);
    }
    let Some(driver) = driver_for("a_descriptor_opens_memory_of_another_process") else {
        return;
    };
    on_core(Idle::Efficient, move || async move {
        let device = Device::open_with(driver, 0).expect("it is there");
        if !device.info().has_shareable {
            return println!(
                "SKIP a_descriptor_opens_memory_of_another_process: this device has no such memory"
            );
        }
        let memory = DeviceRegion::alloc_shareable(&device, LEN as u64).expect("supported");
        fill(&stream(&device), &memory, &pattern(LEN, 1)).await;
        let exported = memory.export().expect("shareable");
        assert!(exported.allocation_bytes >= LEN as u64);
        assert_eq!(exported.offset_bytes, 0);
        let longer = 2 * exported.allocation_bytes;
        let refused = DeviceRegion::import_shared(&device, exported.memory.as_fd(), longer);
        assert!(refused.is_err(), "longer than it is");
        let what = format!("fd {}", exported.allocation_bytes);
        // There it is descriptor 0, which drivers take for no handle.
        other(TEST, &what, Stdio::from(exported.memory));
        assert!(seen(&stream(&device), &memory).await == pattern(LEN, 2));
    });
}
