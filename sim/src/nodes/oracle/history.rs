//! What is known of one key.

use std::collections::BTreeMap;

use lunette_runtime_core::time::Time;

use super::{Cause, Span};

/// How a put ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutEnd {
    /// It wrote this version.
    Written(u64),
    /// This version was there.
    Touched(u64),
    /// It failed, and may have happened or not, or happen yet.
    Failed,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Put {
    pub(super) number: u64,
    pub(super) start: Time,
    /// None while it is under way, or if whoever asked is gone.
    pub(super) end: Option<(Time, PutEnd)>,
}

impl Put {
    /// The version that was resident at some moment of it, and its end, if it was acknowledged.
    const fn acknowledged(&self) -> Option<(u64, Time)> {
        match self.end {
            Some((end, PutEnd::Written(version) | PutEnd::Touched(version))) => {
                Some((version, end))
            }
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Remove {
    pub(super) start: Time,
    /// The last moment at which it may have happened. None while it is under way.
    pub(super) end: Option<Time>,
    /// It was acknowledged.
    pub(super) is_done: bool,
    /// Whether there was something to remove, if it was answered.
    pub(super) found: Option<bool>,
}

/// What has happened to one key.
#[derive(Debug)]
pub(super) struct KeyHistory {
    /// Its home.
    pub(super) node: usize,
    pub(super) puts: Vec<Put>,
    pub(super) removes: Vec<Remove>,
    /// When its home freed which version.
    pub(super) releases: Vec<(Time, u64)>,
    /// Answers that are being sent, by the version that they bring.
    pub(super) being_sent: BTreeMap<u64, u32>,
    /// How often its home has removed an object of it.
    pub(super) removals: u64,
}

impl KeyHistory {
    pub(super) const fn new(node: usize) -> Self {
        Self {
            node,
            puts: Vec::new(),
            removes: Vec::new(),
            releases: Vec::new(),
            being_sent: BTreeMap::new(),
            removals: 0,
        }
    }

    pub(super) fn put_mut(&mut self, number: u64) -> Option<&mut Put> {
        self.puts.iter_mut().rev().find(|put| put.number == number)
    }

    /// Each request removes at most one object, and one that says that it found none removes none.
    pub(super) fn judge_removals(&self) -> Result<(), String> {
        let may = |remove: &&Remove| remove.found != Some(false);
        let most = self.removes.iter().filter(may).count() as u64;
        if self.removals > most {
            let removals = self.removals;
            return Err(format!(
                "{removals} objects were removed by {most} requests"
            ));
        }
        Ok(())
    }

    fn is_removed_between(&self, from: Time, to: Time) -> bool {
        let overlaps =
            |remove: &Remove| remove.start <= to && remove.end.is_none_or(|end| end >= from);
        self.removes.iter().any(overlaps)
    }

    fn is_released_between(&self, version: u64, from: Time, to: Time) -> bool {
        let within =
            |(at, released): &(Time, u64)| *released == version && (from..=to).contains(at);
        self.releases.iter().any(within)
    }

    /// An acknowledged put whose object was resident all through the span, whatever the order of
    /// things that happened at a time.
    pub(super) fn surely_resident(&self, span: Span, kills: &[Time]) -> Option<u64> {
        let stays = |put: &&Put| {
            let Some((version, end)) = put.acknowledged() else {
                return false;
            };
            end <= span.start
                && !self.is_released_between(version, put.start, span.end)
                && !self.is_removed_between(put.start, span.end)
                && !is_within(kills, put.start, span.end)
        };
        self.puts.iter().rev().find(stays).map(|put| put.number)
    }

    /// Why nothing is there, given that nothing surely is.
    pub(super) fn cause_of_miss(&self, span: Span, kills: &[Time]) -> Cause {
        let acknowledged = self.puts.iter().rev().find_map(|put| {
            let (_, end) = put.acknowledged()?;
            (end <= span.start).then_some(put)
        });
        match acknowledged {
            Some(put) if is_within(kills, put.start, span.end) => Cause::HolderGone,
            Some(put) if self.is_removed_between(put.start, span.end) => Cause::Removed,
            Some(_) => Cause::Evicted,
            None if self.puts.iter().any(|put| put.start <= span.end) => Cause::Unacknowledged,
            None => Cause::NeverPut,
        }
    }

    /// Whether some put other than `number` may have been given this version.
    pub(super) fn may_have_version(&self, version: u64, number: u64) -> bool {
        let mut others = self.puts.iter().filter(|put| put.number != number);
        others.any(|put| match put.end {
            Some((_, PutEnd::Written(written))) => written == version,
            Some((_, PutEnd::Touched(_))) => false,
            Some((_, PutEnd::Failed)) | None => true,
        })
    }

    /// Whether a get may bring this put's value, with this version.
    pub(super) fn may_hit(
        &self,
        number: u64,
        version: u64,
        span: Span,
        kills: &[Time],
    ) -> Result<(), String> {
        let Some(put) = self.puts.iter().find(|put| put.number == number) else {
            return Err("which is none of this key".to_owned());
        };
        if put.start > span.end {
            return Err("which had not begun".to_owned());
        }
        let Some((end, outcome)) = put.end else {
            return Ok(());
        };
        match outcome {
            PutEnd::Written(written) if written != version => {
                return Err(format!("as version {version}, but it wrote {written}"));
            }
            PutEnd::Written(_) => {}
            PutEnd::Touched(_) => return Err("which wrote nothing".to_owned()),
            // It may have happened later than it ended.
            PutEnd::Failed => return gone_with_its_node(end, span, kills),
        }
        let before = |at: &Time| *at < span.start;
        let released =
            |(at, released): &(Time, u64)| *released == version && *at >= put.start && before(at);
        if self.releases.iter().any(released) {
            return Err("whose memory had been freed".to_owned());
        }
        let removed = |remove: &Remove| {
            remove.is_done
                && remove.start > end
                && remove.end.is_some_and(|removed| removed < span.start)
        };
        if self.removes.iter().any(removed) {
            return Err("which had been removed".to_owned());
        }
        gone_with_its_node(end, span, kills)
    }
}

/// What ended before its node was killed does not outlive it.
fn gone_with_its_node(end: Time, span: Span, kills: &[Time]) -> Result<(), String> {
    let is_gone = kills.iter().any(|at| *at > end && *at < span.start);
    if is_gone {
        return Err("which was lost with its node".to_owned());
    }
    Ok(())
}

fn is_within(times: &[Time], from: Time, to: Time) -> bool {
    times.iter().any(|at| (from..=to).contains(at))
}
