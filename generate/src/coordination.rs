//! What may happen to a coordinator: questions about a few keys and leases, time, restarts.

use lunette_cluster_proto::coordination::{
    Ask, Compare, Expected, KeyRange, LeaseId, Op, Revision, Txn,
};

use crate::source::Source;

/// Keys that steps are about: so few that they meet.
pub const KEYS: u8 = 6;
/// Leases that steps are about, from 1 on.
pub const LEASES: u8 = 3;

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Sets a key.
    Put {
        /// The key.
        key: u8,
        /// What its value says.
        value: u8,
        /// What it ends with, if anything.
        lease: Option<u8>,
    },
    /// Removes the keys from one to before another.
    Delete {
        /// The first one.
        from: u8,
        /// The one behind the last.
        to: u8,
    },
    /// Sets two keys, if the first was changed when it is thought to have been.
    Swap {
        /// The keys.
        keys: (u8, u8),
        /// What their values say.
        value: u8,
        /// Whether what is thought is right.
        is_right: bool,
    },
    /// Reads a key.
    Read(u8),
    /// Wants a lease of this name.
    Grant(u8),
    /// Has it begin anew.
    KeepAlive(u8),
    /// Ends it.
    Revoke(u8),
    /// Time passes.
    Pass {
        /// Tenths of a second.
        tenths: u8,
    },
    /// The past is forgotten.
    Compact,
    /// It starts again from what it has kept.
    Restart,
}

impl Step {
    /// Any step.
    pub fn draw(source: &mut impl Source) -> Self {
        match source.below(18) {
            0..14 => Self::draw_ask(source),
            14 | 15 => Self::Pass {
                tenths: source.below(20),
            },
            16 => Self::Compact,
            _ => Self::Restart,
        }
    }

    /// A step that asks something.
    pub fn draw_ask(source: &mut impl Source) -> Self {
        let kind = source.below(13);
        let key = |source: &mut _| Source::below(source, KEYS);
        let lease = |source: &mut _| 1 + Source::below(source, LEASES);
        match kind {
            0..4 => Self::Put {
                key: key(source),
                value: source.u8(),
                lease: source.flag().then(|| lease(source)),
            },
            4 => Self::Delete {
                from: key(source),
                to: key(source),
            },
            5 | 6 => Self::Swap {
                keys: (key(source), key(source)),
                value: source.u8(),
                is_right: source.flag(),
            },
            7 | 8 => Self::Read(key(source)),
            9 | 10 => Self::Grant(lease(source)),
            11 => Self::KeepAlive(lease(source)),
            _ => Self::Revoke(lease(source)),
        }
    }

    /// Steps until the source is spent, at most so many.
    pub fn draw_all(source: &mut impl Source, most: usize) -> Vec<Self> {
        let mut steps = Vec::new();
        while steps.len() < most && !source.is_spent() {
            steps.push(Self::draw(source));
        }
        steps
    }

    /// What it asks, if it does: keys are named by `name`, values written by `value`, leases are of
    /// `ttl_s` seconds, and the key of a swap was last changed at `modified`.
    pub fn ask(
        self,
        name: impl Fn(u8) -> Vec<u8>,
        value: impl Fn(u8) -> Vec<u8>,
        ttl_s: u32,
        modified: Revision,
    ) -> Option<Ask> {
        let id = |lease: u8| LeaseId::new(u64::from(lease));
        let put = |key: u8, told: u8, lease: Option<u8>| Op::Put {
            key: name(key),
            value: value(told),
            lease: lease.map(id),
        };
        Some(match self {
            Self::Put {
                key,
                value: told,
                lease,
            } => Ask::Op(put(key, told, lease)),
            Self::Delete { from, to } => Ask::Op(Op::Delete(KeyRange {
                start: name(from),
                end: Some(name(to)),
            })),
            Self::Swap {
                keys: (first, second),
                value: told,
                is_right,
            } => Ask::Txn(Txn {
                compare: vec![Compare {
                    key: name(first),
                    expected: Expected::Modified(if is_right { modified } else { modified.next() }),
                }],
                success: [first, second].map(|key| put(key, told, None)).to_vec(),
                failure: Vec::new(),
            }),
            Self::Read(key) => Ask::Op(Op::Range(KeyRange::one(name(key)))),
            Self::Grant(lease) => Ask::Grant {
                lease: id(lease),
                ttl_s,
            },
            Self::KeepAlive(lease) => Ask::KeepAlive(id(lease)),
            Self::Revoke(lease) => Ask::Revoke(id(lease)),
            Self::Pass { .. } | Self::Compact | Self::Restart => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use lunette_runtime_core::random::SplitMix64;

    use super::*;
    use crate::source::Bytes;

    fn name(step: Step) -> String {
        let text = format!("{step:?}");
        let end = text.find([' ', '(']).unwrap_or(text.len());
        text[..end].to_owned()
    }

    #[test]
    fn bytes_and_seeds_reach_every_step_and_each_of_its_asks_keeps_the_limits() {
        let mut random = SplitMix64::new(1);
        let bytes: Vec<u8> = (0..4000).map(|_| random.u8()).collect();
        let from_bytes = Step::draw_all(&mut Bytes::new(&bytes), usize::MAX);
        let from_seed = Step::draw_all(&mut random, 1000);
        for steps in [from_bytes, from_seed] {
            let names: BTreeSet<String> = steps.iter().map(|step| name(*step)).collect();
            assert_eq!(names.len(), 10, "{names:?}");
            for step in steps {
                let ask = step.ask(|key| vec![key], |value| vec![value], 3, Revision(5));
                assert!(ask.is_none_or(|ask| ask.check().is_ok()), "{step:?}");
            }
        }
    }

    #[test]
    fn steps_end_with_their_source_or_at_the_most() {
        assert!(Step::draw_all(&mut Bytes::new(&[]), 5).is_empty());
        assert_eq!(
            Step::draw_all(&mut Bytes::new(&[16, 17]), 5),
            [Step::Compact, Step::Restart]
        );
        assert_eq!(Step::draw_all(&mut SplitMix64::new(3), 5).len(), 5);
    }
}
