//! A server at its bounds, and with several subsystems: over loopback.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::io::{ErrorKind, Read as _};
    use std::net::{SocketAddr, TcpStream};
    use std::rc::Rc;
    use std::time::Duration;

    use lunette_nvmeof::proto::completion::Status;
    use lunette_nvmeof::proto::controller::Secrets;
    use lunette_nvmeof::proto::host::BringUpFault;
    use lunette_nvmeof::proto::nqn::Nqn;
    use lunette_nvmeof::{
        CommandError, ConnectError, Disk, Export, ExportedDisk, HostConfig, MemoryDisk,
        NamespaceOptions, RemoteController, RemoteNamespace, Server, ServerOptions, discover,
    };
    use lunette_runtime::arena::{ArenaOptions, CHUNK_BYTES_MIN, Region};
    use lunette_runtime::net::TcpListener;
    use lunette_runtime::{CoreOptions, arena, block_on, spawn_local, time};

    const TIMEOUT: Duration = Duration::from_secs(20);
    const BLOCK_BYTES: u32 = 512;
    const CONNECTIONS_MAX: usize = 4;

    fn name(of: &str) -> Nqn {
        Nqn::new(&format!("nqn.2026-01.example:{of}")).expect("a name")
    }

    fn config(host: &str) -> HostConfig {
        HostConfig {
            commands_max: 16,
            io_queues: 16,
            keep_alive: Duration::from_secs(60),
            timeout: TIMEOUT,
            ..HostConfig::new(name(host), [1; 16])
        }
    }

    fn export(of: &str, len_bytes: u64, hosts: Option<Vec<Nqn>>) -> Export {
        let disk = MemoryDisk::new(len_bytes).expect("room");
        Export {
            name: name(of),
            hosts,
            secrets: Secrets::default(),
            disks: vec![ExportedDisk {
                disk: Disk::Memory(disk),
                block_bytes: BLOCK_BYTES,
                uuid: [u8::try_from(len_bytes >> 20).expect("small"); 16],
                is_read_only: false,
                ana_group: 1,
            }],
        }
    }

    fn serve(exports: Vec<Export>, options: ServerOptions) -> (Rc<Server>, SocketAddr) {
        let any_port = "127.0.0.1:0".parse().expect("an address");
        let listener = TcpListener::bind(any_port).expect("a port");
        let address = listener.local_addr();
        let server = Server::new(options, exports, &[address]).expect("a server");
        drop(spawn_local(Rc::clone(&server).serve(listener, pending())));
        (server, address)
    }

    /// Waits until `holds`, and sees to it that no more are connected meanwhile than may be.
    async fn await_that(server: &Server, what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = time::now() + TIMEOUT;
        while !holds() {
            let connections = server.connections();
            assert!(connections <= CONNECTIONS_MAX, "{connections} are");
            assert!(time::now() < deadline, "in vain: {what}");
            time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Whether the other end has closed it.
    fn is_closed(mut stream: &TcpStream) -> bool {
        match stream.read(&mut [0; 1]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }

    #[test]
    fn connections_beyond_the_limit_are_closed_and_the_others_go_on() {
        let ran = block_on(None, CoreOptions::default(), || async {
            let options = ServerOptions {
                connections_max: CONNECTIONS_MAX,
                ..ServerOptions::default()
            };
            let (server, address) = serve(vec![export("a", 1 << 20, None)], options);
            let controller = RemoteController::connect(address, &name("a"), config("h")).await;
            let controller = controller.expect("connected");
            let first = controller.queue().await.expect("room for a queue");
            assert_eq!(server.connections(), 2);
            // They come at once, before the server looks.
            let strangers: Vec<TcpStream> = (0..8)
                .map(|_| TcpStream::connect(address).expect("the system takes it"))
                .collect();
            for stranger in &strangers {
                stranger.set_nonblocking(true).expect("a socket");
            }
            let closed = || strangers.iter().filter(|stream| is_closed(stream)).count();
            await_that(&server, "those beyond the limit are closed", || {
                closed() >= strangers.len() - 2
            })
            .await;
            assert_eq!(controller.namespaces().await, Ok(vec![1]));
            drop(strangers);
            await_that(&server, "there is room again", || server.connections() == 2).await;
            // At the limit, and one beyond it.
            let second = controller.queue().await.expect("room for a third one");
            let third = controller.queue().await.expect("room for a fourth one");
            assert_eq!(server.connections(), CONNECTIONS_MAX);
            let beyond = controller.queue().await.expect_err("no room for a fifth");
            assert!(beyond.is_retryable(), "{beyond}");
            assert!(discover(address, config("h")).await.is_err());
            for queue in [&first, &second, &third] {
                assert_eq!(queue.closed(), None, "those that were there stay");
            }
            drop(second);
            await_that(&server, "one has gone", || server.connections() == 3).await;
            controller.queue().await.expect("room for another one");
        });
        ran.expect("a core");
    }

    async fn namespace(address: SocketAddr, of: &str) -> Result<RemoteNamespace, ConnectError> {
        let config = HostConfig {
            io_queues: 1,
            ..config("h")
        };
        let options = NamespaceOptions {
            path_timeout: TIMEOUT,
            ..NamespaceOptions::new(address, name(of), config)
        };
        RemoteNamespace::connect(options).await
    }

    async fn first_block(namespace: &RemoteNamespace) -> Vec<u8> {
        let region = arena().alloc(BLOCK_BYTES as usize).expect("room");
        let read = namespace.read(0, region, TIMEOUT).await.expect("read");
        read.as_slice().to_vec()
    }

    const WRITE_BYTES: usize = 64 * 1024;

    fn filled(byte: u8) -> Region {
        let mut region = arena().alloc(WRITE_BYTES).expect("room");
        region.as_mut_slice().fill(byte);
        region.freeze()
    }

    async fn holds(namespace: &RemoteNamespace, byte: u8) -> bool {
        let region = arena().alloc(WRITE_BYTES).expect("room");
        let read = namespace.read(0, region, TIMEOUT).await.expect("read");
        read.as_slice().iter().all(|&found| found == byte)
    }

    /// What comes with its command is on its way whether or not there is room.
    #[test]
    fn data_in_a_capsule_wait_for_memory_and_are_refused_when_none_comes() {
        let options = CoreOptions {
            arena: ArenaOptions {
                bytes_max: 2 * CHUNK_BYTES_MIN,
                chunk_bytes: CHUNK_BYTES_MIN,
                ..ArenaOptions::default()
            },
            ..CoreOptions::default()
        };
        let ran = block_on(None, options, || async {
            let exports = vec![export("a", 1 << 20, None)];
            let (_server, address) = serve(exports, ServerOptions::default());
            let namespace = namespace(address, "a").await.expect("connected");
            let [old, new] = [1, 2].map(filled);
            // Behind a large write little is received with the next command.
            let write_old = async || {
                let written = namespace.write(0, old.clone(), false, TIMEOUT).await;
                written.expect("written");
            };
            write_old().await;
            let take_all = || {
                let mut all = Vec::new();
                while let Ok(region) = arena().alloc(WRITE_BYTES) {
                    all.push(region);
                }
                all
            };
            let all = take_all();
            assert!(!all.is_empty());
            let refused = namespace.write(0, new.clone(), false, TIMEOUT).await;
            let error = refused.expect_err("no memory").error;
            assert_eq!(error, CommandError::Status(Status::NAMESPACE_NOT_READY));
            drop(all);
            assert!(holds(&namespace, 1).await, "as it was");
            write_old().await;
            let all = take_all();
            let gives_back = spawn_local(async move {
                time::sleep(Duration::from_millis(50)).await;
                drop(all);
                time::now()
            });
            let written = namespace.write(0, new, false, TIMEOUT).await;
            let ended = time::now();
            written.expect("written");
            assert!(gives_back.await.expect("no panic") <= ended);
            assert!(holds(&namespace, 2).await);
            assert_eq!(namespace.reconnects(), 0, "the connection stays");
        });
        ran.expect("a core");
    }

    #[test]
    fn subsystems_of_one_server_have_nothing_in_common_but_its_port() {
        let ran = block_on(None, CoreOptions::default(), || async {
            let exports = vec![
                export("a", 1 << 20, None),
                export("b", 2 << 20, None),
                export("c", 3 << 20, Some(vec![name("another-host")])),
            ];
            let (_server, address) = serve(exports, ServerOptions::default());
            let records = discover(address, config("h")).await.expect("discovered");
            let names: Vec<Nqn> = records.into_iter().map(|r| r.subsystem).collect();
            assert_eq!(names, [name("a"), name("b"), name("c")]);
            let a = namespace(address, "a").await.expect("connected");
            let b = namespace(address, "b").await.expect("connected");
            let mib = |namespace: &RemoteNamespace| {
                (namespace.identity().blocks * u64::from(BLOCK_BYTES)) >> 20
            };
            assert_eq!((mib(&a), mib(&b)), (1, 2));
            // Each has a namespace 1 of its own.
            for (namespace, byte) in [(&a, 0xaa), (&b, 0xbb)] {
                let mut region = arena().alloc(BLOCK_BYTES as usize).expect("room");
                region.as_mut_slice().fill(byte);
                let written = namespace.write(0, region.freeze(), false, TIMEOUT).await;
                written.expect("written");
            }
            assert_eq!(first_block(&a).await, [0xaa; BLOCK_BYTES as usize]);
            assert_eq!(first_block(&b).await, [0xbb; BLOCK_BYTES as usize]);
            // One knows its hosts by name; the others go on without this one.
            let refused = RemoteController::connect(address, &name("c"), config("h")).await;
            let refused = refused.expect_err("a stranger");
            let ConnectError::BringUp(BringUpFault::Refused { status, .. }) = refused else {
                unreachable!("{refused}")
            };
            assert_eq!(status.code(), Status::CONNECT_HOST.code());
            let known = config("another-host");
            let known = RemoteController::connect(address, &name("c"), known).await;
            assert_eq!(known.expect("known").namespaces().await, Ok(vec![1]));
            assert_eq!(first_block(&a).await, [0xaa; BLOCK_BYTES as usize]);
        });
        ran.expect("a core");
    }
}
