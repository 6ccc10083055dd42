//! The ground that every sans-IO package of Lunette stands on.
//!
//! It holds what protocol logic needs and nothing that does I/O: points in time handed in by a
//! driver, ids, named limits, a byte codec, CRC32C, references to registered memory, the timer
//! wheel, and the allocator that carves an arena into extents (offsets only; the memory behind
//! them belongs to `lunette-runtime`).
//!
//! It leaves out clocks, threads, sockets, files, randomness and memory mappings: a `clippy.toml`
//! of its own denies them here.
//!
//! | module | subject |
//! |---|---|
//! | [`time`] | [`time::Time`], a point on a driver's monotonic clock |
//! | [`ids`] | core, node and request ids |
//! | [`limits`] | every bound that more than one package must agree on |
//! | [`mutant`] | bugs that the simulator is to find; none, unless asked for |
//! | [`codec`] | bounded reading and writing of little-endian fields |
//! | [`checksum`] | CRC32C, folded chunk by chunk |
//! | [`pci`] | [`pci::PciAddress`], a place on the PCI bus |
//! | [`region`] | [`region::RegionRef`], a generation-checked name of a piece of an arena |
//! | [`random`] | a seeded generator, handed in by whoever wants draws |
//! | [`wheel`] | the hierarchical timer wheel |
//! | [`carve`] | the extent allocator of an arena chunk |
#![forbid(unsafe_code)]

pub mod carve;
pub mod checksum;
pub mod codec;
pub mod ids;
pub mod limits;
pub mod mutant;
pub mod pci;
pub mod random;
pub mod region;
pub mod time;
pub mod wheel;
