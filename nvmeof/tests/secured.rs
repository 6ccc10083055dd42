//! A host and a server in TLS 1.3, over loopback.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::net::SocketAddr;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::Duration;

    use lunette_nvmeof::proto::auth::TlsPsk;
    use lunette_nvmeof::proto::controller::Secrets;
    use lunette_nvmeof::proto::log_page::{ChannelSecurity, DiscoveryRecord};
    use lunette_nvmeof::proto::nqn::Nqn;
    use lunette_nvmeof::proto::pdu::Digests;
    use lunette_nvmeof::{
        CloseReason, ConnectError, Disk, Export, ExportedDisk, HostConfig, MemoryDisk,
        NamespaceOptions, RemoteNamespace, Server, ServerOptions, TlsFault, discover,
    };
    use lunette_runtime::net::{TcpListener, TcpStream};
    use lunette_runtime::{CoreOptions, arena, block_on, spawn_local, time};

    const TIMEOUT: Duration = Duration::from_secs(10);
    const DISK_BYTES: u64 = 4 << 20;

    fn name(text: &str) -> Nqn {
        Nqn::new(&format!("nqn.2026-01.example:{text}")).expect("a name")
    }

    fn psk(byte: u8, len: usize, is_bound: bool) -> Arc<TlsPsk> {
        Arc::new(TlsPsk::new(&vec![byte; len], is_bound).expect("a key"))
    }

    fn serve(psk: Option<Arc<TlsPsk>>) -> (Rc<Server>, SocketAddr) {
        let any_port = "127.0.0.1:0".parse().expect("an address");
        let listener = TcpListener::bind(any_port).expect("a port");
        let address = listener.local_addr();
        let export = Export {
            name: name("disk"),
            hosts: None,
            secrets: Secrets::default(),
            disks: vec![ExportedDisk {
                disk: Disk::Memory(MemoryDisk::new(DISK_BYTES).expect("room")),
                block_bytes: 512,
                uuid: [7; 16],
                is_read_only: false,
                ana_group: 1,
            }],
        };
        let options = ServerOptions {
            psk,
            ..ServerOptions::default()
        };
        let server = Server::new(options, vec![export], &[address]).expect("a server");
        drop(spawn_local(Rc::clone(&server).serve(listener, pending())));
        (server, address)
    }

    fn config(psk: Option<Arc<TlsPsk>>, digests: Digests) -> HostConfig {
        HostConfig {
            digests,
            commands_max: 32,
            keep_alive: Duration::from_secs(5),
            timeout: TIMEOUT,
            psk,
            ..HostConfig::new(name("host"), [1; 16])
        }
    }

    async fn connect(
        address: SocketAddr,
        config: HostConfig,
    ) -> Result<RemoteNamespace, ConnectError> {
        let options = NamespaceOptions {
            path_timeout: TIMEOUT,
            ..NamespaceOptions::new(address, name("disk"), config)
        };
        RemoteNamespace::connect(options).await
    }

    fn run(scenario: impl AsyncFnOnce() + 'static) {
        let ran = block_on(None, CoreOptions::default(), move || async move {
            scenario().await
        });
        ran.expect("a core");
    }

    async fn write_and_read(namespace: &RemoteNamespace, len: usize, seed: usize) {
        let mut region = arena().alloc(len).expect("room");
        for (index, byte) in region.as_mut_slice().iter_mut().enumerate() {
            *byte = u8::try_from((index * 7 + index / 512 + seed) % 251).expect("a byte");
        }
        let region = region.freeze();
        let first = seed as u64 * 256;
        let written = namespace.write(first, region.clone(), false, TIMEOUT).await;
        written.expect("written");
        let room = arena().alloc(len).expect("room");
        let read = namespace.read(first, room, TIMEOUT).await.expect("read");
        assert!(read.as_slice() == region.as_slice(), "{len} bytes");
    }

    #[test]
    fn who_shares_a_key_reads_what_was_written() {
        for (digests, is_bound) in [(Digests::NONE, true), (Digests::BOTH, false)] {
            run(async move || {
                let psk = psk(1, 32, is_bound);
                let (_server, address) = serve(Some(Arc::clone(&psk)));
                let config = config(Some(psk), digests);
                let offers = discover(address, config.clone()).await.expect("offers");
                let is_offered = |offer: &DiscoveryRecord| {
                    offer.subsystem == name("disk") && offer.security == ChannelSecurity::Tls13
                };
                assert!(offers.iter().any(is_offered));
                let namespace = Rc::new(connect(address, config).await.expect("connected"));
                // More than a record, and more than is received at once.
                for (seed, len) in [512, 4096, 65_536, 1 << 20].into_iter().enumerate() {
                    write_and_read(&namespace, len, seed).await;
                }
                let tasks: Vec<_> = (0..12)
                    .map(|seed| {
                        let namespace = Rc::clone(&namespace);
                        spawn_local(async move { write_and_read(&namespace, 65_536, seed).await })
                    })
                    .collect();
                for task in tasks {
                    task.await.expect("no panic");
                }
                namespace.flush(TIMEOUT).await.expect("flushed");
                assert_eq!(namespace.reconnects(), 0);
            });
        }
    }

    #[test]
    fn who_does_not_share_the_key_is_refused() {
        run(async || {
            let (server, address) = serve(Some(psk(1, 32, true)));
            for wrong in [Some(psk(2, 32, true)), Some(psk(1, 32, false)), None] {
                let mut config = config(wrong, Digests::NONE);
                config.timeout = Duration::from_secs(2);
                let refused = connect(address, config).await.map(drop);
                let refused = refused.expect_err("it has not the key");
                let is_refusal = matches!(
                    refused,
                    ConnectError::Closed(CloseReason::Tls(TlsFault::Refused))
                        | ConnectError::Closed(
                            CloseReason::Peer | CloseReason::Io(_) | CloseReason::Wire(_)
                        )
                );
                assert!(is_refusal, "{refused:?}");
            }
            let long = connect(address, config(Some(psk(1, 48, true)), Digests::NONE)).await;
            let suite = ConnectError::Closed(CloseReason::Tls(TlsFault::Suite));
            assert_eq!(long.map(drop), Err(suite));
            let deadline = time::now() + TIMEOUT;
            while server.connections() > 0 {
                assert!(time::now() < deadline);
                time::sleep(Duration::from_millis(1)).await;
            }
            // A server without a key does not answer as one with a key would.
            let (_plain, address) = serve(None);
            let refused = connect(address, config(Some(psk(1, 32, true)), Digests::NONE)).await;
            let refused = refused.map(drop).expect_err("no TLS there");
            let fault = CloseReason::Tls(TlsFault::Refused);
            assert_eq!(refused, ConnectError::Closed(fault));
        });
    }

    /// Passes on, and says whether any of `plain` was seen.
    async fn listen_in(
        from: TcpStream,
        to: TcpStream,
        plain: &[u8],
        flips_at: Option<usize>,
    ) -> bool {
        let (mut buffer, mut seen, mut passed) = (vec![0; 65_536], Vec::new(), 0);
        loop {
            let received;
            (received, buffer) = from.recv(buffer, 0, 65_536).await;
            let Ok(count @ 1..) = received else { break };
            if let Some(at) = flips_at.and_then(|at| at.checked_sub(passed))
                && at < count
            {
                buffer[at] ^= 1;
            }
            passed += count;
            seen.extend_from_slice(&buffer[..count]);
            let sent;
            (sent, buffer) = to.send_all(buffer, 0, count).await;
            if sent.is_err() {
                break;
            }
        }
        from.shutdown();
        to.shutdown();
        seen.windows(plain.len()).any(|window| window == plain)
    }

    #[test]
    fn who_is_in_between_sees_nothing_and_changes_nothing() {
        // Whatever byte is changed: of the hello, of its answer to the answer, of commands.
        for flips_at in [None, Some(60), Some(400), Some(600), Some(900), Some(2000)] {
            run(async move || {
                let psk = psk(1, 32, true);
                let (_server, server) = serve(Some(Arc::clone(&psk)));
                let listener = TcpListener::bind("127.0.0.1:0".parse().expect("an address"));
                let listener = listener.expect("a port");
                let address = listener.local_addr();
                let between = spawn_local(async move {
                    let host = listener.accept().await.expect("a host");
                    let server = TcpStream::connect(server).await.expect("connected");
                    let back = listen_in(server.clone(), host.clone(), b"nqn.2026", None);
                    drop(spawn_local(back));
                    // The name of the subsystem goes in the clear, in the key's identity; the model, and
                    // what a Connect says, do not.
                    listen_in(host, server, &[1; 16], flips_at).await
                });
                let mut config = config(Some(psk), Digests::NONE);
                config.timeout = Duration::from_secs(3);
                let found = discover(address, config).await;
                assert_eq!(found.is_ok(), flips_at.is_none(), "{flips_at:?}: {found:?}");
                let has_seen = between.await.expect("no panic");
                assert!(!has_seen, "the id of the host is sealed");
            });
        }
    }
}
