//! What every metadata server does alike.

use lunette_cluster::MetadataClient;
use lunette_cluster::proto::metadata::{KEY_BYTES_MAX, MetadataFault};

/// Everything, under keys that hold `prefix`.
pub(crate) async fn all(client: &MetadataClient, prefix: &str) {
    values_are_put_read_and_removed(client, prefix).await;
    any_key_and_value_passes(client, prefix).await;
    what_breaks_a_limit_is_not_sent(client).await;
}

async fn values_are_put_read_and_removed(client: &MetadataClient, prefix: &str) {
    let key = format!("mooncake/ram/{prefix}/node-1:12345");
    let other = format!("mooncake/ram/{prefix}/node-2:12345");
    assert_eq!(client.get(&key).await, Ok(None));
    assert_eq!(client.delete(&key).await, Ok(()), "nothing is there");
    assert_eq!(client.put(&key, br#"{"name":"node-1"}"#).await, Ok(()));
    assert_eq!(client.put(&other, b"2").await, Ok(()));
    assert_eq!(
        client.get(&key).await,
        Ok(Some(br#"{"name":"node-1"}"#.to_vec()))
    );
    assert_eq!(client.put(&key, b"{}").await, Ok(()), "over what is there");
    assert_eq!(client.get(&key).await, Ok(Some(b"{}".to_vec())));
    assert_eq!(client.delete(&key).await, Ok(()));
    assert_eq!(client.get(&key).await, Ok(None));
    assert_eq!(client.get(&other).await, Ok(Some(b"2".to_vec())));
    assert_eq!(client.delete(&other).await, Ok(()));
}

async fn any_key_and_value_passes(client: &MetadataClient, prefix: &str) {
    let every_byte: Vec<u8> = (0..=u8::MAX).collect();
    let long: Vec<u8> = every_byte.iter().copied().cycle().take(300_000).collect();
    for (name, value) in [
        ("a b", &b"spaces"[..]),
        ("50%&x=y?z#+", b"what queries are made of"),
        ("\u{e4}\u{4e2d}", b"beyond ASCII"),
        ("bytes", &every_byte),
        ("long", &long),
        ("line", b"\r\n\r\n"),
    ] {
        let key = format!("{prefix}/{name}");
        assert_eq!(client.put(&key, value).await, Ok(()), "{name}");
        let got = client.get(&key).await.expect("it answers");
        assert!(got.as_deref() == Some(value), "{name}");
        assert_eq!(client.delete(&key).await, Ok(()), "{name}");
        assert_eq!(client.get(&key).await, Ok(None), "{name}");
    }
}

async fn what_breaks_a_limit_is_not_sent(client: &MetadataClient) {
    let long = "k".repeat(KEY_BYTES_MAX + 1);
    for (key, value) in [("", &b"v"[..]), (&long, b"v"), ("k", b"")] {
        let fault = client.put(key, value).await.expect_err("refused");
        assert!(fault.is_backpressure(), "{fault}");
    }
}

/// Over HTTP the name of an engine is put once, until it is removed.
pub(crate) async fn names_are_put_once(client: &MetadataClient, prefix: &str) {
    let key = format!("mooncake/rpc_meta/{prefix}");
    assert_eq!(client.put(&key, b"1").await, Ok(()));
    let again = client.put(&key, b"2").await;
    assert!(
        matches!(again, Err(MetadataFault::Refused { .. })),
        "{again:?}"
    );
    assert_eq!(client.get(&key).await, Ok(Some(b"1".to_vec())));
    assert_eq!(client.delete(&key).await, Ok(()));
    assert_eq!(client.put(&key, b"2").await, Ok(()));
    assert_eq!(client.delete(&key).await, Ok(()));
}
