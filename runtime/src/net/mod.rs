//! TCP.

mod listener;
mod outbox;
mod receive;
mod socket;
mod stream;

pub use listener::TcpListener;
pub use outbox::Outbox;
pub use receive::Receives;
pub use stream::{TcpStream, ZERO_COPY_BYTES_MIN};

#[doc(no_inline)]
pub use crate::vectored::{MESSAGE_PARTS_MAX, Message, Pin};

#[cfg(test)]
mod tests;
