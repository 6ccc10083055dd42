//! One run of a machine: QEMU, its channels, its end.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::kernel::Kernel;
use super::{Arguments, Rdma};
use crate::task_error::TaskError;
use crate::workspace::Workspace;

/// Machines at a time, of all processes that work in one clone. Each leaves about half of two CPUs idle.
pub(super) const MACHINES_MAX: usize = 2;
/// How often a machine that waits for a place looks for one.
const PLACE_POLL: Duration = Duration::from_millis(200);
/// Limit of the boot and of setting devices up; a boot takes 7 to 30 s on a busy machine.
const BOOT_MAX: Duration = Duration::from_secs(180);
/// How often a machine is booted that does not come up: without KVM, the kernels of some stop, or lack a device.
const BOOTS_MAX: u32 = 3;
/// Limit of QEMU opening its channels.
const START_MAX: Duration = Duration::from_secs(30);
/// Last lines of the console that a failure shows.
const CONSOLE_LINES_MAX: usize = 40;
/// The kernel target's name.
pub(super) const NVMET_NQN: &str = "nqn.2024-01.test.lunette:target";
const GUEST: &str = include_str!("guest.sh");
/// Variables that the command gets from here.
const PASSED_ON: [&str; 8] = [
    "PATH",
    "HOME",
    "LANG",
    "CARGO_HOME",
    "RUSTUP_HOME",
    "RUST_LOG",
    "RUST_BACKTRACE",
    "LUNETTE_TRACE_DIR",
];

/// A machine whose command has been started.
#[derive(Debug)]
pub(super) struct Machine {
    /// Killed when dropped, so that no way out leaves it behind.
    qemu: Qemu,
    out: UnixStream,
    err: UnixStream,
    reports: Receiver<Report>,
    timeout: Duration,
    /// Its place among the machines; released when dropped.
    _place: Place,
}

#[derive(Debug)]
struct Qemu {
    child: Child,
    folder: PathBuf,
}

/// What the guest says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Report {
    Ready,
    Failed(String),
    Exit(i32),
}

impl Machine {
    /// Boots a machine up to the start of its command, [`BOOTS_MAX`] times at most. Waits while [`MACHINES_MAX`]
    /// others run. It ends with the thread that boots it.
    pub(super) fn boot(
        workspace: &Workspace,
        kernel: &Kernel,
        arguments: &Arguments,
    ) -> Result<Self, TaskError> {
        for _ in 1..BOOTS_MAX {
            match Self::boot_once(workspace, kernel, arguments)? {
                Ok(machine) => return Ok(machine),
                Err(stopped) => eprintln!("vm: {stopped}\nvm: once more"),
            }
        }
        Self::boot_once(workspace, kernel, arguments)?
    }

    /// A machine, or why it has not come as far as its command.
    fn boot_once(
        workspace: &Workspace,
        kernel: &Kernel,
        arguments: &Arguments,
    ) -> Result<Result<Self, TaskError>, TaskError> {
        let place = vm(Place::take(&workspace.root().join("target/vm")))?;
        let started = Instant::now();
        let name = format!("lunette-vm.{}.{}", std::process::id(), place.index);
        let folder = std::env::temp_dir().join(name);
        vm(fs::create_dir(&folder))?;
        let listen = |name: &str| vm(UnixListener::bind(folder.join(name)));
        let (out, err, control) = (listen("out")?, listen("err")?, listen("control")?);
        vm(fs::write(
            folder.join("guest"),
            guest_script(kernel, arguments)?,
        ))?;
        let mut command = qemu(kernel, arguments, &folder)?;
        let log = vm(File::create(folder.join("log")))?;
        command
            .stdin(Stdio::null())
            .stdout(vm(log.try_clone())?)
            .stderr(log);
        let child = command.spawn().map_err(|source| TaskError::Start {
            program: "qemu-system-x86_64".into(),
            source,
        })?;
        let mut qemu = Qemu { child, folder };
        let (out, err) = (qemu.accept(&out)?, qemu.accept(&err)?);
        let reports = read_reports(qemu.accept(&control)?);
        let machine = Self {
            qemu,
            out,
            err,
            reports,
            timeout: Duration::from_secs(arguments.timeout),
            _place: place,
        };
        let why = match machine.reports.recv_timeout(BOOT_MAX) {
            Ok(Report::Ready) => {
                let elapsed = started.elapsed().as_secs_f64();
                eprintln!("vm: kernel {} is up after {elapsed:.1} s", kernel.release);
                return Ok(Ok(machine));
            }
            Ok(Report::Failed(why)) => why,
            Ok(Report::Exit(_)) => "the command ended before it began".to_owned(),
            Err(RecvTimeoutError::Timeout) => "the guest does not boot".to_owned(),
            Err(RecvTimeoutError::Disconnected) => "the guest stopped".to_owned(),
        };
        Ok(Err(machine.qemu.failure(&why)))
    }

