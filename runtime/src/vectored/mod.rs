//! Lists of pieces that one operation reads or writes: [`Message`] gathers, [`Scatter`] scatters.

mod message;
mod scatter;

pub use message::{MESSAGE_PARTS_MAX, Message, Pin};
pub use scatter::{SCATTER_PARTS_MAX, Scatter};

/// A socket message without name, list and control bytes.
pub(crate) const fn empty_header() -> libc::msghdr {
    libc::msghdr {
        msg_name: std::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: std::ptr::null_mut(),
        msg_iovlen: 0,
        msg_control: std::ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    }
}
