//! Owners and the homes of groups, told of each other by hand.

use lunette_cluster_proto::map::{ClusterMap, Epoch, MapMember};
use lunette_kvstore_proto::groups::{
    Fellows, GROUPS_MAX, GroupAction, GroupNews, JOINS_PER_TICK_MAX, MEMBERS_MAX, Registry,
    SEATS_MAX,
};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::CopyPlace;
use lunette_kvstore_proto::placement::{Seat, home_of};
use lunette_kvstore_proto::retention::{GroupId, Parent};
use lunette_kvstore_proto::version::Version;
use lunette_runtime_core::ids::{CoreIndex, NodeId};
use proptest::prelude::*;

fn seat(node: u64, incarnation: u64) -> Seat {
    Seat {
        node: NodeId(node),
        incarnation,
        core: CoreIndex(0),
    }
}

fn map(epoch: u64, nodes: &[u64]) -> ClusterMap {
    let members = nodes
        .iter()
        .map(|&node| MapMember::new(NodeId(node), 1, ([127, 0, 0, 1], 1).into()));
    ClusterMap::new(Epoch(epoch), 0, members.collect()).expect("a map")
}

fn place(number: u64) -> CopyPlace {
    CopyPlace {
        key: Fingerprint(number.into()),
        version: Version {
            epoch: Epoch(1),
            sequence: 1,
        },
    }
}

fn group(number: u64) -> GroupId {
    GroupId::of(&number.to_le_bytes())
}

fn joined(number: u64) -> GroupNews {
    let group = group(number);
    GroupNews::Joined { group }
}

fn fellows(map: &ClusterMap) -> Fellows {
    let mut fellows = Fellows::default();
    fellows.on_map(map);
    fellows
}

fn told(tell: impl FnOnce(&mut Vec<GroupAction>)) -> Vec<GroupAction> {
    let mut out = Vec::new();
    tell(&mut out);
    out
}

#[test]
fn who_has_members_joins_once_and_leaves_with_the_last() {
    let (home, group) = (seat(1, 1), group(7));
    let mut fellows = fellows(&map(1, &[1]));
    let tell = |news| vec![GroupAction::Tell(home, news)];
    let first = told(|out| fellows.kept(place(1), group, out));
    assert_eq!(first, tell(GroupNews::Joined { group }));
    assert_eq!(told(|out| fellows.kept(place(2), group, out)), []);
    assert_eq!(told(|out| fellows.freed(place(1), false, out)), []);
    assert_eq!(told(|out| fellows.freed(place(1), false, out)), []);
    let last = told(|out| fellows.freed(place(2), false, out));
    assert_eq!(last, tell(GroupNews::Left { group }));
    assert!(fellows.is_empty());
    let unknown = told(|out| fellows.on_part(home, group, out));
    assert_eq!(unknown, tell(GroupNews::Left { group }), "told again");
}

#[test]
fn one_that_leaves_for_room_takes_the_others_here_with_it_once() {
    let (home, group) = (seat(1, 1), group(7));
    let mut fellows = fellows(&map(1, &[1]));
    for number in 0..3 {
        told(|out| fellows.kept(place(number), group, out));
    }
    let broken = GroupAction::Tell(home, GroupNews::Broken { group });
    let abandon = |number| GroupAction::Abandon(place(number));
    let first = told(|out| fellows.freed(place(1), true, out));
    assert_eq!(first, [abandon(0), abandon(2), broken]);
    assert_eq!(told(|out| fellows.freed(place(0), true, out)), []);
    assert_eq!(told(|out| fellows.on_part(home, group, out)), []);
    told(|out| fellows.kept(place(5), group, out));
    let anew = told(|out| fellows.on_part(home, group, out));
    assert_eq!(anew, [abandon(2), abandon(5)], "one was written since");
}

