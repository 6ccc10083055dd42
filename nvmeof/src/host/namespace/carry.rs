//! Having a command carried out, by one way or another.

use std::time::Duration;

use lunette_nvmeof_proto::command::Command;
use lunette_nvmeof_proto::host::{Fate, fate_of};
use lunette_nvmeof_proto::io::IoRequest;
use lunette_runtime::arena::{Exposed, Region, RegionMut};
use lunette_runtime::time;
use lunette_runtime_core::time::Time;

use super::super::queue::{Data, Done};
use super::Inner;
use super::ways::{OnItsWay, Ways};
use crate::error::{CloseReason, CommandError, CommandFailure};

/// How a command ended, and what that says of whether it was carried out.
pub(super) type Ended = (Result<Done, CommandFailure>, Fate);

/// Until when a command may take, altogether and on one path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) deadline: Time,
    pub(super) path_timeout: Duration,
    /// When it began, or was last tried.
    pub(super) now: Time,
}

impl Inner {
    /// Has a request carried out: by another way if the one that was chosen failed, and it was not
    /// carried out, or may be carried out twice.
    pub(super) async fn run(
        &self,
        request: IoRequest,
        data: Data,
        timeout: Duration,
    ) -> Result<Done, CommandFailure> {
        let now = time::now();
        let mut limits = Limits {
            deadline: now + timeout,
            path_timeout: self.options.path_timeout,
            now,
        };
        let command = request.command(self.options.nsid, &self.geometry);
        let kept = Kept::of(&data);
        let mut data = data;
        loop {
            let way = match self.ways.chosen(&mut limits).await {
                Ok(way) => way,
                Err(error) => return Err(with_region(error, data)),
            };
            let (ended, fate) = match (data, &self.hedging) {
                (Data::In(region), Some(hedging)) => {
                    hedging.read(way, command, region, limits).await
                }
                (data, _) => carry(way, command, data, limits).await,
            };
            let failure = match ended {
                Ok(done) => return Ok(done),
                Err(failure) => failure,
            };
            let may_repeat = match fate {
                Fate::Answered => false,
                Fate::NotDone => true,
                Fate::Unknown => request.is_idempotent(),
            };
            limits.now = time::now();
            if !may_repeat || limits.now >= limits.deadline {
                return Err(failure);
            }
            self.repeats.set(self.repeats.get() + 1);
            data = kept.again(failure.region);
            time::yield_now().await;
            limits.now = time::now();
        }
    }
}

/// What is kept of a command's data, to repeat it.
enum Kept {
    /// There is none, or it comes back with the failure.
    Nothing,
    Out(Region),
    OutExposed(Exposed),
    InExposed(Exposed),
}

impl Kept {
    fn of(data: &Data) -> Self {
        match data {
            Data::None | Data::In(_) => Self::Nothing,
            Data::Out(region) => Self::Out(region.clone()),
            Data::OutExposed(memory) => Self::OutExposed(memory.clone()),
            Data::InExposed(memory) => Self::InExposed(memory.clone()),
        }
    }

    fn again(&self, region: Option<RegionMut>) -> Data {
        match self {
            Self::Nothing => region.map_or(Data::None, Data::In),
            Self::Out(region) => Data::Out(region.clone()),
            Self::OutExposed(memory) => Data::OutExposed(memory.clone()),
            Self::InExposed(memory) => Data::InExposed(memory.clone()),
        }
    }
}

/// Has a command carried out by a way.
pub(super) async fn carry(way: OnItsWay, command: Command, data: Data, limits: Limits) -> Ended {
    let Limits {
        deadline,
        path_timeout,
        now,
    } = limits;
    let running = way
        .queue
        .command_within(command, data, deadline, (now, path_timeout));
    let mut ended = running.await;
    if let Err(failure) = &mut ended
        && failure.error == CommandError::DeadlineExceeded
        && time::now() < deadline
    {
        // The path is dead, or as good as that.
        way.queue.end(CloseReason::Stuck);
        failure.error = CommandError::Disconnected(CloseReason::Stuck);
    }
    let fate = fate(&way.ways, way.index, &ended);
    (ended, fate)
}

/// What the end of a command says of itself and of its way.
fn fate(ways: &Ways, index: usize, ended: &Result<Done, CommandFailure>) -> Fate {
    let error = match ended {
        Ok(_) => {
            ways.on_success(index);
            return Fate::Answered;
        }
        Err(failure) => &failure.error,
    };
    // After a connection has ended, a new one or another way may fare better.
    let may_try_again = |reason: &CloseReason| {
        let has_others = ways.count() > 1 && *reason != CloseReason::Local;
        reason.is_retryable() || has_others
    };
    match error {
        CommandError::Status(status) => {
            ways.on_status(index, *status);
            fate_of(*status)
        }
        CommandError::NotSent(reason) if may_try_again(reason) => Fate::NotDone,
        CommandError::Disconnected(reason) if may_try_again(reason) => Fate::Unknown,
        _ => Fate::Answered,
    }
}

fn with_region(error: CommandError, data: Data) -> CommandFailure {
    let region = match data {
        Data::In(region) => Some(region),
        Data::None | Data::Out(_) | Data::OutExposed(_) | Data::InExposed(_) => None,
    };
    CommandFailure { error, region }
}
