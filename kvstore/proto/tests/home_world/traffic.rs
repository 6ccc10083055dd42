//! What goes over the network of a world, and what the machines do with it.

use lunette_cluster_proto::map::{ClusterMap, Epoch};
use lunette_kvstore_proto::asker::{AskerAction, ReadAnswer};
use lunette_kvstore_proto::home::{Home, HomeAction, NotRecorded};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::FormatVersion;
use lunette_kvstore_proto::message::directory::Peek;
use lunette_kvstore_proto::message::directory::{
    Answer, AnswerMessage, Ask, Content, CopyPage, CopyPlace, OpId, SeatMessage, ToHome, ToOwner,
    ToPeer,
};
use lunette_kvstore_proto::owner::{Outbox, OwnerAction, Read, Sought, WriteAnswer, WriteAsk};
use lunette_kvstore_proto::placement::{Seat, has_seat, seat_at};
use lunette_kvstore_proto::version::{CopyInfo, Version, WriteKind};
use lunette_runtime_core::ids::{NodeId, RequestId};
use lunette_runtime_core::time::Time;

use super::node::Node;
use super::{Event, World};

#[derive(Clone)]
pub(crate) enum Mail {
    ToHome(Seat, Seat, Epoch, Vec<ToHome>),
    ToOwner(Seat, Seat, Epoch, ToOwner),
    Page(Seat, Seat, Epoch, CopyPage),
    ToPeer(Seat, Seat, Epoch, ToPeer),
    /// With the request below which all of the asker's are over.
    Ask(usize, Seat, Epoch, Ask, RequestId),
    Answer(usize, Seat, RequestId, Answer),
    Read(usize, Seat, RequestId, Fingerprint, Version),
    ReadAnswer(usize, Seat, RequestId, ReadAnswer, (u64, bool)),
    /// What was asked of a home, which has it, and sends it at once.
    Brought(usize, Seat, RequestId, Version, (u64, bool)),
    /// The same.
    Write(usize, Seat, RequestId, WriteAsk, u64, RequestId),
    Written(usize, Seat, RequestId, WriteAnswer),
    Replica(Seat, Seat, Fingerprint, CopyInfo, u64),
}

impl Mail {
    /// The nodes at both ends.
    fn ends(&self, world: &World) -> (usize, usize) {
        let of = |seat: &Seat| usize::try_from(seat.node.0 - 1).expect("few");
        let beside = |asker: &usize| world.askers[*asker].beside;
        match self {
            Self::ToHome(from, to, ..)
            | Self::ToOwner(from, to, ..)
            | Self::Page(from, to, ..)
            | Self::ToPeer(from, to, ..)
            | Self::Replica(from, to, ..) => (of(from), of(to)),
            Self::Ask(asker, seat, ..)
            | Self::Answer(asker, seat, ..)
            | Self::Read(asker, seat, ..)
            | Self::ReadAnswer(asker, seat, ..)
            | Self::Brought(asker, seat, ..)
            | Self::Write(asker, seat, ..)
            | Self::Written(asker, seat, ..) => (beside(asker), of(seat)),
        }
    }
}

/// The message as it comes out of its bytes: what machines say has to fit them.
fn spelt(mail: Mail) -> Mail {
    let between = |epoch, from, to, content| {
        let mut body = Vec::new();
        SeatMessage::new(epoch, from, to, content).encode(FormatVersion::NEWEST, &mut body);
        SeatMessage::decode(&body).expect("a message").content
    };
    match mail {
        Mail::ToHome(from, to, epoch, items) => {
            let Content::ToHome(items) = between(epoch, from, to, Content::ToHome(items)) else {
                unreachable!("the same content");
            };
            Mail::ToHome(from, to, epoch, items)
        }
        Mail::Page(from, to, epoch, page) => {
            let Content::Page(page) = between(epoch, from, to, Content::Page(page)) else {
                unreachable!("the same content");
            };
            Mail::Page(from, to, epoch, page)
        }
        Mail::ToPeer(from, to, epoch, item) => {
            let Content::ToPeer(item) = between(epoch, from, to, Content::ToPeer(item)) else {
                unreachable!("the same content");
            };
            Mail::ToPeer(from, to, epoch, item)
        }
        Mail::Answer(asker, from, request, answer) => {
            let mut body = Vec::new();
            let answers = vec![(request, answer)];
            AnswerMessage { answers }.encode(FormatVersion::NEWEST, &mut body);
            let AnswerMessage { mut answers } = AnswerMessage::decode(&body).expect("an answer");
            let (request, answer) = answers.remove(0);
            Mail::Answer(asker, from, request, answer)
        }
        other => other,
    }
}

