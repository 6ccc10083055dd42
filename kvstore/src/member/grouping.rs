//! Groups at one core: which of its copies are in some, and which of those that are at home here have members where.
//!
//! What is told of them is a hint, and goes with the other messages between seats: see
//! [`groups`](lunette_kvstore_proto::groups).

use std::cell::RefCell;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_cluster::proto::map::ClusterMap;
use lunette_kvstore_proto::groups::{Fellows, GroupAction, GroupNews, Registry};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::{Content, CopyPlace, Peek};
use lunette_kvstore_proto::owner::FreeCause;
use lunette_kvstore_proto::placement::{Seat, has_seat};
use lunette_kvstore_proto::retention::{GroupId, Parent, Retention};

use super::core::MemberCore;
use crate::counting::CopyCounts;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Grouping {
    fellows: RefCell<Fellows>,
    registry: RefCell<Registry>,
}

impl Grouping {
    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        !self.fellows.borrow().is_joining()
    }

    pub(super) fn on_map(&self, map: &ClusterMap) {
        self.fellows.borrow_mut().on_map(map);
    }
}

impl MemberCore {
    /// A write has become a copy, which is in a group, and behind its parent, if it is the only one that is wanted: one of
    /// several that leaves takes nothing from anybody.
    pub(super) fn group(&self, place: CopyPlace, retention: Retention, wanted: u8) {
        if wanted != 1 {
            return;
        }
        let behind = retention.behind.map(GroupId::behind);
        for group in retention.group.into_iter().chain(behind) {
            self.at_fellows(|fellows, out| fellows.kept(place, group, out));
        }
    }

    /// A copy is no more, of which this is the home: what is behind its object is abandoned, if that is gone.
    pub(super) fn on_dropped(&self, key: Fingerprint) {
        if self.grouping.registry.borrow().is_empty() {
            return;
        }
        let mut found = Peek::Unsure;
        self.peek(&[key], NamespaceKind::Cache, |peek| found = peek);
        if found == Peek::Absent {
            let mut out = Vec::new();
            self.grouping
                .registry
                .borrow()
                .on_gone(Parent(key), &mut out);
            self.do_for_groups(out);
        }
    }

    pub(super) fn ungroup(&self, place: CopyPlace, cause: FreeCause) {
        let has_left_for_room = cause == FreeCause::Evicted;
        self.at_fellows(|fellows, out| fellows.freed(place, has_left_for_room, out));
    }

    pub(super) fn join_groups(&self) {
        self.at_fellows(Fellows::on_tick);
    }

    /// Another seat, or this one, says something of a group.
    pub(super) fn on_group(&self, from: Seat, news: GroupNews) {
        if let GroupNews::Part { group } = news {
            self.at_fellows(|fellows, out| fellows.on_part(from, group, out));
            return;
        }
        let mut out = Vec::new();
        self.grouping
            .registry
            .borrow_mut()
            .on_news(from, news, &mut out);
        self.do_for_groups(out);
    }

    fn at_fellows(&self, tell: impl FnOnce(&mut Fellows, &mut Vec<GroupAction>)) {
        let mut out = Vec::new();
        tell(&mut self.grouping.fellows.borrow_mut(), &mut out);
        self.do_for_groups(out);
    }

    fn do_for_groups(&self, actions: Vec<GroupAction>) {
        for action in actions {
            match action {
                // A home tells nobody what it was told by the same: this ends with the next answer.
                GroupAction::Tell(to, news) if to == self.seat() => self.on_group(to, news),
                GroupAction::Tell(to, news) => {
                    let map = self.map();
                    if has_seat(&map, to) {
                        self.post.put(to, map.epoch(), Content::Groups(vec![news]));
                    }
                }
                GroupAction::Abandon(place) => {
                    if self.bytes().borrow_mut().abandon(place) {
                        CopyCounts::add(&self.copies.abandoned);
                        self.tell_copy(place, "abandoned");
                    }
                }
            }
        }
    }
}
