//! The one door to checks, demo, benchmarks and fuzzing.
fn main() {}
