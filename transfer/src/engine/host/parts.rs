//! A batch that several cores carry, a part of its bytes each.
//!
//! One of them waits for all parts, and then sends the notification, so that it comes after all bytes. Each
//! part ends as a transfer does, with nothing of it under way any more; so does the whole.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use futures_channel::oneshot;
use futures_util::future::join_all;
use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::message::Refusal;
use lunette_transfer_proto::engine::scheduler::{Cause, Effect, RequestFailure};
use lunette_transfer_proto::engine::segment::Way;

use super::super::batch::PostOptions;
use super::super::error::{PostError, TransferError};
use super::super::posted::Done;
use super::super::siblings::{Hosted, answer_in_task};
use super::answer::{Answered, HandleError, Pending};
use super::handle::full;
use super::peer::{HandleRequest, PeerHandle, batch, peer_at};
use super::spread::{Stretch, cut};

/// What one core carries.
#[derive(Debug)]
struct Part {
    core: usize,
    stretches: Vec<Stretch>,
}

/// A batch in parts.
#[derive(Debug)]
struct Parts {
    peer: PeerHandle,
    requests: Vec<HandleRequest>,
    parts: Vec<Part>,
    options: PostOptions,
}

/// Posts a batch over cores, of which each carries so many bytes.
pub(super) fn post(
    peer: &PeerHandle,
    shares: &[(usize, u64)],
    requests: Vec<HandleRequest>,
    options: PostOptions,
) -> Pending<Done> {
    let lengths: Vec<u64> = requests.iter().map(|request| request.len_bytes).collect();
    let sizes: Vec<u64> = shares.iter().map(|&(_, bytes)| bytes).collect();
    let cores: Vec<usize> = shares.iter().map(|&(core, _)| core).collect();
    let parts = cores.iter().zip(cut(&lengths, &sizes));
    let parts = parts.map(|(&core, stretches)| Part { core, stretches });
    let parts = Parts {
        peer: peer.clone(),
        requests,
        parts: parts.collect(),
        options,
    };
    let lead = cores[0];
    peer.engine.put([lead], move |hosted, sender| {
        // Whatever is wrong with it, before anything of it is posted.
        match parts.check(hosted, lead) {
            Ok(()) => {
                let hosted = Rc::clone(hosted);
                answer_in_task(sender, full, |sender| parts.carry(hosted, sender));
            }
            // Nobody waits any more: then nobody is told.
            Err(error) => drop(sender.send(Err(error))),
        }
    })
}

impl Parts {
    fn check(&self, hosted: &Hosted, lead: usize) -> Answered<()> {
        let batch = batch(hosted, &self.requests)?;
        let peer = peer_at(hosted, self.peer.at(lead))?;
        Ok(peer.check(&batch, &self.options)?)
    }

    /// Waits for all of it, and gives up what is left when nobody waits for the answer any more.
    async fn carry(mut self, hosted: Rc<Hosted>, mut sender: oneshot::Sender<Answered<Done>>) {
        let note = self.options.notification.take();
        let began = time::now();
        let mut carrying = Box::pin(async {
            let merged = self.carry_parts(&hosted, began).await;
            match note {
                Some(note) if merged.failures.is_empty() => self.notify(merged, note, began).await,
                _ => merged,
            }
        });
        let ended = poll_fn(|cx| match sender.poll_canceled(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => carrying.as_mut().poll(cx).map(Some),
        });
        let Some(merged) = ended.await else {
            return;
        };
        // Nobody waits any more: then nobody is told.
        drop(sender.send(merged.answer(began)));
    }

    async fn carry_parts(&self, hosted: &Hosted, began: Time) -> Merged {
        let pending = self.parts.iter().map(|part| {
            let requests = part.stretches.iter().map(|&stretch| self.piece(stretch));
            let requests: Vec<HandleRequest> = requests.collect();
            let bytes = requests.iter().map(|request| request.len_bytes).sum();
            let options = self.options.clone();
            self.peer.post_on(part.core, bytes, requests, options)
        });
        let answers = join_all(pending).await;
        let settle = hosted.inner.options.scheduler.settle;
        let mut merged = Merged::default();
        for (part, answer) in self.parts.iter().zip(answers) {
            match answer {
                Ok(done) => merged.done(done),
                Err(HandleError::Transfer(error)) => merged.failed(part, error),
                Err(error) => {
                    let is_over = self.is_over(part.core, &error, settle).await;
                    merged.gone(self, part, &error, is_over, began);
                }
            }
        }
        merged.know_what_is_untouched(&self.parts);
        merged
    }

