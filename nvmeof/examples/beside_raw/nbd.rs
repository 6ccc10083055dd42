//! Other servers of disks beside ours: `nbdkit` and `qemu-nbd`, with a disk in memory each, spoken to
//! over loopback TCP as their protocol has it (NBD, "doc/proto.md"), with as much in flight.
//!
//! Their host does less than ours: what it reads stays where it was received.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener as Probe};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lunette_runtime::net::TcpStream;
use lunette_runtime_core::random::SplitMix64;

use crate::extent::ROUND;
use crate::{DISK_BYTES, Row, Speed};

const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
const REPLY_BYTES: usize = 16;
/// How long a server may take to listen.
const PATIENCE: Duration = Duration::from_secs(5);

/// A server beside ours; it ends with this value.
pub(crate) struct Rival {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    child: Child,
}

impl Rival {
    /// Those that are installed; the others are named.
    pub(crate) fn all() -> Vec<Self> {
        let rivals = ["nbdkit", "qemu-nbd"].map(|name| match Self::start(name) {
            Ok(rival) => Some(rival),
            Err(error) => {
                println!("SKIP {name}: {error} (apt-get install nbdkit qemu-utils)");
                None
            }
        });
        rivals.into_iter().flatten().collect()
    }

    fn start(name: &'static str) -> io::Result<Self> {
        let address = Probe::bind("127.0.0.1:0")?.local_addr()?;
        let (port, disk_bytes) = (address.port().to_string(), DISK_BYTES.to_string());
        let disk = std::env::temp_dir().join(format!("beside-nbd-{port}"));
        let mut command = Command::new(name);
        if name == "nbdkit" {
            let memory = [
                "--foreground",
                "--ipaddr=127.0.0.1",
                "--port",
                &port,
                "memory",
            ];
            command.args(memory).arg(&disk_bytes);
        } else {
            // A file in the page cache is as near to memory as it gets.
            std::fs::File::create(&disk)?.set_len(DISK_BYTES)?;
            command.args([
                "--format=raw",
                "--persistent",
                "--bind=127.0.0.1",
                "--port",
                &port,
            ]);
            command.args(["--shared=4", "--cache=writeback"]).arg(&disk);
        }
        let child = command.stdin(Stdio::null()).spawn()?;
        let rival = Self {
            name,
            address,
            child,
        };
        let deadline = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(address).is_err() {
            if Instant::now() > deadline {
                return Err(ErrorKind::TimedOut.into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        // It stays as long as it is open.
        drop(std::fs::remove_file(disk));
        Ok(rival)
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// One connection, as far as the first export.
async fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).await.expect("connected");
    let hello = exactly(&stream, 18).await;
    assert_eq!(hello[8..16], *OPTION_MAGIC, "a server of the newer style");
    // The same style, without zeroes behind the answer; the export without a name.
    let mut asked = vec![0, 0, 0, 3];
    asked.extend_from_slice(OPTION_MAGIC);
    asked.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0]);
    let len = asked.len();
    stream.send_all(asked, 0, len).await.0.expect("sent");
    let about = exactly(&stream, 10).await;
    let bytes = u64::from_be_bytes(*about.first_chunk().expect("ten bytes"));
    assert!(bytes >= DISK_BYTES, "its disk is as long as ours");
    stream
}

async fn exactly(stream: &TcpStream, len: usize) -> Vec<u8> {
    let (mut buffer, mut filled) = (vec![0; len], 0);
    while filled < len {
        let (received, back) = stream.recv(buffer, filled, len - filled).await;
        buffer = back;
        filled += match received {
            Ok(count @ 1..) => count,
            other => unreachable!("the server has gone: {other:?}"),
        };
    }
    buffer
}

fn append_request(row: &Row, random: &mut SplitMix64, out: &mut Vec<u8>) {
    let pieces = DISK_BYTES / row.len as u64;
    let offset = random.next() % pieces * row.len as u64;
    let len = u32::try_from(row.len).expect("a command's data are short");
    out.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
    out.extend_from_slice(&[0, 0, 0, u8::from(row.writes)]);
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
    if row.writes {
        out.resize(out.len() + row.len, 7);
    }
}

/// Keeps as many requests in flight as the row says, for a round.
pub(crate) async fn exchange(address: SocketAddr, row: Row) -> Speed {
    let stream = connect(address).await;
    let mut random = SplitMix64::new(1);
    let reply = REPLY_BYTES + if row.writes { 0 } else { row.len };
    let (mut room, mut out) = (vec![0; 256 * 1024], Vec::new());
    let (mut kept, mut count, mut asks) = (0, 0_u64, row.depth);
    let started = Instant::now();
    let mut in_flight = 0;
    let mut took = Duration::ZERO;
    // Some servers do not bear it when nobody waits for their answers.
    while took.is_zero() || in_flight > 0 {
        if took.is_zero() && asks > 0 {
            out.clear();
            for _ in 0..asks {
                append_request(&row, &mut random, &mut out);
            }
            in_flight += asks;
            let len = out.len();
            let (sent, back) = stream.send_all(out, 0, len).await;
            sent.expect("sent");
            out = back;
        }
        let len = room.len();
        let (received, back) = stream.recv(room, 0, len).await;
        room = back;
        let received = received.expect("received");
        assert!(received > 0, "the server has gone");
        if kept == 0 && received >= 8 {
            assert_eq!(room[..4], REPLY_MAGIC.to_be_bytes());
            assert_eq!(room[4..8], [0; 4], "it succeeded");
        }
        kept += received;
        asks = kept / reply;
        kept %= reply;
        in_flight -= asks;
        if took.is_zero() {
            count += asks as u64;
            if started.elapsed() >= ROUND {
                took = started.elapsed();
            }
        }
    }
    Speed {
        per_s: count as f64 / took.as_secs_f64(),
    }
}
