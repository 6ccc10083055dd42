//! Lookups: plain, and with hold.

use lunette_cluster_proto::fence::{Act, Fenced, NamespaceKind, Standing};
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::time::Time;

use super::limits::REBUILD_WAIT_MAX;
use super::waiting::{Request, Waiter};
use super::{Home, HomeAction, Out};
use crate::key::Fingerprint;
use crate::message::directory::{Answer, AskerId, Found, Peek, Refusal, ToOwner, WAIT_MS_MAX};
use crate::placement::Seat;
use crate::sorted::LANES;
use crate::version::{COPIES_WANTED_MAX, CopyInfo, Version};

impl Home {
    /// The request, which waits no longer than `wait_ms`, or is sure to wait no longer than is useful.
    pub(super) fn request(now: Time, key: Fingerprint, waiter: Waiter, wait_ms: u32) -> Request {
        let wait = match waiter {
            Waiter::Lookup { .. } => REBUILD_WAIT_MAX,
            _ => core::time::Duration::from_millis(wait_ms.min(WAIT_MS_MAX).into()),
        };
        let until = now + wait;
        Request { key, waiter, until }
    }

    /// Whether it was answered; otherwise it waits.
    ///
    /// A plain answer is a hint: the copies may be gone when they are asked for. With a hold the
    /// owner answers, who knows.
    pub(super) fn lookup(&mut self, now: Time, request: Request, out: Out<'_>) -> bool {
        let Waiter::Lookup {
            asker,
            request: id,
            namespace,
            hold,
        } = request.waiter
        else {
            unreachable!("a lookup");
        };
        let key = request.key;
        let Ok(standing) = self.permit(now, namespace, Act::Read) else {
            out.push(HomeAction::Answer(asker, id, Answer::Unavailable));
            return true;
        };
        let visible = self.visible(key);
        let Some(&(owner, info)) = visible.first() else {
            let answer = match standing {
                Standing::Leased if !self.is_complete() => return false,
                Standing::Leased => Answer::Miss,
                // Others may have put it at another home.
                Standing::CutOff => {
                    self.stats.unknown += 1;
                    Answer::Unknown
                }
            };
            out.push(HomeAction::Answer(asker, id, answer));
            return true;
        };
        let version = info.version;
        if let Some(hold) = hold {
            let request = id;
            let serve = ToOwner::Serve {
                asker,
                request,
                key,
                version,
                namespace,
                hold,
            };
            out.push(HomeAction::ToOwner(owner, serve));
            return true;
        }
        out.push(HomeAction::Answer(asker, id, found(info, &visible)));
        true
    }

    /// What plain lookups by a task of this very core would be told at once, key by key, and [`Peek::Unsure`] where
    /// one would have to wait, or is for another home, or would be told that this one is cut off.
    pub fn peek(
        &self,
        now: Time,
        keys: &[Fingerprint],
        namespace: NamespaceKind,
        mut tell: impl FnMut(Peek),
    ) {
        match self.permit(now, namespace, Act::Read) {
            Ok(Standing::Leased) => {}
            Ok(Standing::CutOff) => {
                return keys.iter().for_each(|&key| {
                    tell(match self.peek_one(key) {
                        Peek::Absent => Peek::Unsure,
                        peek => peek,
                    });
                });
            }
            Err(Fenced) => return keys.iter().for_each(|_| tell(Peek::Unsure)),
        }
        if let &[key] = keys {
            return tell(self.peek_one(key));
        }
        for keys in keys.chunks(LANES) {
            let shown = self.table.are_shown(keys);
            for (&key, is_shown) in keys.iter().zip(shown) {
                // In the usual case there is a copy that everybody may see.
                let is_sure = is_shown && self.is_home_of(key);
                tell(if is_sure && self.tombstones.version(key).is_none() {
                    Peek::Present
                } else {
                    self.peek_one(key)
                });
            }
        }
    }

