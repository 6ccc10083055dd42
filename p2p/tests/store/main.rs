//! Stores on a real kernel, several in one process, with the embedded coordinator.

mod faults;
mod scene;
mod spreading;
