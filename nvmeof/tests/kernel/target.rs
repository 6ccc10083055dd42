//! Our host against the kernel's target, wherever that is.

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use lunette_nvmeof::proto::io::Blocks;
    use lunette_nvmeof::proto::pdu::Digests;
    use lunette_nvmeof::{RemoteController, discover};
    use lunette_runtime::{arena, spawn_local};

    use crate::our_host::{TIMEOUT, connect, run, write_and_read};
    use crate::rig::{DIGESTS, TARGET_BYTES, config, target_address, target_name};

    #[test]
    fn discovery_and_identity() {
        run(async || {
            let records = discover(target_address(), config(Digests::NONE))
                .await
                .expect("discovered");
            assert!(
                records
                    .iter()
                    .any(|record| record.subsystem == target_name()),
                "{records:?}"
            );
            let both = config(Digests::BOTH);
            let controller =
                RemoteController::connect(target_address(), &target_name(), both).await;
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
}
