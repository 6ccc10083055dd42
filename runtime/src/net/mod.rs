//! TCP, of cores and of threads; names of hosts; packets between processes of one host.

mod interfaces;
mod listener;
mod local;
mod outbox;
mod receive;
mod resolve;
mod socket;
mod stream;
mod thread;

pub use interfaces::{INTERFACE_ADDRESSES_MAX, InterfaceAddress, interface_addresses};
pub use listener::{Accepted, REBIND_WAIT, TcpListener};
pub use local::{
    LocalChannel, LocalListener, LocalSender, PACKET_BYTES_MAX, PACKET_DESCRIPTORS_MAX, Packet,
};
pub use outbox::{Outbox, Stretch};
pub use receive::Receives;
pub use resolve::{ADDRESSES_MAX, ResolveError, resolve};
pub use stream::{ConnectOptions, TcpStream, ZERO_COPY_BYTES_MIN};
pub use thread::ThreadStream;

#[doc(no_inline)]
pub use crate::vectored::{MESSAGE_PARTS_MAX, Message, Pin};

#[cfg(test)]
mod tests;
