//! Where a rail leads, and getting there.
//!
//! What is known of a name is kept as long as it leads to the peer. When a rail was lost and does not
//! come back, the name is asked for again, at most once in a while: the peer may have moved.

use std::cell::{Cell, Ref, RefCell};
use std::future::poll_fn;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use lunette_runtime::net::{ADDRESSES_MAX, ConnectOptions, ResolveError, TcpStream};
use lunette_runtime::{spawn_local, time};
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::topology::Sources;

use super::Inner;
use super::endpoint::Endpoint;
use super::error::OpenError;
use super::homing::Cores;
use super::race;
use crate::client::Connection;
use crate::error::ConnectError;

/// Who knows addresses waits for new ones for one part in this many of the time that a connection may
/// take, and then goes on with those that it knows.
const PATIENCE_PARTS: u32 = 4;
/// Ways that are tried for one connection.
const PATHS_MAX: usize = 64;

/// Which connection is to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passage {
    /// What it is called at the other side.
    pub(super) number: u64,
    /// Which of its peer's rails it is for.
    pub(super) rail: usize,
    /// Which of the adapters that are alike is to be used.
    pub(super) turn: u64,
    /// How often it was tried in vain: ways that were tried are tried later.
    pub(super) attempt: u32,
}

/// A connection that was made.
#[derive(Debug)]
pub(super) struct Reached {
    pub(super) connection: Connection,
    /// Whether whoever answers is the one that is meant now. Else the address may be of before the
    /// peer has moved, and somebody else's by now.
    pub(super) is_certain: bool,
}

/// Where a rail leads.
#[derive(Debug)]
pub(super) struct Destination {
    endpoint: Endpoint,
    known: RefCell<Known>,
    /// The address of ours that was connected from last, where it was chosen.
    source: Cell<Option<IpAddr>>,
    /// What is known of the peer's cores, if it has several.
    pub(super) cores: RefCell<Option<Cores>>,
    /// Where it led last, if that is none of its addresses but another core's.
    elsewhere: Cell<Option<SocketAddr>>,
}

#[derive(Debug, Default)]
struct Known {
    /// What it stood for last, in the order in which it is tried.
    addresses: Vec<SocketAddr>,
    /// Nobody was reached there, last time.
    is_doubted: bool,
    /// When the name was asked for.
    asked: Option<Time>,
    is_asking: bool,
    /// When its addresses came.
    answered: Option<Time>,
    /// Why none came.
    failure: Option<ResolveError>,
    waiting: Vec<Waker>,
}

/// The question after a name, under way until this is dropped.
struct Question(Rc<Destination>);

impl Drop for Question {
    fn drop(&mut self) {
        let mut known = self.0.known.borrow_mut();
        known.is_asking = false;
        let waiting = std::mem::take(&mut known.waiting);
        drop(known);
        for waker in waiting {
            waker.wake();
        }
    }
}

impl Destination {
    pub(super) fn new(endpoint: Endpoint) -> Rc<Self> {
        let mut known = Known::default();
        if let Endpoint::Address(address) = endpoint {
            known.addresses.push(address);
        }
        Rc::new(Self {
            endpoint,
            known: RefCell::new(known),
            source: Cell::new(None),
            cores: RefCell::default(),
            elsewhere: Cell::new(None),
        })
    }

