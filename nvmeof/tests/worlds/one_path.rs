//! One path to a namespace, lost at every byte.

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;

    use lunette_nvmeof::proto::auth::{Credentials, Group, Secret};
    use lunette_nvmeof::proto::controller::Secrets;
    use lunette_nvmeof::proto::pdu::Digests;
    use lunette_runtime::CoreOptions;
    use lunette_runtime::sim::{World, WorldOptions};
    use lunette_runtime_core::random::SplitMix64;

    use crate::ends::{WORLD_MAX, address, connected, every, ip, losses, options, serve, server};
    use crate::middle::{Loss, Losses, be_in_the_middle};
    use crate::model::{Model, TIMEOUT};

    const SERVER: &str = "10.0.0.1:4420";
    const MIDDLE: &str = "10.0.0.2:4420";
    const HOST: &str = "10.0.0.3:0";

    /// Without a group: what is computed in one happens on a thread that no world knows.
    fn credentials() -> Arc<Credentials> {
        let secret = |byte| Secret::new(&[byte; 32], None).expect("long enough");
        Arc::new(Credentials {
            groups: vec![Group::Null],
            ..Credentials::new(secret(1), Some(secret(2)))
        })
    }

    /// Loses a session at each of `losses`, and says how many writes were in doubt.
    fn lose(seed: u64, digests: Digests, losses: Vec<Loss>, is_closed: bool) -> u32 {
        let count = losses.len();
        let mut world = World::new(seed, WorldOptions::default());
        let mut process = |address| world.start(ip(address), 1, CoreOptions::default());
        let (server_host, middle, host) = (process(SERVER), process(MIDDLE), process(HOST));
        let known = is_closed.then(credentials);
        let secrets = Secrets {
            of_others: known.clone(),
            ..Secrets::default()
        };
        let losses = Losses::new(losses);
        world.spawn(server_host, 0, move || serve(server(secrets), &[SERVER]));
        let between = Rc::clone(&losses);
        world.spawn(middle, 0, move || {
            be_in_the_middle(address(MIDDLE), address(SERVER), between)
        });
        let until = Rc::clone(&losses);
        let ended = world.spawn(host, 0, move || async move {
            let mut options = options(digests, &[MIDDLE]);
            options.config.credentials = known;
            let namespace = connected(options).await;
            let mut model = Model::new();
            let mut random = SplitMix64::new(seed);
            while until.happened.get() < count {
                let first = random.below(3) as usize;
                model.write(&namespace, first, 1).await;
                model.write(&namespace, 1, 2).await;
                model.read(&namespace).await;
                namespace.flush(TIMEOUT).await.expect("flushed again");
            }
            model.read(&namespace).await;
            model.in_doubt
        });
        let end = world.now() + WORLD_MAX;
        world.run_until(end, || ended.is_there());
        let next = losses.next.get();
        let lost = losses.happened.get();
        ended.take().unwrap_or_else(|| {
            unreachable!("seed {seed}: it hangs after {lost} of {count} losses, before {next:?}")
        })
    }

    #[test]
    fn a_queue_is_lost_at_every_byte() {
        for (seed, digests, start) in [(1, Digests::NONE, 100), (2, Digests::BOTH, 106)] {
            // Set-up, Connect, two writes by R2T, a read and a flush.
            let bytes = (1..start).chain(every(31, start..5400));
            let in_doubt = lose(seed, digests, losses(false, bytes), false);
            assert!(in_doubt > 20, "{in_doubt}: writes are not repeated");
        }
    }

    #[test]
    fn a_controller_is_lost_at_every_byte_of_its_bring_up() {
        let bytes = (1..1400)
            .chain(every(41, 1400..7000))
            .chain((7000..20_000).step_by(401));
        lose(3, Digests::BOTH, losses(true, bytes), false);
    }

    #[test]
    fn an_authentication_is_lost_at_every_byte() {
        let losses_of = |is_admin, step| losses(is_admin, every(step, 1250..2400));
        lose(4, Digests::NONE, losses_of(false, 11), true);
        lose(5, Digests::NONE, losses_of(true, 29), true);
    }
}
