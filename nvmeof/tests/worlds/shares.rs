//! Hosts that ask a drive for more than it does at once, beside others.

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::rc::Rc;
    use std::time::Duration;

    use lunette_nvmeof::proto::command::Command;
    use lunette_nvmeof::proto::completion::Status;
    use lunette_nvmeof::proto::controller::Secrets;
    use lunette_nvmeof::proto::fabrics::Property;
    use lunette_nvmeof::proto::io::{Blocks, Geometry, IoRequest};
    use lunette_nvmeof::proto::pdu::Digests;
    use lunette_nvmeof::{
        CommandError, Data, Disk, FileDisk, Queue, RemoteController, Server, ServerOptions,
    };
    use lunette_runtime::fs::{File, OpenOptions};
    use lunette_runtime::sim::{DiskOptions, Outcome, World, WorldOptions};
    use lunette_runtime::{CoreOptions, arena, spawn_local, spawn_on, time};
    use lunette_runtime_core::ids::CoreIndex;

    use crate::ends::{WORLD_MAX, address, export, ip, name, options, serve};

    const SERVER: &str = "10.0.0.1:4420";
    const TIMEOUT: Duration = Duration::from_secs(60);
    const DEPTH: u16 = 127;
    const READ_BYTES: u32 = 128 * 1024;
    /// Of each command, however many there are.
    const DRIVE: Duration = Duration::from_millis(10);

    async fn serve_a_file() {
        let create = OpenOptions {
            read: true,
            write: true,
            create: true,
            direct: true,
            polled: false,
        };
        let file = File::open("/disk", create).await.expect("made");
        file.allocate(1 << 20).await.expect("room on the drive");
        let disk = FileDisk::open(Path::new("/disk"), 512).await;
        let export = export(
            Disk::File(disk.expect("opened")),
            [7; 16],
            Secrets::default(),
        );
        let server = Server::new(ServerOptions::default(), vec![export], &[]);
        serve(server.expect("a server"), &[SERVER]).await;
    }

    fn read_of(len_bytes: u32) -> Command {
        let geometry = Geometry {
            blocks: 2048,
            block_bytes_log2: 9,
            transfer_bytes_max: READ_BYTES,
        };
        let blocks = Blocks {
            first: 0,
            count: len_bytes / 512,
        };
        IoRequest::Read(blocks).command(1, &geometry)
    }

    /// Reads that one host has had answered, and the longest that one took.
    #[derive(Clone, Copy, Debug)]
    struct Served {
        reads: u64,
        longest: Duration,
    }

    async fn keep_reading(queue: Queue, ms: u64, len_bytes: u32) -> Served {
        let ends_at = time::now() + Duration::from_millis(ms);
        let command = read_of(len_bytes);
        let mut served = Served {
            reads: 0,
            longest: Duration::ZERO,
        };
        while time::now() < ends_at {
            let region = arena().alloc(len_bytes as usize).expect("room");
            let began = time::now();
            let read = queue.command(command, Data::In(region), TIMEOUT).await;
            read.expect("read");
            served.reads += 1;
            served.longest = served.longest.max(time::now().since(began));
        }
        served
    }

    /// A host that keeps `depth` reads in flight on each of `queues` queues.
    async fn read_on(host: &str, queues: u16, depth: u16, len_bytes: u32, ms: u64) -> Served {
        let mut config = options(Digests::NONE, &[SERVER]).config;
        config.host = name(host);
        config.commands_max = DEPTH;
        config.io_queues = queues;
        let subsystem = name("disk");
        let controller = loop {
            // The file may not be there yet.
            let connecting = RemoteController::connect(address(SERVER), &subsystem, config.clone());
            if let Ok(controller) = connecting.await {
                break controller;
            }
            time::sleep(Duration::from_millis(1)).await;
        };
        let mut tasks = Vec::new();
        for _ in 0..queues {
            let queue = controller.queue().await.expect("granted");
            for _ in 0..depth {
                let reading = keep_reading(queue.clone(), ms, len_bytes);
                tasks.push(spawn_local(reading));
            }
        }
        let mut all = Served {
            reads: 0,
            longest: Duration::ZERO,
        };
        for task in tasks {
            let served = task.await.expect("no panic");
            all.reads += served.reads;
            all.longest = all.longest.max(served.longest);
        }
        all
    }

    async fn connected() -> Rc<RemoteController> {
        let mut config = options(Digests::NONE, &[SERVER]).config;
        config.commands_max = DEPTH;
        let subsystem = name("disk");
        let controller = RemoteController::connect(address(SERVER), &subsystem, config).await;
        controller.expect("connected")
    }

    async fn give_up() -> u64 {
        let controller = connected().await;
        give_up_on(controller.queue().await.expect("granted")).await
    }

    /// The controller is on the first core, the queue on the second.
    async fn give_up_elsewhere() -> u64 {
        let controller = connected().await;
        let seat = controller.seat().expect("granted");
        let elsewhere = move || async move {
            let queue = seat.connect().await;
            give_up_on(queue.expect("connected")).await
        };
        let gave_up = spawn_on(CoreIndex(1), elsewhere).await;
        let aborted = gave_up.expect("no panic");
        assert_eq!(controller.admin().aborted(), 0, "those of the other queue");
        aborted
    }

    /// Gives up all that it has in flight but for one command, and says how many were aborted.
    async fn give_up_on(queue: Queue) -> u64 {
        let mut tasks = Vec::new();
        for index in 0..DEPTH {
            let reading = keep_reading(queue.clone(), 1, READ_BYTES);
            let patience = if index == 0 { TIMEOUT } else { DRIVE / 2 };
            tasks.push(spawn_local(async move {
                time::timeout(patience, reading).await.is_ok()
            }));
        }
        let mut answered = 0;
        for task in tasks {
            answered += u64::from(task.await.expect("no panic"));
        }
        while queue.in_flight() > 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!((answered, queue.closed()), (1, None));
        queue.aborted()
    }

    /// What a host of two cores finds at a server of a file that is there.
    fn found<T: Send + 'static, F: Future<Output = T> + 'static>(
        seed: u64,
        scenario: impl FnOnce() -> F + Send + 'static,
    ) -> T {
        let mut world = world(seed);
        let target = world.start(ip(SERVER), 1, CoreOptions::default());
        world.spawn(target, 0, serve_a_file);
        let made = world.now() + Duration::from_millis(100);
        world.run_until(made, || false);
        let host = world.start(ip("10.0.0.3:0"), 2, CoreOptions::default());
        let found = world.spawn(host, 0, scenario);
        let end = world.now() + WORLD_MAX;
        world.run_until(end, || found.is_there());
        found.take().expect("it ends")
    }

    #[test]
    fn what_waits_for_the_drive_is_aborted() {
        // Half of them are under way at the drive, and some get there before their Abort.
        let aborted = found(62, give_up);
        assert!((10..64).contains(&aborted), "{aborted}");
        let aborted = found(63, give_up_elsewhere);
        assert!((10..64).contains(&aborted), "{aborted}");
    }

    /// Resets the controller, or has it work again at once, while the drive has more to do than it does
    /// at a time. How many reads were carried out and how many were not, and how long the latter took.
    async fn reset(works_again: bool) -> (usize, usize, Duration) {
        let controller = connected().await;
        let queue = controller.queue().await.expect("granted");
        let reads: Vec<_> = (0..DEPTH)
            .map(|_| {
                let queue = queue.clone();
                spawn_local(async move {
                    let region = arena().alloc(READ_BYTES as usize).expect("room");
                    let read = queue.command(read_of(READ_BYTES), Data::In(region), TIMEOUT);
                    let error = read.await.map(drop).map_err(|failure| failure.error);
                    (error, time::now())
                })
            })
            .collect();
        time::sleep(DRIVE / 2).await;
        let began = time::now();
        let values = [0, 0x46_0001];
        for value in &values[..1 + usize::from(works_again)] {
            let set = Property::Configuration.write(*value);
            let done = controller.admin().command(set, Data::None, TIMEOUT).await;
            done.expect("done");
        }
        let (mut carried_out, mut dropped, mut longest) = (0, 0, Duration::ZERO);
        for read in reads {
            match read.await.expect("no panic") {
                (Ok(()), _) => carried_out += 1,
                (Err(error), at) => {
                    let status = Status::ABORTED_WITH_QUEUE;
                    assert_eq!(error, CommandError::Status(status));
                    dropped += 1;
                    longest = longest.max(at.since(began));
                }
            }
        }
        (carried_out, dropped, longest)
    }

    #[test]
    fn what_waits_for_the_drive_is_dropped_with_a_reset() {
        for works_again in [false, true] {
            let (carried_out, dropped, longest) = found(64, move || reset(works_again));
            // What is under way at the drive is carried out.
            assert!((32..=65).contains(&carried_out), "{carried_out}");
            assert_eq!(carried_out + dropped, usize::from(DEPTH));
            assert!(longest < DRIVE / 2, "at once: {longest:?}");
        }
    }

    fn world(seed: u64) -> World {
        let disk = DiskOptions {
            latency: (DRIVE, DRIVE),
            ..DiskOptions::default()
        };
        let options = WorldOptions {
            losses_per_mille: 0,
            disk,
            ..WorldOptions::default()
        };
        World::new(seed, options)
    }

    type Host = (&'static str, u16, u16, u32);

    fn beside(seed: u64, hosts: [Host; 2]) -> [Served; 2] {
        let mut world = world(seed);
        let target = world.start(ip(SERVER), 1, CoreOptions::default());
        world.spawn(target, 0, serve_a_file);
        let reading: Vec<Outcome<Served>> = (3..)
            .zip(hosts)
            .map(|(number, (name, queues, depth, len_bytes))| {
                let at = ip(&format!("10.0.0.{number}:0"));
                let process = world.start(at, 1, CoreOptions::default());
                let reading = move || read_on(name, queues, depth, len_bytes, 600);
                world.spawn(process, 0, reading)
            })
            .collect();
        let end = world.now() + WORLD_MAX;
        world.run_until(end, || reading.iter().all(|served| served.is_there()));
        [0, 1].map(|index| reading[index].take().expect("it ends"))
    }

    #[test]
    fn a_host_with_deep_queues_does_not_starve_one_with_a_single_command() {
        let [deep, single] = beside(60, [("deep", 4, DEPTH, READ_BYTES), ("single", 1, 1, 4096)]);
        // All that the first one has in flight takes the drive eight times as long as one command.
        assert!(deep.longest > 6 * DRIVE, "{deep:?}");
        // Somebody leaves the drive, and it is the other one's turn.
        assert!(single.longest < 3 * DRIVE, "{single:?}");
    }

    #[test]
    fn hosts_that_have_enough_to_do_get_the_same() {
        let hosts = [
            ("deep", 4, DEPTH, READ_BYTES),
            ("other", 1, DEPTH, READ_BYTES),
        ];
        let [deep, other] = beside(61, hosts);
        assert!(deep.reads * 4 > other.reads * 3, "{deep:?} {other:?}");
        assert!(other.reads * 4 > deep.reads * 3, "{deep:?} {other:?}");
    }
}
