//! Starting the program, waiting for it, finding what it left behind.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long a process may take to do what a test waits for.
const PATIENCE: Duration = Duration::from_secs(20);
/// Names processes of one test, for those they start too: in their environment.
const MARK: &str = "LUNETTE_TEST_MARK";

/// The program, with no environment of the tester's that it would heed.
pub(crate) fn lunette(arguments: &[&str]) -> Command {
    program(Path::new(env!("CARGO_BIN_EXE_lunette")), arguments)
}

/// Another build of the program, as [`lunette`].
pub(crate) fn program(path: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(path);
    command
        .args(arguments)
        .env_remove("LUNETTE_NODES")
        .env_remove("LUNETTE_INSECURE")
        .env_remove("LUNETTE_SECRET_FILE")
        .env_remove("LUNETTE_COORDINATORS")
        .env_remove("LUNETTE_ETCD")
        .env_remove("LUNETTE_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A finished run of the program.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Finished {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8(output.stderr).expect("text"),
        }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("text")
    }

    /// The one JSON object on standard output.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).expect("one object")
    }

    /// Asserts the exit code.
    #[track_caller]
    pub(crate) fn ended_with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }
}

/// Runs the program to its end.
pub(crate) fn run(arguments: &[&str]) -> Finished {
    finish(&mut lunette(arguments))
}

/// Runs a command to its end.
pub(crate) fn finish(command: &mut Command) -> Finished {
    Finished::of(command.output().expect("it starts"))
}

/// Runs the program to its end, with these bytes on its standard input.
pub(crate) fn run_with_input(arguments: &[&str], input: &[u8]) -> Finished {
    let mut child = lunette(arguments)
        .stdin(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("it is piped");
    match stdin.write_all(input) {
        // It has ended, and says why.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written.expect("it reads"),
    }
    drop(stdin);
    Finished::of(child.wait_with_output().expect("it ends"))
}

/// A node, killed when the value is dropped.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) child: Child,
    stdout: BufReader<ChildStdout>,
    /// What it said when it was ready.
    pub(crate) ready: Value,
}

impl Node {
    /// Starts a node on a port that the system chooses.
    pub(crate) fn start(memory: &str, more: &[&str]) -> Self {
        let arguments = [
            "serve",
            "--json",
            "--listen",
            "127.0.0.1:0",
            "--memory",
            memory,
        ];
        Self::spawn(&mut lunette(&[&arguments, more].concat()))
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self::of(command.spawn().expect("it starts"))
    }

    /// Waits until a process that was started says that it is ready.
    pub(crate) fn of(mut child: Child) -> Self {
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("it says that it serves");
        let ready = serde_json::from_str(&line).expect("an object");
        Self {
            child,
            stdout,
            ready,
        }
    }

    pub(crate) fn address(&self) -> &str {
        self.ready["address"].as_str().expect("an address")
    }

    /// What it says next.
    pub(crate) fn said(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it says something");
        serde_json::from_str(&line).expect("an object")
    }

    /// Waits until it has ended; gives its exit code and what else it said.
    pub(crate) fn wait(&mut self) -> (Option<i32>, String) {
        let code = wait(&mut self.child);
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).expect("text");
        (code, rest)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub(crate) fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("it is there");
}

/// Waits until the child has ended.
pub(crate) fn wait(child: &mut Child) -> Option<i32> {
    let mut status = None;
    await_that("a process ends", || {
        status = child.try_wait().expect("a child");
        status.is_some()
    });
    status.expect("it has ended").code()
}

/// Waits until `holds`.
#[track_caller]
pub(crate) fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A mark that a command and all that it starts carry.
#[derive(Debug)]
pub(crate) struct Mark(String);

impl Mark {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(format!("{}-{number}", std::process::id()))
    }

    pub(crate) fn put_on(&self, command: &mut Command) {
        command.env(MARK, &self.0);
    }

    /// Processes that carry it and still run.
    pub(crate) fn carriers(&self) -> Vec<Pid> {
        let variable = format!("{MARK}={}", self.0);
        let carries = |pid: &Pid| {
            let environment = fs::read(proc_path(*pid, "environ")).unwrap_or_default();
            let mut variables = environment.split(|&byte| byte == 0);
            variables.any(|found| found == variable.as_bytes())
        };
        processes().filter(carries).collect()
    }
}

fn processes() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").expect("processes are listed there");
    entries.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        Pid::from_raw(name.to_str()?.parse().ok()?)
    })
}

/// Whether the process was started with this word on its command line.
pub(crate) fn was_told(pid: Pid, word: &str) -> bool {
    let words = fs::read(proc_path(pid, "cmdline")).unwrap_or_default();
    words
        .split(|&byte| byte == 0)
        .any(|found| found == word.as_bytes())
}

fn proc_path(pid: Pid, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{}/{file}", pid.as_raw_nonzero()))
}
