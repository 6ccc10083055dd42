//! What one exchange costs in instructions and in system calls, beside the raw loop.
//!
//! Neither depends on the clock, the load or stolen time. The serving side runs under callgrind
//! (instructions outside the kernel) and under strace (calls), once for few exchanges and once for
//! more; the difference is the exchanges' alone.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use clap::ValueEnum;

use crate::peer::{PING_BYTES, Serve};

/// Exchanges of the shorter and of the longer run.
const EXCHANGES: [u64; 2] = [1000, 5000];
/// Most instructions beside the raw loop's.
const INSTRUCTIONS_RATIO_MAX: f64 = 1.05;
/// Most system calls beside the raw loop's; the rest is start and end, which differ by a few.
const CALLS_RATIO_MAX: f64 = 1.005;

/// What counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    Callgrind,
    Strace,
}

impl Tool {
    const fn unit(self) -> &'static str {
        match self {
            Self::Callgrind => "instructions",
            Self::Strace => "system calls",
        }
    }

    const fn ratio_max(self) -> f64 {
        match self {
            Self::Callgrind => INSTRUCTIONS_RATIO_MAX,
            Self::Strace => CALLS_RATIO_MAX,
        }
    }

    /// The command that runs a program and writes its count to `out`.
    fn command(self, out: &Path) -> Command {
        match self {
            Self::Callgrind => {
                let mut command = Command::new("valgrind");
                let file = format!("--callgrind-out-file={}", out.display());
                command.args(["--tool=callgrind", "--quiet"]).arg(file);
                command
            }
            Self::Strace => {
                let mut command = Command::new("strace");
                command.args(["-f", "-c", "-o"]).arg(out);
                command
            }
        }
    }

    /// The count in what the tool wrote.
    fn count(self, text: &str) -> Option<u64> {
        match self {
            Self::Callgrind => text
                .lines()
                .find_map(|line| line.strip_prefix("summary: "))
                .and_then(|count| count.trim().parse().ok()),
            Self::Strace => {
                let total = text.lines().find(|line| line.ends_with(" total"))?;
                total.split_whitespace().nth(3)?.parse().ok()
            }
        }
    }
}

/// Counts, and prints a table. False if a goal is missed.
pub(crate) fn run() -> io::Result<bool> {
    println!("unit          ours/exchange  raw/exchange  ratio  goal           verdict");
    let mut met = true;
    for tool in [Tool::Callgrind, Tool::Strace] {
        let ours = per_exchange(tool, Serve::Echo)?;
        let raw = per_exchange(tool, Serve::RawPing)?;
        let (ratio, most) = (ours / raw, tool.ratio_max());
        let verdict = if ratio <= most { "met" } else { "missed" };
        met &= ratio <= most;
        println!(
            "{:<12}  {ours:>13.2}  {raw:>12.2}  {ratio:>5.3}  at most {most:<5.3}  {verdict}",
            tool.unit()
        );
    }
    Ok(met)
}

fn per_exchange(tool: Tool, serve: Serve) -> io::Result<f64> {
    let [few, many] = EXCHANGES;
    let added = count(tool, serve, many)?.saturating_sub(count(tool, serve, few)?);
    Ok(added as f64 / (many - few) as f64)
}

/// The count of a serving process for `exchanges` of them.
fn count(tool: Tool, serve: Serve, exchanges: u64) -> io::Result<u64> {
    let out = std::env::temp_dir().join(format!("lunette-counts-{}", std::process::id()));
    let name = serve.to_possible_value().expect("every kind has a name");
    let mut child = tool
        .command(&out)
        .arg(std::env::current_exe()?)
        .args(["--once", "--serve", name.get_name()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| io::Error::other(format!("{tool:?}: {error}; is it installed?")))?;
    let mut line = String::new();
    let stdout = child.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut line)?;
    let address: SocketAddr = line
        .trim()
        .parse()
        .map_err(|_| io::Error::other(format!("{serve:?} did not start")))?;
    exchange(address, exchanges)?;
    let status = child.wait()?;
    let text = fs::read_to_string(&out)?;
    fs::remove_file(&out)?;
    tool.count(&text)
        .filter(|_| status.success())
        .ok_or_else(|| io::Error::other(format!("{tool:?} of {serve:?}: {status}: {text}")))
}

fn exchange(address: SocketAddr, exchanges: u64) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut bytes = [7; PING_BYTES];
    for _ in 0..exchanges {
        stream.write_all(&bytes)?;
        stream.read_exact(&mut bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_in_what_the_tools_write() {
        let callgrind = "events: Ir\nfn=main\n1 2\n\nsummary: 12345\ntotals: 12345\n";
        assert_eq!(Tool::Callgrind.count(callgrind), Some(12_345));
        let strace = "% time     seconds  usecs/call     calls    errors syscall\n\
                      ------ ----------- ----------- --------- --------- ----------------\n\
                      90.00    0.000090           1        90           io_uring_enter\n\
                      ------ ----------- ----------- --------- --------- ----------------\n\
                      100.00    0.000100           1       100         3 total\n";
        assert_eq!(Tool::Strace.count(strace), Some(100));
        assert_eq!(Tool::Strace.count("strace: nothing"), None);
    }
}
