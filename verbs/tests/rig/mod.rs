//! Two ends of a connection on one core, over any provider.

pub(crate) mod scenes;

use std::time::Duration;

use lunette_runtime::net::{TcpListener, TcpStream};
use lunette_runtime::{CoreOptions, Idle, arena, block_on, spawn_local, time};
use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;
use lunette_verbs::connect::{accept, initiate};
use lunette_verbs::{
    Access, CompletionQueue, Context, Patience, Piece, QueuePair, QueueSizes, Ready, Slab,
    Unconnected, Window,
};

pub(crate) const WINDOW_BYTES: usize = 1 << 20;
pub(crate) const SLAB_BYTES: usize = 1 << 20;
pub(crate) const ALL: Access = Access {
    remote_read: true,
    remote_write: true,
    remote_atomic: true,
    relaxed_ordering: false,
};

/// One end.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) pair: QueuePair<Ready>,
    pub(crate) queue: CompletionQueue,
    pub(crate) slab: Slab,
    pub(crate) window: Window,
}

impl End {
    /// A piece that holds these bytes.
    pub(crate) fn piece(&self, bytes: &[u8]) -> Piece {
        let mut piece = self.slab.alloc(bytes.len()).expect("room in the slab");
        piece.as_mut_slice().copy_from_slice(bytes);
        piece
    }

    /// Sees to it that what was written lies in the peer's window, where a write that is done was only handed over
    /// (iWARP): reads are answered behind it.
    pub(crate) async fn confirm(&self, peer: &Self) {
        if !self.pair.confirms_writes() {
            let piece = self.piece(&[0; 8]);
            let read = self.pair.read(piece, 8, peer.window.remote(), soon());
            assert_eq!(read.await.0, Ok(()));
        }
    }

    /// Bytes of the window.
    pub(crate) fn seen(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.window.read(offset, &mut bytes);
        bytes
    }
}

/// Soon enough for a test that hangs, and late enough for a busy emulated machine.
pub(crate) fn soon() -> Time {
    time::now() + Duration::from_secs(20)
}

pub(crate) fn random() -> SplitMix64 {
    SplitMix64::new(time::unix_ns())
}

/// Connects two devices with each other.
pub(crate) async fn connect(a: &Context, b: &Context, sizes: QueueSizes) -> (End, End) {
    let listener = TcpListener::bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let address = listener.local_addr();
    let b = b.clone();
    let accepting = spawn_local(async move {
        let stream = listener.accept().await.expect("a connection");
        one_end(&stream, &b, sizes, false).await
    });
    let stream = TcpStream::connect(address).await.expect("a connection");
    let first = one_end(&stream, a, sizes, true).await;
    let second = accepting.await.expect("the other end connects");
    (first, second)
}

/// What an end is made of before it is connected.
pub(crate) struct Parts {
    pub(crate) pair: QueuePair<Unconnected>,
    queue: CompletionQueue,
    slab: Slab,
    window: Window,
}

impl Parts {
    pub(crate) fn new(context: &Context, sizes: QueueSizes) -> Self {
        let entries = 2 * (sizes.sends + sizes.receives);
        let queue = CompletionQueue::new(context, entries).expect("a queue");
        let region = |len| arena().alloc(len).expect("room in the arena");
        let slab = Slab::register(context, region(SLAB_BYTES)).expect("a slab");
        let window = Window::register(context, region(WINDOW_BYTES), ALL).expect("a window");
        let pair = QueuePair::new(context, &queue, sizes, ALL, &mut random());
        Self {
            pair: pair.expect("a queue pair"),
            queue,
            slab,
            window,
        }
    }

    /// Connects it somehow.
    pub(crate) async fn connect(
        self,
        how: impl AsyncFnOnce(QueuePair<Unconnected>) -> QueuePair<Ready>,
    ) -> End {
        End {
            pair: how(self.pair).await,
            queue: self.queue,
            slab: self.slab,
            window: self.window,
        }
    }
}

/// One end of a connection over this stream.
pub(crate) async fn one_end(
    stream: &TcpStream,
    context: &Context,
    sizes: QueueSizes,
    is_initiator: bool,
) -> End {
    let (patience, epoch) = (Patience::default(), random().next());
    let parts = Parts::new(context, sizes);
    let connecting = parts.connect(async |pair| {
        let pair = if is_initiator {
            initiate(stream, pair, patience, epoch).await
        } else {
            accept(stream, pair, patience, epoch).await
        };
        pair.expect("the handshake")
    });
    connecting.await
}

/// Connects two queue pairs of this core with each other.
pub(crate) async fn join(
    one: QueuePair<Unconnected>,
    other: QueuePair<Unconnected>,
) -> (QueuePair<Ready>, QueuePair<Ready>) {
    let listener = TcpListener::bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let address = listener.local_addr();
    let epoch = random().next();
    let accepting = spawn_local(async move {
        let stream = listener.accept().await.expect("a connection");
        accept(&stream, other, Patience::default(), epoch).await
    });
    let stream = TcpStream::connect(address).await.expect("a connection");
    let one = initiate(&stream, one, Patience::default(), epoch + 1).await;
    let other = accepting.await.expect("it runs");
    (one.expect("the handshake"), other.expect("the handshake"))
}

/// Runs a test on a core of its own.
pub(crate) fn on_core<F: Future<Output = ()> + 'static>(
    idle: Idle,
    test: impl FnOnce() -> F + Send,
) {
    let options = CoreOptions {
        idle,
        ..CoreOptions::default()
    };
    block_on(None, options, test).expect("a core");
}
