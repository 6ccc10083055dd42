//! What tests draw: one generator for property tests, fuzz targets and simulated worlds.
//!
//! A generator draws from a [`Source`]: bytes, which a fuzzer chooses and a property test shrinks, or
//! numbers that a seed fixes. So what one of them reaches the others can be shown.
//!
//! It leaves out what is judged: each test has a model of its own, or an oracle.
//!
//! | module | subject |
//! |---|---|
//! | [`source`] | [`Source`], [`Bytes`]: where choices come from |
//! | [`coordination`] | what may happen to a coordinator |
//! | [`store`] | what may be asked of a store |
#![forbid(unsafe_code)]

pub mod coordination;
pub mod source;
pub mod store;

pub use source::{Bytes, Source};
