//! Replays that judge the default policy.

mod judging;
mod published_trace;
mod synthetic;