    /// The address that was used last, or is tried first. Unspecified while a name has none.
    pub(super) fn address(&self) -> SocketAddr {
        if let Some(address) = self.elsewhere.get() {
            return address;
        }
        let first = self.known.borrow().addresses.first().copied();
        first.unwrap_or_else(|| {
            let port = match &self.endpoint {
                Endpoint::Address(address) => address.port(),
                Endpoint::Name { port, .. } => *port,
            };
            SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)
        })
    }

    /// The address of ours that was connected from last, where it was chosen.
    pub(super) const fn source(&self) -> Option<IpAddr> {
        self.source.get()
    }

    /// Whoever was reached is not the peer.
    pub(super) fn doubt(&self) {
        self.known.borrow_mut().is_doubted = true;
    }

    /// Connects: to the first of its addresses that answers, and from there to the core at which the rail is
    /// at home, where the peer has several.
    ///
    /// # Errors
    /// [`OpenError::Resolve`] or [`OpenError::Connect`].
    pub(super) async fn reach(
        self: &Rc<Self>,
        engine: &Inner,
        passage: Passage,
    ) -> Result<Reached, OpenError> {
        let began = time::now();
        let deadline = began + engine.options.connect_timeout;
        let given = self.addresses(engine, deadline).await?;
        let ways = self.ways(engine, &given, passage);
        let reached = self.connect(engine, &ways, passage, deadline).await;
        self.known.borrow_mut().is_doubted = reached.is_err();
        let reached = reached?;
        let is_given = given.contains(&reached.0);
        let (address, connection) = self.go_home(engine, reached, passage, deadline).await;
        let elsewhere = Some(address).filter(|address| !given.contains(address));
        self.elsewhere.set(elsewhere);
        let is_known = matches!(self.endpoint, Endpoint::Address(_));
        let answered = self.known.borrow().answered;
        let is_confirmed = is_known || answered.is_some_and(|at| at >= began);
        Ok(Reached {
            connection,
            is_certain: is_given && is_confirmed,
        })
    }

    async fn connect(
        &self,
        engine: &Inner,
        addresses: &[SocketAddr],
        passage: Passage,
        deadline: Time,
    ) -> Result<(SocketAddr, Connection), OpenError> {
        let paths = paths(engine.options.sources.as_ref(), addresses, passage);
        let attempts = paths.iter().map(|&(address, source)| {
            let attempt = stream(address, source, deadline);
            Box::pin(attempt) as race::Attempt<'_, _, _>
        });
        let (index, stream) = race::first(attempts).await?;
        let (address, source) = paths[index];
        self.source.set(source);
        let hello = engine.hello(passage.number.to_le_bytes().to_vec());
        let guard = engine.guard.as_ref();
        let connected = Connection::over(stream, hello, deadline, guard).await;
        self.known.borrow_mut().rank(address, connected.is_ok());
        let connection = connected.map_err(|error| OpenError::Connect { address, error })?;
        Ok((address, connection))
    }

    /// The addresses to try; the name is asked for if it has none, or if they are in doubt.
    async fn addresses(
        self: &Rc<Self>,
        engine: &Inner,
        deadline: Time,
    ) -> Result<Vec<SocketAddr>, OpenError> {
        let (is_urgent, asks) = {
            let known = self.known.borrow();
            let now = time::now();
            let interval = engine.options.resolve_interval_min;
            let is_due = known.asked.is_none_or(|asked| asked + interval <= now);
            let is_urgent = known.addresses.is_empty();
            let asks = (is_urgent || known.is_doubted) && is_due && !known.is_asking;
            (is_urgent, asks)
        };
        if let Endpoint::Name { host, port } = &self.endpoint
            && asks
        {
            self.ask(engine, host, *port);
        }
        if is_urgent {
            self.answer(deadline).await;
        } else if asks {
            let patience = engine.options.connect_timeout / PATIENCE_PARTS;
            self.answer(time::now() + patience).await;
        }
        let known = self.known.borrow();
        if known.addresses.is_empty() {
            return Err(self.unresolved(&known));
        }
        Ok(known.addresses.clone())
    }

    /// Has the name asked for. Nobody needs to wait for the answer.
    fn ask(self: &Rc<Self>, engine: &Inner, host: &str, port: u16) {
        let mut known = self.known.borrow_mut();
        known.is_asking = true;
        known.asked = Some(time::now());
        drop(known);
        let question = Question(Rc::clone(self));
        let resolver = engine.options.resolver.clone();
        let asking = Rc::clone(&engine.questions).ask(resolver, host.to_owned(), port);
        drop(spawn_local(async move {
            let answer = asking.await;
            question.0.known.borrow_mut().settle(answer);
        }));
    }

    /// Waits until nothing is asked, or until `limit`.
    async fn answer(&self, limit: Time) {
        let mut sleep = time::sleep_until(limit);
        poll_fn(|cx| {
            let mut known = self.known.borrow_mut();
            if !known.is_asking {
                return Poll::Ready(());
            }
            known.waiting.push(cx.waker().clone());
            drop(known);
            Pin::new(&mut sleep).poll(cx)
        })
        .await;
    }

    fn unresolved(&self, known: &Ref<'_, Known>) -> OpenError {
        let failure = known.failure.clone().filter(|_| !known.is_asking);
        let error = failure.unwrap_or_else(|| ResolveError::TimedOut {
            name: self.endpoint.to_string(),
        });
        let endpoint = self.endpoint.clone();
        OpenError::Resolve { endpoint, error }
    }
}

