//! Layouts of KV pages, copy planning and stream accounting as sans-IO logic.
//!
//! What a GPU is asked to do is arithmetic first: which bytes of which page go where, by which
//! engine, and whose memory is whose until the device has said that it is done. That arithmetic is
//! here, bit exact and without a device; drivers only hand it on:
//!
//! ```text
//!   Layout + Layout ──▶ PageTransfer ──▶ fragments ──▶ DMA, one by one or in one batch
//!                            │                ▲
//!                            │             Planner: which one, by what was measured at start
//!                            ▼                ▼
//!                      KernelGeometry ──▶ PTX, one warp per piece, at most so many blocks
//! ```
//!
//! It leaves out devices and memory (`lunette-gpu`), clocks, and quantising on the way.
//!
//! | module | subject |
//! |---|---|
//! | [`layout`] | [`layout::Layout`], where a row of a page lies |
//! | [`transfer`] | [`transfer::PageTransfer`], pages from one layout to another |
//! | [`kernel`] | the same as PTX: text, parameters, launch |
//! | [`sums`] | copies that are summed on the way, as PTX |
//! | [`planner`] | [`planner::Planner`], DMA, batched DMA or kernel |
//! | [`crowd`] | [`crowd::Crowd`], how long kernels wait for SMs
//! | [`stream_queue`] | [`stream_queue::StreamQueue`], operations of a stream from begin to end |
//! | [`fault`] | what a driver's codes mean for who uses it |
#![forbid(unsafe_code)]

pub mod crowd;
pub mod fault;
pub mod kernel;
pub mod layout;
pub mod planner;
pub mod stream_queue;
pub mod sums;
pub mod transfer;