    /// Passes on what `line` wants shown of the command's output until it ends, and answers with its exit status.
    pub(super) fn run(self, mut line: impl FnMut(&str) -> bool + Send) -> Result<i32, TaskError> {
        let Self {
            mut qemu,
            out,
            err,
            reports,
            timeout,
            _place: place,
        } = self;
        let ended = thread::scope(|scope| {
            // The channels end when QEMU does, so no reader outlives it.
            scope.spawn(|| pass_lines(out, &mut line));
            scope.spawn(|| io::copy(&mut &err, &mut io::stderr()));
            let ended = match reports.recv_timeout(timeout) {
                Ok(Report::Exit(status)) => Ok(status),
                Ok(Report::Failed(why)) => Err(why),
                Ok(Report::Ready) => Err("the guest booted twice".to_owned()),
                Err(RecvTimeoutError::Timeout) => Err(format!(
                    "the command ran longer than {} s",
                    timeout.as_secs()
                )),
                Err(RecvTimeoutError::Disconnected) => Err("the guest stopped".to_owned()),
            };
            qemu.stop(ended.is_ok());
            ended.map_err(|why| qemu.failure(&why))
        });
        // The next one in this place has a folder of the same name.
        drop(qemu);
        drop(place);
        ended
    }
}

/// One of [`MACHINES_MAX`], for as long as it lives.
#[derive(Debug)]
struct Place {
    index: usize,
    /// Locked by this process alone.
    _file: File,
}

impl Place {
    /// Waits while none is free.
    fn take(cache: &Path) -> io::Result<Self> {
        loop {
            for index in 0..MACHINES_MAX {
                let file = File::create(cache.join(format!("lock.{index}")))?;
                match file.try_lock() {
                    Ok(()) => return Ok(Self { index, _file: file }),
                    Err(TryLockError::WouldBlock) => {}
                    Err(TryLockError::Error(error)) => return Err(error),
                }
            }
            thread::sleep(PLACE_POLL);
        }
    }
}

impl Qemu {
    /// QEMU's end of a channel.
    fn accept(&mut self, listener: &UnixListener) -> Result<UnixStream, TaskError> {
        vm(listener.set_nonblocking(true))?;
        let started = Instant::now();
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    vm(stream.set_nonblocking(false))?;
                    return Ok(stream);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(TaskError::Vm(error.to_string())),
            }
            if vm(self.child.try_wait())?.is_some() || started.elapsed() > START_MAX {
                return Err(self.failure("QEMU does not start"));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it: by itself when the guest has said its last word, else by force.
    fn stop(&mut self, politely: bool) {
        let deadline = Instant::now() + Duration::from_secs(if politely { 5 } else { 0 });
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(20));
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// What went wrong, with the end of the console.
    fn failure(&self, why: &str) -> TaskError {
        let mut text = why.to_owned();
        for name in ["log", "console"] {
            let said = fs::read(self.folder.join(name)).unwrap_or_default();
            let said = String::from_utf8_lossy(&said);
            let lines: Vec<&str> = said.lines().collect();
            let first = lines.len().saturating_sub(CONSOLE_LINES_MAX);
            for line in &lines[first..] {
                text += &format!("\n  {name} | {}", line.trim_end());
            }
        }
        TaskError::Vm(text)
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.stop(false);
        drop(fs::remove_dir_all(&self.folder));
    }
}

fn vm<T>(result: io::Result<T>) -> Result<T, TaskError> {
    result.map_err(|error| TaskError::Vm(error.to_string()))
}

fn pass_lines(output: impl Read, line: &mut impl FnMut(&str) -> bool) {
    let mut output = BufReader::new(output);
    let mut bytes = Vec::new();
    // A broken channel is the end of the machine, which its report tells.
    while output
        .read_until(b'\n', &mut bytes)
        .is_ok_and(|count| count > 0)
    {
        if line(String::from_utf8_lossy(&bytes).trim_end()) {
            drop(io::stdout().write_all(&bytes));
        }
        bytes.clear();
    }
}

fn read_reports(control: UnixStream) -> Receiver<Report> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(control).lines().map_while(Result::ok) {
            if let Some(report) = parse_report(line.trim())
                && sender.send(report).is_err()
            {
                return;
            }
        }
    });
    receiver
}

fn parse_report(line: &str) -> Option<Report> {
    match line.split_once(' ').unwrap_or((line, "")) {
        ("ready", _) => Some(Report::Ready),
        ("failed", why) => Some(Report::Failed(why.to_owned())),
        ("exit", status) => Some(Report::Exit(status.parse().ok()?)),
        _ => None,
    }
}

/// One word for a shell, whatever is in it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn array(name: &str, words: impl IntoIterator<Item = String>) -> String {
    let words: Vec<String> = words.into_iter().map(|word| quoted(&word)).collect();
    format!("{name}=({})\n", words.join(" "))
}

