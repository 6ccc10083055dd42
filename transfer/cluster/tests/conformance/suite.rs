//! What every coordinator does alike.

use std::future::Future;
use std::time::Duration;

use lunette_cluster::proto::coordination::{
    Answer, Ask, Change, Compare, CoordinationFault, Expected, KeyRange, KeyValue, LeaseId, Op,
    OpOutcome, Outcome, Revision, Txn, WatchFrom,
};
use lunette_cluster::{Client, Watch};
use lunette_runtime::time;

const TIMEOUT: Duration = Duration::from_secs(5);

/// A client, and what its keys begin with.
struct Suite<'a> {
    client: &'a Client,
    prefix: &'a str,
}

/// Everything, under `prefix`; `compact` makes the coordinator forget its past.
pub(crate) async fn all<F: Future<Output = ()>>(
    client: &Client,
    prefix: &str,
    compact: impl Fn() -> F,
) {
    let suite = Suite { client, prefix };
    suite.keys_are_set_read_and_removed().await;
    suite.transactions_are_whole().await;
    suite.leases_are_granted_kept_and_revoked().await;
    suite.leases_run_out().await;
    suite.watches_tell_what_happens().await;
    suite.watches_tell_the_past_while_it_is_kept(compact).await;
    suite.large_values_and_binary_keys_pass().await;
}

