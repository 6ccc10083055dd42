//! Thread-per-core runtime: io_uring driver, executor, timers, TCP, arenas.
