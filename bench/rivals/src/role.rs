//! What a child process does, and starting one.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{self, Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use lunette_bench::harness::{Failure, Plan, Sample};
use lunette_runtime::topology;

use crate::runtimes::Side;

/// A child that has not ended by then is ended.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a child does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Work {
    /// Answers each message on each connection with itself, until it is killed.
    Echo,
    /// Yields.
    Yield,
    /// Spawns a task and waits for it.
    Spawn,
    /// Sends a message to the other core and waits for its answer; both cores have a task that
    /// is always ready.
    MessageBusy,
    /// The same, while both cores have nothing else to do and sleep.
    MessageAsleep,
    /// The same, while both cores have nothing else to do and poll.
    MessagePolling,
    /// Reads blocks of a file, one after the other.
    Read1,
    /// Reads blocks of a file, 32 at a time.
    Read32,
}

/// One side of a row.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Role {
    #[arg(long, value_enum, hide = true, required = false)]
    pub(crate) work: Work,
    #[arg(long, value_enum, hide = true, required = false)]
    pub(crate) side: Side,
    /// Bytes of a message.
    #[arg(long, hide = true, default_value_t = 64)]
    pub(crate) message_bytes: usize,
}

impl Role {
    /// The body of a child.
    pub(crate) fn play(self, plan: &Plan) -> ExitCode {
        match self.run(plan) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{self:?}: {error}");
                ExitCode::FAILURE
            }
        }
    }

    fn run(self, plan: &Plan) -> Result<(), Failure> {
        thread::spawn(end_with_stdin);
        match self.work {
            Work::Echo => {
                topology::pin_current_thread(plan.server_cpu)?;
                self.side.echo(plan.server_cpu, self.message_bytes)
            }
            Work::Yield | Work::Spawn => {
                topology::pin_current_thread(plan.server_cpu)?;
                say(self.side.tasks(self.work, plan.server_cpu)?)
            }
            Work::Read1 | Work::Read32 => {
                topology::pin_current_thread(plan.server_cpu)?;
                let depth = if self.work == Work::Read1 { 1 } else { 32 };
                say(self.side.reads(plan.server_cpu, depth)?)
            }
            // Not pinned yet: the other core's thread would inherit that.
            Work::MessageBusy | Work::MessageAsleep | Work::MessagePolling => say(self
                .side
                .messages(self.work, [plan.server_cpu, plan.client_cpu])?),
        }
    }

    fn command(self, plan: &Plan) -> io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["--work", &word(&self.work)])
            .args(["--side", &word(&self.side)])
            .args(["--message-bytes", &self.message_bytes.to_string()])
            .args(["--server-cpu", &plan.server_cpu.to_string()])
            .args(["--client-cpu", &plan.client_cpu.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Ok(command)
    }

    /// Runs a child to its end; gives what it measured.
    pub(crate) fn measure(self, plan: &Plan) -> Result<Sample, Failure> {
        let mut child = Running(self.command(plan)?.spawn()?);
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match child.0.try_wait()? {
                Some(status) => break status,
                None if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
                None => return Err(format!("{self:?} did not end in {PATIENCE:?}").into()),
            }
        };
        if !status.success() {
            return Err(format!("{self:?} ended with {status}").into());
        }
        let mut said = String::new();
        let mut stdout = child.0.stdout.take().ok_or("not piped")?;
        stdout.read_to_string(&mut said)?;
        let (value, p99) = said.trim().split_once(' ').ok_or("nothing was measured")?;
        Ok(Sample {
            value: value.parse()?,
            p99: p99.parse()?,
        })
    }

    /// Starts a server, and waits until it says where it listens.
    pub(crate) fn serve(self, plan: &Plan) -> Result<Server, Failure> {
        let mut child = Running(self.command(plan)?.spawn()?);
        let stdout = child.0.stdout.take().ok_or("not piped")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line.trim().parse();
        let address = address.map_err(|_| format!("{self:?} did not start"))?;
        Ok(Server {
            _process: child,
            address,
        })
    }
}

/// A serving process; killed and reaped when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    _process: Running,
    pub(crate) address: SocketAddr,
}

#[derive(Debug)]
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A server's way to say where it listens.
pub(crate) fn announce(address: SocketAddr) -> io::Result<()> {
    println!("{address}");
    io::stdout().flush()
}

/// Ends this process when its starter has gone, however that went: some sides never sleep.
fn end_with_stdin() {
    let mut byte = [0];
    while matches!(io::stdin().read(&mut byte), Ok(1)) {}
    process::exit(1);
}

/// The word for a value on the command line.
fn word(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value().expect("none is hidden");
    value.get_name().to_owned()
}

fn say(sample: Sample) -> Result<(), Failure> {
    println!("{} {}", sample.value, sample.p99);
    Ok(())
}
