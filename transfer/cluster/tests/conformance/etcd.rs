//! A real etcd, of this test's own.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lunette_cluster::proto::coordination::{Ask, KeyRange, Op};
use lunette_cluster::proto::http;
use lunette_cluster::{Client, ClientOptions};
use tempfile::TempDir;

/// How long it may take to start.
const START_MAX: Duration = Duration::from_secs(30);

/// Ports below Linux' `ip_local_port_range`, which begins at 32,768 where nobody changed it.
const PORTS_MIN: u16 = 12_000;
const PORTS_LEN: u32 = 20_000;

pub(crate) struct Etcd {
    child: Child,
    address: SocketAddr,
    peer: SocketAddr,
    folder: TempDir,
}

impl Etcd {
    /// Starts one, or says why it cannot, and that `test` is skipped.
    pub(crate) fn start(test: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let [address, peer] = [lasting_address(), lasting_address()];
        let child = match spawn(folder.path(), address, peer) {
            Ok(child) => child,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                println!("SKIP {test}: etcd is not installed (Debian: etcd-server)");
                return None;
            }
            Err(error) => unreachable!("etcd does not start: {error}"),
        };
        let etcd = Self {
            child,
            address,
            peer,
            folder,
        };
        etcd.wait_for_answers();
        Some(etcd)
    }

    fn wait_for_answers(&self) {
        let deadline = Instant::now() + START_MAX;
        while !self.answers() {
            assert!(Instant::now() < deadline, "etcd does not answer");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills it, without a word.
    pub(crate) fn kill(&mut self) {
        let killed = self.child.kill().and_then(|()| self.child.wait());
        assert!(killed.is_ok(), "{killed:?}");
    }

    /// Starts it again where it was.
    pub(crate) fn restart(&mut self) {
        let spawned = spawn(self.folder.path(), self.address, self.peer);
        self.child = spawned.expect("it was there before");
        self.wait_for_answers();
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it has a leader and answers.
    fn answers(&self) -> bool {
        use std::io::{Read as _, Write as _};
        let Ok(mut stream) = TcpStream::connect(self.address) else {
            return false;
        };
        let mut request = Vec::new();
        http::append_request(&mut request, "etcd", "/v3/kv/range", b"{\"key\":\"YQ==\"}");
        let mut answer = [0; 12];
        let asked = stream.write_all(&request);
        let wait = stream.set_read_timeout(Some(Duration::from_secs(5)));
        asked
            .and(wait)
            .and_then(|()| stream.read_exact(&mut answer))
            .is_ok()
            && answer.ends_with(b"200")
    }
}

fn spawn(folder: &Path, client: SocketAddr, peer: SocketAddr) -> io::Result<Child> {
    let url = |address: SocketAddr| format!("http://{address}");
    Command::new("etcd")
        .arg("--data-dir")
        .arg(folder)
        .args(["--listen-client-urls", &url(client)])
        .args(["--advertise-client-urls", &url(client)])
        .args(["--listen-peer-urls", &url(peer)])
        .args(["--initial-advertise-peer-urls", &url(peer)])
        .args(["--initial-cluster", &format!("default={}", url(peer))])
        .args(["--heartbeat-interval", "100", "--election-timeout", "1000"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let killed = self.child.kill().and_then(|()| self.child.wait());
        assert!(killed.is_ok(), "{killed:?}");
    }
}

/// A port that is free, and below those which the system gives to connections: when whoever listened there
/// is killed, no connection takes it before it starts again.
pub(crate) fn lasting_address() -> SocketAddr {
    static TRIES: AtomicU32 = AtomicU32::new(0);
    loop {
        let tried = TRIES.fetch_add(1, Ordering::Relaxed);
        assert!(tried < PORTS_LEN, "no port is free");
        // Tests that run beside this one are other processes.
        let offset = (process::id() * 37 + tried) % PORTS_LEN;
        let port = PORTS_MIN + u16::try_from(offset).expect("below the length");
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return listener.local_addr().expect("it is bound");
        }
    }
}

/// Makes etcd forget everything up to now. Members never ask for this, so the client cannot either.
pub(crate) async fn compact(address: SocketAddr) {
    let options = ClientOptions {
        endpoints: vec![address],
        security: None,
        silence_max: Duration::from_secs(5),
    };
    let client = Client::new(options);
    let read = Ask::Op(Op::Range(KeyRange::one("none")));
    let answer = client.ask(&read, Duration::from_secs(5)).await;
    let revision = answer.expect("etcd answers").revision;
    let json = format!("{{\"revision\":\"{}\",\"physical\":true}}", revision.0);
    let stream = lunette_runtime::net::TcpStream::connect(address).await;
    let stream = stream.expect("etcd listens");
    let mut request = Vec::new();
    http::append_request(&mut request, "etcd", "/v3/kv/compaction", json.as_bytes());
    let len = request.len();
    let (sent, _) = stream.send_all(request, 0, len).await;
    sent.expect("etcd reads");
    let (received, bytes) = stream.recv(vec![0; 512], 0, 512).await;
    let text = String::from_utf8_lossy(&bytes[..received.expect("etcd answers")]).into_owned();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
}