#[test]
fn a_home_tells_the_others_of_a_group_and_no_other_group() {
    let mut registry = Registry::default();
    let tell = |registry: &mut Registry, from, news| told(|out| registry.on_news(from, news, out));
    for (node, of) in [(1, 7), (2, 7), (3, 8), (2, 7)] {
        assert_eq!(tell(&mut registry, seat(node, 1), joined(of)), []);
    }
    let part = |group| GroupNews::Part { group };
    let group = group(7);
    let broken = GroupNews::Broken { group };
    let others = [GroupAction::Tell(seat(2, 1), part(group))];
    assert_eq!(tell(&mut registry, seat(1, 1), broken), others);
    let both = [1, 2].map(|node| GroupAction::Tell(seat(node, 1), part(group)));
    assert_eq!(
        tell(&mut registry, seat(9, 1), broken),
        both,
        "of nobody here"
    );
    assert_eq!(
        tell(&mut registry, seat(1, 1), part(group)),
        [],
        "it is a home"
    );
    tell(&mut registry, seat(2, 1), GroupNews::Left { group });
    tell(&mut registry, seat(2, 1), GroupNews::Left { group });
    assert_eq!(tell(&mut registry, seat(1, 1), broken), []);
    assert_eq!(registry.len(), 2);
    tell(&mut registry, seat(1, 1), GroupNews::Left { group });
    assert_eq!(registry.len(), 1);
}

#[test]
fn what_is_behind_another_follows_it_and_takes_nothing_but_what_is_behind_itself() {
    let (home, parent) = (seat(1, 1), Parent(Fingerprint(7)));
    let group = GroupId::behind(parent);
    let mut fellows = fellows(&map(1, &[1]));
    let tell = |news| GroupAction::Tell(home, news);
    let abandon = |number| GroupAction::Abandon(place(number));
    let first = told(|out| fellows.kept(place(1), group, out));
    assert_eq!(first, [tell(GroupNews::Joined { group })]);
    told(|out| fellows.kept(place(2), group, out));
    // It is in a group of fellows, too.
    let own = self::group(9);
    told(|out| fellows.kept(place(2), own, out));
    told(|out| fellows.kept(place(3), own, out));
    assert_eq!(told(|out| fellows.freed(place(1), true, out)), []);
    for _ in 0..2 {
        // The parent has come back meanwhile, and has left again.
        assert_eq!(told(|out| fellows.on_part(home, group, out)), [abandon(2)]);
    }
    let broken = tell(GroupNews::Broken { group: own });
    let left = tell(GroupNews::Left { group });
    let last = told(|out| fellows.freed(place(2), true, out));
    assert_eq!(last, [left, abandon(3), broken]);
    assert_eq!(fellows.len(), 1);

    let mut registry = Registry::default();
    for node in [1, 2] {
        let joined = GroupNews::Joined { group };
        assert_eq!(told(|out| registry.on_news(seat(node, 1), joined, out)), []);
    }
    // A group of the same hash is another one.
    let same = GroupId::drawn(7);
    let joined = GroupNews::Joined { group: same };
    told(|out| registry.on_news(seat(3, 1), joined, out));
    let part = [1, 2].map(|node| GroupAction::Tell(seat(node, 1), GroupNews::Part { group }));
    assert_eq!(told(|out| registry.on_gone(parent, out)), part);
    assert_eq!(
        told(|out| registry.on_gone(Parent(Fingerprint(8)), out)),
        []
    );
}

/// A writer may wish for the group of what is behind an object, and to be behind that object.
#[test]
fn what_is_wished_for_twice_is_there_once() {
    let (home, group) = (seat(1, 1), GroupId::behind(Parent(Fingerprint(7))));
    let mut fellows = fellows(&map(1, &[1]));
    told(|out| fellows.kept(place(1), group, out));
    assert_eq!(told(|out| fellows.kept(place(1), group, out)), []);
    let left = GroupAction::Tell(home, GroupNews::Left { group });
    assert_eq!(told(|out| fellows.freed(place(1), true, out)), [left]);
    assert!(fellows.is_empty());
}

#[test]
fn another_life_of_an_owner_takes_the_place_of_the_one_before() {
    let mut registry = Registry::default();
    for incarnation in [1, 3, 2] {
        told(|out| registry.on_news(seat(1, incarnation), joined(7), out));
    }
    let group = group(7);
    let broken = told(|out| registry.on_news(seat(2, 1), GroupNews::Broken { group }, out));
    let part = GroupAction::Tell(seat(1, 3), GroupNews::Part { group });
    assert_eq!(broken, [part]);
    told(|out| registry.on_news(seat(1, 1), GroupNews::Left { group }, out));
    assert_eq!(registry.len(), 1, "the former life has left, not this one");
}

