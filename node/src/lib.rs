//! The lunette program and the facade crate.
