//! Five members of a cluster at a real etcd, one of which is killed and started again every second,
//! under load: whatever fails, no byte is wrong.
//!
//! `LUNETTE_CHAOS_S=120 cargo test -p lunette --test chaos -- --nocapture` tells, second by second, how
//! many operations failed and how many gets hit.
#![forbid(unsafe_code)]

#[cfg(test)]
#[path = "../../transfer/cluster/tests/conformance/etcd.rs"]
#[expect(dead_code, reason = "here it is not etcd that is killed")]
mod etcd;
#[cfg(test)]
#[path = "chaos/load.rs"]
mod load;

#[cfg(test)]
mod tests {
    use std::env;
    use std::io::{BufRead, BufReader};
    use std::net::SocketAddr;
    use std::path::Path;
    use std::process::{Child, ChildStdout, Command, Stdio};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::etcd::{Etcd, lasting_address};
    use super::load::{Load, Second};

    const NODES: usize = 5;
    /// How long it goes on, in seconds, where nobody says.
    const SECONDS: u64 = 8;

    /// A member, killed when the value is dropped.
    struct Member {
        child: Child,
        _stdout: BufReader<ChildStdout>,
    }

    impl Member {
        fn start(number: usize, listen: SocketAddr, etcd: SocketAddr, lives: &Path) -> Self {
            let life = lives.join(number.to_string());
            let mut child = Command::new(env!("CARGO_BIN_EXE_lunette"))
                .args([
                    "serve",
                    "--json",
                    "--memory",
                    "64MiB",
                    "--idle",
                    "efficient",
                ])
                .args(["--node-id", &(number + 1).to_string()])
                .args(["--listen", &listen.to_string()])
                .args(["--cluster", "chaos", "--lease-ttl", "2"])
                .args(["--etcd", &etcd.to_string()])
                .arg("--life-file")
                .arg(life)
                .env_remove("LUNETTE_SECRET_FILE")
                .env_remove("LUNETTE_COORDINATORS")
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .expect("it starts");
            let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
            let mut line = String::new();
            stdout.read_line(&mut line).expect("it says that it serves");
            assert!(line.contains("ready"), "{line}");
            Self {
                child,
                _stdout: stdout,
            }
        }
    }

    impl Drop for Member {
        fn drop(&mut self) {
            let ended = self.child.kill().and_then(|()| self.child.wait());
            assert!(ended.is_ok(), "{ended:?}");
        }
    }

    #[test]
    fn no_byte_is_wrong_while_members_are_killed() {
        let Some(etcd) = Etcd::start("no_byte_is_wrong_while_members_are_killed") else {
            return;
        };
        let seconds = env::var("LUNETTE_CHAOS_S").ok();
        let seconds = seconds
            .and_then(|text| text.parse().ok())
            .unwrap_or(SECONDS);
        let lives = tempfile::tempdir().expect("a folder");
        let addresses: Vec<SocketAddr> = (0..NODES).map(|_| lasting_address()).collect();
        let members = addresses.iter().enumerate();
        let mut members: Vec<Member> = members
            .map(|(number, &listen)| Member::start(number, listen, etcd.address(), lives.path()))
            .collect();
        let is_over = Arc::new(AtomicBool::new(false));
        let load = Load {
            seeds: addresses.clone(),
            is_over: Arc::clone(&is_over),
        };
        let loading = thread::spawn(move || load.run());
        // A while without trouble, to compare with.
        thread::sleep(Duration::from_secs(4));
        for second in 0..seconds {
            let victim = usize::try_from(second).expect("few") * 2 % NODES;
            let listen = addresses[victim];
            drop(members.remove(victim));
            let again = Member::start(victim, listen, etcd.address(), lives.path());
            members.insert(victim, again);
            thread::sleep(Duration::from_secs(1));
        }
        is_over.store(true, Ordering::Relaxed);
        let told = loading.join().expect("the load ends well");
        let mut sum = Second::default();
        for (number, second) in told.iter().enumerate() {
            println!("{number:>4} s: {second:?}");
            sum += *second;
        }
        println!("in all: {sum:?}");
        assert_eq!(sum.wrong, 0, "{sum:?}");
        assert!(sum.hits > 0 && sum.written > 0, "{sum:?}");
    }
}
