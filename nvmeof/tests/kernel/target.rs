//! Our host against the kernel's target.

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::Duration;

    use lunette_nvmeof::proto::auth::{AuthFault, Credentials, Hash, Reason, Secret};
    use lunette_nvmeof::proto::host::{BringUpFault, PathPolicy, ReconnectOptions};
    use lunette_nvmeof::proto::io::Blocks;
    use lunette_nvmeof::proto::log_page::AnaState;
    use lunette_nvmeof::proto::nqn::Nqn;
    use lunette_nvmeof::proto::pdu::Digests;
    use lunette_nvmeof::{
        CommandError, ConnectError, ControllerEvent, HostConfig, NamespaceOptions,
        RemoteController, RemoteNamespace, discover,
    };
    use lunette_runtime::arena::RegionMut;
    use lunette_runtime::{CoreOptions, arena, block_on, spawn_local, time};

    use crate::rig::{
        DIGESTS, TARGET, TARGET_BYTES, TARGET_NAME, bring_closed_target_up, bring_target_up,
        can_authenticate, config, cut_target, sh,
    };

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn run(scenario: impl AsyncFnOnce() + 'static) {
        bring_target_up();
        block_on(None, CoreOptions::default(), move || async move {
            scenario().await
        })
        .expect("a core");
    }

    fn address() -> SocketAddr {
        TARGET.parse().expect("an address")
    }

    fn name() -> Nqn {
        Nqn::new(TARGET_NAME).expect("a name")
    }

    async fn connect(digests: Digests) -> RemoteNamespace {
        let options = NamespaceOptions {
            addresses: vec![address()],
            subsystem: name(),
            nsid: 1,
            config: config(digests),
            policy: PathPolicy::default(),
            path_timeout: TIMEOUT,
            hedge: None,
            reconnect: ReconnectOptions::default(),
            seed: 3,
        };
        RemoteNamespace::connect(options).await.expect("connected")
    }

    fn filled(len: usize, seed: usize) -> RegionMut {
        let mut region = arena().alloc(len).expect("room");
        for (index, byte) in region.as_mut_slice().iter_mut().enumerate() {
            *byte = u8::try_from((index * 5 + index / 512 + seed) % 251).expect("a byte");
        }
        region
    }

    async fn write_and_read(namespace: &RemoteNamespace, first: u64, len: usize, seed: usize) {
        let region = filled(len, seed).freeze();
        let written = namespace.write(first, region.clone(), false, TIMEOUT).await;
        written.expect("written");
        let read = namespace
            .read(first, arena().alloc(len).expect("room"), TIMEOUT)
            .await;
        assert!(
            read.expect("read").as_slice() == region.as_slice(),
            "{len} bytes"
        );
    }

    #[test]
    fn discovery_and_identity() {
        run(async || {
            let records = discover(address(), config(Digests::NONE))
                .await
                .expect("discovered");
            assert!(
                records.iter().any(|record| record.subsystem == name()),
                "{records:?}"
            );
            let both = config(Digests::BOTH);
            let controller = RemoteController::connect(address(), &name(), both).await;
            let controller = controller.expect("connected");
            assert_eq!(controller.namespaces().await, Ok(vec![1]));
            let identity = controller
                .namespace(1)
                .await
                .expect("identified")
                .expect("there");
            assert_eq!(identity.blocks << identity.block_bytes_log2, TARGET_BYTES);
            let association = controller.association();
            assert_eq!(
                association.controller_id,
                association.identity.controller_id
            );
            assert_eq!(association.io_queues, 2);
            controller.shut_down().await.expect("in order");
        });
    }

    #[test]
    fn reads_and_writes_of_every_length_under_every_digest() {
        run(async || {
            for digests in DIGESTS {
                let namespace = connect(digests).await;
                for (seed, len) in [512, 4096, 16_384, 16_896, 65_536, 131_072, 1 << 20]
                    .into_iter()
                    .enumerate()
                {
                    write_and_read(&namespace, 5 + seed as u64, len, seed).await;
                }
                namespace.flush(TIMEOUT).await.expect("flushed");
                let blocks = Blocks {
                    first: 8,
                    count: 100,
                };
                namespace
                    .write_zeroes(blocks, TIMEOUT)
                    .await
                    .expect("zeroed");
                let zeroes = arena().alloc(51_200).expect("room");
                let zeroes = namespace.read(8, zeroes, TIMEOUT).await.expect("read");
                assert!(zeroes.as_slice().iter().all(|&byte| byte == 0));
                namespace
                    .deallocate(&[blocks], TIMEOUT)
                    .await
                    .expect("deallocated");
                namespace.close().await.expect("in order");
            }
        });
    }

    #[test]
    fn many_commands_are_in_flight() {
        run(async || {
            let namespace = Rc::new(connect(Digests::BOTH).await);
            let tasks: Vec<_> = (0..32)
                .map(|seed| {
                    let namespace = Rc::clone(&namespace);
                    spawn_local(async move {
                        for round in 0..4 {
                            let len = 512 * (1 + (seed * 3 + round) % 70);
                            write_and_read(&namespace, seed as u64 * 80, len, seed + round).await;
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("no panic");
            }
            assert_eq!(namespace.reconnects(), 0);
        });
    }

    #[test]
    fn we_prove_ourselves_to_the_kernel_and_it_to_us() {
        if !can_authenticate("we_prove_ourselves_to_the_kernel_and_it_to_us") {
            return;
        }
        let secret = |byte, hash| Secret::new(&[byte; 32], Some(hash)).expect("a secret");
        for (hash, group) in [
            ("sha256", "null"),
            ("sha384", "ffdhe2048"),
            ("sha512", "ffdhe3072"),
        ] {
            run(async move || {
                let host = secret(1, Hash::Sha256);
                let of_controller = secret(2, Hash::Sha512);
                let (text, of_controllers) = (host.reveal(), of_controller.reveal());
                let subsystem = bring_closed_target_up((hash, group), &text, &of_controllers);
                let connect = async |host: &Secret, controller: Option<&Secret>| {
                    let credentials = Credentials::new(host.clone(), controller.cloned());
                    let config = HostConfig {
                        credentials: Some(Arc::new(credentials)),
                        ..config(Digests::NONE)
                    };
                    let connected =
                        RemoteController::connect(address(), &subsystem, config).await?;
                    // Every queue for itself.
                    connected.queue().await?;
                    connected.queue().await?;
                    connected.shut_down().await?;
                    Ok::<_, ConnectError>(())
                };
                assert_eq!(connect(&host, None).await, Ok(()), "{hash} {group}");
                let both = connect(&host, Some(&of_controller)).await;
                assert_eq!(both, Ok(()), "{hash} {group}");
                let of = |fault| ConnectError::BringUp(BringUpFault::Authentication(fault));
                let unproved = connect(&host, Some(&host)).await;
                let fault = Err(of(AuthFault::Unproved));
                assert_eq!(unproved, fault, "{hash} {group}");
                // The kernel says so, or closes before it has.
                let refused = connect(&of_controller, None).await;
                let told = Err(of(AuthFault::Rejected(Reason::Failed)));
                let closed = matches!(
                    refused,
                    Err(ConnectError::Command(CommandError::Disconnected(_)))
                );
                assert!(closed || refused == told, "{hash} {group}: {refused:?}");
                let open = config(Digests::NONE);
                let refused = RemoteController::connect(address(), &subsystem, open).await;
                let fault = ConnectError::BringUp(BringUpFault::AuthRequired);
                assert_eq!(refused.map(drop), Err(fault));
            });
        }
    }

    #[test]
    fn reads_survive_a_cut() {
        run(async || {
            let namespace = Rc::new(connect(Digests::NONE).await);
            write_and_read(&namespace, 0, 65_536, 1).await;
            let expected = filled(65_536, 1);
            let tasks: Vec<_> = (0..4)
                .map(|_| {
                    let namespace = Rc::clone(&namespace);
                    spawn_local(async move {
                        let mut reads = Vec::new();
                        for _ in 0..100 {
                            let region = arena().alloc(65_536).expect("room");
                            reads.push(namespace.read(0, region, TIMEOUT).await.expect("read"));
                            reads.truncate(1);
                        }
                        reads
                    })
                })
                .collect();
            time::sleep(Duration::from_millis(30)).await;
            cut_target();
            for task in tasks {
                for read in task.await.expect("no panic") {
                    assert!(read.as_slice() == expected.as_slice());
                }
            }
            assert!(namespace.reconnects() >= 1, "it was cut");
        });
    }

    #[test]
    fn changes_are_told() {
        run(async || {
            let (subsystem, config) = (name(), config(DIGESTS[3]));
            let controller = RemoteController::connect(address(), &subsystem, config).await;
            let controller = controller.expect("connected");
            let told = async || {
                let told = time::timeout(TIMEOUT, controller.event()).await;
                told.expect("in time").expect("told")
            };
            let target = "/sys/kernel/config/nvmet";
            let state = format!("{target}/ports/7/ana_groups/1/ana_state");
            for (name, expected) in [
                ("inaccessible", AnaState::Inaccessible),
                ("optimized", AnaState::Optimized),
            ] {
                sh(&format!("echo {name} >{state}"));
                let ControllerEvent::Paths(groups) = told().await else {
                    unreachable!("a path has changed")
                };
                let group = groups.iter().find(|group| group.id == 1);
                assert_eq!(group.map(|group| group.state), Some(expected));
            }
            let enable = format!("{target}/subsystems/{TARGET_NAME}/namespaces/1/enable");
            for is_there in [false, true] {
                sh(&format!("echo {} >{enable}", u8::from(is_there)));
                assert_eq!(told().await, ControllerEvent::Namespaces(vec![1]));
                let namespaces = controller.namespaces().await.expect("listed");
                assert_eq!(namespaces, Vec::from_iter(is_there.then_some(1)));
            }
        });
    }
}
