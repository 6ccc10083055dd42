//! Operations on many keys at once.
//!
//! Lookups and removals travel as one request per core (more where a request's limits ask for it).
//! Gets and puts are one request per key, pipelined: those of one turn leave in one system call.

use std::future::Future;

use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::{
    KeyBatchWriter, MessageFault, Op, PresenceReply, RemoveReply, Status,
};
use lunette_kvstore_proto::shard::RemoveOutcome;
use lunette_runtime::spawn_local;
use lunette_transfer::{Attachments, Room};

use super::{Client, Get, GetFailure, Put, refused, valid};
use crate::error::{StoreError, StoreErrorKind};
use crate::value::Value;

/// Some keys of one core: their positions in the caller's batch, and the request's body.
struct Share {
    node_index: usize,
    core_index: usize,
    positions: Vec<usize>,
    body: Vec<u8>,
}

/// Appends the answers in a reply's body, of which as many are expected as keys were asked about.
type Decode<T> = fn(body: &[u8], expected: usize, out: &mut Vec<T>) -> Result<(), MessageFault>;

impl Client {
    /// Whether each of `keys` is resident, in their order. A hint: a key can be evicted right
    /// afterwards.
    ///
    /// # Errors
    /// [`StoreError`] of the first core that failed.
    pub async fn exists(&self, keys: &[Vec<u8>]) -> Result<Vec<bool>, StoreError> {
        self.ask_all(Op::Exists, keys, |body, expected, out| {
            out.extend(PresenceReply::decode(body, expected)?.present());
            Ok(())
        })
        .await
    }

    /// Removes `keys`; tells for each, in their order, whether it was resident.
    ///
    /// # Errors
    /// [`StoreError`] of the first core that failed; `Refused(Busy)` if a put of a key is under
    /// way. Other keys may have been removed; repeating is safe.
    pub async fn remove(&self, keys: &[Vec<u8>]) -> Result<Vec<bool>, StoreError> {
        let outcomes = self
            .ask_all(Op::Remove, keys, |body, expected, out| {
                out.extend(RemoveReply::decode(body, expected)?.outcomes());
                Ok(())
            })
            .await?;
        outcomes
            .into_iter()
            .map(|outcome| match outcome {
                RemoveOutcome::Removed => Ok(true),
                RemoveOutcome::NotFound => Ok(false),
                RemoveOutcome::Busy => {
                    Err(StoreError::local(StoreErrorKind::Refused(Status::Busy)))
                }
            })
            .collect()
    }

    /// Puts many values; one result for each, in their order.
    pub async fn put_batch(&self, items: Vec<(Vec<u8>, Value)>) -> Vec<Result<Put, StoreError>> {
        let puts = items.into_iter().map(|(key, value)| {
            let client = self.clone();
            async move { client.put(&key, value).await }
        });
        let shut_down = || Err(StoreError::local(StoreErrorKind::ShutDown));
        all(puts, shut_down).await
    }

    /// Gets many values, each into its own room; one result for each, in their order.
    pub async fn get_batch(&self, items: Vec<(Vec<u8>, Room)>) -> Vec<Result<Get, GetFailure>> {
        let gets = items.into_iter().map(|(key, room)| {
            let client = self.clone();
            async move { client.get(&key, room).await }
        });
        let shut_down = || {
            let error = StoreError::local(StoreErrorKind::ShutDown);
            Err(GetFailure { error, room: None })
        };
        all(gets, shut_down).await
    }

    /// Asks each core about its share of the keys and puts the answers in the keys' order.
    async fn ask_all<T: Clone + 'static>(
        &self,
        op: Op,
        keys: &[Vec<u8>],
        decode: Decode<T>,
    ) -> Result<Vec<T>, StoreError> {
        let shares = self.split(keys)?;
        let mut positions: Vec<Vec<usize>> = Vec::with_capacity(shares.len());
        let asks = shares.into_iter().map(|share| {
            let client = self.clone();
            positions.push(share.positions);
            let expected = positions.last().map_or(0, Vec::len);
            let (node_index, core_index, body) = (share.node_index, share.core_index, share.body);
            async move {
                let body = client.ask_share(op, node_index, core_index, body).await?;
                let mut answers = Vec::with_capacity(expected);
                let address = client.cluster.endpoint(node_index, core_index).address();
                decode(&body, expected, &mut answers)
                    .map_err(|fault| StoreError::at(address, fault.into()))?;
                Ok(answers)
            }
        });
        let asks: Vec<_> = asks.collect();
        let shut_down = || Err(StoreError::local(StoreErrorKind::ShutDown));
        let answered = all(asks.into_iter(), shut_down).await;
        let mut placed: Vec<Option<T>> = vec![None; keys.len()];
        for (answers, positions) in answered.into_iter().zip(positions) {
            for (answer, position) in answers?.into_iter().zip(positions) {
                placed[position] = Some(answer);
            }
        }
        Ok(placed
            .into_iter()
            .map(|answer| answer.expect("each key is in one share"))
            .collect())
    }

    async fn ask_share(
        &self,
        op: Op,
        node_index: usize,
        core_index: usize,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, StoreError> {
        let endpoint = self.cluster.endpoint(node_index, core_index);
        let write = |out: &mut Vec<u8>| out.extend_from_slice(&body);
        let reply = endpoint
            .call(op, write, Attachments::default(), self.timeout())
            .await;
        let reply = reply.map_err(|failure| failure.error)?;
        match Status::from_code(reply.status) {
            Status::Ok => Ok(reply.body),
            status => Err(refused(endpoint, status)),
        }
    }

    /// Splits keys by their home cores, and further where a request would be too large.
    fn split(&self, keys: &[Vec<u8>]) -> Result<Vec<Share>, StoreError> {
        let mut homes = Vec::with_capacity(keys.len());
        for (position, key) in keys.iter().enumerate() {
            homes.push((self.cluster.home_index(valid(key)?), position));
        }
        homes.sort_unstable();
        let mut shares = Vec::new();
        for chunk in homes.chunk_by(|(a, _), (b, _)| a == b) {
            let (node_index, core_index) = chunk[0].0;
            let mut positions = chunk.iter().map(|&(_, position)| position).peekable();
            while positions.peek().is_some() {
                let mut share = Share {
                    node_index,
                    core_index,
                    positions: Vec::new(),
                    body: Vec::new(),
                };
                let mut writer = KeyBatchWriter::new(&mut share.body);
                while let Some(&position) = positions.peek() {
                    let key = Key::new(&keys[position]).expect("just validated");
                    if writer.push(key).is_err() {
                        break;
                    }
                    share.positions.push(position);
                    positions.next();
                }
                assert!(!share.positions.is_empty(), "one key always fits a request");
                shares.push(share);
            }
        }
        Ok(shares)
    }
}

/// Runs futures side by side and gathers their outputs in order. `lost` is the output of one whose
/// core shut down.
async fn all<F>(
    mut futures: impl ExactSizeIterator<Item = F>,
    lost: impl Fn() -> F::Output,
) -> Vec<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    if futures.len() == 1 {
        let only = futures.next().expect("there is one");
        return vec![only.await];
    }
    let handles: Vec<_> = futures.map(spawn_local).collect();
    let mut outputs = Vec::with_capacity(handles.len());
    for handle in handles {
        outputs.push(handle.await.unwrap_or_else(|_ended| lost()));
    }
    outputs
}
