//! The thread-per-core runtime of Lunette.
//!
//! One thread per core runs one loop: tasks, messages from other cores, timers, and the
//! completions of one io_uring (or of epoll, where io_uring is forbidden). A connection, a timer and a piece of an arena belong to the core
//! that made them and stay there; other cores ask by message.
//!
//! Operations own their buffers until their completion and give them back with the outcome.
//! Dropping an operation cancels it and leaves the buffer with the device until the completion.
//!
//! It leaves out protocols (they are sans-IO packages), work stealing, and any other event loop:
//! there is no tokio here.
//!
//! | module | subject |
//! |---|---|
//! | [`block_on`], [`Runtime`] | a core on this thread; cores on threads of their own |
//! | [`spawn_local`], [`spawn_on`] | tasks on this core, tasks on another one |
//! | [`channel`] | typed messages to a core |
//! | [`Pending`], [`wait()`] | answers of cores to threads that are none |
//! | [`this_processor()`], [`asked_from()`] | threads that wait for each other on one processor |
//! | [`Patience`] | whether such a thread does well to look for its answer before it sleeps |
//! | [`Scope`], [`Class`] | tasks that end with their owner; tasks by urgency |
//! | [`fs`] | files, buffered and direct |
//! | [`control()`], [`ControlHere`] | calls that block, on a thread of their own or one that only waits |
//! | [`net`] | TCP listener and stream, connections of threads; packets with descriptors between processes |
//! | [`vectored`] | lists that one operation gathers from or scatters to |
//! | [`core_local`] | what tasks of one core share |
//! | [`Signal`] | a flag between two tasks of a core |
//! | [`BufferPool`] | buffers that the system picks when bytes have come |
//! | [`Source`], [`Watched`] | what a core polls beside its driver; descriptors that others read |
//! | [`sim`] | cores, hosts and a network that are simulated, from one seed |
//! | [`time`] | clock, sleep, timeout, yield |
//! | [`entropy()`] | numbers that nobody can tell in advance |
//! | [`PeerMemory`] | memory of devices that adapters are given by address |
//! | [`boot_id()`] | whether two processes run on one kernel |
//! | [`HostClock`] | the clock that they have in common |
//! | [`mod@arena`] | memory for devices: chunks, regions; memory that processes share |
//! | [`topology`] | CPUs and pinning |
//!
//! ```
//! use lunette_runtime::net::{TcpListener, TcpStream};
//! use lunette_runtime::{CoreOptions, block_on, spawn_local};
//!
//! let echoed = block_on(None, CoreOptions::default(), || async {
//!     let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
//!     let address = listener.local_addr();
//!     spawn_local(async move {
//!         let stream = listener.accept().await.unwrap();
//!         let (count, buffer) = stream.recv(vec![0; 16], 0, 16).await;
//!         let (sent, _buffer) = stream.send_all(buffer, 0, count.unwrap()).await;
//!         sent.unwrap();
//!     });
//!     let stream = TcpStream::connect(address).await.unwrap();
//!     let (sent, _) = stream.send_all(b"hello".to_vec(), 0, 5).await;
//!     sent.unwrap();
//!     let (count, buffer) = stream.recv(vec![0; 16], 0, 16).await;
//!     buffer[..count.unwrap()].to_vec()
//! });
//! assert_eq!(echoed.unwrap(), b"hello");
//! ```

pub mod arena;
mod boot;
mod clock;
mod control;
mod current;
mod driver;
mod entropy;
mod executor;
pub mod fs;
mod lease;
mod mesh;
pub mod net;
mod op;
mod patience;
mod peer_memory;
mod pending;
mod pool;
mod process;
mod processor;
mod runtime;
mod signal;
pub mod sim;
pub mod time;
pub mod topology;
pub mod vectored;
mod watched;

pub use boot::{HostClock, boot_id};
pub use control::{CONTROL_CALLS_MAX, ControlError, ControlHere, control};
pub use current::{
    RegisterError, add_source, arena, can_spawn, core_count, core_counts, core_local, core_waker,
    current_core, driver, register_arena, spawn_local, spawn_local_as,
};
pub use driver::{
    DriverChoice, DriverKind, DriverOptions, Feature, Features, OPERATIONS_MAX, ProbeError,
};
pub use entropy::entropy;
pub use executor::{
    Class, CoreCounts, CoreWaker, Idle, JoinError, JoinHandle, SOURCES_MAX, Scope, Source,
    SourceGuard, Stall, StallWatch, TASKS_MAX, asked_from,
};
pub use lease::{Lease, Lend, LendRead, LendWrite};
pub use mesh::{
    CHANNEL_MESSAGES_MAX, MESSAGES_MAX, MeshError, Port, Receiver, SendError, Sender, channel,
    spawn_on,
};
pub use op::{BufResult, OpError};
pub use patience::Patience;
pub use peer_memory::PeerMemory;
pub use pending::{Pending, SPIN, WORK_MAX, wait};
pub use pool::{BufferPool, POOL_BUFFERS_MAX, POOLS_MAX, PoolError, PooledBytes};
pub use processor::this_processor;
pub use runtime::{Answer, CoreOptions, CorePanicked, Placement, Runtime, StartError, block_on};
pub use signal::Signal;
pub use watched::Watched;
