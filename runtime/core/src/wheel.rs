//! The hierarchical timer wheel.
