//! Core-pinned benchmark rows, each beside a peer or a physical limit.
