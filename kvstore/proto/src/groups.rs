//! Objects that are of use together only: the pieces of one block of a prompt that several ranks of an engine write, each
//! to its own node. When one of them leaves memory to make room, the others are next wherever they lie: they would take
//! room that nobody can use.
//!
//! ```text
//!   owner A            the group's home            owner B
//!     |---- joined ---------->|<------- joined -------|     each has a member of the group
//!     |                       |                       |
//!  (evicts)---- broken ------>|-------- part -------->|     what is left at B is abandoned:
//!     |                       |                       |     it leaves before all that is not
//!     |                       |<------- left ---------|
//! ```
//!
//! The home of a group is that of a key with the group's hash. It knows which seats have members, not which.
//!
//! So are objects that are of no use without another, their *parent*: a block of a prompt without the one before. They are
//! a group whose home is the parent's, so that it knows by itself when the last copy of the parent is gone, and has them
//! abandoned. None of them takes anything with it but what is behind it.
//!
//! ```text
//!   owner A          the parent's home             owner B
//!     |----- dropped ------->|<------- joined -------|     something behind the parent is here
//!     |                      |                       |
//!     |                      |-------- part -------->|     it is abandoned; when it leaves, what is behind
//!     |                      |                       |     it is
//! ```
//!
//! All of this is a hint. It has no part in what the store promises: messages may be lost, a home may have forgotten a
//! group, and what is told late finds other members than were meant. What is abandoned by mistake is a copy like others,
//! which leaves a little too early; what is forgotten leaves when its turn comes. So nothing is asked again, and nothing
//! carries an epoch. A new map has owners join again where a group has another home.
//!
//! A group that is broken stays so until one of its members is written again: those that are used meanwhile are kept as
//! if they were in none.
//!
//! | file | subject |
//! |---|---|
//! | `fellows` | the members that one owner has |
//! | `registry` | which owners have members of the groups that are at home here |

mod fellows;
mod registry;

use crate::message::directory::CopyPlace;
use crate::placement::Seat;
use crate::retention::GroupId;

pub use fellows::{Fellows, JOINS_PER_TICK_MAX, MEMBERS_MAX};
pub use registry::{GROUPS_MAX, Registry, SEATS_MAX};

/// What owners and homes of groups tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupNews {
    /// To the home: this owner has members.
    Joined {
        /// The group.
        group: GroupId,
    },
    /// To the home: this owner has none any more.
    Left {
        /// The group.
        group: GroupId,
    },
    /// To the home: a member has left memory to make room.
    Broken {
        /// The group.
        group: GroupId,
    },
    /// To an owner: a member has left memory elsewhere.
    Part {
        /// The group.
        group: GroupId,
    },
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupAction {
    /// Tell a seat; it may be this very core.
    Tell(Seat, GroupNews),
    /// The copy is to leave before others: see [`Residence::abandon`](crate::residence::Residence::abandon).
    Abandon(CopyPlace),
}
