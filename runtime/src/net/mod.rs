//! TCP.

mod listener;
mod message;
mod stream;

pub use listener::TcpListener;
pub use message::{MESSAGE_PARTS_MAX, Message, Pin};
pub use stream::TcpStream;

#[cfg(test)]
mod tests;