impl World {
    /// Sends, with what a network does to it. Within a node nothing is lost.
    pub(crate) fn post(&mut self, mail: Mail) {
        let mail = spelt(mail);
        let (from, to) = mail.ends(self);
        if from == to {
            let us = u64::from(self.random.below(30));
            self.after(us, Event::Mail(mail));
            return;
        }
        if self.random.below(50) == 0 {
            return;
        }
        let copies = 1 + u32::from(self.random.below(50) == 0);
        for _ in 0..copies {
            let us = match self.random.below(40) {
                0 => 1000 * (10 + self.random.below(400)),
                1..4 => 2000 + self.random.below(20_000),
                _ => 100 + self.random.below(1500),
            };
            self.after(us.into(), Event::Mail(mail.clone()));
        }
    }

    pub(crate) fn deliver(&mut self, mail: Mail) {
        let (from, to) = mail.ends(self);
        if from != to && (self.nodes[from].is_cut || self.nodes[to].is_cut) {
            return;
        }
        match mail {
            Mail::ToHome(from, to, epoch, items) => {
                for item in items {
                    self.at_home(to, |home, now, out| {
                        home.on_owner(now, from, epoch, item, out)
                    });
                }
            }
            Mail::Page(from, to, epoch, page) => {
                self.at_home(to, |home, now, out| {
                    home.on_page(now, from, epoch, page, out)
                });
            }
            Mail::ToPeer(from, to, epoch, item) => {
                self.at_home(to, |home, now, out| {
                    home.on_peer(now, from, epoch, item, out)
                });
            }
            Mail::Ask(asker, to, epoch, ask, over) => {
                if !self.bring(asker, to, epoch, &ask) {
                    self.ask(asker, to, epoch, ask, over);
                }
            }
            Mail::ToOwner(from, to, epoch, item) => {
                self.at_owner(to, |owner, now, out| {
                    owner.on_home(now, from, epoch, item, out)
                });
            }
            Mail::Answer(asker, _, request, answer) => {
                self.at_asker(asker, |machine, now, out| {
                    machine.on_answer(now, request, answer, out);
                });
            }
            Mail::Read(asker, to, request, key, version) => {
                self.read(asker, to, request, key, version);
            }
            Mail::ReadAnswer(asker, _, request, answer, read) => {
                self.at_asker_reading(asker, request, answer, read);
            }
            Mail::Brought(asker, from, request, version, read) => {
                self.at_asker_brought(asker, request, (from, version), read);
            }
            Mail::Write(asker, to, request, ask, value, over) => {
                let id = self.askers[asker].machine.id();
                self.at_owner(to, |owner, now, _| owner.over(now, id, over));
                if self.put_at_once(asker, to, request, ask, value) {
                    return;
                }
                self.begin_write(asker, to, request, ask, value);
            }
            Mail::Written(asker, _, request, answer) => {
                self.at_asker(asker, |machine, now, out| {
                    machine.on_written(now, request, answer, out);
                });
            }
            Mail::Replica(_, to, key, info, value) => self.replicate(to, key, info, value),
        }
    }

    fn ask(&mut self, asker: usize, to: Seat, epoch: Epoch, ask: Ask, over: RequestId) {
        let id = self.askers[asker].machine.id();
        let mut compared = None;
        self.at_home(to, |home, now, out| {
            home.over(now, id, over);
            let peeked = peek(home, now, epoch, ask);
            home.on_ask(now, id, epoch, ask, out);
            compared = compare(peeked, &ask, out);
        });
        match compared {
            Some(Ok(compared)) => self.oracle.add(compared, 1),
            Some(Err(text)) => self.oracle.fail(self.now, &text),
            None => {}
        }
    }

