//! Nodes as child processes: this program as `serve`, on loopback, for as long as the value lives.
//!
//! A child ends when its standard input does, so none outlives this process, however it ends.

use std::env;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::arguments::IdleChoice;
use super::failure::Failure;

/// How long a node may take until it serves.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a node may take to end by itself, before it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a wait looks whether it is over.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What the nodes are to be.
#[derive(Clone, Debug)]
pub(super) struct ClusterPlan {
    /// One node for each element: the CPU to pin it to, if any.
    pub(super) cpus: Vec<Option<usize>>,
    /// Memory of each node, in bytes.
    pub(super) node_memory_bytes: u64,
    /// What nodes do when idle.
    pub(super) idle: IdleChoice,
}

/// Running nodes. Dropping it ends them and waits for them.
#[derive(Debug)]
pub(super) struct ClusterProcesses {
    children: Vec<Child>,
    addresses: Vec<SocketAddr>,
}

impl ClusterProcesses {
    /// Starts the nodes and waits until all serve, or until `interrupted`.
    pub(super) fn start(plan: &ClusterPlan, interrupted: &AtomicBool) -> Result<Self, Failure> {
        let mut cluster = Self {
            children: Vec::new(),
            addresses: Vec::new(),
        };
        let mut readers = Vec::new();
        for (index, cpu) in plan.cpus.iter().enumerate() {
            let mut child = command(plan, index, *cpu)?
                .spawn()
                .map_err(|error| child_failure(index, &format!("cannot be started: {error}")))?;
            readers.push(read_lines(child.stdout.take().expect("it is piped")));
            cluster.children.push(child);
        }
        let deadline = Instant::now() + READY_TIMEOUT;
        for (index, lines) in readers.iter().enumerate() {
            let line = ready_line(index, lines, deadline, interrupted)?;
            cluster.addresses.push(ready_address(index, &line)?);
        }
        Ok(cluster)
    }

    /// Where the nodes listen.
    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Drop for ClusterProcesses {
    fn drop(&mut self) {
        for child in &mut self.children {
            drop(child.stdin.take());
        }
        let deadline = Instant::now() + END_TIMEOUT;
        for child in &mut self.children {
            if let Err(error) = end(child, deadline) {
                tracing::error!(pid = child.id(), %error, "ending a node process");
            }
        }
    }
}

/// Waits until the child has ended, and kills it at the deadline.
fn end(child: &mut Child, deadline: Instant) -> std::io::Result<()> {
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(());
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn command(plan: &ClusterPlan, index: usize, cpu: Option<usize>) -> Result<Command, Failure> {
    let program = env::current_exe()
        .map_err(|error| child_failure(index, &format!("no program to start: {error}")))?;
    let mut command = Command::new(program);
    command
        .args([
            "serve",
            "--json",
            "--until-stdin-ends",
            "--listen",
            "127.0.0.1:0",
        ])
        .args(["--idle", plan.idle.word()])
        // The same identities each time, so that the same keys live on the same nodes.
        .args(["--node-id", &(index + 1).to_string()])
        .args(["--memory", &plan.node_memory_bytes.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // A group of its own: whether an interrupt ends the nodes is this process's decision.
        .process_group(0);
    if let Some(cpu) = cpu {
        command.args(["--cores", &cpu.to_string()]);
    }
    Ok(command)
}

/// Reads a child's output on a thread, to its end, so that the child never waits to be read.
fn read_lines(stdout: ChildStdout) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // Only the first line is waited for.
            drop(sender.send(line));
        }
    });
    lines
}

fn ready_line(
    index: usize,
    lines: &mpsc::Receiver<String>,
    deadline: Instant,
    interrupted: &AtomicBool,
) -> Result<String, Failure> {
    loop {
        if interrupted.load(Ordering::Relaxed) {
            return Err(Failure::Interrupted);
        }
        match lines.recv_timeout(POLL_INTERVAL) {
            Ok(line) => return Ok(line),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(child_failure(index, "ended before it served"));
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => {
                return Err(child_failure(index, "does not serve in time"));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

fn ready_address(index: usize, line: &str) -> Result<SocketAddr, Failure> {
    let ready: Option<Value> = serde_json::from_str(line).ok();
    let address = ready.as_ref().and_then(|ready| ready["address"].as_str());
    address
        .and_then(|address| address.parse().ok())
        .ok_or_else(|| child_failure(index, &format!("says something unexpected: {line}")))
}

fn child_failure(index: usize, problem: &str) -> Failure {
    let problem = problem.to_owned();
    Failure::Child { index, problem }
}
