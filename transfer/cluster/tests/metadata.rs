//! One suite for every metadata server: real ones, and their models on each driver and in worlds.
#![forbid(unsafe_code)]

#[cfg(test)]
#[path = "../../../runtime/tests/on_each_driver/mod.rs"]
mod on_each_driver;
#[cfg(test)]
#[path = "metadata/servers.rs"]
mod servers;
#[cfg(test)]
#[path = "metadata/suite.rs"]
mod suite;

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::net::SocketAddr;
    use std::rc::Rc;
    use std::time::Duration;

    use lunette_cluster::proto::metadata::{Dialect, MetadataFault, Records};
    use lunette_cluster::{MetadataClient, serve_metadata};
    use lunette_runtime::net::TcpListener;
    use lunette_runtime::{CoreOptions, DriverChoice, StartError, block_on, spawn_local, time};

    use super::on_each_driver::run;
    use super::servers::{self, Server};
    use super::suite;

    const WORLDS: u64 = 8;
    const TIMEOUT: Duration = Duration::from_secs(10);

    fn any_port() -> TcpListener {
        let any_port = "127.0.0.1:0".parse().expect("an address");
        TcpListener::bind(any_port).expect("a port")
    }

    fn model(dialect: Dialect) -> SocketAddr {
        let listener = any_port();
        let address = listener.local_addr();
        let records = Rc::new(RefCell::new(Records::new(dialect)));
        drop(spawn_local(serve_metadata(listener, records)));
        address
    }

    #[test]
    fn the_models_conform() {
        for dialect in [Dialect::Redis, Dialect::Http] {
            run(WORLDS, move || async move {
                let client = MetadataClient::new(model(dialect), dialect, TIMEOUT);
                suite::all(&client, "model").await;
                if dialect == Dialect::Http {
                    suite::names_are_put_once(&client, "model").await;
                }
            });
        }
    }

    /// The suite against a real server, on both drivers.
    fn conforms(server: &Server, test: &'static str, puts_names_once: bool) {
        for driver in [DriverChoice::Uring, DriverChoice::Epoll] {
            let (address, dialect) = (server.address(), server.dialect());
            let prefix = format!("{driver:?}");
            let options = CoreOptions {
                driver,
                ..CoreOptions::default()
            };
            let ran = block_on(None, options, move || async move {
                let client = MetadataClient::new(address, dialect, TIMEOUT);
                suite::all(&client, &prefix).await;
                if puts_names_once {
                    suite::names_are_put_once(&client, &prefix).await;
                }
            });
            match ran {
                Ok(()) => {}
                Err(StartError::Driver(error)) => println!("SKIP {test}: {error}"),
                Err(error) => unreachable!("{error}"),
            }
        }
    }

    #[test]
    fn redis_conforms() {
        if let Some(server) = servers::redis("redis_conforms") {
            conforms(&server, "redis_conforms", false);
        }
    }

    #[test]
    fn nginx_conforms() {
        if let Some(server) = servers::nginx("nginx_conforms") {
            conforms(&server, "nginx_conforms", false);
        }
    }

    #[test]
    fn the_metadata_server_of_mooncake_conforms() {
        let test = "the_metadata_server_of_mooncake_conforms";
        if let Some(server) = servers::mooncake(test) {
            conforms(&server, test, true);
        }
    }

    #[test]
    fn a_server_that_is_away_is_told_and_comes_back() {
        run(WORLDS, || async {
            for dialect in [Dialect::Redis, Dialect::Http] {
                let away = any_port().local_addr();
                let client = MetadataClient::new(away, dialect, TIMEOUT);
                let fault = client.get("k").await.expect_err("nobody listens");
                assert!(fault.is_retryable(), "{fault}");
                let listener = TcpListener::bind(away).expect("the port is free");
                let records = Rc::new(RefCell::new(Records::new(dialect)));
                let serving = spawn_local(serve_metadata(listener, Rc::clone(&records)));
                client.put("k", b"v").await.expect("it is there");
                serving.abort();
                let listener = loop {
                    match TcpListener::bind(away) {
                        Ok(listener) => break listener,
                        Err(_in_use) => time::sleep(Duration::from_millis(1)).await,
                    }
                };
                drop(spawn_local(serve_metadata(listener, records)));
                // The connection that was kept is gone, and reading goes over a new one.
                assert_eq!(
                    client.get("k").await,
                    Ok(Some(b"v".to_vec())),
                    "{dialect:?}"
                );
            }
        });
    }

    #[test]
    fn a_server_that_says_nothing_is_waited_for_that_long() {
        run(WORLDS, || async {
            for dialect in [Dialect::Redis, Dialect::Http] {
                let silent = any_port();
                let timeout = Duration::from_millis(50);
                let client = MetadataClient::new(silent.local_addr(), dialect, timeout);
                assert_eq!(client.get("k").await, Err(MetadataFault::TimedOut));
            }
        });
    }
}
