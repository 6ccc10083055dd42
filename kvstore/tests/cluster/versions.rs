//! Nodes of which this program speaks no version, and messages of versions that nobody speaks.

use std::rc::Rc;
use std::time::Duration;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_kvstore::{
    Client, ClientOptions, ClusterClient, ClusterClientOptions, ClusterError, PutOptions,
    StoreErrorKind, Value,
};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::ReadMessage;
use lunette_kvstore_proto::message::{FormatVersion, FormatVersions, Op, Status};
use lunette_kvstore_proto::version::Version;
use lunette_runtime::time;
use lunette_transfer::Attachments;

use super::on_each_driver::run;
use super::scene::{Scene, key, pattern, room, stranger};
use super::strangers::Stranger;

const PATIENCE: Duration = Duration::from_secs(20);

const fn later() -> FormatVersions {
    let newest = FormatVersions::OURS.max.0;
    FormatVersions {
        min: FormatVersion(newest + 1),
        max: FormatVersion(newest + 2),
    }
}

#[test]
fn who_speaks_none_of_a_nodes_versions_is_told_both() {
    run(1, || async {
        let address = Stranger::start(1, later(), &Rc::default()).address();
        let refused = ClusterError::Versions {
            node: address,
            ours: FormatVersions::OURS,
            theirs: later(),
        };
        let text =
            format!("node {address} speaks versions 2 to 3 of the formats, this program 1 to 1");
        assert_eq!(refused.to_string(), text);
        assert!(!refused.is_retryable());
        let member = ClusterClient::connect(ClusterClientOptions::new(vec![address])).await;
        assert_eq!(member.expect_err("refused"), refused);
        let alone = Client::connect(&[address], ClientOptions::default()).await;
        assert_eq!(alone.expect_err("refused"), refused);
    });
}

#[test]
fn operations_whose_home_speaks_other_versions_fail_at_once() {
    run(1, || async {
        let stranger = Stranger::start(2, later(), &Rc::default());
        let seed = Stranger::start(1, FormatVersions::OURS, &Rc::default());
        seed.join(&[&stranger]);
        let options = ClusterClientOptions {
            // Whoever waits for it to end would not be through in time.
            timeout: 10 * PATIENCE,
            ..ClusterClientOptions::new(vec![seed.address()])
        };
        let client = ClusterClient::connect(options).await.expect("a map");
        let expected = StoreErrorKind::Versions {
            ours: FormatVersions::OURS,
            theirs: later(),
        };
        let asked = time::timeout(PATIENCE, async {
            let error = client.exists(&[key(1), key(2)]).await;
            assert_eq!(error.expect_err("refused").kind, expected);
            let error = client.remove(&[key(1)]).await.remove(0);
            assert_eq!(error.expect_err("refused").kind, expected);
            let value = Value::new(pattern(1, 100));
            let error = client.put(&key(1), value, PutOptions::default()).await;
            assert_eq!(error.expect_err("refused").kind, expected);
            let failure = client.get(&key(1), room(10)).await.expect_err("refused");
            assert_eq!(failure.error.kind, expected);
            assert!(failure.room.is_some(), "it is the caller's again");
            let stat = client.stat().await.remove(0).1;
            assert_eq!(stat.expect_err("refused").kind, expected);
        });
        asked.await.expect("at once");
    });
}

#[test]
fn a_message_in_a_version_that_nobody_speaks_is_refused_and_harms_nobody() {
    run(1, || async {
        let scene = Scene::of(1, 8 << 20).await;
        let client = scene.client().await;
        scene.put(&client, 1, 1, 100).await;
        let (connection, to) = stranger(&client).await;
        let name = key(1);
        let message = ReadMessage {
            to,
            version: Version::default(),
            namespace: NamespaceKind::Cache,
            ranges: Vec::new(),
            key: Key::new(&name).expect("a key"),
        };
        for (version, status) in [
            (FormatVersions::OURS.max.0, Status::NotFound),
            (0, Status::BadRequest),
            (later().min.0, Status::BadRequest),
        ] {
            let body = |out: &mut Vec<u8>| {
                message.encode(FormatVersion::NEWEST, out);
                out[0] = version;
            };
            let asked = connection.call(Op::Read.code(), body, Attachments::default(), PATIENCE);
            let reply = asked.await.expect("it answers");
            assert_eq!(Status::from_code(reply.status), status, "{version}");
        }
        scene.expect(&client, 1, 100).await;
    });
}
