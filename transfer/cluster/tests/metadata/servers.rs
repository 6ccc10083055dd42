//! Real metadata servers, of this test's own.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lunette_cluster::proto::metadata::Dialect;
use tempfile::TempDir;

/// How long one may take to start.
const START_MAX: Duration = Duration::from_secs(30);
/// How long its first answer may take, until it is asked again.
const ANSWER_MAX: Duration = Duration::from_secs(2);

pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
    dialect: Dialect,
    _folder: TempDir,
}

impl Server {
    /// Starts one, or says that `test` is skipped since `what` is not installed.
    fn start(
        test: &str,
        what: &str,
        dialect: Dialect,
        command: impl FnOnce(&Path, SocketAddr) -> Command,
    ) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let any_port = TcpListener::bind((an_address_of_this_process(), 0)).expect("a port");
        let address = any_port.local_addr().expect("it is bound");
        drop(any_port);
        let mut command = command(folder.path(), address);
        let output = [Stdio::null(), Stdio::null(), Stdio::null()];
        let [stdin, stdout, stderr] = output;
        let child = match command.stdin(stdin).stdout(stdout).stderr(stderr).spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                println!("SKIP {test}: {what}");
                return None;
            }
            Err(error) => unreachable!("{what}: {error}"),
        };
        let mut server = Self {
            child,
            address,
            dialect,
            _folder: folder,
        };
        let deadline = Instant::now() + START_MAX;
        while answers(address, dialect).is_err() {
            let ended = server.child.try_wait().expect("it is a child");
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "{test}: the server does not answer: {ended:?}"
            );
            thread::sleep(Duration::from_millis(50));
        }
        Some(server)
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) const fn dialect(&self) -> Dialect {
        self.dialect
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let killed = self.child.kill().and_then(|()| self.child.wait());
        assert!(killed.is_ok(), "{killed:?}");
    }
}

/// Whether a server answers there: one that has begun to listen may still reset its first connections.
fn answers(address: SocketAddr, dialect: Dialect) -> io::Result<()> {
    let mut connection = TcpStream::connect(address)?;
    connection.set_read_timeout(Some(ANSWER_MAX))?;
    let question: &[u8] = match dialect {
        Dialect::Http => b"GET /metadata?key=is-anybody-there HTTP/1.0\r\n\r\n",
        Dialect::Redis => b"PING\r\n",
    };
    connection.write_all(question)?;
    connection.read_exact(&mut [0])
}

/// Ports that were free a moment ago stay free at an address of one's own: at 127.0.0.1 whatever asks for
/// any port may be given them.
fn an_address_of_this_process() -> Ipv4Addr {
    let [high, middle_high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 1 + (high ^ middle_high) % 128, middle, low | 2)
}

pub(crate) fn redis(test: &str) -> Option<Server> {
    let what = "redis is not installed (Debian: redis-server)";
    Server::start(test, what, Dialect::Redis, |folder, address| {
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", &address.ip().to_string()])
            .args(["--port", &address.port().to_string()])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(folder);
        command
    })
}

/// The server of Mooncake's wheel, if it is on the path: no Debian package has it.
pub(crate) fn mooncake(test: &str) -> Option<Server> {
    let what = "mooncake_http_metadata_server is not on the path (pip: mooncake-transfer-engine)";
    Server::start(test, what, Dialect::Http, |_folder, address| {
        let mut command = Command::new("mooncake_http_metadata_server");
        command
            .args(["--host", &address.ip().to_string()])
            .args(["--port", &address.port().to_string()]);
        command
    })
}

/// A file for each key. What the path's query says is the file's name, as it is spelled.
pub(crate) fn nginx(test: &str) -> Option<Server> {
    let what = "nginx is not installed (Debian: nginx-light)";
    Server::start(test, what, Dialect::Http, |folder, address| {
        let text = nginx_configuration(address);
        for name in ["records", "body"] {
            fs::create_dir(folder.join(name)).expect("a folder");
        }
        fs::write(folder.join("nginx.conf"), text).expect("a file");
        let mut command = Command::new("nginx");
        command
            .arg("-p")
            .arg(folder)
            .args(["-c", "nginx.conf", "-e", "error.log"]);
        command
    })
}

fn nginx_configuration(address: SocketAddr) -> String {
    format!(
        "daemon off;\nmaster_process off;\npid nginx.pid;\nevents {{}}\n\
         http {{\n\
           access_log off;\n\
           client_body_temp_path body;\n\
           proxy_temp_path body;\nfastcgi_temp_path body;\nuwsgi_temp_path body;\nscgi_temp_path body;\n\
           server {{\n\
             listen {address};\n\
             location = /metadata {{ rewrite ^ /records/$arg_key last; }}\n\
             location /records/ {{\n\
               internal;\n\
               root .;\n\
               client_max_body_size 8m;\n\
               dav_methods PUT DELETE;\n\
             }}\n\
           }}\n\
         }}\n"
    )
}
