//! A discrete-event simulator of a cluster in which the rules of the conductor place requests.
#![forbid(unsafe_code)]