    pub(crate) fn at_home(
        &mut self,
        seat: Seat,
        tell: impl FnOnce(&mut Home, Time, &mut Vec<HomeAction>),
    ) {
        let Some(node) = self.index_of(seat) else {
            return;
        };
        let local = self.nodes[node].local(self.now);
        let mut out = Vec::new();
        let core = &mut self.nodes[node].cores[usize::from(seat.core.0)];
        tell(&mut core.home, local, &mut out);
        self.look_on(node, usize::from(seat.core.0));
        let core = &self.nodes[node].cores[usize::from(seat.core.0)];
        let epoch = core.home.epoch();
        self.oracle.has_cold |= core.home.stats().cold > 0;
        self.do_home(seat, epoch, out);
    }

    fn look_on(&mut self, node: usize, core: usize) {
        let node = &mut self.nodes[node];
        let local = node.local(self.now);
        let at = (&node.map, node.fence.is_leased(local));
        let core = &mut node.cores[core];
        match core.onlooker.look(&mut core.home, local, at) {
            Ok(agreed) => self.oracle.add("looked on", agreed),
            Err(text) => self.oracle.fail(self.now, &text),
        }
    }

    fn do_home(&mut self, seat: Seat, epoch: Epoch, actions: Vec<HomeAction>) {
        for action in actions {
            match action {
                HomeAction::ToOwner(to, item) => {
                    if let ToOwner::Drop { key, version, .. } = item {
                        let place = CopyPlace { key, version };
                        self.oracle.on_order(self.now, to, place);
                    }
                    self.post(Mail::ToOwner(seat, to, epoch, item));
                }
                HomeAction::ToPeer(to, item) => self.post(Mail::ToPeer(seat, to, epoch, item)),
                HomeAction::Answer(asker, request, answer) => {
                    let asker = usize::try_from(asker.0).expect("few");
                    self.post(Mail::Answer(asker, seat, request, answer));
                }
            }
        }
    }

    pub(crate) fn at_owner(
        &mut self,
        seat: Seat,
        tell: impl FnOnce(&mut lunette_kvstore_proto::owner::Owner, Time, &mut Vec<OwnerAction>),
    ) {
        let Some(node) = self.index_of(seat) else {
            return;
        };
        let local = self.nodes[node].local(self.now);
        let mut out = Vec::new();
        let core = &mut self.nodes[node].cores[usize::from(seat.core.0)];
        tell(&mut core.owner, local, &mut out);
        let epoch = core.owner.epoch();
        self.do_owner(seat, epoch, out);
    }

    fn do_owner(&mut self, seat: Seat, epoch: Epoch, actions: Vec<OwnerAction>) {
        let node = self.index_of(seat).expect("it acts");
        let core = usize::from(seat.core.0);
        let mut outbox = Outbox::default();
        for action in actions {
            match action {
                OwnerAction::ToHome(to, item) => outbox.push(to, item),
                OwnerAction::Page(to, page) => {
                    if let Some(away) = page.away {
                        self.oracle.on_away(seat, away);
                    }
                    self.post(Mail::Page(seat, to, epoch, page));
                }
                OwnerAction::Name(op, place) => self.name(seat, op, place),
                OwnerAction::Discard(op) => {
                    let bytes = self.nodes[node].cores[core].arriving.remove(&op);
                    assert!(bytes.is_some(), "bytes are discarded once");
                }
                OwnerAction::Free(place, cause) => {
                    let bytes = self.nodes[node].cores[core].stored.remove(&place);
                    assert!(bytes.is_some(), "bytes are freed once");
                    let local = self.nodes[node].local(self.now);
                    self.oracle.on_free(self.now, local, seat, place, cause);
                }
                // Advice for eviction: there is none here that heeds it.
                OwnerAction::CameBack(_) => self.oracle.add("came back", 1),
                OwnerAction::WasUsed(place, _) => {
                    let stored = &self.nodes[node].cores[core].stored;
                    assert!(stored.contains_key(&place), "it is here");
                    self.oracle.add("was used", 1);
                }
                OwnerAction::Replicate {
                    place,
                    info,
                    missing,
                    holders,
                    ..
                } => self.make_replicas(seat, place, info, (missing, &holders)),
                OwnerAction::Written(asker, request, answer) => {
                    let asker = usize::try_from(asker.0).expect("few");
                    self.post(Mail::Written(asker, seat, request, answer));
                }
                OwnerAction::Answer(asker, request, answer) => {
                    let asker = usize::try_from(asker.0).expect("few");
                    self.post(Mail::Answer(asker, seat, request, answer));
                }
            }
        }
        while let Some((to, items)) = outbox.pop() {
            self.post(Mail::ToHome(seat, to, epoch, items));
        }
    }

