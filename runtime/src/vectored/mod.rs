//! Lists of pieces that one operation reads or writes: [`Message`] gathers, [`Scatter`] scatters.

mod message;
mod scatter;

pub use message::{MESSAGE_PARTS_MAX, Message, Pin};
pub use scatter::{SCATTER_PARTS_MAX, Scatter};