#[test]
fn members_seats_and_groups_are_bounded() {
    let mut fellows = fellows(&map(1, &[1]));
    for number in 0..=MEMBERS_MAX as u64 {
        told(|out| fellows.kept(place(number), group(7), out));
    }
    assert_eq!(fellows.len(), MEMBERS_MAX);
    let beyond = place(MEMBERS_MAX as u64);
    assert_eq!(told(|out| fellows.freed(beyond, true, out)), [], "in none");

    let mut registry = Registry::default();
    for node in 0..=SEATS_MAX as u64 {
        told(|out| registry.on_news(seat(node, 1), joined(0), out));
    }
    let broken = GroupNews::Broken { group: group(0) };
    let parts = told(|out| registry.on_news(seat(0, 1), broken, out));
    assert_eq!(
        parts.len(),
        SEATS_MAX - 1,
        "all that are known but who says it"
    );
    for number in 1..GROUPS_MAX as u64 {
        told(|out| registry.on_news(seat(1, 1), joined(number), out));
    }
    // It was the oldest one, and is joined again.
    told(|out| registry.on_news(seat(1, 1), joined(0), out));
    told(|out| registry.on_news(seat(1, 1), joined(GROUPS_MAX as u64), out));
    assert_eq!(registry.len(), GROUPS_MAX);
    let parts = told(|out| registry.on_news(seat(0, 1), broken, out));
    assert_eq!(parts.len(), SEATS_MAX - 1, "it is remembered");
    let broken = GroupNews::Broken { group: group(1) };
    assert_eq!(told(|out| registry.on_news(seat(9, 1), broken, out)), []);
}

#[test]
fn after_a_new_map_groups_are_joined_where_they_are_at_home_now_some_at_a_time() {
    let count = 4 * JOINS_PER_TICK_MAX as u64;
    let (before, after) = (map(1, &[1]), map(2, &[1, 2]));
    let mut fellows = fellows(&before);
    for number in 0..count {
        told(|out| fellows.kept(place(number), group(number), out));
    }
    fellows.on_map(&before);
    assert!(!fellows.is_joining(), "it is the same one");
    fellows.on_map(&after);
    let mut anew = Vec::new();
    while fellows.is_joining() {
        let some = told(|out| fellows.on_tick(out));
        assert!(some.len() <= JOINS_PER_TICK_MAX);
        anew.extend(some);
    }
    let mut moved: Vec<GroupId> = (0..count).map(group).collect();
    moved.retain(|group| home_of(&after, group.hash()) != home_of(&before, group.hash()));
    assert!(moved.len() > JOINS_PER_TICK_MAX);
    moved.sort_unstable();
    let joins = moved
        .into_iter()
        .map(|group| GroupAction::Tell(seat(2, 1), GroupNews::Joined { group }));
    assert_eq!(anew, joins.collect::<Vec<_>>());
}

const OWNERS: usize = 3;
const GROUPS: u64 = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    Keep {
        owner: usize,
        group: u64,
    },
    Free {
        owner: usize,
        which: usize,
        for_room: bool,
    },
    /// The first message on this way arrives.
    Deliver {
        owner: usize,
        is_to_home: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let owner = 0..OWNERS;
    prop_oneof![
        (owner.clone(), 0..GROUPS).prop_map(|(owner, group)| Step::Keep { owner, group }),
        (owner.clone(), any::<usize>(), any::<bool>()).prop_map(|(owner, which, for_room)| {
            Step::Free {
                owner,
                which,
                for_room,
            }
        }),
        (owner, any::<bool>()).prop_map(|(owner, is_to_home)| Step::Deliver { owner, is_to_home }),
    ]
}

/// Owners, one home for all groups, and the messages between them, in their order.
struct World {
    owners: Vec<Fellows>,
    home: Registry,
    to_home: Vec<Vec<GroupNews>>,
    to_owner: Vec<Vec<GroupNews>>,
    /// What each owner has, and of which group.
    here: Vec<Vec<(CopyPlace, u64)>>,
    /// Of each: whether it was abandoned since it came.
    abandoned: Vec<CopyPlace>,
}