    /// Copies are missing: each goes to another node that has none, as far as is known here.
    fn make_replicas(
        &mut self,
        from: Seat,
        place: CopyPlace,
        info: CopyInfo,
        (missing, holders): (u8, &[NodeId]),
    ) {
        self.oracle.add("repaired", missing.into());
        let node = self.index_of(from).expect("it acts");
        let core = &self.nodes[node].cores[usize::from(from.core.0)];
        let value = core.stored[&place];
        let map = self.nodes[node].map.clone();
        let members = map.members().iter();
        let takers = members.filter(|member| !member.is_draining);
        let takers = takers.map(|member| member.id);
        let mut others: Vec<NodeId> = takers.filter(|id| !holders.contains(id)).collect();
        for _ in 0..missing {
            let count = u32::try_from(others.len()).expect("few");
            if count == 0 {
                return;
            }
            let to = others.swap_remove(self.random.below(count) as usize);
            if let Some(to) = seat_at(&map, to, place.key) {
                self.post(Mail::Replica(from, to, place.key, info, value));
            }
        }
    }

    /// The bytes of a write have become those of a copy: replicas are made of it.
    fn name(&mut self, seat: Seat, op: OpId, place: CopyPlace) {
        let node = self.index_of(seat).expect("it acts");
        let core = &mut self.nodes[node].cores[usize::from(seat.core.0)];
        let value = core.arriving.remove(&op).expect("the bytes of a write");
        core.stored.insert(place, value);
        let served = core.owner.served().find(|(known, _)| *known == place);
        let generation = served.map_or(self.raised, |(_, info)| info.generation.0);
        self.oracle
            .on_copy(self.now, seat, place, (value, generation), false);
        if let Some((_, info)) = served {
            let beyond = u32::from(self.random.below(4) == 0);
            for _ in 1..u32::from(info.wanted) + beyond {
                let to = self.some_seat();
                if to.node != seat.node {
                    self.post(Mail::Replica(seat, to, place.key, info, value));
                }
            }
        }
    }

    fn replicate(&mut self, to: Seat, key: Fingerprint, info: CopyInfo, value: u64) {
        let namespace = self.namespace;
        let mut is_kept = false;
        let Some(node) = self.index_of(to) else {
            return;
        };
        let place = CopyPlace {
            key,
            version: info.version,
        };
        // Its bytes are there before anybody hears of it.
        let core = &mut self.nodes[node].cores[usize::from(to.core.0)];
        let former = core.stored.insert(place, value);
        self.at_owner(to, |owner, now, out| {
            is_kept = owner.replica(now, key, info, namespace, out);
        });
        if is_kept {
            self.oracle
                .on_copy(self.now, to, place, (value, info.generation.0), true);
        } else if former.is_none() {
            self.nodes[node].cores[usize::from(to.core.0)]
                .stored
                .remove(&place);
        }
    }