impl Known {
    /// Takes an answer. Addresses that were known stay if none came.
    fn settle(&mut self, answer: Result<Vec<SocketAddr>, ResolveError>) {
        match answer {
            Err(error) => self.failure = Some(error),
            Ok(mut addresses) => {
                addresses.truncate(ADDRESSES_MAX);
                if addresses.is_empty() {
                    return;
                }
                let last = self.addresses.first().copied();
                self.addresses = alternate(addresses);
                if let Some(last) = last.filter(|last| self.addresses.contains(last)) {
                    self.rank(last, !self.is_doubted);
                }
                self.failure = None;
                self.answered = Some(time::now());
            }
        }
    }

    /// Puts an address before all others, or behind them.
    fn rank(&mut self, address: SocketAddr, is_good: bool) {
        let Some(at) = self.addresses.iter().position(|known| *known == address) else {
            return;
        };
        self.addresses.remove(at);
        let at = if is_good { 0 } else { self.addresses.len() };
        self.addresses.insert(at, address);
    }
}

/// From where to where to connect, in the order in which it is tried: to each address from its first
/// source, then from the next, and in the end, and without sources, from where the system's routes say.
fn paths(
    sources: Option<&Sources>,
    addresses: &[SocketAddr],
    passage: Passage,
) -> Vec<(SocketAddr, Option<IpAddr>)> {
    let of = |address: &SocketAddr| {
        let walk = sources.map(|sources| sources.walk(address.ip(), passage.turn));
        let named = walk.unwrap_or_default().into_iter().map(Some);
        let mut walk: Vec<Option<IpAddr>> = named.chain([None]).collect();
        let first = passage.attempt as usize % walk.len();
        walk.rotate_left(first);
        (*address, walk)
    };
    let walks: Vec<_> = addresses.iter().map(of).collect();
    let longest = walks.iter().map(|(_, walk)| walk.len()).max().unwrap_or(0);
    let mut paths = Vec::new();
    for at in 0..longest {
        let next = walks.iter().filter_map(|(address, walk)| {
            let source = walk.get(at)?;
            Some((*address, *source))
        });
        paths.extend(next);
    }
    paths.truncate(PATHS_MAX);
    paths
}

/// Addresses of the two families in turn, each in its order (RFC 8305, section 4): where one family does
/// not work at all, the second attempt is of the other.
fn alternate(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let is_first = addresses.first().map(SocketAddr::is_ipv6);
    let of_first = |address: &SocketAddr| Some(address.is_ipv6()) == is_first;
    let (first, second): (Vec<_>, Vec<_>) = addresses.into_iter().partition(of_first);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut alternating = Vec::new();
    while first.len() + second.len() > 0 {
        alternating.extend(first.next());
        alternating.extend(second.next());
    }
    alternating
}

/// A connection of the system.
pub(super) async fn stream(
    address: SocketAddr,
    source: Option<IpAddr>,
    deadline: Time,
) -> Result<TcpStream, OpenError> {
    let left = deadline.since(time::now());
    let options = ConnectOptions {
        source,
        timeout: Some(left.max(Duration::from_millis(1))),
    };
    let connected = TcpStream::connect_with(address, options).await;
    connected.map_err(|error| {
        if let Some(source) = source {
            tracing::debug!(%address, %source, %error, "a way to a peer");
        }
        let error = ConnectError::from(error);
        OpenError::Connect { address, error }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns() {
        let parse = |texts: &[&str]| -> Vec<SocketAddr> {
            let texts = texts.iter();
            texts
                .map(|text| text.parse().expect("an address"))
                .collect()
        };
        let given = parse(&["[::1]:1", "[::2]:1", "[::3]:1", "1.0.0.1:1", "1.0.0.2:1"]);
        let expected = parse(&["[::1]:1", "1.0.0.1:1", "[::2]:1", "1.0.0.2:1", "[::3]:1"]);
        assert_eq!(alternate(given), expected);
        let passage = Passage {
            number: 0,
            rail: 0,
            turn: 0,
            attempt: 3,
        };
        let systems: Vec<_> = expected.iter().map(|&address| (address, None)).collect();
        assert_eq!(paths(None, &expected, passage), systems);
        let one = parse(&["1.0.0.2:1", "1.0.0.1:1"]);
        assert_eq!(alternate(one.clone()), one);
        assert_eq!(alternate(Vec::new()), []);
    }
}