/// The variables of this run, then the fixed text.
fn guest_script(kernel: &Kernel, arguments: &Arguments) -> Result<String, TaskError> {
    let directory = vm(std::env::current_dir())?;
    let passed_on = PASSED_ON
        .into_iter()
        .filter_map(|name| Some(format!("{name}={}", std::env::var(name).ok()?)));
    let rdma = match arguments.rdma {
        Rdma::None => "none",
        Rdma::Rxe => "rxe",
        Rdma::Siw => "siw",
    };
    let mut text = String::from("#!/bin/bash\n");
    for (name, value) in [
        ("release", kernel.release.clone()),
        ("kernel", kernel.folder.display().to_string()),
        ("directory", directory.display().to_string()),
        ("rdma", rdma.to_owned()),
        ("nqn", NVMET_NQN.to_owned()),
        ("nvmet_megabytes", arguments.nvmet.to_string()),
        ("nvme_drive", u8::from(arguments.nvme > 0).to_string()),
        ("scratch", u8::from(arguments.scratch).to_string()),
        (
            "forwards",
            u8::from(!arguments.forward.is_empty()).to_string(),
        ),
    ] {
        text += &format!("{name}={}\n", quoted(&value));
    }
    let mut writable = Vec::new();
    for folder in &arguments.rw {
        writable.push(vm(folder.canonicalize())?.display().to_string());
    }
    text += &array("writable", writable);
    text += &array(
        "environment",
        passed_on.chain(arguments.env.iter().cloned()),
    );
    text += &array("command", arguments.command.iter().cloned());
    text += GUEST;
    Ok(text)
}

fn qemu(kernel: &Kernel, arguments: &Arguments, folder: &Path) -> Result<Command, TaskError> {
    let at = |name: &str| folder.join(name).display().to_string();
    // It ends with us, however we end.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "nice"]);
    command.args([
        "-n",
        "10",
        "qemu-system-x86_64",
        "-nodefaults",
        "-no-user-config",
    ]);
    command.args([
        "-display",
        "none",
        "-no-reboot",
        "-machine",
        "q35",
        "-cpu",
        "max,la57=off",
    ]);
    let threads = if arguments.cpus > 1 {
        "multi"
    } else {
        "single"
    };
    command.args(["-accel", &format!("tcg,thread={threads}")]);
    command.args(["-smp", &arguments.cpus.to_string()]);
    command.args(["-m", &format!("{}M", arguments.memory)]);
    command.arg("-kernel").arg(kernel.image());
    command.arg("-initrd").arg(kernel.pack_initial(folder)?);
    // An emulated timer that is late on a busy host is no broken one.
    let line = "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off no_timer_check";
    command.args(["-append", &format!("{line} lunette.guest={}", at("guest"))]);
    command.args(["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]);
    command.args(["-serial", &format!("file:{}", at("console"))]);
    for (name, number) in [("out", "1"), ("err", "2"), ("control", "3")] {
        command.args(["-chardev", &format!("socket,id={name},path={}", at(name))]);
        let port = format!("virtserialport,nr={number},chardev={name},name={name}");
        command.args(["-device", &port]);
    }
    let share = "security_model=none,multidevs=remap";
    let host = format!("local,id=host,path=/,mount_tag=host,readonly=on,{share}");
    command.args(["-virtfs", &host]);
    for (index, writable) in arguments.rw.iter().enumerate() {
        let path = vm(writable.canonicalize())?;
        let share = format!(
            "local,id=rw{index},path={},mount_tag=rw{index},{share}",
            path.display()
        );
        command.args(["-virtfs", &share]);
    }
    if arguments.nvme > 0 {
        let drive = vm(File::create(folder.join("nvme")))?;
        vm(drive.set_len(u64::from(arguments.nvme) << 20))?;
        command.args(["-device", "nvme,id=nvme0,serial=lunette,mdts=9"]);
        command.args([
            "-drive",
            &format!("if=none,id=ns1,format=raw,file={}", at("nvme")),
        ]);
        command.args(["-device", "nvme-ns,bus=nvme0,drive=ns1,nsid=1"]);
    }
    if !arguments.forward.is_empty() {
        command.args(["-netdev", &forwarding(&arguments.forward)]);
        command.args(["-device", "virtio-net-pci,netdev=forward"]);
    }
    command.args(&arguments.qemu);
    Ok(command)
}

/// A network of QEMU's that nothing leaves, and that these ports of the host come into.
fn forwarding(ports: &[(u16, u16)]) -> String {
    let rules = ports
        .iter()
        .map(|(host, guest)| format!(",hostfwd=tcp:127.0.0.1:{host}-:{guest}"));
    format!("user,id=forward,restrict=on{}", rules.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_survives_the_shell() {
        for word in [
            "",
            "plain",
            "two words",
            "it's",
            "$HOME \"x\" \\ `y`",
            "a\nb",
        ] {
            let echo = format!("printf %s {}", quoted(word));
            let output = Command::new("sh").args(["-c", &echo]).output().unwrap();
            assert_eq!(output.stdout, word.as_bytes(), "{word}");
        }
    }

    #[test]
    fn reports_are_read_and_noise_is_not() {
        assert_eq!(parse_report("ready"), Some(Report::Ready));
        assert_eq!(parse_report("exit 7"), Some(Report::Exit(7)));
        let failed = Report::Failed("guest.sh line 3: modprobe x".into());
        assert_eq!(
            parse_report("failed guest.sh line 3: modprobe x"),
            Some(failed)
        );
        for noise in ["", "exit", "exit x", "readyx"] {
            assert_eq!(parse_report(noise), None, "{noise}");
        }
    }
}