    fn read(
        &mut self,
        asker: usize,
        to: Seat,
        request: RequestId,
        key: Fingerprint,
        version: Version,
    ) {
        let namespace = self.namespace;
        let mut read = Read::Absent;
        self.at_owner(to, |owner, now, _| {
            read = owner.read(now, key, Sought::Version(version), namespace)
        });
        let Some(node) = self.index_of(to) else {
            return;
        };
        let (answer, bytes) = match read {
            Read::Served {
                place, is_cut_off, ..
            } => {
                let stored = &self.nodes[node].cores[usize::from(to.core.0)].stored;
                let value = *stored.get(&place).expect("what is served is there");
                (ReadAnswer::Bytes, (value, is_cut_off))
            }
            Read::Absent => (ReadAnswer::Absent, (0, false)),
            Read::Unavailable => (ReadAnswer::Unavailable, (0, false)),
        };
        self.post(Mail::ReadAnswer(asker, to, request, answer, bytes));
    }

    /// As a core does that is asked for an object's bytes, and has them, whether it is the home or not.
    fn bring(&mut self, asker: usize, to: Seat, epoch: Epoch, ask: &Ask) -> bool {
        let Ask::Lookup {
            request,
            key,
            hold: None,
            ..
        } = *ask
        else {
            return false;
        };
        let id = self.askers[asker].machine.operation_of(request);
        let Some(node) = self.index_of(to) else {
            return false;
        };
        if !id.is_some_and(|id| self.oracle.is_get(asker, id)) {
            return false;
        }
        let namespace = self.namespace;
        let mut read = Read::Absent;
        self.at_owner(to, |owner, now, _| {
            read = owner.read(now, key, Sought::Latest(epoch), namespace)
        });
        let Read::Served {
            place, is_cut_off, ..
        } = read
        else {
            return false;
        };
        let local = self.nodes[node].local(self.now);
        let Node { fence, map, .. } = &self.nodes[node];
        let is_member = fence.is_leased(local) && has_seat(map, to);
        let core = &self.nodes[node].cores[usize::from(to.core.0)];
        let value = *core.stored.get(&place).expect("what is served is there");
        // A member may say so only to who is as far behind as itself.
        let is_excused = !is_member || epoch < map.epoch();
        let read = (value, is_cut_off && is_excused);
        self.post(Mail::Brought(asker, to, request, place.version, read));
        true
    }

    /// As a task of the very core puts: in one step, if nothing is in the way.
    fn put_at_once(
        &mut self,
        asker: usize,
        to: Seat,
        request: RequestId,
        ask: WriteAsk,
        value: u64,
    ) -> bool {
        let Some(node) = self.index_of(to) else {
            return false;
        };
        let is_inside = self.has_direct_puts && self.askers[asker].beside == node;
        if !is_inside || (ask.kind, ask.wanted) != (WriteKind::Put, 1) {
            return false;
        }
        let local = self.nodes[node].local(self.now);
        let core = &mut self.nodes[node].cores[usize::from(to.core.0)];
        if !core.home.may_record(local, ask.key, ask.namespace) {
            return false;
        }
        let object = (ask.key, ask.form, ask.namespace);
        let put = (core.owner).put_here(&mut core.home, local, object, (4096, 7));
        self.look_on(node, usize::from(to.core.0));
        let answer = match put {
            Ok((place, answer)) => {
                let core = &mut self.nodes[node].cores[usize::from(to.core.0)];
                core.stored.insert(place, value);
                let generation = self.nodes[node].map.generation();
                self.oracle
                    .on_copy(self.now, to, place, (value, generation), false);
                self.oracle.add("put at once", 1);
                answer
            }
            Err(NotRecorded::Exists(version)) => WriteAnswer::Exists { version },
            Err(NotRecorded::Unsure) => return false,
        };
        self.post(Mail::Written(asker, to, request, answer));
        true
    }

