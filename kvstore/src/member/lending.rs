//! Copies that threads of this process read where they lie: large ones, which their core does not copy for them.

use std::cell::RefCell;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::Op;
use lunette_kvstore_proto::owner::Read;
use lunette_kvstore_proto::shard::EntryId;
use lunette_kvstore_proto::version::{Form, Version};
use lunette_runtime::arena::{Borrowed, Lender};

use super::core::MemberCore;
use crate::counting::Outcome;

/// Shortest value in bytes that is lent: copying what is shorter takes a core less than keeping books.
pub(crate) const LENT_MIN: usize = (64 << 10) + 1;
/// Copies that are lent at a time. Others are copied by their core.
pub(crate) const LENT_MAX: usize = 4096;

/// A copy that a thread reads.
#[derive(Debug)]
pub(crate) struct LentCopy {
    pub(crate) value: Borrowed,
    pub(crate) version: Version,
    pub(crate) is_cut_off: bool,
}

/// What is lent. A copy that leaves meanwhile keeps its memory until it is read.
#[derive(Debug, Default)]
pub(super) struct Lending(RefCell<Vec<(EntryId, Lender)>>);

impl MemberCore {
    /// Lends the object, if it is one of [`LENT_MIN`] to `len_max` bytes that this core has. It is pinned until the
    /// thread has read it and this core [has seen that](Self::take_back).
    pub(crate) fn lend_here(
        &self,
        key: Key<'_>,
        namespace: NamespaceKind,
        len_max: usize,
    ) -> Option<LentCopy> {
        self.take_back();
        if self.has_left() || self.lending.0.borrow().len() == LENT_MAX {
            return None;
        }
        let Read::Served {
            place,
            info,
            is_cut_off,
        } = self.read(key, None, namespace)
        else {
            return None;
        };
        let is_long_enough = (LENT_MIN..=len_max).contains(&(info.len_bytes as usize));
        if info.form != Form::Whole || !is_long_enough {
            return None;
        }
        let (id, extent) = self.bytes().borrow_mut().pin(place, key)?;
        let (value, lender) = extent.value().lend();
        self.lending.0.borrow_mut().push((id, lender));
        let mut counting = self.counts.begin(Op::Find.code());
        self.counts.sending(value.as_slice().len());
        counting.end(Outcome::Ok);
        Some(LentCopy {
            value,
            version: place.version,
            is_cut_off,
        })
    }

    /// Unpins what has been read: looked at with the next copy that is lent, and when time passes.
    pub(super) fn take_back(&self) {
        let mut lent = self.lending.0.borrow_mut();
        if lent.is_empty() {
            return;
        }
        let mut bytes = self.bytes().borrow_mut();
        lent.retain_mut(|(id, lender)| {
            let is_over = lender.is_over();
            if is_over {
                bytes.unpin(*id);
            }
            !is_over
        });
    }
}