    /// Whether nothing of a part lands here any more that gave no outcome.
    async fn is_over(&self, core: usize, error: &HandleError, settle: Duration) -> bool {
        if !matches!(error, HandleError::Ended) {
            return true;
        }
        let member = &self.peer.engine.siblings.members()[core];
        time::timeout(settle, member.ended.raised()).await.is_ok()
    }

    fn piece(&self, stretch: Stretch) -> HandleRequest {
        let whole = self.requests[stretch.request];
        HandleRequest {
            local_offset_bytes: whole.local_offset_bytes + stretch.offset_bytes,
            remote_offset_bytes: whole.remote_offset_bytes + stretch.offset_bytes,
            len_bytes: stretch.len_bytes,
            ..whole
        }
    }

    /// All bytes are there; their notification follows, over whichever core is still there.
    async fn notify(&self, mut merged: Merged, note: Vec<u8>, began: Time) -> Merged {
        let deadline = began + self.options.timeout;
        let mut last = HandleError::Gone;
        for part in &self.parts {
            let options = PostOptions {
                timeout: deadline.since(time::now()),
                notification: Some(note.clone()),
                ..self.options.clone()
            };
            match self.peer.post_on(part.core, 0, Vec::new(), options).await {
                Ok(done) => {
                    merged.done(done);
                    return merged;
                }
                Err(HandleError::Transfer(error)) => {
                    merged.failed(part, error);
                    return merged;
                }
                // It was not sent: by another core, then.
                Err(error @ (HandleError::Gone | HandleError::Busy | HandleError::Task(_))) => {
                    last = error;
                }
                Err(error) => {
                    last = error;
                    break;
                }
            }
        }
        let effect = match last {
            HandleError::Ended => Effect::MayStillChange,
            _ => Effect::Untouched,
        };
        merged.add(failure(None, &last, effect, began));
        merged
    }
}

/// Why what was not posted, or has no outcome, failed.
const fn cause(error: &HandleError) -> Cause {
    match error {
        HandleError::Busy | HandleError::Task(_) | HandleError::Post(PostError::Full(_)) => {
            Cause::Refused(Refusal::Busy)
        }
        HandleError::Post(PostError::PeerReplaced) => Cause::PeerReplaced,
        // Unregistered in between.
        HandleError::NoMemory => Cause::Refused(Refusal::Stale),
        _ => Cause::Lost,
    }
}

fn failure(
    request: Option<u32>,
    error: &HandleError,
    effect: Effect,
    began: Time,
) -> RequestFailure {
    RequestFailure {
        request,
        cause: cause(error),
        effect,
        rail: None,
        attempts: 1,
        age: time::now().since(began),
    }
}

/// What came of all parts.
#[derive(Debug, Default)]
struct Merged {
    len_bytes: u64,
    slices: u64,
    resent: u64,
    stolen: u64,
    failures: BTreeMap<Option<u32>, RequestFailure>,
    /// How many stretches of each request failed.
    failed_stretches: BTreeMap<Option<u32>, usize>,
    paths: Vec<std::net::SocketAddr>,
}

impl Merged {
    const fn done(&mut self, done: Done) {
        self.len_bytes += done.len_bytes;
        self.slices += done.slices;
        self.resent += done.resent;
        self.stolen += done.stolen;
    }

    fn failed(&mut self, part: &Part, error: TransferError) {
        let first_path = self.paths.len();
        self.paths.extend(error.paths);
        for failure in error.failures {
            let request = failure
                .request
                .map(|at| number(&part.stretches[at as usize]));
            self.add(RequestFailure {
                request,
                rail: failure.rail.map(|rail| first_path + rail),
                ..failure
            });
        }
    }

