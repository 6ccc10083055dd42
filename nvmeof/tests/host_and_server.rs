//! A host and a server on one core, over loopback.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;
    use std::io::Write as _;
    use std::net::SocketAddr;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use lunette_nvmeof::proto::auth::{AuthFault, Credentials, Group, Hash, Reason, Secret};
    use lunette_nvmeof::proto::command::{self, Command};
    use lunette_nvmeof::proto::completion::Status;
    use lunette_nvmeof::proto::controller::Secrets;
    use lunette_nvmeof::proto::host::BringUpFault;
    use lunette_nvmeof::proto::io::Blocks;
    use lunette_nvmeof::proto::log_page::{AnaState, ChannelSecurity};
    use lunette_nvmeof::proto::nqn::Nqn;
    use lunette_nvmeof::proto::pdu::Digests;
    use lunette_nvmeof::{
        CommandError, ConnectError, ControllerEvent, Data, Disk, Export, ExportedDisk, FileDisk,
        HostConfig, MemoryDisk, NamespaceOptions, RemoteController, RemoteNamespace, Server,
        ServerOptions, discover,
    };
    use lunette_runtime::arena::RegionMut;
    use lunette_runtime::net::{TcpListener, TcpStream};
    use lunette_runtime::{
        CoreOptions, DriverChoice, ProbeError, StartError, arena, block_on, spawn_local, time,
    };

    const TIMEOUT: Duration = Duration::from_secs(10);
    const BLOCK_BYTES: u32 = 512;
    const DISK_BYTES: u64 = 4 << 20;

    fn name() -> Nqn {
        Nqn::new("nqn.2026-01.example:disk").expect("a name")
    }

    fn config(digests: Digests) -> HostConfig {
        let host = Nqn::new("nqn.2026-01.example:host").expect("a name");
        HostConfig {
            digests,
            io_queues: 4,
            keep_alive: Duration::from_secs(5),
            timeout: TIMEOUT,
            ..HostConfig::new(host, [1; 16])
        }
    }

    fn options(address: SocketAddr, digests: Digests) -> NamespaceOptions {
        NamespaceOptions {
            path_timeout: TIMEOUT,
            ..NamespaceOptions::new(address, name(), config(digests))
        }
    }

    /// Runs on a core with `driver`, unless this system forbids it.
    fn run_on(driver: DriverChoice, scenario: impl AsyncFnOnce() + 'static) {
        let options = CoreOptions {
            driver,
            ..CoreOptions::default()
        };
        match block_on(None, options, move || async move { scenario().await }) {
            Err(StartError::Driver(error @ ProbeError::Forbidden(_))) => {
                println!("SKIP {}: {error}", thread::current().name().unwrap_or("?"));
            }
            ran => ran.expect("a core"),
        }
    }

    fn run(scenario: impl AsyncFnOnce() + 'static) {
        run_on(CoreOptions::default().driver, scenario);
    }

    fn export(disk: Disk) -> Export {
        Export {
            name: name(),
            hosts: None,
            secrets: Secrets::default(),
            disks: vec![ExportedDisk {
                disk,
                block_bytes: BLOCK_BYTES,
                uuid: [7; 16],
                is_read_only: false,
                ana_group: 1,
            }],
        }
    }

    fn serve(disk: Disk, server_options: ServerOptions) -> (Rc<Server>, SocketAddr) {
        serve_export(export(disk), server_options)
    }

    fn serve_export(export: Export, server_options: ServerOptions) -> (Rc<Server>, SocketAddr) {
        let any_port = "127.0.0.1:0".parse().expect("an address");
        let listener = TcpListener::bind(any_port).expect("a port");
        let address = listener.local_addr();
        let server = Server::new(server_options, vec![export], &[address]);
        let server = server.expect("a server");
        drop(spawn_local(Rc::clone(&server).serve(listener, pending())));
        (server, address)
    }

    fn serve_memory() -> (Rc<Server>, SocketAddr) {
        let disk = MemoryDisk::new(DISK_BYTES).expect("room");
        serve(Disk::Memory(disk), ServerOptions::default())
    }

    fn filled(len: usize, seed: usize) -> RegionMut {
        let mut region = arena().alloc(len).expect("room");
        for (index, byte) in region.as_mut_slice().iter_mut().enumerate() {
            *byte = u8::try_from((index * 7 + index / 512 + seed) % 251).expect("a byte");
        }
        region
    }

    async fn read(namespace: &RemoteNamespace, first: u64, len: usize) -> Vec<u8> {
        let region = arena().alloc(len).expect("room");
        let read = namespace.read(first, region, TIMEOUT).await;
        read.expect("read").as_slice().to_vec()
    }

    async fn write(namespace: &RemoteNamespace, first: u64, len: usize, seed: usize) -> Vec<u8> {
        let region = filled(len, seed);
        let bytes = region.as_slice().to_vec();
        let written = namespace
            .write(first, region.freeze(), false, TIMEOUT)
            .await;
        written.expect("written");
        bytes
    }

    async fn nobody_is_connected(server: &Server) {
        let deadline = time::now() + TIMEOUT;
        while server.connections() > 0 {
            assert!(time::now() < deadline, "{} are", server.connections());
            time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Everything that a namespace can do, with lengths around every limit.
    async fn exercise(address: SocketAddr, digests: Digests) {
        let namespace = RemoteNamespace::connect(options(address, digests)).await;
        let namespace = namespace.expect("connected");
        assert_eq!(namespace.identity().blocks, DISK_BYTES / 512);
        let lens = [512, 4096, 8192, 8704, 131_072, 200_192, 1 << 20];
        for (seed, len) in lens.into_iter().enumerate() {
            let first = 3 + seed as u64;
            let bytes = write(&namespace, first, len, seed).await;
            assert!(read(&namespace, first, len).await == bytes, "{len} bytes");
            let same = filled(len, seed).freeze();
            assert!(
                namespace
                    .compare(first, same, TIMEOUT)
                    .await
                    .expect("compared")
            );
            let other = filled(len, seed + 1).freeze();
            assert!(
                !namespace
                    .compare(first, other, TIMEOUT)
                    .await
                    .expect("compared")
            );
        }
        let blocks = Blocks {
            first: 4,
            count: 600,
        };
        namespace
            .write_zeroes(blocks, TIMEOUT)
            .await
            .expect("zeroed");
        assert!(
            read(&namespace, 4, 600 * 512)
                .await
                .iter()
                .all(|&byte| byte == 0)
        );
        assert!(read(&namespace, 3, 512).await.iter().any(|&byte| byte != 0));
        namespace.flush(TIMEOUT).await.expect("flushed");
        let deallocated = namespace.deallocate(&[blocks, blocks], TIMEOUT).await;
        deallocated.expect("deallocated");
        let end = DISK_BYTES / 512;
        let beyond = namespace
            .read(end, arena().alloc(512).expect("room"), TIMEOUT)
            .await;
        let failure = beyond.expect_err("beyond the end");
        let status = Status::LBA_OUT_OF_RANGE.do_not_retry();
        assert_eq!(failure.error, CommandError::Status(status));
        assert!(failure.region.is_some(), "the region comes back");
        namespace.close().await.expect("shut down in order");
    }

    #[test]
    fn a_memory_disk_does_everything_under_every_digest_and_driver() {
        for driver in [DriverChoice::Uring, DriverChoice::Epoll] {
            for (header, data) in [(false, false), (true, false), (false, true), (true, true)] {
                run_on(driver, async move || {
                    let (_server, address) = serve_memory();
                    exercise(address, Digests { header, data }).await;
                });
            }
        }
    }

    #[test]
    fn a_file_does_everything() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(&vec![0; 4 << 20]).expect("room");
        run(async move || {
            let disk = FileDisk::open(file.path(), BLOCK_BYTES)
                .await
                .expect("opened");
            let (_server, address) = serve(Disk::File(disk), ServerOptions::default());
            exercise(address, Digests::BOTH).await;
        });
    }

    #[test]
    fn a_change_of_a_path_is_told_and_the_end_of_it_too() {
        run(async || {
            let (server, address) = serve_memory();
            let (subsystem, config) = (name(), config(Digests::BOTH));
            let controller = RemoteController::connect(address, &subsystem, config).await;
            let controller = controller.expect("connected");
            let quiet = time::timeout(Duration::from_millis(50), controller.event()).await;
            assert!(quiet.is_err(), "nothing has changed");
            let told = async || {
                let told = time::timeout(TIMEOUT, controller.event()).await;
                match told.expect("in time").expect("told") {
                    ControllerEvent::Paths(groups) => {
                        assert_eq!((groups.len(), groups[0].id), (1, 1));
                        (groups[0].state, groups[0].changes)
                    }
                    other => unreachable!("paths have changed: {other:?}"),
                }
            };
            server.set_ana_state(1, 1, AnaState::NonOptimized);
            assert_eq!(told().await, (AnaState::NonOptimized, 1));
            // While nobody listens they become one.
            server.set_ana_state(1, 1, AnaState::Change);
            time::sleep(Duration::from_millis(50)).await;
            server.set_ana_state(1, 1, AnaState::Inaccessible);
            assert_eq!(told().await, (AnaState::Inaccessible, 3));
            server.set_ana_state(1, 1, AnaState::Optimized);
            assert_eq!(told().await, (AnaState::Optimized, 4));
            server.disconnect_all();
            let ended = time::timeout(TIMEOUT, controller.event()).await;
            let ended = ended.expect("in time");
            assert!(
                matches!(ended, Err(CommandError::Disconnected(_))),
                "{ended:?}"
            );
        });
    }

    #[test]
    fn data_are_asked_for_in_as_many_pieces_as_the_limits_say() {
        run(async || {
            let limits = ServerOptions {
                h2c_data_bytes_max: 4096,
                r2t_bytes_max: 10_000,
                ..ServerOptions::default()
            };
            let disk = MemoryDisk::new(DISK_BYTES).expect("room");
            let (_server, address) = serve(Disk::Memory(disk), limits);
            exercise(address, Digests::BOTH).await;
        });
    }

    #[test]
    fn discovery_tells_of_the_subsystem_and_the_controller_of_its_namespaces() {
        run(async || {
            let (_server, address) = serve_memory();
            let records = discover(address, config(Digests::NONE)).await;
            let records = records.expect("discovered");
            assert_eq!(records.len(), 1);
            assert_eq!(
                (&records[0].subsystem, records[0].address),
                (&name(), address)
            );
            assert_eq!(records[0].security, ChannelSecurity::None);
            let both = config(Digests::BOTH);
            let controller = RemoteController::connect(address, &name(), both).await;
            let controller = controller.expect("connected");
            assert_eq!(controller.namespaces().await, Ok(vec![1]));
            assert_eq!(
                controller.namespace(2).await,
                Err(CommandError::Status(
                    Status::INVALID_NAMESPACE.do_not_retry()
                ))
            );
            assert_eq!(controller.association().io_queues, 4);
            for _ in 0..4 {
                controller.queue().await.expect("a queue that was granted");
            }
            assert!(controller.queue().await.is_err(), "no more were granted");
        });
    }

    #[test]
    fn many_commands_are_in_flight_and_none_is_mixed_up() {
        run(async || {
            let (_server, address) = serve_memory();
            let namespace = RemoteNamespace::connect(options(address, Digests::BOTH)).await;
            let namespace = Rc::new(namespace.expect("connected"));
            let tasks: Vec<_> = (0..200)
                .map(|seed| {
                    let namespace = Rc::clone(&namespace);
                    spawn_local(async move {
                        let len = 512 * (1 + seed % 40);
                        let first = seed as u64 * 40;
                        for round in 0..3 {
                            let bytes = write(&namespace, first, len, seed + round).await;
                            assert!(read(&namespace, first, len).await == bytes);
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("no panic");
            }
        });
    }

    #[test]
    fn callers_beyond_the_depth_wait_their_turn_and_may_leave() {
        run(async || {
            let (_server, address) = serve_memory();
            let mut narrow = options(address, Digests::NONE);
            narrow.config.commands_max = 2;
            let namespace = RemoteNamespace::connect(narrow).await.expect("connected");
            let namespace = Rc::new(namespace);
            for round in 0..50 {
                let tasks: Vec<_> = (0..20)
                    .map(|caller| {
                        let namespace = Rc::clone(&namespace);
                        spawn_local(async move {
                            let region = arena().alloc(16_384).expect("room");
                            let reading = namespace.read(0, region, TIMEOUT);
                            if caller % 3 == 0 {
                                let patience = Duration::from_micros(round * 7 + caller);
                                drop(time::timeout(patience, reading).await);
                            } else {
                                let read = time::timeout(TIMEOUT / 2, reading).await;
                                read.expect("its turn came").expect("read");
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.expect("no panic");
                }
            }
        });
    }

    #[test]
    fn a_read_survives_the_loss_of_its_connection_and_a_write_says_so() {
        run(async || {
            let (server, address) = serve_memory();
            let namespace = RemoteNamespace::connect(options(address, Digests::NONE)).await;
            let namespace = Rc::new(namespace.expect("connected"));
            let bytes = write(&namespace, 0, 65_536, 5).await;
            for round in 1..=10 {
                let reads: Vec<_> = (0..8)
                    .map(|_| {
                        let namespace = Rc::clone(&namespace);
                        spawn_local(async move { read(&namespace, 0, 65_536).await })
                    })
                    .collect();
                let region = filled(65_536, 5).freeze();
                let mut writing = Box::pin(namespace.write(0, region, false, TIMEOUT));
                let raced = time::timeout(Duration::from_micros(20 * round), &mut writing).await;
                server.disconnect_all();
                for read in reads {
                    assert!(read.await.expect("no panic") == bytes);
                }
                let written = match raced {
                    Ok(written) => written,
                    Err(_late) => writing.await,
                };
                if let Err(failure) = written {
                    assert!(
                        matches!(failure.error, CommandError::Disconnected(reason) if reason.is_retryable()),
                        "{failure}"
                    );
                }
                // What was asked may have been answered before; the loss is seen later then, and one that
                // follows before it is no further one.
                let reconnected = async {
                    while namespace.reconnects() < round {
                        read(&namespace, 0, 512).await;
                    }
                };
                let reconnected = time::timeout(TIMEOUT, reconnected).await;
                reconnected.expect("a lost connection is replaced");
            }
        });
    }

    #[test]
    fn a_deadline_gives_the_region_back_and_the_queue_goes_on() {
        run(async || {
            let (_server, address) = serve_memory();
            let namespace = RemoteNamespace::connect(options(address, Digests::NONE)).await;
            let namespace = namespace.expect("connected");
            let bytes = write(&namespace, 0, 1 << 20, 1).await;
            for ns in [1, 1000, 100_000, 300_000, 1_000_000] {
                let region = arena().alloc(1 << 20).expect("room");
                let timeout = Duration::from_nanos(ns);
                match namespace.read(0, region, timeout).await {
                    Ok(region) => assert!(region.as_slice() == bytes),
                    Err(failure) => {
                        assert_eq!(failure.error, CommandError::DeadlineExceeded);
                        assert!(failure.region.is_some());
                    }
                }
                let region = arena().alloc(1 << 20).expect("room");
                let dropped = namespace.read(0, region, TIMEOUT);
                drop(time::timeout(timeout, dropped).await);
            }
            assert!(read(&namespace, 0, 1 << 20).await == bytes);
            assert_eq!(namespace.reconnects(), 0);
        });
    }

    /// Passes bytes on, the last `late` of each receive, where a digest may be, later than the rest;
    /// damages one byte of a row of the same ones while `damages`.
    async fn pass(from: TcpStream, to: TcpStream, late: usize, damages: Rc<Cell<bool>>) {
        const MARKED: [u8; 64] = [0xa5; 64];
        const PIECE_BYTES: usize = 131_072;
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let received;
            (received, buffer) = from.recv(buffer, 0, PIECE_BYTES).await;
            let Ok(count @ 1..) = received else { break };
            let marked = buffer[..count].windows(64).position(|w| w == MARKED);
            if let Some(at) = marked.filter(|_| damages.get()) {
                buffer[at] ^= 1;
            }
            let early = count.saturating_sub(late);
            let (sent, rest);
            (sent, buffer) = to.send_all(buffer, 0, early).await;
            if late > 0 {
                time::sleep(Duration::from_millis(1)).await;
            }
            (rest, buffer) = to.send_all(buffer, early, count - early).await;
            if sent.and(rest).is_err() {
                break;
            }
        }
        from.shutdown();
        to.shutdown();
    }

    /// Somebody between hosts and a server, who [passes](pass) on.
    fn damaging(server: SocketAddr, late: usize, damages: Rc<Cell<bool>>) -> SocketAddr {
        let any_port = "127.0.0.1:0".parse().expect("an address");
        let listener = TcpListener::bind(any_port).expect("a port");
        let address = listener.local_addr();
        drop(spawn_local(async move {
            while let Ok(host) = listener.accept().await {
                let server = TcpStream::connect(server).await.expect("connected");
                let back = pass(server.clone(), host.clone(), 0, Rc::default());
                drop(spawn_local(pass(host, server, late, Rc::clone(&damages))));
                drop(spawn_local(back));
            }
        }));
        address
    }

    #[test]
    fn a_write_that_was_damaged_leaves_the_disk_as_it_was() {
        // In a capsule, whose digest comes with them, or later, or is cut; and asked for.
        for (late, len) in [
            (0, 4096),
            (4, 4096),
            (1, 4096),
            (1000, 4096),
            (0, 65_536),
            (0, 200_192),
        ] {
            run(async move || {
                let (_server, address) = serve_memory();
                let damages = Rc::new(Cell::new(false));
                let middle = damaging(address, late, Rc::clone(&damages));
                let namespace = RemoteNamespace::connect(options(middle, Digests::BOTH)).await;
                let namespace = namespace.expect("connected");
                let bytes = write(&namespace, 8, len, 1).await;
                damages.set(true);
                let mut region = arena().alloc(len).expect("room");
                region.as_mut_slice().fill(0xa5);
                let region = region.freeze();
                let written = namespace.write(8, region.clone(), false, TIMEOUT).await;
                let error = written.map_err(|failure| failure.error);
                let status = Status::TRANSIENT_TRANSPORT_ERROR;
                assert_eq!(error, Err(CommandError::Status(status)));
                assert!(read(&namespace, 8, len).await == bytes, "as it was");
                damages.set(false);
                let written = namespace.write(8, region.clone(), false, TIMEOUT).await;
                written.expect("written");
                assert!(read(&namespace, 8, len).await == region.as_slice());
                assert_eq!(namespace.reconnects(), 0);
            });
        }
    }

    #[test]
    fn whoever_talks_nonsense_is_told_and_disconnected() {
        run(async || {
            let (server, address) = serve_memory();
            let mut bad_version = vec![0, 0, 128, 0, 128, 0, 0, 0, 1];
            bad_version.resize(128, 0);
            for (bytes, status) in [
                (b"GET / HTTP/1.1\r\n\r\n".to_vec(), 1),
                (vec![4, 0, 72, 0, 72, 0, 0, 0], 2),
                (bad_version, 6),
            ] {
                let stream = TcpStream::connect(address).await.expect("connected");
                let len = bytes.len();
                stream.send_all(bytes, 0, len).await.0.expect("sent");
                let mut answer = Vec::new();
                loop {
                    let (count, buffer) = stream.recv(vec![0; 256], 0, 256).await;
                    match count {
                        Ok(0) | Err(_) => break,
                        Ok(count) => answer.extend_from_slice(&buffer[..count]),
                    }
                }
                assert_eq!(answer[0], 3, "a terminate request");
                assert_eq!(answer[8], status);
                assert_eq!(answer.len(), usize::from(answer[4]), "and nothing after it");
            }
            nobody_is_connected(&server).await;
        });
    }

    #[test]
    fn a_subsystem_that_is_not_there_is_refused() {
        run(async || {
            let (_server, address) = serve_memory();
            let other = Nqn::new("nqn.2026-01.example:other").expect("a name");
            let refused = RemoteController::connect(address, &other, config(Digests::NONE)).await;
            let error = refused.expect_err("nothing of that name");
            assert!(
                matches!(error, ConnectError::BringUp(_)) && !error.is_retryable(),
                "{error}"
            );
        });
    }

    #[test]
    fn a_silent_host_loses_its_controller() {
        run(async || {
            let (server, address) = serve_memory();
            let brief = HostConfig {
                keep_alive: Duration::from_millis(600),
                ..config(Digests::NONE)
            };
            let controller = RemoteController::connect(address, &name(), brief).await;
            let controller = controller.expect("connected");
            time::sleep(Duration::from_millis(1500)).await;
            assert_eq!(controller.admin().closed(), None, "it is kept alive");
            let admin = controller.admin().clone();
            drop(controller);
            let ended = time::timeout(Duration::from_secs(5), admin.ended()).await;
            assert!(ended.is_ok(), "nobody keeps it alive any more");
            nobody_is_connected(&server).await;
        });
    }

    fn credentials(host: u8, controller: Option<u8>, group: Group) -> Arc<Credentials> {
        let secret = |byte| Secret::new(&[byte; 48], Some(Hash::Sha384)).expect("a secret");
        Arc::new(Credentials {
            groups: vec![group],
            ..Credentials::new(secret(host), controller.map(secret))
        })
    }

    #[test]
    fn only_who_proves_its_secret_is_served() {
        run(async || {
            for group in [Group::Null, Group::Ffdhe2048] {
                let disk = Disk::Memory(MemoryDisk::new(DISK_BYTES).expect("room"));
                let export = Export {
                    secrets: Secrets {
                        of_others: Some(credentials(1, Some(2), group)),
                        ..Secrets::default()
                    },
                    ..export(disk)
                };
                let (server, address) = serve_export(export, ServerOptions::default());
                let connect = async |credentials| {
                    let mut options = options(address, Digests::BOTH);
                    options.config.credentials = credentials;
                    RemoteNamespace::connect(options).await
                };
                for controller in [None, Some(2)] {
                    let known = Some(credentials(1, controller, group));
                    let namespace = connect(known).await.expect("connected");
                    let region = filled(4096, 3).freeze();
                    let written = namespace.write(8, region.clone(), false, TIMEOUT).await;
                    written.expect("written");
                    assert!(read(&namespace, 8, 4096).await == region.as_slice());
                    // It proves itself again when it comes back.
                    server.disconnect_all();
                    assert!(read(&namespace, 8, 4096).await == region.as_slice());
                    assert!(namespace.reconnects() > 0);
                    namespace.close().await.expect("in order");
                }
                let refusals = [
                    (None, BringUpFault::AuthRequired),
                    (
                        Some(credentials(3, None, group)),
                        AuthFault::Rejected(Reason::Failed).into(),
                    ),
                    (
                        Some(credentials(1, Some(3), group)),
                        AuthFault::Unproved.into(),
                    ),
                ];
                for (credentials, fault) in refusals {
                    let refused = connect(credentials).await.map(drop);
                    assert_eq!(refused, Err(ConnectError::BringUp(fault)));
                }
            }
        });
    }

    #[test]
    fn commands_that_nobody_waits_for_are_aborted() {
        run(async || {
            let (_server, address) = serve_memory();
            let (subsystem, config) = (name(), config(Digests::NONE));
            let controller = RemoteController::connect(address, &subsystem, config).await;
            let controller = controller.expect("connected");
            let admin = controller.admin();
            let request = Command::new(command::admin::ASYNC_EVENT, 0, [0; 6]);
            let brief = Duration::from_millis(20);
            let late = admin.command(request, Data::None, brief).await;
            let late = late.map(drop).map_err(|failure| failure.error);
            assert_eq!(late, Err(CommandError::DeadlineExceeded));
            // Its future is dropped here.
            let dropped = admin.command(request, Data::None, TIMEOUT);
            assert!(time::timeout(brief, dropped).await.is_err());
            let aborted = async {
                // The controller's own listener waits on.
                while admin.aborted() < 2 || admin.in_flight() > 1 {
                    time::sleep(Duration::from_millis(1)).await;
                }
            };
            time::timeout(TIMEOUT, aborted).await.expect("aborted");
            assert_eq!(admin.closed(), None);
            assert_eq!(controller.namespaces().await, Ok(vec![1]));
        });
    }
}
