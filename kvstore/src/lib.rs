//! The KVCache store: node cores and client.
