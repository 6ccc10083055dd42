//! Keys, placement, extents, eviction and messages of the KVCache store, sans-IO.
