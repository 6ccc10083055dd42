//! Having a command carried out, by one way or another.

use std::rc::Rc;
use std::time::Duration;

use lunette_nvmeof_proto::completion::Status;
use lunette_nvmeof_proto::host::{Fate, fate_of};
use lunette_nvmeof_proto::io::IoRequest;
use lunette_runtime::time;
use lunette_runtime_core::time::Time;

use super::super::queue::{Data, Done};
use super::Inner;
use crate::error::{CloseReason, CommandError, CommandFailure};

/// How a command ended, and what that says of whether it was carried out.
type Ended = (Result<Done, CommandFailure>, Fate);

impl Inner {
    /// Has a request carried out: by another way if the one that was chosen failed, and it was not
    /// carried out, or may be carried out twice.
    pub(super) async fn run(
        self: &Rc<Self>,
        request: IoRequest,
        data: Data,
        timeout: Duration,
    ) -> Result<Done, CommandFailure> {
        let deadline = time::now() + timeout;
        let kept = match &data {
            Data::Out(region) => Some(region.clone()),
            Data::None | Data::In(_) => None,
        };
        let mut data = data;
        loop {
            let (ended, fate) = self.try_once(request, data, deadline).await;
            let failure = match ended {
                Ok(done) => return Ok(done),
                Err(failure) => failure,
            };
            let may_repeat = match fate {
                Fate::Answered => false,
                Fate::NotDone => true,
                Fate::Unknown => request.is_idempotent(),
            };
            if !may_repeat || time::now() >= deadline {
                return Err(failure);
            }
            self.repeats.set(self.repeats.get() + 1);
            data = match (kept.clone(), failure.region) {
                (Some(region), _) => Data::Out(region),
                (None, Some(region)) => Data::In(region),
                (None, None) => Data::None,
            };
            time::yield_now().await;
        }
    }

    async fn try_once(self: &Rc<Self>, request: IoRequest, data: Data, deadline: Time) -> Ended {
        let way = match self.ways.chosen(deadline).await {
            Ok(way) => way,
            Err(error) => return (Err(with_region(error, data)), Fate::Answered),
        };
        let command = request.command(self.options.nsid, &self.geometry);
        let patience = self.options.path_timeout;
        let running = way.queue.command_within(command, data, deadline, patience);
        let mut ended = running.await;
        if let Err(failure) = &mut ended
            && failure.error == CommandError::DeadlineExceeded
            && time::now() < deadline
        {
            // The path is dead, or as good as that.
            way.queue.end(CloseReason::Stuck);
            failure.error = CommandError::Disconnected(CloseReason::Stuck);
        }
        let fate = self.fate(way.index, &ended);
        (ended, fate)
    }

    /// What the end of a command says of itself and of its way.
    pub(super) fn fate(&self, index: usize, ended: &Result<Done, CommandFailure>) -> Fate {
        let error = match ended {
            Ok(_) => {
                self.ways.on_status(index, Status::SUCCESS);
                return Fate::Answered;
            }
            Err(failure) => &failure.error,
        };
        match error {
            CommandError::Status(status) => {
                self.ways.on_status(index, *status);
                fate_of(*status)
            }
            CommandError::NotSent(reason) if self.may_try_again(reason) => Fate::NotDone,
            CommandError::Disconnected(reason) if self.may_try_again(reason) => Fate::Unknown,
            _ => Fate::Answered,
        }
    }

    /// Whether, after a connection has ended, a new one or another way may fare better.
    fn may_try_again(&self, reason: &CloseReason) -> bool {
        let has_others = self.ways.count() > 1 && *reason != CloseReason::Local;
        reason.is_retryable() || has_others
    }
}

fn with_region(error: CommandError, data: Data) -> CommandFailure {
    let region = match data {
        Data::In(region) => Some(region),
        Data::None | Data::Out(_) => None,
    };
    CommandFailure { error, region }
}
