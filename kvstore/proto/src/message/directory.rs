//! What homes, owners and askers say to each other about where copies are.
//!
//! | type | from | to |
//! |---|---|---|
//! | [`ToHome`] | owner | home: claims, publications, retractions, what was dropped |
//! | [`ToOwner`] | home | owner: grants, refusals, orders, wishes for reports |
//! | [`CopyPage`] | owner | home: what it holds, page by page |
//! | [`ToPeer`] | home | home: tombstones |
//! | [`Ask`] | asker | home: lookups and removals |
//! | [`Answer`] | home or owner | asker |
//! | [`WriteMessage`], [`ReadMessage`] | asker | owner |
//! | [`ScatterMessage`] | asker | owner: many writes at once |
//! | [`GetMessage`] | asker | home: a lookup, or the bytes at once |
//! | [`GatherMessage`] | asker | home: the bytes of many objects at once, or nothing |
//! | [`ReserveMessage`], [`FillMessage`], [`CommitMessage`], [`RevokeMessage`] | asker | owner |
//! | [`ReplicaMessage`] | owner | owner |
//! | [`MemberMessage`], [`ChangeMessage`] | asker | any member: its clock, and what is done while that says so |
//! | [`QuotaMessage`] | asker | any member: quotas of tenants, and changes of them |
//! | [`ListMessage`] | asker | owner: keys of what it has |
//! | [`PeekMessage`] | asker | home: lookups that never wait |
//! | [`MeetMessage`], [`NearWish`] | asker | owner or home on its host |
//! | [`AdaptersMessage`], [`PairMessage`], [`PushWish`], [`FarWish`], [`PullWish`] | asker | owner or home with adapters |
//! | [`ReachMessage`] | asker | owner with adapters: where copies lie that are held |
//!
//! Everything between seats carries the sender's epoch and is heeded only by a receiver of the same
//! epoch: what was asked under another map may be ordered by another home. Whoever misses an answer
//! asks again, so each message may be lost, and come twice or late within its epoch.
//!
//! They travel as [`SeatMessage`], [`AskMessage`] and [`AnswerMessage`]. Their first byte, and that of
//! each request above, is the version of all these formats that it is in: the newest that both sides speak,
//! as the node's card tells. An answer is in the version of what was asked. Decoding is total, and
//! bounds every count before it allocates.

mod adapters;
mod ask;
mod clearing;
mod envelope;
mod gather;
mod held;
mod listing;
mod losses;
mod object;
mod one_sided;
mod page;
mod peek;
mod peer;
mod pulled;
mod quota;
mod reserved;
mod scatter;
mod term;
mod to_home;
mod to_owner;
mod wire;

pub use adapters::{
    ADAPTERS_MAX, AdaptersMessage, AdaptersReply, FarWish, PLACES_MAX, PUSHED_BYTES_MAX,
    PairMessage, PushPlace, PushWish, PushWrite, PushedReply, Reach, Reached,
};
pub use ask::{Answer, Ask, AskerId, Found, HoldWish, Only, WAIT_MS_MAX};
pub use clearing::{ChangeMessage, ClearReply, MemberMessage};
pub use envelope::{AnswerMessage, AskMessage, Content, ITEMS_MAX, SeatMessage};
pub use gather::{GATHERED_BYTES_MAX, GATHERED_MAX, GatherMessage, Gathered};
pub use held::{Held, REACHED_MAX, ReachMessage};
pub use listing::{LISTED_BYTES_MAX, LISTED_MAX, ListMessage, ListReply, is_meant};
pub use losses::{GONE_MAX, Gone, Losses, PAST_MAX, Recalled};
pub use object::{BytesReply, GetMessage, ReadMessage, ReplicaMessage, StripedReply, WriteMessage};
pub use one_sided::{Described, Descriptor, MeetMessage, MeetReply, NearWish};
pub use page::{Away, CopyPage, CopyPlace, PAGE_COPIES_MAX};
pub use peek::{PEEKS_MAX, Peek, PeekMessage, PeekReply};
pub use peer::{PAGE_TOMBSTONES_MAX, ToPeer, TombstonePage};
pub use pulled::PullWish;
pub use quota::{QuotaChange, QuotaMessage, QuotaReply, QuotaUse};
pub use reserved::{
    CommitMessage, FillMessage, KEEP_MS_MAX, ReservationId, ReserveMessage, ReserveReply,
    RevokeMessage,
};
pub use scatter::{
    SCATTERED_BYTES_MAX, SCATTERED_MAX, ScatterHead, ScatterMessage, ScatterWrite, Scattered,
};
pub use term::{ClockReply, Term};
pub use to_home::{OpId, ToHome};
pub use to_owner::{HOLDERS_MAX, Refusal, ToOwner};
