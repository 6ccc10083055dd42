//! Policies to compare with.

mod lru;
mod s3_fifo;
mod sieve;
mod slots;

pub use lru::Lru;
pub use s3_fifo::S3Fifo;
pub use sieve::Sieve;