    /// A part that has no outcome. `is_over` says whether nothing of it lands here any more.
    fn gone(
        &mut self,
        parts: &Parts,
        part: &Part,
        error: &HandleError,
        is_over: bool,
        began: Time,
    ) {
        let was_posted = matches!(error, HandleError::Ended);
        for stretch in &part.stretches {
            let effect = match parts.requests[stretch.request].way {
                _ if !was_posted => Effect::Untouched,
                Way::Read if is_over => Effect::Partly,
                Way::Read | Way::Write => Effect::MayStillChange,
            };
            self.add(failure(Some(number(stretch)), error, effect, began));
        }
    }

    /// Adds a failure of a stretch to what else has failed of its request: the worst of all is what is said.
    fn add(&mut self, failure: RequestFailure) {
        *self.failed_stretches.entry(failure.request).or_default() += 1;
        let known = self.failures.entry(failure.request).or_insert(failure);
        if badness(failure.effect).cmp(&badness(known.effect)) == Ordering::Greater {
            known.effect = failure.effect;
        }
    }

    /// A request of which one stretch failed and another did not is not untouched.
    fn know_what_is_untouched(&mut self, parts: &[Part]) {
        let stretches = parts.iter().flat_map(|part| &part.stretches);
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for stretch in stretches {
            *counts.entry(number(stretch)).or_default() += 1;
        }
        for (request, failure) in &mut self.failures {
            let all = request.map_or(0, |request| counts[&request]);
            if self.failed_stretches[request] < all && failure.effect == Effect::Untouched {
                failure.effect = Effect::Partly;
            }
        }
    }

    fn answer(self, began: Time) -> Answered<Done> {
        if !self.failures.is_empty() {
            return Err(HandleError::Transfer(TransferError {
                failures: self.failures.into_values().collect(),
                paths: self.paths,
            }));
        }
        Ok(Done {
            len_bytes: self.len_bytes,
            slices: self.slices,
            resent: self.resent,
            stolen: self.stolen,
            took: time::now().since(began),
        })
    }
}

fn number(stretch: &Stretch) -> u32 {
    u32::try_from(stretch.request).expect("requests are bounded")
}

const fn badness(effect: Effect) -> u8 {
    match effect {
        Effect::Untouched => 0,
        Effect::Partly => 1,
        Effect::MayStillChange => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(request: u32, cause: Cause, effect: Effect, rail: Option<usize>) -> RequestFailure {
        RequestFailure {
            request: Some(request),
            cause,
            effect,
            rail,
            attempts: 3,
            age: Duration::ZERO,
        }
    }

    fn part(core: usize, requests: &[usize]) -> Part {
        let stretches = requests.iter().map(|&request| Stretch {
            request,
            offset_bytes: 0,
            len_bytes: 1,
        });
        Part {
            core,
            stretches: stretches.collect(),
        }
    }

    #[test]
    fn a_failure_is_of_the_request_that_was_posted_and_says_the_worst() {
        let path = |port: u16| std::net::SocketAddr::from(([127, 0, 0, 1], port));
        // Request 5 lies in both parts, 4 and 6 in one, 7 in both.
        let parts = [part(0, &[4, 5, 7]), part(1, &[7, 5, 6])];
        let mut merged = Merged::default();
        merged.failed(
            &parts[0],
            TransferError {
                failures: vec![
                    failed(0, Cause::Corrupt, Effect::Untouched, Some(0)),
                    failed(1, Cause::Lost, Effect::Untouched, None),
                    failed(2, Cause::Lost, Effect::Untouched, None),
                ],
                paths: vec![path(1)],
            },
        );
        merged.failed(
            &parts[1],
            TransferError {
                failures: vec![failed(0, Cause::Lost, Effect::MayStillChange, Some(1))],
                paths: vec![path(2), path(3)],
            },
        );
        merged.know_what_is_untouched(&parts);
        let said: Vec<_> = merged.failures.values().collect();
        let expected = [
            (4, Cause::Corrupt, Effect::Untouched, Some(0)),
            (5, Cause::Lost, Effect::Partly, None),
            (7, Cause::Lost, Effect::MayStillChange, None),
        ];
        for (said, (request, cause, effect, rail)) in said.iter().zip(expected) {
            assert_eq!(**said, failed(request, cause, effect, rail));
        }
        assert_eq!((said.len(), merged.paths.len()), (3, 3));
    }
}
