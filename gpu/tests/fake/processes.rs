//! Two processes of a world with one device: memory handed over by a handle, and ends in between.

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    use std::time::Duration;

    use lunette_gpu::fake::{FakeMachine, FakeOptions};
    use lunette_gpu::share::{HANDLE_WIRE_BYTES, IpcHandle};
    use lunette_gpu::{Device, DeviceRegion};
    use lunette_runtime::net::{TcpListener, TcpStream};
    use lunette_runtime::sim::{Kill, World, WorldOptions};
    use lunette_runtime::{CoreOptions, arena};

    use crate::rig::{fill, host, pattern, region, seen, stream};

    const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const LEN: usize = 1 << 16;

    fn address() -> SocketAddr {
        SocketAddr::new(HOST, 4000)
    }

    async fn receive<const N: usize>(stream: &TcpStream) -> [u8; N] {
        let mut bytes = Vec::new();
        while bytes.len() < N {
            let (count, part) = stream
                .recv(vec![0; N - bytes.len()], 0, N - bytes.len())
                .await;
            bytes.extend_from_slice(&part[..count.expect("the other one sends")]);
        }
        bytes.try_into().expect("as many as asked")
    }

    async fn send(stream: &TcpStream, bytes: &[u8]) {
        let (sent, _) = stream.send_all(bytes.to_vec(), 0, bytes.len()).await;
        sent.expect("the other one listens");
    }

    /// An engine: its pages, a handle of them, and what the other one made of them.
    async fn engine(machine: FakeMachine) -> Vec<u8> {
        let device = Device::fake(&machine, 0).expect("one device");
        let pages = region(&device, LEN as u64);
        fill(&stream(&device), &pages, &pattern(LEN, 1)).await;
        let peer = TcpStream::connect(address())
            .await
            .expect("the store listens");
        send(&peer, &pages.ipc_handle().expect("plain memory").to_bytes()).await;
        let [done] = receive::<1>(&peer).await;
        assert_eq!(done, 1);
        seen(&stream(&device), &pages).await
    }

    /// A store: takes the engine's pages away and puts others there.
    async fn store(machine: FakeMachine) -> Vec<u8> {
        let device = Device::fake(&machine, 0).expect("one device");
        let listener = TcpListener::bind(address()).expect("a port");
        let peer = listener.accept().await.expect("the engine");
        let handle = IpcHandle::from_bytes(&receive::<HANDLE_WIRE_BYTES>(&peer).await);
        let pages = DeviceRegion::open_ipc(&device, &handle).expect("exported");
        let taken = seen(&stream(&device), &pages).await;
        fill(&stream(&device), &pages, &pattern(LEN, 2)).await;
        drop(pages);
        send(&peer, &[1]).await;
        taken
    }

    #[test]
    fn an_engine_and_a_store_share_pages() {
        for seed in 0..5 {
            let mut world = World::new(seed, WorldOptions::default());
            let machine = FakeMachine::new(seed);
            let _index = machine.add_device(FakeOptions::default());
            let options = CoreOptions::default;
            let (first, second) = (
                world.start(HOST, 1, options()),
                world.start(HOST, 1, options()),
            );
            let taken = world.spawn(first, 0, || store(machine.clone()));
            world.run_for(Duration::from_millis(1));
            let left = world.spawn(second, 0, || engine(machine.clone()));
            let until = world.now() + Duration::from_secs(5);
            assert!(world.run_until(until, || left.is_there() && taken.is_there()));
            assert_eq!(taken.take(), Some(pattern(LEN, 1)), "seed {seed}");
            assert_eq!(left.take(), Some(pattern(LEN, 2)), "seed {seed}");
            assert_eq!(machine.counts().allocations, 0);
        }
    }

    #[test]
    fn a_process_that_ends_leaves_nothing_with_the_device() {
        for (seed, kill) in [(1, Kill::Crash), (2, Kill::PowerLoss), (3, Kill::Crash)] {
            let mut world = World::new(seed, WorldOptions::default());
            let machine = FakeMachine::new(seed);
            let slow = FakeOptions {
                latency: (Duration::from_millis(1), Duration::from_millis(9)),
                ..FakeOptions::default()
            };
            let _index = machine.add_device(slow);
            let process = world.start(HOST, 1, CoreOptions::default());
            let ended = world.spawn(process, 0, || {
                let machine = machine.clone();
                async move {
                    let device = Device::fake(&machine, 0).expect("one device");
                    let (stream, pages) = (stream(&device), region(&device, LEN as u64));
                    loop {
                        drop(stream.upload(host(&pattern(LEN, 3)), 0, &pages));
                        let (result, lent) = stream.download(&pages, host(&[0; LEN]), 0).await;
                        assert_eq!(result, Ok(()));
                        assert!(arena().used_bytes() >= lent.len());
                    }
                }
            });
            world.run_for(Duration::from_millis(100));
            assert!(machine.counts().copies > 10 && machine.counts().allocations > 0);
            world.kill(process, kill);
            world.run_for(Duration::from_millis(1));
            assert!(!ended.is_there());
            assert_eq!(machine.counts().allocations, 0, "seed {seed}");
        }
    }
}
