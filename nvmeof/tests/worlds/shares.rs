//! Hosts that ask a drive for more than it does at once, beside others.

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use lunette_nvmeof::proto::controller::Secrets;
    use lunette_nvmeof::proto::io::{Blocks, Geometry, IoRequest};
    use lunette_nvmeof::proto::pdu::Digests;
    use lunette_nvmeof::{Data, Disk, FileDisk, Queue, RemoteController, Server, ServerOptions};
    use lunette_runtime::fs::{File, OpenOptions};
    use lunette_runtime::sim::{DiskOptions, Outcome, World, WorldOptions};
    use lunette_runtime::{CoreOptions, arena, spawn_local, time};

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

    /// Reads that one host has had answered, and the longest that one took.
    #[derive(Clone, Copy, Debug)]
    struct Served {
        reads: u64,
        longest: Duration,
    }

    async fn keep_reading(queue: Queue, ms: u64, len_bytes: u32) -> Served {
        let ends_at = time::now() + Duration::from_millis(ms);
        let geometry = Geometry {
            blocks: 2048,
            block_bytes_log2: 9,
            transfer_bytes_max: READ_BYTES,
        };
        let blocks = Blocks {
            first: 0,
            count: len_bytes / 512,
        };
        let command = IoRequest::Read(blocks).command(1, &geometry);
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

    /// Gives up all that it has in flight but for one command, and says how many were aborted.
    async fn give_up() -> u64 {
        let mut config = options(Digests::NONE, &[SERVER]).config;
        config.commands_max = DEPTH;
        let subsystem = name("disk");
        let controller = RemoteController::connect(address(SERVER), &subsystem, config).await;
        let controller = controller.expect("connected");
        let queue = controller.queue().await.expect("granted");
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

    #[test]
    fn what_waits_for_the_drive_is_aborted() {
        let mut world = world(62);
        let target = world.start(ip(SERVER), 1, CoreOptions::default());
        world.spawn(target, 0, serve_a_file);
        let made = world.now() + Duration::from_millis(100);
        world.run_until(made, || false);
        let host = world.start(ip("10.0.0.3:0"), 1, CoreOptions::default());
        let aborted = world.spawn(host, 0, give_up);
        let end = world.now() + WORLD_MAX;
        world.run_until(end, || aborted.is_there());
        let aborted = aborted.take().expect("it ends");
        // Half of them are under way at the drive, and some get there before their Abort.
        assert!((10..64).contains(&aborted), "{aborted}");
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
