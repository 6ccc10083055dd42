//! Five members of a cluster at a real etcd, one of which is killed and started again every second, or
//! stopped for longer than its lease; without drives, and with some: under load, whatever fails, no byte is wrong.
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
    use std::fs;
    use std::io::{BufRead, BufReader};
    use std::net::SocketAddr;
    use std::process::{Child, ChildStdout, Command, Stdio};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, kill_process};
    use tempfile::TempDir;

    use super::etcd::{Etcd, lasting_address};
    use super::load::{Load, Second};

    const NODES: usize = 5;
    /// How long it goes on, in seconds, where nobody says.
    const SECONDS: u64 = 8;
    const LEASE_TTL_S: u64 = 2;

    /// What befalls members, one after the other.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Trouble {
        /// It is killed, and started again: one each second.
        Kills,
        /// It does nothing for longer than its lease lasts, and goes on.
        Stops,
    }

    /// Where members are, and what they keep.
    struct Town {
        etcd: Etcd,
        addresses: Vec<SocketAddr>,
        folder: TempDir,
        /// Memory of each, little of it where what leaves goes to a drive.
        memory: &'static str,
        has_drives: bool,
    }

    /// A member, killed when the value is dropped.
    struct Member {
        child: Child,
        _stdout: BufReader<ChildStdout>,
    }

    impl Town {
        fn start(&self, number: usize) -> Member {
            let own = |what: &str| self.folder.path().join(format!("{what}-{number}"));
            let mut serve = Command::new(env!("CARGO_BIN_EXE_lunette"));
            serve
                .args(["serve", "--json", "--idle", "efficient"])
                .args(["--memory", self.memory])
                .args(["--node-id", &(number + 1).to_string()])
                .args(["--listen", &self.addresses[number].to_string()])
                .args(["--cluster", "chaos"])
                .args(["--lease-ttl", &LEASE_TTL_S.to_string()])
                .args(["--etcd", &self.etcd.address().to_string()])
                .arg("--life-file")
                .arg(own("life"));
            if self.has_drives {
                fs::create_dir_all(own("drive")).expect("a folder");
                serve.arg("--drive").arg(own("drive"));
                serve.args(["--drive-size", "128MiB"]);
            }
            let mut child = serve
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
            Member {
                child,
                _stdout: stdout,
            }
        }
    }

    impl Member {
        fn send(&self, signal: Signal) {
            let sent = kill_process(Pid::from_child(&self.child), signal);
            sent.expect("it is our child");
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
        let name = "no_byte_is_wrong_while_members_are_killed";
        no_byte_is_wrong(name, Trouble::Kills, false);
    }

    #[test]
    fn no_byte_is_wrong_while_members_with_drives_are_killed() {
        let name = "no_byte_is_wrong_while_members_with_drives_are_killed";
        no_byte_is_wrong(name, Trouble::Kills, true);
    }

    #[test]
    fn no_byte_is_wrong_while_members_are_stopped() {
        let name = "no_byte_is_wrong_while_members_are_stopped";
        no_byte_is_wrong(name, Trouble::Stops, false);
    }

    fn no_byte_is_wrong(name: &str, trouble: Trouble, has_drives: bool) {
        let Some(etcd) = Etcd::start(name) else {
            return;
        };
        let seconds = env::var("LUNETTE_CHAOS_S").ok();
        let seconds = seconds
            .and_then(|text| text.parse().ok())
            .unwrap_or(SECONDS);
        let town = Town {
            etcd,
            addresses: (0..NODES).map(|_| lasting_address()).collect(),
            folder: tempfile::tempdir().expect("a folder"),
            memory: if has_drives { "2MiB" } else { "64MiB" },
            has_drives,
        };
        let mut members: Vec<Member> = (0..NODES).map(|number| town.start(number)).collect();
        let is_over = Arc::new(AtomicBool::new(false));
        let load = Load {
            seeds: town.addresses.clone(),
            is_over: Arc::clone(&is_over),
        };
        let loading = thread::spawn(move || load.run());
        // A while without trouble, to compare with.
        thread::sleep(Duration::from_secs(4));
        let troubled = Instant::now();
        for victim in (0..).map(|turn: usize| turn * 2 % NODES) {
            if troubled.elapsed() >= Duration::from_secs(seconds) {
                break;
            }
            befall(trouble, &town, &mut members, victim);
        }
        is_over.store(true, Ordering::Relaxed);
        let told = loading.join().expect("the load ends well");
        let mut sum = Second::default();
        for (number, second) in told.iter().enumerate() {
            println!("{number:>4} s: {second:?}");
            sum += *second;
        }
        println!("{trouble:?}, drives: {has_drives}: in all: {sum:?}");
        assert_eq!(sum.wrong, 0, "{sum:?}");
        assert!(sum.hits > 0 && sum.written > 0, "{sum:?}");
    }

    fn befall(trouble: Trouble, town: &Town, members: &mut Vec<Member>, victim: usize) {
        match trouble {
            Trouble::Kills => {
                drop(members.remove(victim));
                members.insert(victim, town.start(victim));
            }
            Trouble::Stops => {
                members[victim].send(Signal::STOP);
                thread::sleep(Duration::from_secs(LEASE_TTL_S + 1));
                members[victim].send(Signal::CONT);
            }
        }
        thread::sleep(Duration::from_secs(1));
    }
}
