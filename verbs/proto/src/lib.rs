//! RDMA connections and queue accounting as sans-IO state machines.
//!
//! An adapter executes what is posted to it and says so in completions; everything else is the
//! program's duty: never to post more than a queue holds, to ask for completions often enough to
//! learn what is over, to know what a failure leaves behind, and to notice when no completion comes
//! at all. The machines here carry that duty, one rule each, so that drivers only move bytes:
//!
//! ```text
//!              stage, seal          ibv_post_send
//!   request ─────────────▶ SendQueue ───────────▶ adapter
//!      ▲                    │     ▲                  │
//!      └──── Retired ───────┘     └── completion ◀───┘     (id::WrId names queue and request)
//!            each request exactly once, in order
//! ```
//!
//! A request's memory belongs to the adapter from [`send_queue::SendQueue::posted`] until it is
//! retired, also when its deadline has passed: a deadline breaks the queue pair, and the flush that
//! follows, or the end of the queue pair, gives the memory back.
//!
//! It leaves out adapters and memory (`lunette-verbs`), clocks, and the channel that carries
//! handshake messages.
//!
//! | module | subject |
//! |---|---|
//! | [`handshake`] | [`handshake::Handshake`], both sides from stranger to ready to send |
//! | [`negotiate`] | MTU, read depth, atomics: what two adapters can do together |
//! | [`gid`] | which of a port's addresses to use |
//! | [`qp_state`] | states of a queue pair, and what each transition needs |
//! | [`send_queue`] | [`send_queue::SendQueue`], credits, signals, flushes, deadlines |
//! | [`receive_queue`] | [`receive_queue::ReceiveQueue`], receives that are posted |
//! | [`completion_room`] | completion queues that cannot overflow |
//! | [`id`], [`status`] | ids of work requests, statuses of completions |
#![forbid(unsafe_code)]

pub mod completion_room;
pub mod gid;
pub mod handshake;
pub mod id;
pub mod negotiate;
pub mod qp_state;
pub mod receive_queue;
pub mod send_queue;
pub mod status;
