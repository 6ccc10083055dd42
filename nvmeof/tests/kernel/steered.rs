//! Our host against the kernel's target, which is cut, closed and changed meanwhile: both are in one machine.

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::Duration;

    use lunette_nvmeof::proto::auth::{AuthFault, Credentials, Hash, Reason, Secret};
    use lunette_nvmeof::proto::host::BringUpFault;
    use lunette_nvmeof::proto::log_page::AnaState;
    use lunette_nvmeof::proto::pdu::Digests;
    use lunette_nvmeof::{
        CommandError, ConnectError, ControllerEvent, HostConfig, RemoteController,
    };
    use lunette_runtime::{arena, spawn_local, time};

    use crate::our_host::{TIMEOUT, connect, filled, run, write_and_read};
    use crate::rig::{
        DIGESTS, TARGET_NAME, bring_closed_target_up, can_authenticate, config, cut_target, sh,
        target_address, target_name,
    };

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
                        RemoteController::connect(target_address(), &subsystem, config).await?;
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
                let refused = RemoteController::connect(target_address(), &subsystem, open).await;
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
            let (subsystem, config) = (target_name(), config(DIGESTS[3]));
            let controller = RemoteController::connect(target_address(), &subsystem, config).await;
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
