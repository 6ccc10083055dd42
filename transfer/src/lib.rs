//! The Lunette wire protocol driven over TCP: client and server connections.
