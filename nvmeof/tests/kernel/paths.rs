//! Two paths to a namespace, whose states change while it is written and read.

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::thread;
    use std::time::{Duration, Instant};

    use lunette_nvmeof::proto::host::PathPolicy;
    use lunette_nvmeof::proto::log_page::AnaState;
    use lunette_nvmeof::proto::nqn::Nqn;
    use lunette_nvmeof::proto::pdu::Digests;
    use lunette_nvmeof::{NamespaceOptions, RemoteNamespace};
    use lunette_runtime::{CoreOptions, arena, block_on, spawn_local, time};

    use crate::blocks::BlockDevice;
    use crate::rig::{
        DIGESTS, KernelHost, SECOND_TARGET, TARGET, TARGET_NAME, bring_second_port_up, config,
        set_target_state, sh,
    };
    use crate::server::{OurServer, Serves, name};

    const TIMEOUT: Duration = Duration::from_secs(60);
    const BLOCK_BYTES: usize = 4096;

    async fn connect() -> RemoteNamespace {
        let addresses = [TARGET, SECOND_TARGET].map(|at| at.parse().expect("an address"));
        let name = Nqn::new(TARGET_NAME).expect("a name");
        let options = NamespaceOptions {
            addresses: addresses.to_vec(),
            policy: PathPolicy::RoundRobin,
            path_timeout: TIMEOUT,
            ..NamespaceOptions::new(addresses[0], name, config(Digests::NONE))
        };
        RemoteNamespace::connect(options).await.expect("connected")
    }

    /// Waits until the paths are in these states, as far as our host knows.
    async fn known(namespace: &RemoteNamespace, expected: [AnaState; 2]) {
        let seen = async {
            let states = || namespace.paths().into_iter().map(|path| path.state);
            while !states().eq(expected.map(Some)) {
                time::sleep(Duration::from_millis(1)).await;
            }
        };
        let seen = time::timeout(TIMEOUT, seen).await;
        seen.unwrap_or_else(|_late| unreachable!("{expected:?}: {:?}", namespace.paths()));
    }

    /// Writes blocks of its own and reads them again until it is told to end; says how often.
    async fn write_and_read(
        namespace: Rc<RemoteNamespace>,
        task: u64,
        ends: Rc<Cell<bool>>,
    ) -> u64 {
        let mut rounds = 0;
        while !ends.get() {
            rounds += 1;
            let mut region = arena().alloc(BLOCK_BYTES).expect("room");
            let byte = u8::try_from((task * 31 + rounds) % 251).expect("a byte");
            region.as_mut_slice().fill(byte);
            let first = task * BLOCK_BYTES as u64 / 512;
            let written = namespace
                .write(first, region.freeze(), false, TIMEOUT)
                .await;
            // A path that is closed has not carried it out: it goes by the other one.
            written.expect("written");
            let region = arena().alloc(BLOCK_BYTES).expect("room");
            let read = namespace.read(first, region, TIMEOUT).await.expect("read");
            assert!(read.as_slice().iter().all(|&found| found == byte), "{task}");
        }
        rounds
    }

    #[test]
    fn our_host_follows_the_states_of_the_kernels_ports() {
        use AnaState::{Inaccessible, NonOptimized, Optimized};
        bring_second_port_up();
        let run = async {
            let namespace = Rc::new(connect().await);
            known(&namespace, [Optimized; 2]).await;
            let ends = Rc::new(Cell::new(false));
            let tasks: Vec<_> = (0..4)
                .map(|task| {
                    let (namespace, ends) = (Rc::clone(&namespace), Rc::clone(&ends));
                    spawn_local(write_and_read(namespace, task, ends))
                })
                .collect();
            let steps = [
                (7, "inaccessible", [Inaccessible, Optimized]),
                (7, "non-optimized", [NonOptimized, Optimized]),
                (8, "inaccessible", [NonOptimized, Inaccessible]),
                // Commands wait.
                (7, "inaccessible", [Inaccessible, Inaccessible]),
                (8, "optimized", [Inaccessible, Optimized]),
                (7, "optimized", [Optimized, Optimized]),
            ];
            for (port, state, expected) in steps {
                set_target_state(port, state);
                known(&namespace, expected).await;
                time::sleep(Duration::from_millis(100)).await;
            }
            ends.set(true);
            for task in tasks {
                assert!(task.await.expect("no panic") > 10);
            }
            assert_eq!(namespace.reconnects(), 0);
        };
        block_on(None, CoreOptions::default(), move || run).expect("a core");
    }

    #[test]
    fn the_kernels_host_follows_the_states_of_our_ports() {
        let uses_paths = "/sys/module/nvme_core/parameters/multipath";
        sh("modprobe nvme_tcp");
        if sh(&format!("cat {uses_paths} || echo N")).trim() != "Y" {
            println!("SKIP the_kernels_host_follows_the_states_of_our_ports: no multipath here");
            return;
        }
        let server = OurServer::start([50; 16], Serves::Memory);
        let connect = |address| KernelHost::connect(address, &name(), DIGESTS[0], &[50; 16]);
        let hosts = [connect(server.address), connect(server.second)];
        assert_eq!(hosts[0].path(), hosts[1].path(), "two paths to one disk");
        let known = |expected: [&str; 2]| {
            let deadline = Instant::now() + TIMEOUT;
            while [0, 1].map(|index| hosts[index].ana_state()) != expected {
                assert!(Instant::now() < deadline, "{expected:?}");
                thread::sleep(Duration::from_millis(5));
            }
        };
        known(["optimized"; 2]);
        let device = BlockDevice::open(&hosts[0].path());
        device.verify(50, (64 << 10, 96), |index| match index {
            16 => server.set_state(1, AnaState::Inaccessible),
            32 => known(["inaccessible", "optimized"]),
            40 => server.set_state(1, AnaState::NonOptimized),
            48 => known(["non-optimized", "optimized"]),
            56 => server.set_state(2, AnaState::Inaccessible),
            64 => known(["non-optimized", "inaccessible"]),
            72 => server.set_state(2, AnaState::Optimized),
            80 => known(["non-optimized", "optimized"]),
            88 => server.cut(),
            _ => {}
        });
    }
}
