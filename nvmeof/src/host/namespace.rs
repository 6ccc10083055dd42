//! A namespace: reads and writes of blocks, and connecting again.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use lunette_nvmeof_proto::completion::Status;
use lunette_nvmeof_proto::host::{Reconnect, ReconnectOptions, Retry};
use lunette_nvmeof_proto::identify::IdentifyNamespace;
use lunette_nvmeof_proto::io::{Blocks, Geometry, IoRequest, RANGES_MAX, encode_ranges};
use lunette_nvmeof_proto::nqn::Nqn;
use lunette_runtime::arena::{Region, RegionMut};
use lunette_runtime::{Scope, arena, time};
use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;

use super::controller::{HostConfig, RemoteController, disconnect};
use super::queue::{Data, Done, Queue};
use crate::error::{CloseReason, CommandError, CommandFailure, ConnectError};

/// Longest command where the controller has no limit, in bytes.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// Which namespace, and how stubbornly.
#[derive(Clone, Debug)]
pub struct NamespaceOptions {
    /// Where its controller listens.
    pub address: SocketAddr,
    /// Its subsystem.
    pub subsystem: Nqn,
    /// Its id.
    pub nsid: u32,
    /// Who asks.
    pub config: HostConfig,
    /// When to connect again after a loss.
    pub reconnect: ReconnectOptions,
    /// Seed of what spreads hosts that come back.
    pub seed: u64,
}

/// A remote namespace, over one queue on this core.
///
/// When the connection is lost it is made again in the background. Commands that change nothing
/// are then repeated within their deadlines; a write whose fate is unknown fails as
/// [`CommandError::Disconnected`], and its caller decides.
#[derive(Debug)]
pub struct RemoteNamespace {
    inner: Rc<Inner>,
    keeper: Scope,
}

#[derive(Debug)]
struct Inner {
    options: NamespaceOptions,
    identity: IdentifyNamespace,
    geometry: Geometry,
    path: RefCell<Path>,
    waiters: RefCell<Vec<Waker>>,
    reconnects: Cell<u64>,
}

#[derive(Debug)]
enum Path {
    Up {
        queue: Queue,
        controller: Rc<RemoteController>,
    },
    /// It is being made again.
    Down,
    /// It was given up.
    Lost(CloseReason),
}

impl RemoteNamespace {
    /// Connects.
    ///
    /// # Errors
    /// [`ConnectError`]: nothing is tried again before the first success.
    pub async fn connect(options: NamespaceOptions) -> Result<Self, ConnectError> {
        let (controller, queue, identity) = connect(&options).await?;
        let limit = controller.association().identity.transfer_bytes_max();
        let geometry = Geometry {
            blocks: identity.blocks,
            block_bytes_log2: identity.block_bytes_log2,
            transfer_bytes_max: limit.unwrap_or(TRANSFER_BYTES_MAX).min(TRANSFER_BYTES_MAX),
        };
        let inner = Rc::new(Inner {
            options,
            identity,
            geometry,
            path: RefCell::new(Path::Up { queue, controller }),
            waiters: RefCell::default(),
            reconnects: Cell::new(0),
        });
        let keeper = Scope::new();
        if let Err(error) = keeper.spawn(keep_connected(Rc::clone(&inner))) {
            tracing::warn!(%error, "nobody connects again");
        }
        Ok(Self { inner, keeper })
    }

    /// What the namespace is.
    #[must_use]
    pub fn identity(&self) -> &IdentifyNamespace {
        &self.inner.identity
    }

