//! One suite for every coordinator: a real etcd, the embedded one on each driver, and in worlds.
#![forbid(unsafe_code)]

#[cfg(test)]
#[path = "conformance/etcd.rs"]
mod etcd;
#[cfg(test)]
#[path = "conformance/members.rs"]
mod members;
#[cfg(test)]
#[path = "../../../runtime/tests/on_each_driver/mod.rs"]
mod on_each_driver;
#[cfg(test)]
#[path = "conformance/quotas.rs"]
mod quotas;
#[cfg(test)]
#[path = "conformance/suite.rs"]
mod suite;

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;
    use std::net::SocketAddr;
    use std::rc::Rc;
    use std::time::Duration;

    use lunette_auth::Secrets;
    use lunette_cluster::proto::coordination::{
        Ask, CoordinationFault, KeyRange, Op, OpOutcome, Outcome,
    };
    use lunette_cluster::{Client, ClientOptions, Hosted, Security, serve};
    use lunette_runtime::net::{TcpListener, TcpStream};
    use lunette_runtime::{
        CoreOptions, DriverChoice, Signal, StartError, block_on, spawn_local, time,
    };

    use super::etcd::Etcd;
    use super::on_each_driver::run;
    use super::suite;

    const WORLDS: u64 = 8;

    fn client(endpoints: Vec<SocketAddr>, security: Option<Security>) -> Client {
        let silence_max = Duration::from_secs(5);
        Client::new(ClientOptions {
            endpoints,
            security,
            silence_max,
        })
    }

    fn host(hosted: Rc<Hosted>, security: Option<Security>) -> SocketAddr {
        let any_port = "127.0.0.1:0".parse().expect("an address");
        let listener = TcpListener::bind(any_port).expect("a port");
        let address = listener.local_addr();
        drop(spawn_local(serve(listener, hosted, security, pending())));
        address
    }

    /// Secrets of this name, and randomness that the name fixes.
    fn security(name: u8) -> Security {
        let drawn = Cell::new(0_u8);
        Security {
            secrets: Secrets::parse(&[name; 32]).expect("it is long enough"),
            entropy: Rc::new(move || {
                drawn.set(drawn.get() + 1);
                [drawn.get() ^ name; 32]
            }),
        }
    }

    #[test]
    fn the_embedded_coordinator_conforms() {
        run(WORLDS, || async {
            let hosted = Hosted::in_memory();
            let address = host(Rc::clone(&hosted), None);
            let compact = || {
                hosted.compact();
                std::future::ready(())
            };
            suite::all(&client(vec![address], None), "embedded/", compact).await;
        });
    }

    #[test]
    fn the_embedded_coordinator_conforms_when_sealed() {
        run(WORLDS, || async {
            let hosted = Hosted::in_memory();
            let address = host(Rc::clone(&hosted), Some(security(b'a')));
            let compact = || {
                hosted.compact();
                std::future::ready(())
            };
            let client = client(vec![address], Some(security(b'a')));
            suite::all(&client, "sealed/", compact).await;
        });
    }

    #[test]
    fn etcd_conforms() {
        let Some(etcd) = Etcd::start("etcd_conforms") else {
            return;
        };
        let address = etcd.address();
        for driver in [DriverChoice::Uring, DriverChoice::Epoll] {
            let prefix = format!("{driver:?}/");
            let options = CoreOptions {
                driver,
                ..CoreOptions::default()
            };
            let ran = block_on(None, options, move || async move {
                let client = client(vec![address], None);
                let compact = || super::etcd::compact(address);
                suite::all(&client, &prefix, compact).await;
            });
            match ran {
                Ok(()) => {}
                Err(StartError::Driver(error)) => println!("SKIP etcd_conforms: {error}"),
                Err(error) => unreachable!("{error}"),
            }
        }
    }

    async fn count(client: &Client) -> Result<usize, CoordinationFault> {
        let ask = Ask::Op(Op::Range(KeyRange::prefix("k")));
        let answer = client.ask(&ask, Duration::from_secs(5)).await?;
        let Outcome::Op(OpOutcome::Range(pairs)) = answer.outcome else {
            unreachable!("a range was asked");
        };
        Ok(pairs.len())
    }

    #[test]
    fn endpoints_that_are_away_are_passed_over() {
        run(WORLDS, || async {
            let away = {
                let any_port = "127.0.0.1:0".parse().expect("an address");
                TcpListener::bind(any_port).expect("a port").local_addr()
            };
            time::sleep(Duration::from_millis(10)).await;
            let here = host(Hosted::in_memory(), None);
            let several = client(vec![away, away, here], None);
            assert_eq!(count(&several).await, Ok(0));
            let none = client(vec![away], None);
            let fault = count(&none).await.expect_err("nobody listens");
            assert!(fault.is_retryable(), "{fault}");
        });
    }

    /// A connection that was kept for the next ask, and that the coordinator closed meanwhile.
    #[test]
    fn reading_outlives_a_coordinator_that_starts_anew() {
        run(WORLDS, || async {
            let folder = tempfile::tempdir().expect("a folder");
            let hosted = Hosted::open(&folder.path().join("coordinator")).await;
            let hosted = hosted.expect("a file");
            let any_port = "127.0.0.1:0".parse().expect("an address");
            let listener = TcpListener::bind(any_port).expect("a port");
            let address = listener.local_addr();
            let several = client(vec![address], None);
            let stop = Rc::new(Signal::default());
            let stopped = Rc::clone(&stop);
            let first = Rc::clone(&hosted);
            let serving = spawn_local(async move {
                serve(listener, first, None, stopped.raised()).await;
            });
            assert_eq!(count(&several).await, Ok(0));
            stop.raise();
            serving.await.expect("it ends");
            let listener = TcpListener::bind(address).expect("the port is free again");
            drop(spawn_local(serve(listener, hosted, None, pending())));
            assert_eq!(count(&several).await, Ok(0));
            let put = Op::Put {
                key: b"k".to_vec(),
                value: Vec::new(),
                lease: None,
            };
            let kept = several.ask(&Ask::Op(put), Duration::from_secs(5)).await;
            assert!(kept.is_ok(), "{kept:?}");
        });
    }

    /// Whoever connects and says nothing keeps nobody waiting, and is closed after a while.
    #[test]
    fn silent_clients_block_nobody() {
        for is_sealed in [false, true] {
            run(WORLDS, move || async move {
                let security = || is_sealed.then(|| security(b'a'));
                let address = host(Hosted::in_memory(), security());
                let mut silent = Vec::new();
                for _ in 0..200 {
                    silent.push(TcpStream::connect(address).await.expect("connected"));
                }
                let started = time::now();
                let client = client(vec![address], security());
                assert_eq!(count(&client).await, Ok(0));
                assert!(time::now().since(started) < Duration::from_secs(1));
                let first = silent.remove(0);
                let closed = first.recv(vec![0; 16], 0, 16);
                let (closed, _) = time::timeout(Duration::from_secs(20), closed)
                    .await
                    .expect("it is not held for ever");
                assert!(!matches!(closed, Ok(1..)), "{closed:?}");
            });
        }
    }

    #[test]
    fn a_stranger_learns_nothing() {
        run(WORLDS, || async {
            let address = host(Hosted::in_memory(), Some(security(b'a')));
            let stranger = client(vec![address], Some(security(b'b')));
            let fault = count(&stranger).await.expect_err("it has another secret");
            assert!(!fault.is_retryable(), "{fault}");
            let silent = client(vec![address], None);
            assert!(count(&silent).await.is_err());
            let friend = client(vec![address], Some(security(b'a')));
            assert_eq!(count(&friend).await, Ok(0));
        });
    }

    /// What was acknowledged outlives the process that did.
    #[test]
    fn what_was_acknowledged_is_there_after_a_restart() {
        run(WORLDS, || async {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("coordinator");
            for life in 0..4_u8 {
                let hosted = Hosted::open(&path).await.expect("a file");
                let client = client(vec![host(hosted, None)], None);
                assert_eq!(count(&client).await, Ok(usize::from(life)));
                let key = vec![b'k', life];
                let put = Ask::Op(Op::Put {
                    key,
                    value: vec![life; 100],
                    lease: None,
                });
                let put = client
                    .ask(&put, Duration::from_secs(5))
                    .await
                    .expect("kept");
                assert_eq!(put.revision.0, u64::from(life) + 2);
            }
        });
    }
}
