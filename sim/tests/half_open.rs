//! A node whose host is gone without a word: clients find out, and do not wait for ever.
#![forbid(unsafe_code)]

use std::time::Duration;

use lunette_kvstore::{Client, ClientOptions, NodeOptions, SeatedNode, StoreErrorKind};
use lunette_runtime::sim::{Kill, World, WorldOptions};
use lunette_runtime::{CoreOptions, time};
use lunette_runtime_core::ids::NodeId;
use lunette_transfer::CallError;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_connection_to_a_host_that_lost_its_power_ends() {
    let mut world = World::new(5, WorldOptions::default());
    let address = "10.0.0.1:7000".parse().expect("an address");
    let options = NodeOptions::new(NodeId(1), address, 1 << 20);
    let core_options = options.core_options().expect("it has memory");
    let node = world.start(address.ip(), 1, core_options);
    let _serves = world.spawn(node, 0, || SeatedNode::start(options));
    let asking = world.start(
        "10.0.0.2".parse().expect("a host"),
        1,
        CoreOptions::default(),
    );
    let errors = world.spawn(asking, 0, move || async move {
        time::sleep(SECOND).await;
        let options = ClientOptions {
            timeout: SECOND,
            connect_timeout: SECOND,
            ..ClientOptions::default()
        };
        let client = Client::connect(&[address], options).await.expect("a node");
        client.exists(&[b"key".to_vec()]).await.expect("an answer");
        time::sleep(SECOND * 5).await;
        let mut errors = Vec::new();
        for _ in 0..60 {
            let asked = client.exists(&[b"key".to_vec()]).await;
            errors.push(asked.expect_err("nobody is there").kind);
            time::sleep(SECOND / 2).await;
        }
        errors
    });
    world.run_for(SECOND * 3);
    world.kill(node, Kill::PowerLoss);
    world.run_for(SECOND * 150);
    let errors = errors.take().expect("each call has ended");
    let deadline = StoreErrorKind::Call(CallError::DeadlineExceeded);
    assert_eq!(errors[0], deadline);
    let ended = errors.iter().position(|kind| *kind != deadline);
    let ended = ended.expect("the connection has ended");
    assert!(ended < 30, "after {ended} calls");
    let last = errors.last().expect("sixty");
    assert!(matches!(last, StoreErrorKind::Reconnect(_)), "{last}");
}