    fn begin_write(
        &mut self,
        asker: usize,
        to: Seat,
        request: RequestId,
        ask: WriteAsk,
        value: u64,
    ) {
        let id = self.askers[asker].machine.id();
        let mut op = None;
        self.at_owner(to, |owner, now, out| {
            op = owner.write(now, id, request, ask, out)
        });
        let (Some(op), Some(node)) = (op, self.index_of(to)) else {
            return;
        };
        self.nodes[node].cores[usize::from(to.core.0)]
            .arriving
            .insert(op, value);
        let is_whole = self.random.below(30) != 0;
        let us = match self.random.below(8) {
            0 => u64::from(self.random.below(300_000)),
            _ => u64::from(self.random.below(5000)),
        };
        self.after(
            us,
            Event::Whole {
                seat: to,
                op,
                is_whole,
            },
        );
    }

    pub(crate) fn on_whole(&mut self, seat: Seat, op: OpId, is_whole: bool) {
        self.at_owner(seat, |owner, now, out| {
            if is_whole {
                owner.whole(now, op, 4096, 7, out);
            } else {
                owner.abort(now, op, out);
            }
        });
    }

    pub(crate) fn on_map(&mut self, node: usize, core: usize, map: &ClusterMap) {
        let seat = self.nodes[node].seat(core);
        self.at_owner(seat, |owner, now, out| owner.on_map(now, map, out));
        self.at_home(seat, |home, now, out| home.on_map(now, map, out));
    }

    pub(crate) fn tick_core(&mut self, node: usize, core: usize) {
        let seat = self.nodes[node].seat(core);
        self.at_home(seat, |home, now, out| home.on_tick(now, out));
        self.at_owner(seat, |owner, now, out| owner.on_tick(now, out));
    }

    pub(crate) fn do_asker(&mut self, asker: usize, actions: Vec<AskerAction>) {
        for action in actions {
            match action {
                AskerAction::Ask(to, epoch, ask) => {
                    let over = self.askers[asker].machine.over_below();
                    self.post(Mail::Ask(asker, to, epoch, ask, over));
                }
                AskerAction::Read {
                    owner,
                    request,
                    key,
                    version,
                } => {
                    self.post(Mail::Read(asker, owner, request, key, version));
                }
                AskerAction::Write(to, request, ask) => {
                    let value = self.value_of(asker, request);
                    let over = self.askers[asker].machine.over_below();
                    self.post(Mail::Write(asker, to, request, ask, value, over));
                }
                AskerAction::MapWanted(_) => {
                    let beside = self.askers[asker].beside;
                    if !self.nodes[beside].is_cut {
                        let map = self.nodes[beside].map.clone();
                        self.after(500, Event::AskerMap { asker, map });
                    }
                }
                AskerAction::Done(id, outcome) => self.done(asker, id, &outcome),
            }
        }
    }
}

/// What a task of the home's own core would see, for a lookup that is answered under its map.
fn peek(home: &Home, now: Time, epoch: Epoch, ask: Ask) -> Option<Peek> {
    match ask {
        Ask::Lookup {
            key,
            namespace,
            hold: None,
            ..
        } if epoch == home.epoch() => {
            // Beside another key: several are looked up together.
            let mut peeks = Vec::new();
            home.peek(now, &[Fingerprint(!key.0), key], namespace, |peek| {
                peeks.push(peek)
            });
            peeks.pop()
        }
        _ => None,
    }
}

/// Who looks without asking sees what who asks is told, where somebody is told anything (a late copy of a
/// request that is over is not carried out, and that of one that waits is not answered), or that asking would
/// tell more.
fn compare(
    peeked: Option<Peek>,
    ask: &Ask,
    out: &[HomeAction],
) -> Option<Result<&'static str, String>> {
    let mut answers = out.iter().filter_map(|action| match action {
        HomeAction::Answer(_, request, answer) if *request == ask.request() => Some(answer),
        _ => None,
    });
    match (peeked?, answers.next()?) {
        (_, Answer::Busy) => None,
        (Peek::Present, Answer::Found(_)) | (Peek::Absent, Answer::Miss) => Some(Ok("peeked")),
        (Peek::Unsure, Answer::Found(_) | Answer::Miss) => Some(Ok("not peeked")),
        (Peek::Present | Peek::Absent, answer) => {
            Some(Err(format!("{ask:?}: {peeked:?}, and yet {answer:?}")))
        }
        (Peek::Unsure, _) => None,
    }
}