impl Suite<'_> {
    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}{name}", self.prefix).into_bytes()
    }

    async fn ask(&self, ask: Ask) -> Result<Answer, CoordinationFault> {
        self.client.ask(&ask, TIMEOUT).await
    }

    async fn put(&self, name: &str, value: &str, lease: Option<LeaseId>) -> Revision {
        let (key, value) = (self.key(name), value.into());
        let answer = self.ask(Ask::Op(Op::Put { key, value, lease })).await;
        let answer = answer.expect("it is put");
        assert_eq!(answer.outcome, Outcome::Op(OpOutcome::Put));
        answer.revision
    }

    async fn pairs(&self, name: &str) -> Vec<KeyValue> {
        let range = KeyRange::prefix(self.key(name));
        let answer = self.ask(Ask::Op(Op::Range(range))).await;
        match answer.expect("it is read").outcome {
            Outcome::Op(OpOutcome::Range(pairs)) => pairs,
            other => unreachable!("a range was asked: {other:?}"),
        }
    }

    async fn names(&self, name: &str) -> Vec<String> {
        let pairs = self.pairs(name).await;
        let name = |pair: KeyValue| {
            let key = String::from_utf8(pair.key).expect("names are text");
            key[self.prefix.len()..].to_owned()
        };
        pairs.into_iter().map(name).collect()
    }

    async fn delete(&self, name: &str) -> u64 {
        let range = KeyRange::prefix(self.key(name));
        let answer = self.ask(Ask::Op(Op::Delete(range))).await;
        match answer.expect("it is done").outcome {
            Outcome::Op(OpOutcome::Delete { deleted }) => deleted,
            other => unreachable!("a removal was asked: {other:?}"),
        }
    }

    async fn keys_are_set_read_and_removed(&self) {
        assert_eq!(self.names("a").await, Vec::<String>::new());
        let first = self.put("a1", "x", None).await;
        let second = self.put("a2", "y", None).await;
        assert!(second > first);
        let third = self.put("a1", "z", None).await;
        let pairs = self.pairs("a").await;
        let expected = KeyValue {
            key: self.key("a1"),
            value: b"z".to_vec(),
            created: first,
            modified: third,
            lease: None,
        };
        assert_eq!(pairs[0], expected);
        assert_eq!(self.names("a").await, ["a1", "a2"]);
        assert_eq!(self.delete("a").await, 2);
        assert_eq!(self.delete("a").await, 0);
        assert!(self.names("a").await.is_empty());
    }

    async fn transactions_are_whole(&self) {
        let key = || self.key("t");
        let put = |value: &str| Op::Put {
            key: key(),
            value: value.into(),
            lease: None,
        };
        let txn = |compare, value: &str| {
            let failure = vec![Op::Range(KeyRange::one(key()))];
            let success = vec![put(value), Op::Delete(KeyRange::one(self.key("none")))];
            Ask::Txn(Txn {
                compare: vec![compare],
                success,
                failure,
            })
        };
        let created = self
            .ask(txn(Compare::absent(key()), "one"))
            .await
            .expect("done");
        let deleted = OpOutcome::Delete { deleted: 0 };
        let outcomes = vec![OpOutcome::Put, deleted];
        assert_eq!(
            created.outcome,
            Outcome::Txn {
                succeeded: true,
                outcomes
            }
        );
        let again = self
            .ask(txn(Compare::absent(key()), "two"))
            .await
            .expect("done");
        let Outcome::Txn {
            succeeded: false,
            outcomes,
        } = again.outcome
        else {
            unreachable!("it is there already");
        };
        assert!(matches!(&outcomes[..], [OpOutcome::Range(pairs)] if pairs[0].value == b"one"));
        let modified = Compare {
            key: key(),
            expected: Expected::Modified(created.revision),
        };
        for succeeds in [true, false] {
            let swapped = self
                .ask(txn(modified.clone(), "three"))
                .await
                .expect("done");
            assert!(
                matches!(swapped.outcome, Outcome::Txn { succeeded, .. } if succeeded == succeeds)
            );
        }
        let nothing = Ask::Txn(Txn::default());
        assert!(self.ask(nothing).await.is_ok());
    }

    /// A lease of its own, for each run of the suite.
    fn lease(&self, number: u64) -> LeaseId {
        let seed = self
            .prefix
            .bytes()
            .fold(number, |seed, byte| seed * 31 + u64::from(byte));
        LeaseId::new(lunette_runtime_core::random::mix(seed))
    }

    async fn leases_are_granted_kept_and_revoked(&self) {
        let lease = self.lease(1);
        let grant = Ask::Grant { lease, ttl_s: 30 };
        let granted = self.ask(grant.clone()).await.expect("granted");
        assert_eq!(granted.outcome, Outcome::Leased { ttl_s: 30 });
        assert_eq!(self.ask(grant).await, Err(CoordinationFault::LeaseExists));
        self.put("l1", "", Some(lease)).await;
        self.put("l2", "", Some(lease)).await;
        self.put("l3", "", None).await;
        assert_eq!(self.pairs("l1").await[0].lease, Some(lease));
        let kept = self.ask(Ask::KeepAlive(lease)).await.expect("kept");
        assert_eq!(kept.outcome, Outcome::Leased { ttl_s: 30 });
        let revoked = self.ask(Ask::Revoke(lease)).await.expect("revoked");
        assert_eq!(revoked.outcome, Outcome::Revoked);
        assert_eq!(self.names("l").await, ["l3"]);
        let gone = Err(CoordinationFault::LeaseNotFound);
        assert_eq!(self.ask(Ask::Revoke(lease)).await, gone);
        assert_eq!(self.ask(Ask::KeepAlive(lease)).await, gone);
        let (key, value) = (self.key("l4"), Vec::new());
        let put = Op::Put {
            key,
            value,
            lease: Some(lease),
        };
        assert_eq!(self.ask(Ask::Op(put.clone())).await, gone);
        let txn = Txn {
            success: vec![put],
            ..Txn::default()
        };
        assert_eq!(self.ask(Ask::Txn(txn)).await, gone);
    }

    async fn leases_run_out(&self) {
        let (short, long) = (self.lease(2), self.lease(3));
        for (lease, ttl_s) in [(short, 2), (long, 4)] {
            let granted = self.ask(Ask::Grant { lease, ttl_s }).await;
            assert!(granted.is_ok(), "{granted:?}");
        }
        let created = self.put("e1", "", Some(short)).await;
        self.put("e2", "", Some(long)).await;
        let mut watch = self.watch("e1", created.next()).await.expect("it is kept");
        // etcd ends leases at its leisure; the other one is kept alive beyond.
        for _ in 0..8 {
            time::sleep(Duration::from_millis(700)).await;
            let kept = self.ask(Ask::KeepAlive(long)).await;
            assert!(kept.is_ok(), "{kept:?}");
        }
        assert_eq!(self.names("e").await, ["e2"]);
        let changes = self.next(&mut watch).await;
        assert!(matches!(&changes[..], [Change::Delete { key, .. }] if *key == self.key("e1")));
        assert!(self.ask(Ask::Revoke(long)).await.is_ok());
    }

    async fn watch(&self, name: &str, revision: Revision) -> Result<Watch, CoordinationFault> {
        let range = KeyRange::prefix(self.key(name));
        let from = WatchFrom { range, revision };
        self.client.watch(&from, TIMEOUT).await
    }

    async fn next(&self, watch: &mut Watch) -> Vec<Change> {
        let next = time::timeout(TIMEOUT, watch.next_changes()).await;
        next.expect("something happened")
            .expect("the watch goes on")
    }

    /// The next `count` changes, however they are put together, each as `+name@value` or `-name`.
    async fn told(&self, watch: &mut Watch, count: usize) -> Vec<String> {
        let mut told = Vec::new();
        while told.len() < count {
            for change in self.next(watch).await {
                let name = String::from_utf8_lossy(&change.key()[self.prefix.len()..]).into_owned();
                told.push(match change {
                    Change::Put(pair) => {
                        format!("+{name}@{}", String::from_utf8_lossy(&pair.value))
                    }
                    Change::Delete { .. } => format!("-{name}"),
                });
            }
        }
        told
    }

    async fn watches_tell_what_happens(&self) {
        let before = self.put("x", "", None).await;
        let mut all = self.watch("w", before.next()).await.expect("from here on");
        let mut one = self.watch("w2", before.next()).await.expect("from here on");
        self.put("w1", "a", None).await;
        self.put("other", "", None).await;
        self.put("w2", "b", None).await;
        let (first, second) = (self.key("w1"), self.key("w3"));
        let txn = Txn {
            success: vec![
                Op::Put {
                    key: second,
                    value: b"c".to_vec(),
                    lease: None,
                },
                Op::Delete(KeyRange::one(first)),
            ],
            ..Txn::default()
        };
        let done = self.ask(Ask::Txn(txn)).await.expect("done");
        let mut told = self.told(&mut all, 4).await;
        // Within one transaction the order is the coordinator's.
        told[2..].sort_unstable();
        assert_eq!(told, ["+w1@a", "+w2@b", "+w3@c", "-w1"]);
        assert_eq!(self.told(&mut one, 1).await, ["+w2@b"]);
        self.delete("w").await;
        let changes = self.next(&mut all).await;
        assert!(
            changes
                .iter()
                .all(|change| change.revision() > done.revision)
        );
    }

    async fn watches_tell_the_past_while_it_is_kept<F: Future<Output = ()>>(
        &self,
        compact: impl Fn() -> F,
    ) {
        let first = self.put("p", "1", None).await;
        self.put("p", "2", None).await;
        let mut watch = self.watch("p", first).await.expect("it is kept");
        assert_eq!(self.told(&mut watch, 2).await, ["+p@1", "+p@2"]);
        compact().await;
        let fault = match self.watch("p", first).await {
            Err(fault) => fault,
            Ok(mut watch) => watch
                .next_changes()
                .await
                .expect_err("it is not kept any more"),
        };
        assert!(
            matches!(fault, CoordinationFault::Compacted { oldest } if oldest > first),
            "{fault}"
        );
        // A watch that is not behind goes on.
        self.put("p", "3", None).await;
        assert_eq!(self.told(&mut watch, 1).await, ["+p@3"]);
    }

    async fn large_values_and_binary_keys_pass(&self) {
        let mut key = self.key("big");
        key.extend([0, 0xff, b'"', b'\\', b'\n']);
        let value: Vec<u8> = (0..=u8::MAX).cycle().take(300_000).collect();
        let put = Op::Put {
            key: key.clone(),
            value: value.clone(),
            lease: None,
        };
        assert!(self.ask(Ask::Op(put)).await.is_ok());
        let pairs = self.pairs("big").await;
        assert_eq!((&pairs[0].key, &pairs[0].value), (&key, &value));
        assert_eq!(self.delete("big").await, 1);
    }
}
