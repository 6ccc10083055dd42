//! A server on several cores: the queues of one controller are on any of them.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::io::{ErrorKind, Read as _};
    use std::net::SocketAddr;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use lunette_nvmeof::proto::command::{Command, admin};
    use lunette_nvmeof::proto::completion::Status;
    use lunette_nvmeof::proto::controller::Secrets;
    use lunette_nvmeof::proto::fabrics::Property;
    use lunette_nvmeof::proto::io::{Blocks, Geometry, IoRequest};
    use lunette_nvmeof::proto::log_page::AnaState;
    use lunette_nvmeof::proto::nqn::Nqn;
    use lunette_nvmeof::proto::pdu::Digests;
    use lunette_nvmeof::{
        CommandError, ControllerEvent, Data, Disk, Export, ExportedDisk, HostConfig, Queue,
        RemoteController, Server, ServerOptions, SharedDisk,
    };
    use lunette_runtime::net::TcpListener;
    use lunette_runtime::{
        CoreOptions, DriverChoice, Placement, Runtime, arena, spawn_local, spawn_on, time,
    };
    use lunette_runtime_core::ids::CoreIndex;

    const TIMEOUT: Duration = Duration::from_secs(20);
    const DISK_BYTES: u64 = 4 << 20;
    const GEOMETRY: Geometry = Geometry {
        blocks: DISK_BYTES / 512,
        block_bytes_log2: 9,
        transfer_bytes_max: 1 << 20,
    };
    /// The host is on the last core, the server on the others.
    const SERVERS: u16 = 2;
    /// Of all cores of the server: two controllers, and two more.
    const CONNECTIONS_MAX: usize = 12;

    fn name() -> Nqn {
        Nqn::new("nqn.2026-01.example:disk").expect("a name")
    }

    fn config() -> HostConfig {
        let host = Nqn::new("nqn.2026-01.example:host").expect("a name");
        HostConfig {
            digests: Digests::BOTH,
            io_queues: 4,
            keep_alive: Duration::from_secs(5),
            timeout: TIMEOUT,
            ..HostConfig::new(host, [1; 16])
        }
    }

    /// What tests know of the server from another core.
    #[derive(Clone)]
    struct Known {
        address: SocketAddr,
        /// Connections of each core.
        by_core: Arc<[AtomicUsize; SERVERS as usize]>,
    }

    impl Known {
        fn connections(&self) -> [usize; SERVERS as usize] {
            [0, 1].map(|core| self.by_core[core].load(Ordering::Relaxed))
        }

        async fn until(&self, holds: impl Fn([usize; SERVERS as usize]) -> bool) {
            let waiting = async {
                while !holds(self.connections()) {
                    time::sleep(Duration::from_millis(2)).await;
                }
            };
            let waited = time::timeout(TIMEOUT, waiting).await;
            waited.unwrap_or_else(|_late| unreachable!("{:?}", self.connections()));
        }
    }

    async fn count(server: Rc<Server>, by_core: Arc<[AtomicUsize; SERVERS as usize]>, core: usize) {
        loop {
            by_core[core].store(server.connections_here(), Ordering::Relaxed);
            time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Starts the server on its cores. What is sent there is carried out by the first one.
    async fn serve(orders: impl AsyncFnOnce(Rc<Server>) + Send + 'static) -> Known {
        let disk = SharedDisk::new(DISK_BYTES).expect("memory");
        let by_core: Arc<[AtomicUsize; SERVERS as usize]> = Arc::default();
        let counts = Arc::clone(&by_core);
        let started = spawn_on(CoreIndex(0), move || async move {
            let any_port = "127.0.0.1:0".parse().expect("an address");
            let listener = TcpListener::bind(any_port).expect("a port");
            let address = listener.local_addr();
            let export = Export {
                name: name(),
                hosts: None,
                secrets: Secrets::default(),
                disks: vec![ExportedDisk {
                    disk: Disk::Shared(disk.here()),
                    block_bytes: 512,
                    uuid: [7; 16],
                    is_read_only: false,
                    ana_group: 1,
                }],
            };
            let options = ServerOptions {
                connections_max: CONNECTIONS_MAX,
                ..ServerOptions::default()
            };
            let spread = Server::spread(options, vec![export], &[address], SERVERS.into());
            let (server, seats) = spread.expect("a server");
            for (core, seat) in (1..).zip(seats) {
                let (disk, counts) = (disk.clone(), Arc::clone(&counts));
                let started = spawn_on(CoreIndex(core), move || async move {
                    let server = seat.join(vec![vec![Disk::Shared(disk.here())]]);
                    drop(spawn_local(count(Rc::clone(&server), counts, core.into())));
                    drop(spawn_local(server.serve_ports(Vec::new(), pending())));
                });
                started.await.expect("started");
            }
            drop(spawn_local(count(Rc::clone(&server), counts, 0)));
            drop(spawn_local(Rc::clone(&server).serve(listener, pending())));
            drop(spawn_local(async move { orders(server).await }));
            address
        });
        Known {
            address: started.await.expect("started"),
            by_core,
        }
    }

    /// Runs on the host's core.
    fn run(scenario: impl AsyncFnOnce() + Send + 'static) {
        run_on(DriverChoice::Best, scenario);
    }

    fn run_on(driver: DriverChoice, scenario: impl AsyncFnOnce() + Send + 'static) {
        let placement = Placement::Anywhere(usize::from(SERVERS) + 1);
        let options = CoreOptions {
            driver,
            ..CoreOptions::default()
        };
        let runtime = Runtime::start(&placement, options).expect("cores");
        let ran = runtime.spawn_on(CoreIndex(SERVERS), || async move { scenario().await });
        ran.expect("a core").wait().expect("no panic");
        runtime.shut_down().expect("no panic");
    }

    async fn connect(known: &Known) -> (Rc<RemoteController>, Vec<Queue>) {
        let controller = RemoteController::connect(known.address, &name(), config()).await;
        let controller = controller.expect("connected");
        let mut queues = Vec::new();
        for _ in 0..4 {
            queues.push(controller.queue().await.expect("granted"));
        }
        (controller, queues)
    }

    async fn write(queue: &Queue, first: u64, byte: u8) -> Result<(), CommandError> {
        let mut region = arena().alloc(65_536).expect("room");
        region.as_mut_slice().fill(byte);
        let blocks = Blocks { first, count: 128 };
        let request = IoRequest::Write {
            blocks,
            must_last: false,
        };
        let command = request.command(1, &GEOMETRY);
        let written = queue.command(command, Data::Out(region.freeze()), TIMEOUT);
        written.await.map(drop).map_err(|failure| failure.error)
    }

    async fn read(queue: &Queue, first: u64) -> Result<u8, CommandError> {
        let region = arena().alloc(65_536).expect("room");
        let blocks = Blocks { first, count: 128 };
        let command = IoRequest::Read(blocks).command(1, &GEOMETRY);
        let read = queue.command(command, Data::In(region), TIMEOUT).await;
        let region = read.map_err(|failure| failure.error)?.region;
        let region = region.expect("a read gives it back");
        let byte = region.as_slice()[0];
        assert!(region.as_slice().iter().all(|&found| found == byte));
        Ok(byte)
    }

    #[test]
    fn queues_of_a_controller_are_on_every_core_and_see_one_disk() {
        for driver in [DriverChoice::Best, DriverChoice::Epoll] {
            run_on(driver, use_queues_of_every_core);
        }
    }

    async fn use_queues_of_every_core() {
        let known = serve(async |_server| {}).await;
        let (controller, queues) = connect(&known).await;
        known
            .until(|connections| connections.iter().sum::<usize>() == 5)
            .await;
        assert!(known.connections().iter().all(|&count| count >= 2));
        for round in 0..200_usize {
            let byte = u8::try_from(round % 250).expect("a byte");
            let at = |step: usize| &queues[(round + step) % 4];
            let first = round as u64 % 8 * 128;
            write(at(0), first, byte).await.expect("written");
            for step in 1..4 {
                assert_eq!(read(at(step), first).await, Ok(byte));
            }
        }
        // With its admin queue the controller ends, on every core.
        controller.shut_down().await.expect("in order");
        drop((controller, queues));
        known.until(|connections| connections == [0, 0]).await;
    }

    #[test]
    fn the_limit_of_connections_is_that_of_all_cores() {
        run(async || {
            let known = serve(async |_server| {}).await;
            let first = connect(&known).await;
            let second = connect(&known).await;
            // They come at once, before the server looks.
            let strangers: Vec<std::net::TcpStream> = (0..8)
                .map(|_| std::net::TcpStream::connect(known.address).expect("taken"))
                .collect();
            for stranger in &strangers {
                stranger.set_nonblocking(true).expect("a socket");
            }
            let closing = async {
                while strangers.iter().filter(|stream| is_closed(stream)).count() < 6 {
                    let connections: usize = known.connections().iter().sum();
                    assert!(connections <= CONNECTIONS_MAX, "{connections} are");
                    time::sleep(Duration::from_millis(1)).await;
                }
            };
            let closed = time::timeout(TIMEOUT, closing).await;
            closed.expect("those beyond the limit are closed");
            for queue in first.1.iter().chain(&second.1) {
                write(queue, 0, 1).await.expect("the others go on");
            }
            drop(strangers);
            known
                .until(|connections| connections.iter().sum::<usize>() == 10)
                .await;
            // There is room again for as many, wherever they go.
            let config = config();
            let third = RemoteController::connect(known.address, &name(), config).await;
            let third = third.expect("room for an admin queue");
            let last = third.queue().await.expect("and for one beside it");
            let beyond = third.queue().await.expect_err("no room for another one");
            assert!(beyond.is_retryable(), "{beyond}");
            write(&last, 0, 1).await.expect("it goes on");
        });
    }

    /// Whether the other end has closed it.
    fn is_closed(mut stream: &std::net::TcpStream) -> bool {
        match stream.read(&mut [0; 1]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }

    #[test]
    fn what_an_admin_queue_says_goes_for_queues_of_other_cores() {
        run(async || {
            let known = serve(async |_server| {}).await;
            // One of two controllers has its admin queue on the second core.
            for _ in 0..2 {
                let (controller, queues) = connect(&known).await;
                for queue in &queues {
                    assert_eq!(write(queue, 0, 1).await, Ok(()));
                }
                let reset = Property::Configuration.write(0);
                let done = controller.admin().command(reset, Data::None, TIMEOUT).await;
                done.expect("reset");
                for queue in &queues {
                    let refused = write(queue, 0, 1).await;
                    let status = Err(CommandError::Status(Status::COMMAND_SEQUENCE_ERROR));
                    assert_eq!(refused, status);
                }
                controller.admin().close();
                for queue in &queues {
                    time::timeout(TIMEOUT, queue.ended()).await.expect("ended");
                }
            }
            known.until(|connections| connections == [0, 0]).await;
        });
    }

    #[test]
    fn states_that_change_are_told_and_kept_on_every_core() {
        run(async || {
            let change = async |server: Rc<Server>| {
                loop {
                    for state in [AnaState::Inaccessible, AnaState::Optimized] {
                        time::sleep(Duration::from_millis(20)).await;
                        server.set_ana_state(1, 1, state);
                    }
                }
            };
            let known = serve(change).await;
            for _ in 0..2 {
                let (controller, queues) = connect(&known).await;
                for _ in 0..3 {
                    let told = time::timeout(TIMEOUT, controller.event()).await;
                    let told = told.expect("in time").expect("told");
                    assert!(matches!(told, ControllerEvent::Paths(_)), "{told:?}");
                }
                for queue in &queues {
                    let seen = async |expected: Result<(), Status>| {
                        let is_seen = |found: Result<u8, CommandError>| match found {
                            Ok(_) => expected.is_ok(),
                            Err(CommandError::Status(status)) => expected == Err(status),
                            Err(error) => unreachable!("{error}"),
                        };
                        while !is_seen(read(queue, 0).await) {}
                    };
                    let both = async {
                        seen(Err(Status::ANA_INACCESSIBLE)).await;
                        seen(Ok(())).await;
                    };
                    time::timeout(TIMEOUT, both).await.expect("seen");
                }
            }
        });
    }

    #[test]
    fn an_abort_is_answered_by_whatever_core_has_the_queue() {
        run(async || {
            let known = serve(async |_server| {}).await;
            let (controller, queues) = connect(&known).await;
            for round in 0..50_u8 {
                // What is not there cannot be aborted, and neither can what is of no queue.
                for queue_id in 1..=5_u32 {
                    let abort = Command::new(admin::ABORT, 0, [queue_id, 0, 0, 0, 0, 0]);
                    let asked = controller.admin().command(abort, Data::None, TIMEOUT).await;
                    assert_eq!(asked.expect("answered").result, 1, "{queue_id}");
                }
                for queue in &queues {
                    assert_eq!(write(queue, 0, round).await, Ok(()));
                }
            }
        });
    }

    #[test]
    fn a_silent_host_is_found_out_on_whatever_core() {
        run(async || {
            let known = serve(async |_server| {}).await;
            let mut brief = config();
            brief.keep_alive = Duration::from_millis(600);
            for _ in 0..2 {
                let subsystem = name();
                let controller =
                    RemoteController::connect(known.address, &subsystem, brief.clone());
                let controller = controller.await.expect("connected");
                let _queue = controller.queue().await.expect("granted");
                let admin = controller.admin().clone();
                time::sleep(Duration::from_millis(900)).await;
                assert_eq!(admin.closed(), None, "it is kept alive");
                drop(controller);
                let ended = time::timeout(Duration::from_secs(5), admin.ended()).await;
                assert!(ended.is_ok(), "nobody keeps it alive any more");
                known.until(|connections| connections == [0, 0]).await;
            }
        });
    }
}
