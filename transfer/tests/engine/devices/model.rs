//! Any batches.
