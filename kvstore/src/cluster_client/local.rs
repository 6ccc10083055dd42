//! The short way of a client on a core of a member: what that core has or is the home of needs no message.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_cluster::proto::map::{ClusterMap, Epoch};
use lunette_kvstore_proto::home::Peek;
use lunette_kvstore_proto::key::{Fingerprint, Key};
use lunette_kvstore_proto::message::directory::AskerId;
use lunette_kvstore_proto::owner::{WriteAnswer, WriteAsk};
use lunette_kvstore_proto::range::ByteRange;
use lunette_runtime::entropy;
use lunette_runtime_core::ids::RequestId;
use lunette_transfer::Room;

use crate::counting::Outcome;
use crate::member::{Here, MemberCore, Put};
use crate::value::Value;

/// See the [module](self).
pub(super) struct Local {
    core: Rc<MemberCore>,
    asker: AskerId,
    last: Cell<u64>,
    /// Writes that wait.
    waiting: RefCell<BTreeSet<RequestId>>,
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local")
            .field("seat", &self.core.seat())
            .finish_non_exhaustive()
    }
}

/// A write of one client, until it is over, however that comes.
struct Waits<'a> {
    local: &'a Local,
    request: RequestId,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.local.waiting.borrow_mut().remove(&self.request);
        self.local.tell_over();
    }
}

impl Local {
    pub(super) fn new(core: Rc<MemberCore>) -> Self {
        Self {
            core,
            asker: AskerId(entropy()),
            last: Cell::new(0),
            waiting: RefCell::default(),
        }
    }

    pub(super) fn peek(
        &self,
        keys: &[Fingerprint],
        namespace: NamespaceKind,
        tell: impl FnMut(Peek),
    ) {
        self.core.peek(keys, namespace, tell);
    }

    /// Tells the core's map, if it is newer.
    pub(super) fn if_newer(&self, known: Epoch, tell: impl FnOnce(&ClusterMap)) {
        let map = self.core.map();
        if map.epoch() > known {
            tell(&map);
        }
    }

    /// Whether this core is the key's home, as far as it knows.
    pub(super) fn is_home_of(&self, key: Key<'_>) -> bool {
        self.core.is_home_of(key)
    }

    /// The length of an object that this core has.
    pub(super) fn len_of(&self, key: Key<'_>, namespace: NamespaceKind) -> Option<usize> {
        self.core.len_here(key, namespace)
    }

    pub(super) fn get(
        &self,
        key: Key<'_>,
        namespace: NamespaceKind,
        ranges: &[ByteRange],
        room: &mut Room,
    ) -> Here {
        self.core.get_here(key, namespace, ranges, room)
    }

    /// `None`: it is to be written as others do.
    pub(super) async fn put(
        &self,
        key: Key<'_>,
        value: &Value,
        ask: WriteAsk,
    ) -> Option<WriteAnswer> {
        let request = RequestId(self.last.get() + 1);
        self.last.set(request.0);
        let put = self.core.put_here((self.asker, request), key, value, ask);
        let answer = match put {
            Some(Put::Done(answer)) => {
                self.tell_over();
                answer
            }
            Some(Put::Waits(waiting, mut counting)) => {
                self.waiting.borrow_mut().insert(request);
                let _waits = Waits {
                    local: self,
                    request,
                };
                let answer = waiting.await.unwrap_or(WriteAnswer::Interrupted);
                counting.end(Outcome::from(&answer));
                answer
            }
            None => {
                self.tell_over();
                return None;
            }
        };
        (!answer.is_undone()).then_some(answer)
    }

    fn tell_over(&self) {
        let first = self.waiting.borrow().first().copied();
        let over = first.unwrap_or(RequestId(self.last.get() + 1));
        self.core.over(self.asker, over);
    }
}