    /// Most data of one command, in bytes.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> u32 {
        self.inner.geometry.transfer_bytes_max
    }

    /// How often the connection was made again.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.inner.reconnects.get()
    }

    /// Reads from block `first` on, as many as fill `region`, which is lent until then.
    ///
    /// # Errors
    /// [`CommandFailure`], with the region.
    ///
    /// # Panics
    /// If the region's length is no multiple of a block, or more than a command may move.
    pub async fn read(
        &self,
        first: u64,
        region: RegionMut,
        timeout: Duration,
    ) -> Result<RegionMut, CommandFailure> {
        let request = IoRequest::Read(self.blocks(first, region.len()));
        let done = self.inner.run(request, Data::In(region), timeout).await?;
        Ok(done.region.expect("a read gives its region back"))
    }

    /// Writes all of `region` from block `first` on; `must_last` also past a loss of power.
    ///
    /// # Errors
    /// [`CommandFailure`].
    ///
    /// # Panics
    /// As for [`RemoteNamespace::read`].
    pub async fn write(
        &self,
        first: u64,
        region: Region,
        must_last: bool,
        timeout: Duration,
    ) -> Result<(), CommandFailure> {
        let blocks = self.blocks(first, region.len());
        let request = IoRequest::Write { blocks, must_last };
        self.inner.run(request, Data::Out(region), timeout).await?;
        Ok(())
    }

    /// Whether the blocks from `first` on are the bytes of `region`.
    ///
    /// # Errors
    /// [`CommandFailure`].
    ///
    /// # Panics
    /// As for [`RemoteNamespace::read`].
    pub async fn compare(
        &self,
        first: u64,
        region: Region,
        timeout: Duration,
    ) -> Result<bool, CommandFailure> {
        let request = IoRequest::Compare(self.blocks(first, region.len()));
        match self.inner.run(request, Data::Out(region), timeout).await {
            Ok(_done) => Ok(true),
            Err(CommandFailure {
                error: CommandError::Status(status),
                ..
            }) if status.code() == Status::COMPARE_FAILURE.code() => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Fills blocks with zeroes; their memory may be given back.
    ///
    /// # Errors
    /// [`CommandFailure`].
    ///
    /// # Panics
    /// If there are none, or more than 65,536.
    pub async fn write_zeroes(
        &self,
        blocks: Blocks,
        timeout: Duration,
    ) -> Result<(), CommandFailure> {
        let request = IoRequest::WriteZeroes {
            blocks,
            may_deallocate: true,
        };
        self.inner.run(request, Data::None, timeout).await?;
        Ok(())
    }

    /// Tells that nothing in `ranges` has to be kept.
    ///
    /// # Errors
    /// [`CommandFailure`].
    ///
    /// # Panics
    /// If there are none, or more than [`RANGES_MAX`].
    pub async fn deallocate(
        &self,
        ranges: &[Blocks],
        timeout: Duration,
    ) -> Result<(), CommandFailure> {
        assert!((1..=RANGES_MAX).contains(&ranges.len()), "callers split");
        let bytes = encode_ranges(ranges);
        let mut region = arena().alloc(bytes.len()).map_err(CommandError::from)?;
        region.as_mut_slice().copy_from_slice(&bytes);
        let request = IoRequest::Manage {
            ranges: u16::try_from(ranges.len()).expect("just checked"),
            deallocates: true,
        };
        let data = Data::Out(region.freeze());
        self.inner.run(request, data, timeout).await?;
        Ok(())
    }

    /// What has been written is to last.
    ///
    /// # Errors
    /// [`CommandFailure`].
    pub async fn flush(&self, timeout: Duration) -> Result<(), CommandFailure> {
        self.inner
            .run(IoRequest::Flush, Data::None, timeout)
            .await?;
        Ok(())
    }

    /// Ends the connection in order.
    ///
    /// # Errors
    /// [`CommandError`]: the controller did not answer, and the connection is ended all the same.
    pub async fn close(self) -> Result<(), CommandError> {
        let Self { inner, keeper } = self;
        drop(keeper);
        let path = inner.path.replace(Path::Lost(CloseReason::Local));
        let Path::Up { queue, controller } = path else {
            return Ok(());
        };
        let timeout = inner.options.config.timeout;
        let parted = queue.command(disconnect(), Data::None, timeout).await;
        if let Err(failure) = parted {
            tracing::debug!(%failure, "disconnecting a queue");
        }
        queue.close();
        controller.shut_down().await
    }

    fn blocks(&self, first: u64, len: usize) -> Blocks {
        let geometry = &self.inner.geometry;
        let len = u32::try_from(len).expect("a command moves less than 4 GiB");
        assert!(
            len.is_multiple_of(1 << geometry.block_bytes_log2),
            "whole blocks"
        );
        assert!(len <= geometry.transfer_bytes_max, "callers split");
        Blocks {
            first,
            count: len >> geometry.block_bytes_log2,
        }
    }
}

impl Inner {
    /// Has a request carried out, again on a new connection if that changes nothing.
    async fn run(
        &self,
        request: IoRequest,
        data: Data,
        timeout: Duration,
    ) -> Result<Done, CommandFailure> {
        let deadline = time::now() + timeout;
        let command = request.command(self.options.nsid, &self.geometry);
        let kept = match &data {
            Data::Out(region) => Some(region.clone()),
            Data::None | Data::In(_) => None,
        };
        let mut data = data;
        loop {
            let queue = match self.queue(deadline).await {
                Ok(queue) => queue,
                Err(error) => return Err(with_region(error, data)),
            };
            let failure = match queue.command_until(command, data, deadline).await {
                Ok(done) => return Ok(done),
                Err(failure) => failure,
            };
            let may_repeat = request.is_idempotent() && is_of_path(&failure.error);
            if !may_repeat || time::now() >= deadline {
                return Err(failure);
            }
            data = match (kept.clone(), failure.region) {
                (Some(region), _) => Data::Out(region),
                (None, Some(region)) => Data::In(region),
                (None, None) => Data::None,
            };
            time::yield_now().await;
        }
    }

    /// The queue, once there is one.
    async fn queue(&self, deadline: Time) -> Result<Queue, CommandError> {
        if let Path::Up { queue, .. } = &*self.path.borrow()
            && queue.closed().is_none()
        {
            return Ok(queue.clone());
        }
        let up = poll_fn(|cx| match &*self.path.borrow() {
            Path::Up { queue, .. } if queue.closed().is_none() => Poll::Ready(Ok(queue.clone())),
            Path::Lost(reason) => Poll::Ready(Err(CommandError::Disconnected(*reason))),
            Path::Up { .. } | Path::Down => {
                self.waiters.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            }
        });
        let left = deadline.since(time::now());
        let up = time::timeout(left, up).await;
        up.unwrap_or(Err(CommandError::DeadlineExceeded))
    }

    fn set_path(&self, path: Path) {
        let before = self.path.replace(path);
        drop(before);
        for waiter in self.waiters.take() {
            waiter.wake();
        }
    }
}

fn with_region(error: CommandError, data: Data) -> CommandFailure {
    let region = match data {
        Data::In(region) => Some(region),
        Data::None | Data::Out(_) => None,
    };
    CommandFailure { error, region }
}

/// Whether a failure is of the way to the controller rather than of the command.
fn is_of_path(error: &CommandError) -> bool {
    match error {
        CommandError::Disconnected(reason) => reason.is_retryable(),
        CommandError::Status(status) => {
            status.code() == Status::TRANSIENT_TRANSPORT_ERROR.code() && status.is_retryable()
        }
        _ => false,
    }
}

async fn connect(
    options: &NamespaceOptions,
) -> Result<(Rc<RemoteController>, Queue, IdentifyNamespace), ConnectError> {
    let config = options.config.clone();
    let controller = RemoteController::connect(options.address, &options.subsystem, config).await?;
    let identity = controller.namespace(options.nsid).await?;
    let absent = Status::INVALID_NAMESPACE.do_not_retry();
    let identity = identity.ok_or(CommandError::Status(absent))?;
    let queue = controller.queue().await?;
    Ok((controller, queue, identity))
}

/// Makes the connection again whenever it is lost.
async fn keep_connected(inner: Rc<Inner>) {
    let mut reconnect = Reconnect::new(inner.options.reconnect);
    let mut random = SplitMix64::new(inner.options.seed);
    loop {
        let (queue, admin) = match &*inner.path.borrow() {
            Path::Up { queue, controller } => (queue.clone(), controller.admin().clone()),
            Path::Down | Path::Lost(_) => return,
        };
        let reason = first_end(&queue, &admin).await;
        drop((queue, admin));
        if matches!(&*inner.path.borrow(), Path::Lost(_)) {
            return;
        }
        tracing::warn!(%reason, "connection lost");
        inner.set_path(Path::Down);
        loop {
            let Retry::At(at) = reconnect.on_failure(time::now(), random.next()) else {
                inner.set_path(Path::Lost(reason));
                return;
            };
            time::sleep_until(at).await;
            match connect(&inner.options).await {
                Ok((controller, queue, identity)) if identity == inner.identity => {
                    reconnect.on_success();
                    inner.reconnects.set(inner.reconnects.get() + 1);
                    inner.set_path(Path::Up { queue, controller });
                    break;
                }
                Ok(_other) => {
                    tracing::error!("another namespace answers now");
                    inner.set_path(Path::Lost(reason));
                    return;
                }
                Err(error) => tracing::debug!(%error, "connecting again"),
            }
        }
    }
}

/// Waits until one of two connections has ended; the other one then ends, too.
async fn first_end(queue: &Queue, admin: &Queue) -> CloseReason {
    let mut ends = [Box::pin(queue.ended()), Box::pin(admin.ended())];
    let reason = poll_fn(|cx| {
        let mut polled = ends.iter_mut().map(|end| end.as_mut().poll(cx));
        polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await;
    queue.end(reason);
    admin.end(reason);
    reason
}
