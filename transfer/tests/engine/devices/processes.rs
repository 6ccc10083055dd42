//! Two processes, each with a driver of its own: memory of the one is opened by the other, and copied by its device.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lunette_gpu::{Device, Driver};
use lunette_runtime::{CoreOptions, block_on, time};
use lunette_transfer::engine::{Cause, Engine, EngineOptions, Refusal, RegisterOptions};

use super::{Gpu, read, write};
use crate::scene::{MIB, options, pattern, post};
use crate::stub::stub;

/// Tells the other process that it is that, and which driver it has.
const OTHER: &str = "LUNETTE_TEST_DEVICE_OWNER";
const TEST: &str = "devices::processes::memory_of_another_process_is_copied_by_a_device";
const LEN: usize = 3 * MIB + 5;

fn gpu(driver: &Path) -> Gpu {
    let driver = Driver::probe_at(driver).expect("it works");
    Gpu::of(Device::open_with(driver, 0).expect("one device"))
}

fn engine() -> Engine {
    Engine::start(EngineOptions {
        same_host_trust: true,
        ..options()
    })
    .expect("an engine")
}

/// The other process: it has memory, says where, and does what it is told.
fn own(driver: &Path) {
    let (say, told) = mpsc::channel();
    thread::spawn(move || {
        for line in std::io::stdin().lines() {
            if say.send(line.expect("text")).is_err() {
                return;
            }
        }
    });
    let driver = driver.to_owned();
    let owning = move || async move {
        let (there, gpu) = (engine(), gpu(&driver));
        let memory = gpu.full_of(&pattern(LEN, 1)).await;
        let named = RegisterOptions::named("far");
        let id = there
            .register_device(memory.clone(), &named)
            .expect("registered");
        println!("\nat {}", there.addresses()[0]);
        loop {
            match told.try_recv().as_deref() {
                Ok("bytes") => {
                    let is_new = gpu.bytes_of(&memory).await == pattern(LEN, 2);
                    println!("\nnew {is_new}");
                }
                Ok("unregister") => {
                    let taken = there.unregister_device(id).await;
                    println!("\nunregistered {}", taken.is_some());
                }
                Ok(other) => assert!(other.is_empty(), "it is asked for {other}"),
                Err(mpsc::TryRecvError::Empty) => time::sleep(Duration::from_millis(2)).await,
                Err(mpsc::TryRecvError::Disconnected) => return,
            }
        }
    };
    block_on(None, CoreOptions::default(), owning).expect("a core");
}

/// The other process, as this one sees it. It ends when it is told nothing more.
struct Other {
    child: Child,
    tell: Option<ChildStdin>,
    hear: BufReader<ChildStdout>,
}

impl Other {
    fn start(driver: &Path) -> Self {
        let program = std::env::current_exe().expect("a path");
        let mut command = Command::new(program);
        command
            .args([TEST, "--exact", "--nocapture"])
            .env(OTHER, driver);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this program");
        let hear = BufReader::new(child.stdout.take().expect("piped"));
        Self {
            tell: child.stdin.take(),
            child,
            hear,
        }
    }

    /// The rest of the next line that begins so.
    fn hear(&mut self, begin: &str) -> String {
        loop {
            let mut line = String::new();
            let count = self.hear.read_line(&mut line).expect("text");
            assert!(count > 0, "it says {begin}");
            if let Some(rest) = line.trim().strip_prefix(begin) {
                return rest.trim().to_owned();
            }
        }
    }

    fn ask(&mut self, question: &str, begin: &str) -> String {
        let tell = self.tell.as_mut().expect("it is there");
        writeln!(tell, "{question}").expect("it listens");
        self.hear(begin)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.tell = None;
        let ended = self.child.wait().expect("it ends");
        assert!(thread::panicking() || ended.success(), "{ended}");
    }
}

#[test]
fn memory_of_another_process_is_copied_by_a_device() {
    if let Some(driver) = std::env::var_os(OTHER) {
        return own(Path::new(&driver));
    }
    let driver = stub("processes", &[]);
    let mut other = Other::start(&driver);
    let address: SocketAddr = other.hear("at").parse().expect("an address");
    block_on(None, CoreOptions::default(), move || async move {
        let (here, gpu) = (engine(), gpu(&driver));
        let peer = here.open(&[address]).await.expect("open");
        let remote = peer.segment("far").await.expect("a segment");
        let near = gpu.full_of(&vec![0; LEN]).await;
        post(&peer, &read(&near, &remote, 0)).await.expect("read");
        assert!(gpu.bytes_of(&near).await == pattern(LEN, 1));
        let near = gpu.full_of(&pattern(LEN, 2)).await;
        post(&peer, &write(&near, &remote, 0))
            .await
            .expect("written");
        let statistics = here.statistics();
        assert_eq!(
            statistics.same_host_bytes,
            2 * LEN as u64,
            "not one byte was staged"
        );
        assert_eq!(statistics.window_bytes, 0);
        // The owner waits in its own process, which this core must not keep from that.
        let (told, done) = mpsc::channel();
        thread::spawn(move || {
            let is_new = other.ask("bytes", "new");
            let is_gone = other.ask("unregister", "unregistered");
            told.send((is_new, is_gone, other)).expect("it waits");
        });
        let (is_new, is_gone, _other) = loop {
            match done.try_recv() {
                Ok(answers) => break answers,
                Err(_) => time::sleep(Duration::from_millis(5)).await,
            }
        };
        assert_eq!((is_new.as_str(), is_gone.as_str()), ("true", "true"));
        let failed = post(&peer, &read(&near, &remote, 0))
            .await
            .expect_err("stale");
        assert_eq!(failed.failures[0].cause, Cause::Refused(Refusal::Stale));
    })
    .expect("a core");
}
