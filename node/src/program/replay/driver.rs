//! The client of a replay: one request after the other.
//!
//! A request is served as an inference engine would: look up all its blocks, get the leading ones
//! that are there, put all others. Only these calls are timed; filling blocks before a put and
//! verifying them after a get are not. Blocks travel in pieces, so that memory stays bounded.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use lunette::kvstore::{Client, ClientOptions, Get, GetFailure, Put, StoreError, Value};
use lunette::runtime::arena;
use lunette::runtime::arena::{AllocError, ArenaOptions, Region};
use lunette::trace::{Request, block};
use lunette::transfer::Room;

use super::super::failure::Failure;
use super::source::Source;
use super::tally::Tally;

/// Most blocks of one piece.
const PIECE_BLOCKS_MAX: usize = 256;
/// Most bytes of one piece, unless a single block is larger.
const PIECE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Memory of the client beyond the blocks: what its connections receive into.
const STAGING_BYTES: usize = 64 * 1024 * 1024;

/// How to replay.
#[derive(Debug)]
pub(super) struct DriverOptions {
    pub(super) block_bytes: usize,
    pub(super) progress: ProgressBar,
    /// Ends the replay when raised.
    pub(super) interrupted: Arc<AtomicBool>,
}

/// Memory for a client of blocks of this size.
pub(super) fn arena_options(block_bytes: usize) -> ArenaOptions {
    // Of one piece the last sends may still be under way while the next one is filled.
    let pieces = 2 * piece_blocks(block_bytes) * block_bytes.next_multiple_of(4096);
    ArenaOptions {
        bytes_max: pieces + STAGING_BYTES,
        ..ArenaOptions::default()
    }
}

fn piece_blocks(block_bytes: usize) -> usize {
    (PIECE_BYTES_MAX / block_bytes).clamp(1, PIECE_BLOCKS_MAX)
}

/// Replays all of `source` against the nodes.
pub(super) async fn drive(
    nodes: Vec<SocketAddr>,
    source: Source,
    options: DriverOptions,
) -> Result<Tally, Failure> {
    let client = Client::connect(&nodes, ClientOptions::default()).await?;
    let evictions_before = evictions(&client).await?;
    let started = Instant::now();
    let mut driver = Driver {
        client,
        block_bytes: options.block_bytes,
        tally: Tally::new(),
    };
    for request in source {
        if options.interrupted.load(Ordering::Relaxed) {
            return Err(Failure::Interrupted);
        }
        driver.serve(&request?).await?;
        options.progress.inc(1);
    }
    let Driver {
        client, mut tally, ..
    } = driver;
    tally.elapsed = started.elapsed();
    tally.evictions = evictions(&client).await?.saturating_sub(evictions_before);
    Ok(tally)
}

async fn evictions(client: &Client) -> Result<u64, StoreError> {
    let mut sum = 0;
    for (_, stat) in client.stat().await {
        sum += stat?.shards.evictions;
    }
    Ok(sum)
}

struct Driver {
    client: Client,
    block_bytes: usize,
    tally: Tally,
}

impl Driver {
    async fn serve(&mut self, request: &Request) -> Result<(), Failure> {
        if request.hash_ids.is_empty() {
            self.tally.hits.add(request, 0, 0);
            return Ok(());
        }
        let keys: Vec<Vec<u8>> = request.hash_ids.iter().copied().map(block::key).collect();
        let started = Instant::now();
        let present = self.client.exists(&keys).await?;
        self.tally.lookup.record(started.elapsed());

        let leading = present.iter().take_while(|&&present| present).count();
        let got = self.get_all(&keys[..leading]).await?;
        let prefix_blocks = got.iter().take_while(|&&got| got).count();
        let lost = got.iter().filter(|&&got| !got).count();
        let blocks_hit = present.iter().filter(|&&present| present).count() - lost;
        self.tally.lost += u64::try_from(lost).expect("a block count fits");
        self.tally.hits.add(request, blocks_hit, prefix_blocks);

        let mut named = BTreeSet::new();
        let others: Vec<Vec<u8>> = keys
            .into_iter()
            .enumerate()
            .filter(|(index, key)| got.get(*index) != Some(&true) && named.insert(key.clone()))
            .map(|(_, key)| key)
            .collect();
        self.put_all(&others).await
    }

    /// Gets blocks; tells of each whether it was still there.
    async fn get_all(&mut self, keys: &[Vec<u8>]) -> Result<Vec<bool>, Failure> {
        let mut got = Vec::with_capacity(keys.len());
        let mut elapsed = Duration::ZERO;
        for piece in keys.chunks(piece_blocks(self.block_bytes)) {
            let rooms = self.rooms(piece)?;
            let started = Instant::now();
            let results = self.client.get_batch(rooms).await;
            elapsed += started.elapsed();
            for (key, result) in piece.iter().zip(results) {
                got.push(self.check(key, result)?);
            }
        }
        if !keys.is_empty() {
            self.tally.get.record(elapsed);
        }
        Ok(got)
    }

    fn rooms(&self, keys: &[Vec<u8>]) -> Result<Vec<(Vec<u8>, Room)>, AllocError> {
        keys.iter()
            .map(|key| Ok((key.clone(), Room::whole(arena().alloc(self.block_bytes)?))))
            .collect()
    }

    /// Verifies a block that was got; false if it was not there.
    fn check(&mut self, key: &[u8], result: Result<Get, GetFailure>) -> Result<bool, StoreError> {
        let right = match result {
            Ok(Get::Miss { .. }) => return Ok(false),
            Ok(Get::Hit {
                room, len_bytes, ..
            }) => {
                self.tally.bytes_read += u64::try_from(len_bytes).expect("a length fits");
                len_bytes == self.block_bytes && block::is_filled(key, room.as_slice())
            }
            // Damaged underway, and found out by the checksum.
            Err(failure) if failure.error.is_corruption() => false,
            Err(failure) => return Err(failure.error),
        };
        self.tally.verify_errors += u64::from(!right);
        Ok(true)
    }

    async fn put_all(&mut self, keys: &[Vec<u8>]) -> Result<(), Failure> {
        let mut elapsed = Duration::ZERO;
        for piece in keys.chunks(piece_blocks(self.block_bytes)) {
            let blocks = self.blocks(piece)?;
            let started = Instant::now();
            // The checksum is part of what a put costs.
            let values = blocks.into_iter().map(Value::new);
            let items = piece.iter().cloned().zip(values).collect();
            let results = self.client.put_batch(items).await;
            elapsed += started.elapsed();
            for result in results {
                self.count_put(result)?;
            }
        }
        if !keys.is_empty() {
            self.tally.put.record(elapsed);
        }
        Ok(())
    }

    /// The blocks of these keys.
    fn blocks(&self, keys: &[Vec<u8>]) -> Result<Vec<Region>, AllocError> {
        keys.iter()
            .map(|key| {
                let mut region = arena().alloc(self.block_bytes)?;
                block::fill(key, region.as_mut_slice());
                Ok(region.freeze())
            })
            .collect()
    }

    fn count_put(&mut self, result: Result<Put, StoreError>) -> Result<(), StoreError> {
        match result {
            Ok(Put::Written { .. }) => {
                let len_bytes = u64::try_from(self.block_bytes).expect("a length fits");
                self.tally.bytes_written += len_bytes;
            }
            Ok(Put::Touched { .. }) => {}
            Err(error) if error.is_backpressure() => self.tally.puts_refused += 1,
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
