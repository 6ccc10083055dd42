//! The embedded coordinator on drives of worlds: what it has acknowledged is there after each power cut,
//! and what it cannot read it does not believe.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::future::pending;
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    use std::path::Path;
    use std::rc::Rc;
    use std::time::Duration;

    use lunette_cluster::proto::coordination::{Ask, KeyRange, Op, OpOutcome, Outcome};
    use lunette_cluster::{Client, ClientOptions, Hosted, serve};
    use lunette_runtime::net::TcpListener;
    use lunette_runtime::sim::{DiskOptions, FaultCounts, Kill, ProcessId, World, WorldOptions};
    use lunette_runtime::{CoreOptions, time};

    const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const WRITER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    const PORT: u16 = 2379;
    const SEEDS: u64 = 40;
    const CUTS: u32 = 12;

    /// What the writer knows, and the coordinator's troubles.
    #[derive(Debug, Default)]
    struct Record {
        /// The newest value that was acknowledged, and the newest one that was sent.
        acknowledged: Cell<u32>,
        sent: Cell<u32>,
        broken: RefCell<Vec<String>>,
        /// Values that nobody had sent.
        invented: RefCell<Vec<u32>>,
        /// It was not started for this reason.
        refused: RefCell<Option<String>>,
        /// It answers that it can keep nothing any more.
        has_failed: Cell<bool>,
    }

    /// A coordinator on a slow drive, so that power cuts come while it writes.
    fn slow(disk: DiskOptions) -> WorldOptions {
        let latency = (Duration::from_micros(500), Duration::from_millis(2));
        WorldOptions {
            disk: DiskOptions { latency, ..disk },
            losses_per_mille: 0,
            ..WorldOptions::default()
        }
    }

    fn start(world: &mut World, record: &Rc<Record>) -> ProcessId {
        let process = world.start(HOST, 1, CoreOptions::default());
        let record = Rc::clone(record);
        drop(world.spawn(process, 0, || async move {
            match Hosted::open(Path::new("coordinator")).await {
                Ok(hosted) => {
                    let listener = TcpListener::bind(SocketAddr::new(HOST, PORT));
                    serve(listener.expect("the port is free"), hosted, None, pending()).await;
                }
                Err(error) => drop(record.refused.replace(Some(error.to_string()))),
            }
        }));
        process
    }

    fn key() -> Vec<u8> {
        b"counter".to_vec()
    }

    /// Counts up, and looks after each step whether what was acknowledged is there.
    async fn write(record: Rc<Record>) {
        let client = Client::new(ClientOptions {
            endpoints: vec![SocketAddr::new(HOST, PORT)],
            security: None,
            silence_max: Duration::from_secs(1),
        });
        let timeout = Duration::from_millis(300);
        loop {
            let acknowledged = record.acknowledged.get();
            let get = Ask::Op(Op::Range(KeyRange::one(key())));
            if let Ok(answer) = client.ask(&get, timeout).await {
                let Outcome::Op(OpOutcome::Range(pairs)) = answer.outcome else {
                    unreachable!("a range was asked");
                };
                let value = pairs.first().map_or(0, |pair| {
                    let text = String::from_utf8_lossy(&pair.value);
                    text.parse().expect("it is a number")
                });
                if value > record.sent.get() {
                    record.invented.borrow_mut().push(value);
                }
                if value < acknowledged {
                    let text = format!("{value} is there, and {acknowledged} was acknowledged");
                    record.broken.borrow_mut().push(text);
                }
                // What is told is kept.
                record.acknowledged.set(value.max(acknowledged));
            }
            let next = record.sent.get() + 1;
            record.sent.set(next);
            // Of the same length each time.
            let value = format!("{next:010}").into_bytes();
            let put = Ask::Op(Op::Put {
                key: key(),
                value,
                lease: None,
            });
            match client.ask(&put, timeout).await {
                Ok(_) => record.acknowledged.set(next),
                Err(error) => {
                    let is_unavailable = error.to_string().contains("cannot be kept");
                    record.has_failed.set(is_unavailable);
                    time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    /// The coordinator loses its power, or is killed, again and again. Each time it is started again, at
    /// once where it has failed.
    fn live(seed: u64, disk: DiskOptions) -> (Rc<Record>, FaultCounts) {
        let mut world = World::new(seed, slow(disk));
        let record = Rc::new(Record::default());
        let writer = world.start(WRITER, 1, CoreOptions::default());
        let own = Rc::clone(&record);
        drop(world.spawn(writer, 0, || write(own)));
        let mut draw = world.draw();
        let mut coordinator = start(&mut world, &record);
        for _ in 0..CUTS {
            let until = world.now() + Duration::from_millis(draw.below(400).into());
            let trouble = Rc::clone(&record);
            let has_trouble = || trouble.has_failed.get() || trouble.refused.borrow().is_some();
            world.run_until(until, has_trouble);
            let is_damaged = |text: &String| text.contains("damaged");
            if record.refused.borrow().as_ref().is_some_and(is_damaged) {
                break;
            }
            record.refused.take();
            record.has_failed.set(false);
            let how = if draw.below(4) == 0 {
                Kill::Crash
            } else {
                Kill::PowerLoss
            };
            world.kill(coordinator, how);
            world.run_for(Duration::from_millis(5));
            coordinator = start(&mut world, &record);
        }
        world.run_for(Duration::from_millis(500));
        (record, world.fault_counts())
    }

    #[test]
    fn what_was_acknowledged_outlives_every_power_cut_of_an_honest_drive() {
        let mut torn = 0;
        for seed in 0..SEEDS {
            let (record, counts) = live(seed, DiskOptions::default());
            assert_eq!(*record.broken.borrow(), [""; 0], "seed {seed}");
            assert_eq!(*record.invented.borrow(), [0; 0], "seed {seed}");
            assert_eq!(*record.refused.borrow(), None, "seed {seed}");
            assert!(record.acknowledged.get() > 20, "seed {seed}");
            torn += counts.lost_sectors;
        }
        assert!(torn > SEEDS, "power is lost while it writes: {torn}");
    }

    #[test]
    fn a_drive_that_fails_takes_nothing_back() {
        let disk = DiskOptions {
            io_errors_per_million: 30_000,
            short_operations_per_million: 200_000,
            ..DiskOptions::default()
        };
        let mut failed = 0;
        for seed in 0..SEEDS {
            let (record, counts) = live(seed, disk);
            assert_eq!(*record.broken.borrow(), [""; 0], "seed {seed}");
            let refused = record.refused.borrow();
            let is_damaged = refused
                .as_ref()
                .is_some_and(|text| text.contains("damaged"));
            assert!(!is_damaged, "seed {seed}: {refused:?}");
            failed += counts.failed_syncs;
        }
        assert!(failed > SEEDS / 2, "{failed}");
    }

    /// A drive that lies takes back what it likes; but what it holds is believed as it was written, or not
    /// at all.
    #[test]
    fn what_a_lying_drive_damages_is_refused() {
        let disk = DiskOptions {
            lost_writes_per_million: 50_000,
            misdirected_writes_per_million: 50_000,
            lying_syncs_per_million: 100_000,
            rots_per_million: 100_000,
            ..DiskOptions::default()
        };
        let mut refused = 0;
        for seed in 0..SEEDS {
            let (record, counts) = live(seed, disk);
            assert!(counts.lies() > 0, "seed {seed}");
            assert_eq!(*record.invented.borrow(), [0; 0], "seed {seed}");
            refused += u32::from(record.refused.borrow().is_some());
        }
        assert!(refused > 0, "{refused}");
    }
}
