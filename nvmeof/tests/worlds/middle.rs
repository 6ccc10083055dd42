//! Somebody between a host and a server, who ends connections, or forgets them, after so many bytes.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use lunette_runtime::net::{TcpListener, TcpStream};
use lunette_runtime::{spawn_local, time};

/// Which connection of a session is lost, and after how many bytes both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) is_admin: bool,
    pub(crate) bytes: usize,
    /// Nobody is told: bytes get lost from then on.
    pub(crate) is_silent: bool,
}

/// Where sessions are lost, in turn.
#[derive(Debug)]
pub(crate) struct Losses {
    left: RefCell<std::vec::IntoIter<Loss>>,
    /// The one that is next, until it has happened.
    pub(crate) next: Cell<Option<Loss>>,
    pub(crate) happened: Cell<usize>,
    /// How long bytes are held back.
    pub(crate) delay: Cell<Duration>,
    /// Connections of this session so far.
    connections: Cell<usize>,
}

impl Losses {
    pub(crate) fn new(losses: Vec<Loss>) -> Rc<Self> {
        let mut left = losses.into_iter();
        Rc::new(Self {
            next: Cell::new(left.next()),
            left: RefCell::new(left),
            happened: Cell::new(0),
            delay: Cell::new(Duration::ZERO),
            connections: Cell::new(0),
        })
    }

    /// How the next connection of the session is lost, if it is the one.
    fn of_next(&self) -> Option<Loss> {
        let index = self.connections.get();
        self.connections.set(index + 1);
        let loss = self.next.get()?;
        (loss.is_admin == (index == 0)).then_some(loss)
    }

    fn happen(&self) {
        self.next.set(self.left.borrow_mut().next());
        self.happened.set(self.happened.get() + 1);
        self.connections.set(0);
    }
}

/// How long a connection lasts, both ways together.
#[derive(Clone, Copy, Debug)]
enum Life {
    /// For ever.
    Whole,
    /// For so many bytes more.
    Short { bytes: usize, is_silent: bool },
    /// It has ended.
    Over { is_silent: bool },
}

/// One way of a connection through the middle.
struct Way {
    from: Rc<TcpStream>,
    to: Rc<TcpStream>,
    life: Rc<Cell<Life>>,
    losses: Rc<Losses>,
}

impl Way {
    async fn pass(self) {
        let mut buffer = vec![0; 4096];
        loop {
            let (received, filled) = self.from.recv(buffer, 0, 4096).await;
            buffer = filled;
            let Ok(count @ 1..) = received else { break };
            let passed = match self.life.get() {
                Life::Whole => count,
                Life::Short { bytes, .. } => bytes.min(count),
                Life::Over { is_silent: true } => continue,
                Life::Over { is_silent: false } => break,
            };
            if !self.losses.delay.get().is_zero() {
                time::sleep(self.losses.delay.get()).await;
            }
            let sent;
            (sent, buffer) = self.to.send_all(buffer, 0, passed).await;
            if sent.is_err() || self.spend(passed) {
                break;
            }
        }
        self.from.shutdown();
        self.to.shutdown();
    }

    /// Counts bytes that were passed. Whether the connection is to end, for all to see.
    fn spend(&self, passed: usize) -> bool {
        let Life::Short { bytes, is_silent } = self.life.get() else {
            return false;
        };
        // The other way may have spent some meanwhile.
        let bytes = bytes.saturating_sub(passed);
        if bytes > 0 {
            self.life.set(Life::Short { bytes, is_silent });
            return false;
        }
        self.life.set(Life::Over { is_silent });
        self.losses.happen();
        !is_silent
    }
}

/// Passes on what comes to `at`, to `server`.
pub(crate) async fn be_in_the_middle(at: SocketAddr, server: SocketAddr, losses: Rc<Losses>) {
    let listener = TcpListener::bind(at).expect("a port");
    while let Ok(host) = listener.accept().await {
        let host = Rc::new(host);
        let Ok(server) = TcpStream::connect(server).await else {
            continue;
        };
        let server = Rc::new(server);
        let life = losses.of_next().map_or(Life::Whole, |loss| Life::Short {
            bytes: loss.bytes,
            is_silent: loss.is_silent,
        });
        let life = Rc::new(Cell::new(life));
        for (from, to) in [(&host, &server), (&server, &host)] {
            let way = Way {
                from: Rc::clone(from),
                to: Rc::clone(to),
                life: Rc::clone(&life),
                losses: Rc::clone(&losses),
            };
            drop(spawn_local(way.pass()));
        }
    }
}
