//! Traces of requests for prompt prefixes: reading, generating, and what a perfect cache makes of
//! them.
//!
//! A request names its prompt by the hashes of its blocks, each hash covering the block and all
//! blocks before it. So equal hashes mean an equal prefix, and a cache of blocks serves the leading
//! blocks of a request that it holds.
//!
//! | module | subject |
//! |---|---|
//! | [`mod@format`] | [`Request`], and the reader of trace files |
//! | [`generator`] | a seeded workload with the published statistics of a real trace |
//! | [`mod@reference`] | one LRU list over all blocks, and the hit ratios it reaches |
//! | [`block`] | the key and the bytes of a block in a replay |

pub mod block;
pub mod format;
pub mod generator;
pub mod reference;

pub use format::{Request, TOKENS_PER_BLOCK};