impl World {
    fn new() -> Self {
        let map = map(1, &[0]);
        Self {
            owners: (0..OWNERS).map(|_| fellows(&map)).collect(),
            home: Registry::default(),
            to_home: vec![Vec::new(); OWNERS],
            to_owner: vec![Vec::new(); OWNERS],
            here: vec![Vec::new(); OWNERS],
            abandoned: Vec::new(),
        }
    }

    fn at_owner(&mut self, owner: usize, tell: impl FnOnce(&mut Fellows, &mut Vec<GroupAction>)) {
        let mut out = Vec::new();
        tell(&mut self.owners[owner], &mut out);
        for action in out {
            match action {
                GroupAction::Tell(_, news) => self.to_home[owner].push(news),
                GroupAction::Abandon(place) => {
                    let is_here = self.here[owner].iter().any(|(its, _)| *its == place);
                    assert!(is_here, "{place:?} is abandoned at {owner}");
                    self.abandoned.push(place);
                }
            }
        }
    }

    fn deliver(&mut self, owner: usize, is_to_home: bool) -> bool {
        let line = if is_to_home {
            &mut self.to_home
        } else {
            &mut self.to_owner
        };
        if line[owner].is_empty() {
            return false;
        }
        let news = line[owner].remove(0);
        // The nodes of these seats are the owners' numbers.
        if !is_to_home {
            let GroupNews::Part { group } = news else {
                unreachable!("{news:?} to an owner")
            };
            self.at_owner(owner, |owner, out| owner.on_part(seat(0, 1), group, out));
            return true;
        }
        let mut out = Vec::new();
        self.home.on_news(seat(owner as u64, 1), news, &mut out);
        for action in out {
            let GroupAction::Tell(to, news) = action else {
                unreachable!("{action:?} of a home")
            };
            let to = usize::try_from(to.node.0).expect("small");
            assert_ne!(to, owner, "who says it is not told");
            self.to_owner[to].push(news);
        }
        true
    }

    fn settle(&mut self) {
        while (0..OWNERS).any(|owner| self.deliver(owner, true) || self.deliver(owner, false)) {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// In whichever order messages come: in the end the home knows who has members, and one that leaves for room then has
    /// all others abandoned, wherever they are, whatever was before.
    #[test]
    fn a_group_that_is_broken_when_all_is_told_is_abandoned_by_all(
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let mut world = World::new();
        for (number, step) in (0..).zip(steps) {
            match step {
                Step::Keep { owner, group: of } => {
                    world.here[owner].push((place(number), of));
                    world.at_owner(owner, |fellows, out| fellows.kept(place(number), group(of), out));
                }
                Step::Free { owner, which, for_room } if !world.here[owner].is_empty() => {
                    let which = which % world.here[owner].len();
                    let (place, _) = world.here[owner].remove(which);
                    world.at_owner(owner, |fellows, out| fellows.freed(place, for_room, out));
                }
                Step::Free { .. } => {}
                Step::Deliver { owner, is_to_home } => {
                    world.deliver(owner, is_to_home);
                }
            }
        }
        world.settle();
        for (owner, here) in world.here.iter().enumerate() {
            prop_assert_eq!(world.owners[owner].len(), here.len());
        }
        let groups_here = |world: &World| {
            let all = world.here.iter().flatten().map(|(_, of)| *of);
            all.collect::<std::collections::BTreeSet<_>>()
        };
        prop_assert_eq!(world.home.len(), groups_here(&world).len());
        // Each owner writes one more of each group, and one of them leaves.
        for of in 0..GROUPS {
            for owner in 0..OWNERS {
                let new = place(1000 + of * 10 + owner as u64);
                world.here[owner].push((new, of));
                world.at_owner(owner, |fellows, out| fellows.kept(new, group(of), out));
            }
            world.settle();
            world.abandoned.clear();
            let leaving = place(1000 + of * 10);
            world.here[0].retain(|(place, _)| *place != leaving);
            world.at_owner(0, |fellows, out| fellows.freed(leaving, true, out));
            world.settle();
            let all = world.here.iter().flatten().filter(|(_, its)| *its == of);
            let mut all: Vec<CopyPlace> = all.map(|(place, _)| *place).collect();
            all.sort_unstable();
            world.abandoned.sort_unstable();
            prop_assert_eq!(&world.abandoned, &all);
        }
    }
}