    fn peek_one(&self, key: Fingerprint) -> Peek {
        if !self.is_home_of(key) {
            return Peek::Unsure;
        }
        if self.winner(key).is_some() {
            return Peek::Present;
        }
        // Who asks has its copies judged first.
        if self.is_complete() && self.unjudged.contains(&key) {
            return Peek::Unsure;
        }
        match (self.visible(key).is_empty(), self.is_complete()) {
            (false, _) => Peek::Present,
            (true, true) => Peek::Absent,
            (true, false) => Peek::Unsure,
        }
    }

    /// A lookup that was forwarded has met no copy: another one is found, or none.
    pub(super) fn gone(
        &mut self,
        now: Time,
        owner: Seat,
        version: Version,
        lookup: Request,
        out: Out<'_>,
    ) {
        let Waiter::Lookup { asker, request, .. } = lookup.waiter else {
            unreachable!("a lookup");
        };
        if !self.is_complete() {
            // The same owner would be asked again, and again.
            out.push(HomeAction::Answer(asker, request, Answer::Unknown));
            return;
        }
        self.expel(now, lookup.key, owner, version, out);
        self.dispatch(now, lookup, out);
    }

    /// Tells whoever asked that nothing was done.
    pub(super) fn refuse(&mut self, now: Time, request: Request, answer: Answer, out: Out<'_>) {
        assert!(
            answer.is_undone() || matches!(request.waiter, Waiter::Lookup { .. }),
            "what waits was not begun"
        );
        let key = request.key;
        match request.waiter {
            Waiter::Claim { seat, op, .. } => {
                let refusal = if answer == Answer::Full {
                    Refusal::Full
                } else {
                    Refusal::Busy
                };
                out.push(HomeAction::ToOwner(
                    seat,
                    ToOwner::Refused { op, key, refusal },
                ));
            }
            // It is published again.
            Waiter::Publish { .. } => {}
            // A removal that was refused is not begun by a second copy of its request. Under another
            // map it may be: whoever asks again does so for the first time.
            Waiter::Remove { asker, request, .. } if !matches!(answer, Answer::Stale(_)) => {
                self.conclude(now, asker, request, answer, out);
            }
            Waiter::Remove { asker, request, .. } | Waiter::Lookup { asker, request, .. } => {
                out.push(HomeAction::Answer(asker, request, answer));
            }
        }
    }

    /// What waited too long.
    pub(super) fn end_waits(&mut self, now: Time, out: Out<'_>) {
        for request in self.waiting.take_ended(now) {
            let answer = match request.waiter {
                Waiter::Lookup { .. } => {
                    self.stats.unknown += 1;
                    Answer::Unknown
                }
                _ => Answer::Busy,
            };
            self.refuse(now, request, answer, out);
        }
    }

    /// Everything that waits asked under an earlier map.
    pub(super) fn turn_away(&mut self, now: Time, out: Out<'_>) {
        for request in self.waiting.take_all() {
            // Owners claim and publish again by themselves under the new one.
            if matches!(
                request.waiter,
                Waiter::Remove { .. } | Waiter::Lookup { .. }
            ) {
                self.refuse(now, request, Answer::Stale(self.map.epoch()), out);
            }
        }
    }

    /// Remembers how a removal ended, for those who ask again.
    pub(super) fn conclude(
        &mut self,
        now: Time,
        asker: AskerId,
        request: RequestId,
        answer: Answer,
        out: Out<'_>,
    ) {
        self.answered.remember(now, asker, request, answer.clone());
        out.push(HomeAction::Answer(asker, request, answer));
    }
}

/// Where an object is.
pub(super) fn found(info: CopyInfo, visible: &[(Seat, CopyInfo)]) -> Answer {
    let owners = visible.iter().map(|(seat, _)| *seat);
    Answer::Found(Found {
        version: info.version,
        form: info.form,
        len_bytes: info.len_bytes,
        crc32c: info.crc32c,
        held_ms: 0,
        owners: owners.take(COPIES_WANTED_MAX.into()).collect(),
    })
}
