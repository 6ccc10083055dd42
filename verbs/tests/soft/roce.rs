//! Soft-RoCE: rxe0 and rxe1.

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;

    use lunette_runtime::net::{TcpListener, TcpStream};
    use lunette_runtime::{Idle, spawn_local, time};
    use lunette_verbs::{
        Access, Calls, Context, DeviceEvent, DeviceMemory, OpenError, QueueSizes, RemoteMemory,
        RequestError, SetupError, Window, devices,
    };
    use lunette_verbs_proto::gid;
    use lunette_verbs_proto::status::Status;

    use crate::managed;
    use crate::rig::{ALL, End, connect, on_core, one_end, scenes, soon};

    /// The ports are there once, and one test takes them down.
    fn alone<F: Future<Output = ()> + 'static>(test: impl FnOnce(Context, Context) -> F + Send) {
        static PORTS: Mutex<()> = Mutex::new(());
        let _ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
        on_core(Idle::Efficient, || {
            let open = |name| Context::open(name).expect("a Soft-RoCE device");
            test(open("rxe0"), open("rxe1"))
        });
    }

    /// The outcomes of four writes, the third with a key that allows nothing.
    async fn with_a_wrong_key(one: &End, other: &End) -> Vec<Result<(), RequestError>> {
        let remote = other.window.remote();
        let wrong = RemoteMemory {
            rkey: remote.rkey ^ 0xff,
            ..remote
        };
        let write = |to| one.pair.write(one.piece(&[1; 8]), 8, to, soon());
        let requests = [remote, remote.at(8), wrong, remote.at(16)].map(write);
        let mut outcomes = Vec::new();
        for request in requests {
            let (outcome, piece) = request.await;
            assert!(piece.is_some(), "memory comes back in every case");
            outcomes.push(outcome);
        }
        outcomes
    }

    fn ip(arguments: &str) {
        let status = Command::new("ip").args(arguments.split(' ')).status();
        assert!(status.expect("ip runs").success(), "ip {arguments}");
    }

    fn sent_bytes(port: &str) -> u64 {
        let path = format!("/sys/class/net/{port}/statistics/tx_bytes");
        let text = std::fs::read_to_string(path).expect("a port counts");
        text.trim().parse().expect("a number")
    }

    #[test]
    fn devices_are_found_and_described() {
        alone(|a, _b| async move {
            assert_eq!(devices().expect("there are some"), ["rxe0", "rxe1"]);
            let absent = Context::open("rxe7").err();
            assert_eq!(absent, Some(OpenError::NoSuchDevice("rxe7".into())));
            let info = a.info().expect("described");
            assert!(
                info.is_active && info.is_ethernet && info.has_atomics,
                "{info:?}"
            );
            assert_eq!(info.mtu_bytes, 4096);
            let chosen = gid::choose(&info.gids, None).expect("an address");
            assert!(gid::is_ipv4(&chosen.gid), "{:?}", info.gids);
            assert_eq!(chosen.gid[12..], [10, 1, 0, 1]);
            assert!(info.gids.iter().all(|entry| entry.is_up), "{info:?}");
        });
    }

    #[test]
    fn every_operation_moves_the_right_bytes() {
        alone(|context, other| async move {
            let (a, b) = connect(&context, &other, QueueSizes::default()).await;
            assert_eq!(a.pair.agreement().mtu_bytes, 4096);
            scenes::bytes_go_there_and_back(&a, &b).await;
            scenes::atomics_change_a_word(&a, &b).await;
            scenes::messages_meet_receives(&a, &b).await;
            scenes::notices_meet_receives(&a, &b).await;
            scenes::slabs_share_a_chunk(&a, &b, &context).await;
        });
    }

    #[test]
    fn the_extended_calls_do_the_same() {
        alone(|_a, _b| async move {
            let open = |name| Context::open_with(name, Calls::Extended).expect("a device");
            let (context, other) = (open("rxe0"), open("rxe1"));
            let (a, b) = connect(&context, &other, QueueSizes::default()).await;
            assert!(a.pair.is_built() && a.queue.is_extended());
            scenes::bytes_go_there_and_back(&a, &b).await;
            scenes::atomics_change_a_word(&a, &b).await;
            scenes::messages_meet_receives(&a, &b).await;
            scenes::notices_meet_receives(&a, &b).await;
            scenes::a_pool_serves_any((&a, &b), (&context, &other)).await;
            let failed = Err(RequestError::Failed(Status::RemoteAccess));
            assert_eq!(
                with_a_wrong_key(&a, &b).await,
                [Ok(()), Ok(()), failed, Err(RequestError::Flushed)]
            );
        });
    }

    /// Sends so many words over its own core, with a pause before each.
    fn send_words(port: u16, words: u64) {
        on_core(Idle::default(), move || async move {
            let context = Context::open("rxe1").expect("a Soft-RoCE device");
            let address = ([127, 0, 0, 1], port).into();
            let stream = TcpStream::connect(address)
                .await
                .expect("the other end listens");
            let end = one_end(&stream, &context, QueueSizes::default(), false).await;
            for word in 0..words {
                time::sleep(Duration::from_millis(2)).await;
                let sent = end.pair.send_inline(&word.to_le_bytes(), soon()).await;
                assert_eq!(sent.0, Ok(()));
            }
        });
    }

    #[test]
    fn a_core_that_sleeps_is_woken_by_the_channel_every_time() {
        const WORDS: u64 = 100;
        alone(|a, _b| async move {
            let listener = TcpListener::bind("127.0.0.1:0".parse().expect("an address"));
            let listener = listener.expect("a port");
            let port = listener.local_addr().port();
            let sender = std::thread::spawn(move || send_words(port, WORDS));
            let stream = listener.accept().await.expect("a connection");
            let end = one_end(&stream, &a, QueueSizes::default(), true).await;
            end.pair.post_receive(end.piece(&[0; 8])).expect("room");
            end.pair.post_receive(end.piece(&[0; 8])).expect("room");
            for word in 0..WORDS {
                let arrival = end.pair.arrival().await.expect("open");
                assert_eq!(arrival.piece.as_slice(), word.to_le_bytes());
                end.pair.post_receive(arrival.piece).expect("room");
            }
            let counts = end.queue.counts();
            assert_eq!((counts.completions, counts.strays), (WORDS, 0));
            // How often it slept is the machine's doing; that it did is the case.
            assert!(
                counts.parks > 20 && counts.events > 20,
                "the case was met: {counts:?}"
            );
            sender.join().expect("the other core ends well");
        });
    }

    #[test]
    fn deep_traffic_rings_few_doorbells_and_asks_for_few_completions() {
        const REQUESTS: u32 = 2000;
        alone(|a, b| async move {
            let (a, b) = connect(&a, &b, QueueSizes::default()).await;
            let mut requests = Vec::new();
            for n in 0..REQUESTS {
                a.pair.credit().await.expect("open");
                let to = b.window.remote().at(u64::from(n % 1000) * 1024);
                requests.push(a.pair.write(a.piece(&n.to_le_bytes()), 4, to, soon()));
                if requests.len() == 64 {
                    for request in requests.drain(..) {
                        assert_eq!(request.await.0, Ok(()));
                    }
                }
            }
            for request in requests {
                assert_eq!(request.await.0, Ok(()));
            }
            for n in 1000..REQUESTS {
                assert_eq!(b.seen((n % 1000) as usize * 1024, 4), n.to_le_bytes());
            }
            let counts = a.pair.counts();
            assert_eq!((counts.posted, counts.retired), (2000, 2000));
            assert!(counts.doorbells * 8 < counts.posted, "{counts:?}");
            assert!(counts.signalled * 8 < counts.posted, "{counts:?}");
            println!("deep traffic: {counts:?}, {:?}", a.queue.counts());
        });
    }

    #[test]
    fn a_pool_serves_the_next_message_of_any_queue_pair_and_outlives_each() {
        alone(|a, b| async move {
            let (one, other) = connect(&a, &b, QueueSizes::default()).await;
            scenes::a_pool_serves_any((&one, &other), (&a, &b)).await;
        });
    }

    /// Kernel 6.1 says nothing when a queue pair has taken its last receive from shared ones.
    #[test]
    fn a_queue_pair_with_shared_receives_is_told_of_the_last() {
        alone(|a, b| async move {
            let (one, other) = connect(&a, &b, QueueSizes::default()).await;
            let (pool, mut joined) = scenes::sharing((&one, &other), (&a, &b)).await;
            pool.post(other.piece(&[0; 8])).expect("room");
            let (_far, near) = joined.remove(0);
            near.abort();
            assert_eq!(near.arrival().await.err(), Some(RequestError::Broken));
            time::sleep(Duration::from_millis(100)).await;
            let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
            let is_told = !release.expect("it has a name").starts_with("6.1.");
            println!("the last receive: {:?}", near.notices());
            assert_eq!(near.notices().last_receives, u32::from(is_told));
            assert_eq!(near.cause(), None, "it was us");
            // What was told is acknowledged: this does not wait.
            drop(near);
            assert_eq!(pool.posted(), 1);
        });
    }

    #[test]
    fn two_rails_carry_at_once() {
        alone(|a, b| async move {
            let before = (sent_bytes("net0"), sent_bytes("net1"));
            let (out, into) = connect(&a, &b, QueueSizes::default()).await;
            let (back, home) = connect(&b, &a, QueueSizes::default()).await;
            let bulk = vec![5; 500_000];
            let requests = [
                out.pair
                    .write(out.piece(&bulk), bulk.len(), into.window.remote(), soon()),
                back.pair
                    .write(back.piece(&bulk), bulk.len(), home.window.remote(), soon()),
            ];
            for request in requests {
                assert_eq!(request.await.0, Ok(()));
            }
            assert!(into.seen(0, bulk.len()) == bulk && home.seen(0, bulk.len()) == bulk);
            let after = (sent_bytes("net0"), sent_bytes("net1"));
            assert!(after.0 - before.0 >= 500_000 && after.1 - before.1 >= 500_000);
        });
    }

    #[test]
    fn a_key_that_allows_nothing_breaks_the_queue_pair_and_a_new_one_works() {
        alone(|a, b| async move {
            let (one, other) = connect(&a, &b, QueueSizes::default()).await;
            let outcomes = with_a_wrong_key(&one, &other).await;
            let failed = Err(RequestError::Failed(Status::RemoteAccess));
            assert_eq!(
                outcomes,
                [Ok(()), Ok(()), failed, Err(RequestError::Flushed)]
            );
            assert!(!one.pair.is_open());
            drop((one, other));
            let (one, other) = connect(&a, &b, QueueSizes::default()).await;
            let written = one
                .pair
                .write_inline(&[5], other.window.remote(), soon())
                .await;
            assert_eq!((written.0, other.seen(0, 1)), (Ok(()), vec![5]));
        });
    }

    #[test]
    fn registration_keeps_rights_apart() {
        alone(|a, b| async move {
            let (one, other) = connect(&a, &b, QueueSizes::default()).await;
            let region = lunette_runtime::arena().alloc(8192).expect("room");
            let readable = Access {
                remote_read: true,
                relaxed_ordering: true,
                ..Access::default()
            };
            let window = Window::register(&b, region, readable).expect("optional bits are taken");
            window.write(0, b"content");
            let (read, piece) = one
                .pair
                .read(one.piece(&[0; 7]), 7, window.remote(), soon())
                .await;
            assert_eq!(
                (read, piece.expect("back").as_slice()),
                (Ok(()), &b"content"[..])
            );
            let refused = one.pair.write_inline(b"x", window.remote(), soon()).await;
            assert_eq!(refused.0, Err(RequestError::Failed(Status::RemoteAccess)));
            drop(other);
        });
    }

    #[test]
    fn the_connection_manager_connects_too() {
        alone(|context, other| async move {
            let (a, b) = managed::connect_managed(&context, &other).await;
            assert!(a.pair.agreement().has_atomics && a.pair.has_immediates());
            assert!(a.pair.agreement().reads_out > 0, "{:?}", a.pair.agreement());
            scenes::bytes_go_there_and_back(&a, &b).await;
            scenes::atomics_change_a_word(&a, &b).await;
            scenes::messages_meet_receives(&b, &a).await;
            scenes::notices_meet_receives(&a, &b).await;
            managed::an_end_is_told(&a, b).await;
            managed::refusals_are_told(&context, &other).await;
        });
    }

    #[test]
    fn an_adapter_that_takes_no_dma_bufs_says_so() {
        alone(|a, _b| async move {
            let file = std::fs::File::open("/proc/self/exe").expect("this program");
            let refused = DeviceMemory::register(&a, file.into(), 0..4096, ALL).await;
            assert_eq!(refused.err(), Some(SetupError::Unsupported));
        });
    }

    #[test]
    fn a_link_that_goes_and_comes_back_is_sat_out_or_told() {
        alone(|a, b| async move {
            let (one, other) = connect(&a, &b, QueueSizes::default()).await;
            while a.next_event().is_some() {}
            let watching = spawn_local(events_until_active(a.clone()));
            let remote = other.window.remote();
            let requests: Vec<_> = (0..32)
                .map(|_| one.pair.write(one.piece(&[7; 8192]), 8192, remote, soon()))
                .collect();
            time::yield_now().await;
            ip("link set net0 down");
            let info = a.info().expect("described");
            assert!(!info.is_active && info.gids.iter().all(|entry| !entry.is_up));
            time::sleep(Duration::from_millis(50)).await;
            ip("link set net0 up");
            let mut done = 0;
            for request in requests {
                let (outcome, piece) = request.await;
                assert!(piece.is_some(), "memory comes back in every case");
                done += u32::from(outcome.is_ok());
                assert!(outcome.is_ok() || outcome.is_err_and(RequestError::is_retryable));
            }
            println!("link down and up: {done} of 32 writes done on the old queue pair");
            let events = watching.await.expect("it ends");
            assert!(events.contains(&DeviceEvent::PortDown), "{events:?}");
            drop((one, other));
            until_active(&a).await;
            let (one, other) = connect(&a, &b, QueueSizes::default()).await;
            let written = one
                .pair
                .write_inline(&[5], other.window.remote(), soon())
                .await;
            assert_eq!((written.0, other.seen(0, 1)), (Ok(()), vec![5]));
        });
    }

    /// What happens to a device until its link is back, waited for by the loop.
    async fn events_until_active(context: Context) -> Vec<DeviceEvent> {
        let mut events = Vec::new();
        while events.last() != Some(&DeviceEvent::PortActive) {
            events.push(context.event().await.expect("it can be watched"));
        }
        events
    }

    /// Waits for the link, and for the addresses that came back with it.
    async fn until_active(context: &Context) {
        for _ in 0..200 {
            let info = context.info().expect("described");
            if info.is_active && info.gids.iter().any(|entry| gid::is_ipv4(&entry.gid)) {
                return;
            }
            time::sleep(Duration::from_millis(50)).await;
        }
        unreachable!("the link comes back");
    }

    #[test]
    fn a_peer_that_is_gone_costs_no_more_than_the_deadline() {
        alone(|a, b| async move {
            let (one, other) = connect(&a, &b, QueueSizes::default()).await;
            let remote = other.window.remote();
            drop(other);
            let deadline = time::now() + Duration::from_millis(500);
            let request = one.pair.write(one.piece(&[1; 8]), 8, remote, deadline);
            let (outcome, piece) = request.await;
            println!("a peer that is gone: {outcome:?}");
            assert!(outcome.is_err_and(RequestError::is_retryable) && piece.is_some());
            assert!(time::now() < deadline + Duration::from_secs(4));
        });
    }

    /// Tells the child of a test where its parent listens.
    const PARENT: &str = "LUNETTE_VERBS_PARENT";

    fn child(port: u16) -> Child {
        let name = "roce::tests::a_killed_peer_is_noticed_and_its_successor_served";
        Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", name])
            .env(PARENT, port.to_string())
            // Its libtest would talk in between ours.
            .stdout(Stdio::null())
            .spawn()
            .expect("a child")
    }

    /// The child: one end that does nothing until it is killed.
    async fn be_killed(context: Context, port: u16) {
        let address = ([127, 0, 0, 1], port).into();
        let stream = TcpStream::connect(address)
            .await
            .expect("the parent listens");
        let end = one_end(&stream, &context, QueueSizes::default(), false).await;
        let remote = end.window.remote();
        let mut bytes = remote.address.to_le_bytes().to_vec();
        bytes.extend(remote.rkey.to_le_bytes());
        let (sent, _) = stream.send_all(bytes, 0, 12).await;
        sent.expect("the parent reads");
        time::sleep(Duration::from_secs(120)).await;
    }

    async fn meet(listener: &TcpListener, context: &Context) -> (End, RemoteMemory) {
        let stream = listener.accept().await.expect("a connection");
        let end = one_end(&stream, context, QueueSizes::default(), true).await;
        let mut bytes = vec![0; 12];
        let mut filled = 0;
        while filled < 12 {
            let (count, back) = stream.recv(bytes, filled, 12 - filled).await;
            bytes = back;
            filled += count.expect("the child sends");
        }
        let remote = RemoteMemory {
            address: u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")),
            rkey: u32::from_le_bytes(bytes[8..].try_into().expect("4 bytes")),
        };
        (end, remote)
    }

    #[test]
    fn a_killed_peer_is_noticed_and_its_successor_served() {
        if let Ok(port) = std::env::var(PARENT) {
            let port = port.parse().expect("a port");
            return alone(move |_a, b| be_killed(b, port));
        }
        alone(|a, _b| async move {
            let listener = TcpListener::bind("127.0.0.1:0".parse().expect("an address"));
            let listener = listener.expect("a port");
            let port = listener.local_addr().port();
            let mut peer = child(port);
            let (end, remote) = meet(&listener, &a).await;
            assert_eq!(
                end.pair.write_inline(&[1; 8], remote, soon()).await.0,
                Ok(())
            );
            peer.kill().expect("it runs");
            peer.wait().expect("it ends");
            let deadline = time::now() + Duration::from_millis(1000);
            let requests: Vec<_> = (0..8)
                .map(|_| {
                    end.pair
                        .write(end.piece(&[2; 4096]), 4096, remote, deadline)
                })
                .collect();
            for request in requests {
                let (outcome, piece) = request.await;
                assert!(
                    outcome.is_err_and(RequestError::is_retryable),
                    "{outcome:?}"
                );
                assert!(piece.is_some(), "memory comes back in every case");
            }
            assert!(time::now() < deadline + Duration::from_secs(4));
            drop(end);
            let mut successor = child(port);
            let (end, remote) = meet(&listener, &a).await;
            assert_eq!(
                end.pair.write_inline(&[1; 8], remote, soon()).await.0,
                Ok(())
            );
            successor.kill().expect("it runs");
            successor.wait().expect("it ends");
        });
    }
}
