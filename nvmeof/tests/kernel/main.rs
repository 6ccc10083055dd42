//! Our host against the kernel's target, and the kernel's host against our server: `cargo xtask
//! test --lane vm` runs this in a machine that has both.
//!
//! | module | subject |
//! |---|---|
//! | `target` | our host, the kernel's target, which may be in a machine beside us |
//! | `steered` | the same, and what becomes of it while somebody changes the target |
//! | `host` | the kernel's host, our server |
//! | `paths` | two paths to a namespace, whose states change, both ways |
//! | `drive` | a drive by its character device, behind our server |
//! | `fio` | fio with verification, through the kernel's host, on our server |
//! | `our_host` | our host, for those who try the kernel's target |
//! | `server` | our server, for those who try it from outside |
//! | `rig` | bringing either of the kernel's ends up |
//! | `blocks` | a block device of the kernel's, around the page cache |
#![forbid(unsafe_code)]

mod blocks;
mod drive;
mod fio;
mod host;
mod our_host;
mod paths;
mod rig;
mod server;
mod steered;
mod target;
