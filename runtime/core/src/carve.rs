//! The extent allocator of an arena chunk.
