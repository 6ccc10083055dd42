//! A host and a server in simulated worlds: the connection is lost at every byte, and a model disk
//! says what may be read then.
//!
//! Somebody between the two passes bytes on, and after so many ends both connections. The host comes
//! back by itself, so that one world has every place of a session to lose it at, one after the other.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::env;
    use std::future::pending;
    use std::net::{IpAddr, SocketAddr};
    use std::ops::Range;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::Duration;

    use lunette_nvmeof::proto::auth::{Credentials, Group, Secret};
    use lunette_nvmeof::proto::controller::Secrets;
    use lunette_nvmeof::proto::host::{PathPolicy, ReconnectOptions};
    use lunette_nvmeof::proto::nqn::Nqn;
    use lunette_nvmeof::proto::pdu::Digests;
    use lunette_nvmeof::{
        CommandError, Disk, Export, ExportedDisk, HostConfig, MemoryDisk, NamespaceOptions,
        RemoteNamespace, Server, ServerOptions,
    };
    use lunette_runtime::net::{TcpListener, TcpStream};
    use lunette_runtime::sim::{World, WorldOptions};
    use lunette_runtime::{CoreOptions, arena, spawn_local};
    use lunette_runtime_core::random::SplitMix64;

    /// Asks for every byte where a few of each PDU will do otherwise.
    const EVERY_BYTE: &str = "LUNETTE_EVERY_BYTE";
    const TIMEOUT: Duration = Duration::from_secs(60);
    const BLOCK_BYTES: usize = 512;
    const BLOCKS: usize = 4;
    /// Longest time that a world may take; its own, not ours.
    const WORLD_MAX: Duration = Duration::from_secs(100_000);
    const SERVER: &str = "10.0.0.1:4420";
    const MIDDLE: &str = "10.0.0.2:4420";
    const HOST: &str = "10.0.0.3";

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn name(text: &str) -> Nqn {
        Nqn::new(&format!("nqn.2026-01.example:{text}")).expect("a name")
    }

    /// Without a group: what is computed in one happens on a thread that no world knows.
    fn credentials() -> Arc<Credentials> {
        let secret = |byte| Secret::new(&[byte; 32], None).expect("long enough");
        Arc::new(Credentials {
            groups: vec![Group::Null],
            ..Credentials::new(secret(1), Some(secret(2)))
        })
    }

    /// Which connection of a session is lost, and after how many bytes both ways.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Loss {
        is_admin: bool,
        bytes: usize,
    }

    /// Where sessions are lost, in turn.
    #[derive(Debug)]
    struct Losses {
        left: RefCell<std::vec::IntoIter<Loss>>,
        /// The one that is next, until it has happened.
        next: Cell<Option<Loss>>,
        happened: Cell<usize>,
        /// Connections of this session so far.
        connections: Cell<usize>,
    }

    impl Losses {
        fn new(losses: Vec<Loss>) -> Rc<Self> {
            let mut left = losses.into_iter();
            Rc::new(Self {
                next: Cell::new(left.next()),
                left: RefCell::new(left),
                happened: Cell::new(0),
                connections: Cell::new(0),
            })
        }

        /// Bytes that the next connection of the session lasts, if it is the one to be lost.
        fn bytes_of_next(&self) -> Option<usize> {
            let index = self.connections.get();
            self.connections.set(index + 1);
            let loss = self.next.get()?;
            (loss.is_admin == (index == 0)).then_some(loss.bytes)
        }

        fn happen(&self) {
            self.next.set(self.left.borrow_mut().next());
            self.happened.set(self.happened.get() + 1);
            self.connections.set(0);
        }
    }

    /// One way of a connection through the middle.
    struct Way {
        from: Rc<TcpStream>,
        to: Rc<TcpStream>,
        left: Rc<Cell<Option<usize>>>,
        losses: Rc<Losses>,
    }

    impl Way {
        async fn pass(self) {
            let mut buffer = vec![0; 4096];
            loop {
                let (received, filled) = self.from.recv(buffer, 0, 4096).await;
                buffer = filled;
                let Ok(count @ 1..) = received else { break };
                let passed = self.left.get().map_or(count, |left| left.min(count));
                let sent;
                (sent, buffer) = self.to.send_all(buffer, 0, passed).await;
                if sent.is_err() {
                    break;
                }
                if let Some(left) = self.left.get() {
                    // The other way may have spent some meanwhile.
                    let left = left.saturating_sub(passed);
                    self.left.set(Some(left));
                    if left == 0 {
                        self.left.set(None);
                        self.losses.happen();
                        break;
                    }
                }
            }
            self.from.shutdown();
            self.to.shutdown();
        }
    }

    async fn be_in_the_middle(losses: Rc<Losses>) {
        let listener = TcpListener::bind(address(MIDDLE)).expect("a port");
        while let Ok(host) = listener.accept().await {
            let host = Rc::new(host);
            let Ok(server) = TcpStream::connect(address(SERVER)).await else {
                continue;
            };
            let server = Rc::new(server);
            let left = Rc::new(Cell::new(losses.bytes_of_next()));
            for (from, to) in [(&host, &server), (&server, &host)] {
                let way = Way {
                    from: Rc::clone(from),
                    to: Rc::clone(to),
                    left: Rc::clone(&left),
                    losses: Rc::clone(&losses),
                };
                drop(spawn_local(way.pass()));
            }
        }
    }

    async fn serve(secrets: Secrets) {
        let disk = MemoryDisk::new((BLOCKS * BLOCK_BYTES) as u64).expect("room");
        let export = Export {
            name: name("disk"),
            hosts: None,
            secrets,
            disks: vec![ExportedDisk {
                disk: Disk::Memory(disk),
                block_bytes: 512,
                uuid: [7; 16],
                is_read_only: false,
                ana_group: 1,
            }],
        };
        let mut options = ServerOptions::default();
        // Data of writes are asked for.
        options.target.in_capsule_bytes = 0;
        options.r2t_bytes_max = 512;
        let server = Server::new(options, vec![export], &[]).expect("a server");
        let listener = TcpListener::bind(address(SERVER)).expect("a port");
        server.serve(listener, pending()).await;
    }

    fn options(digests: Digests, credentials: Option<Arc<Credentials>>) -> NamespaceOptions {
        NamespaceOptions {
            addresses: vec![address(MIDDLE)],
            subsystem: name("disk"),
            nsid: 1,
            config: HostConfig {
                host: name("host"),
                host_id: [1; 16],
                digests,
                commands_max: 8,
                io_queues: 1,
                keep_alive: Duration::from_secs(20),
                timeout: Duration::from_secs(10),
                credentials,
            },
            policy: PathPolicy::default(),
            reconnect: ReconnectOptions {
                longest: Duration::from_millis(10),
                ..ReconnectOptions::default()
            },
            seed: 1,
        }
    }

    /// What may lie in each block: a number that says what was written there.
    #[derive(Debug)]
    struct Model {
        may_be: [Vec<u32>; BLOCKS],
        writes: u32,
        /// Writes whose fate their caller was not told.
        in_doubt: u32,
    }

    fn block(number: u32) -> impl Iterator<Item = u8> {
        (0..BLOCK_BYTES / 4).flat_map(move |at| {
            let word = u32::try_from(at).expect("a block is short") ^ number << 8;
            word.to_le_bytes()
        })
    }

    impl Model {
        /// Writes `count` blocks from `first` on.
        async fn write(&mut self, namespace: &RemoteNamespace, first: usize, count: usize) {
            self.writes += 1;
            let number = self.writes;
            let mut region = arena().alloc(count * BLOCK_BYTES).expect("room");
            let bytes = (0..count).flat_map(|_| block(number));
            for (place, byte) in region.as_mut_slice().iter_mut().zip(bytes) {
                *place = byte;
            }
            let writing = namespace.write(first as u64, region.freeze(), false, TIMEOUT);
            match writing.await.map_err(|failure| failure.error) {
                Ok(()) => self.may_be[first..first + count].fill(vec![number]),
                Err(CommandError::Disconnected(_)) => {
                    self.in_doubt += 1;
                    for may_be in &mut self.may_be[first..first + count] {
                        may_be.push(number);
                    }
                }
                Err(error) => unreachable!("a write ends well or in doubt: {error}"),
            }
        }

        /// Reads all blocks, whatever happens to the connection.
        async fn read(&mut self, namespace: &RemoteNamespace) {
            let region = arena().alloc(BLOCKS * BLOCK_BYTES).expect("room");
            let read = namespace.read(0, region, TIMEOUT).await;
            let read = read.map_err(|failure| failure.error).expect("read again");
            let blocks = read.as_slice().chunks(BLOCK_BYTES);
            for (index, (bytes, may_be)) in blocks.zip(&mut self.may_be).enumerate() {
                let is = |number: u32| {
                    let is_zero = number == 0 && bytes.iter().all(|&byte| byte == 0);
                    is_zero || bytes.iter().copied().eq(block(number))
                };
                let found = may_be.iter().copied().find(|&number| is(number));
                let found = found.unwrap_or_else(|| {
                    unreachable!("block {index} is none of {may_be:?}: {:?}", &bytes[..8])
                });
                // What was read is what there is: nothing is carried out later.
                *may_be = vec![found];
            }
        }
    }

    /// Loses a session at each of `losses`, and says how many writes were in doubt.
    fn lose(seed: u64, digests: Digests, losses: Vec<Loss>, is_closed: bool) -> u32 {
        let count = losses.len();
        let mut world = World::new(seed, WorldOptions::default());
        let mut process = |address: &str| {
            let host: IpAddr = address
                .split(':')
                .next()
                .expect("a host")
                .parse()
                .expect("an IP");
            world.start(host, 1, CoreOptions::default())
        };
        let (server, middle, host) = (process(SERVER), process(MIDDLE), process(HOST));
        let known = is_closed.then(credentials);
        let secrets = Secrets {
            of_others: known.clone(),
            ..Secrets::default()
        };
        let losses = Losses::new(losses);
        world.spawn(server, 0, move || serve(secrets));
        let between = Rc::clone(&losses);
        world.spawn(middle, 0, move || be_in_the_middle(between));
        let until = Rc::clone(&losses);
        let ended = world.spawn(host, 0, move || async move {
            let namespace = loop {
                // The first session may be lost, too.
                match RemoteNamespace::connect(options(digests, known.clone())).await {
                    Ok(namespace) => break namespace,
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            };
            let mut model = Model {
                may_be: core::array::from_fn(|_| vec![0]),
                writes: 0,
                in_doubt: 0,
            };
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

    fn losses(is_admin: bool, bytes: impl Iterator<Item = usize>) -> Vec<Loss> {
        bytes.map(|bytes| Loss { is_admin, bytes }).collect()
    }

    /// Every place, where somebody asks for that and waits a minute, else every `step`th.
    fn every(step: usize, places: Range<usize>) -> impl Iterator<Item = usize> {
        let is_thorough = env::var_os(EVERY_BYTE).is_some();
        places.step_by(if is_thorough { 1 } else { step })
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
        let bytes = (1..1400).chain(every(41, 1400..7000));
        lose(3, Digests::BOTH, losses(true, bytes), false);
    }

    #[test]
    fn an_authentication_is_lost_at_every_byte() {
        let losses_of = |is_admin, step| losses(is_admin, every(step, 1250..2400));
        lose(4, Digests::NONE, losses_of(false, 11), true);
        lose(5, Digests::NONE, losses_of(true, 29), true);
    }
}
