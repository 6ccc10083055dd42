//! Asking a coordinator, and watching.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use lunette_auth::AuthFault;
use lunette_cluster_proto::coordination::{
    Answer, Ask, Change, CoordinationFault, KeyRange, Op, OpOutcome, Outcome, WatchFrom,
};
use lunette_cluster_proto::gateway::{self, WatchLine};
use lunette_cluster_proto::http::{self, HttpFault, Part, ResponseReader};
use lunette_cluster_proto::map::ClusterMap;
use lunette_cluster_proto::member::map_key;
use lunette_runtime::time;

use crate::link::{Link, LinkFault, Security};

/// Most endpoints of a coordinator.
pub const ENDPOINTS_MAX: usize = 16;
/// Connections that are kept for the next ask.
const IDLE_MAX: usize = 2;
/// Longest wait for a connection to one endpoint, so that the next one gets its turn.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// Where the coordinator is.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Its endpoints, 1 to [`ENDPOINTS_MAX`]. One is used until it fails, then the next.
    pub endpoints: Vec<SocketAddr>,
    /// For the embedded coordinator, if it authenticates. An etcd is spoken to without.
    pub security: Option<Security>,
    /// After how long a watch whose coordinator answers nothing is given up.
    pub silence_max: Duration,
}

/// A client of a coordinator, of one core. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    shared: Rc<Shared>,
}

struct Shared {
    options: ClientOptions,
    /// The endpoint in use.
    current: Cell<usize>,
    idle: RefCell<Vec<Connection>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({:?})", self.shared.options.endpoints)
    }
}

/// A connection between two answers, or within one.
struct Connection {
    link: Link,
    reader: ResponseReader,
    address: SocketAddr,
}

fn of_link(fault: LinkFault) -> CoordinationFault {
    match fault {
        LinkFault::TimedOut => CoordinationFault::TimedOut,
        // Trying again changes nothing: the secret, or a version, is another.
        LinkFault::Auth(fault @ (AuthFault::WrongSecret | AuthFault::Version { .. })) => {
            CoordinationFault::Refused {
                code: 16,
                message: fault.to_string(),
            }
        }
        fault => CoordinationFault::Unreachable {
            reason: fault.to_string(),
        },
    }
}

fn of_http(fault: HttpFault) -> CoordinationFault {
    CoordinationFault::Malformed {
        reason: fault.to_string(),
    }
}

impl Connection {
    async fn send(&mut self, path: &str, json: &[u8]) -> Result<(), CoordinationFault> {
        let mut out = Vec::new();
        http::append_request(&mut out, &self.address.to_string(), path, json);
        self.link.send(out).await.map_err(of_link)
    }

    async fn next_part(&mut self) -> Result<Part, CoordinationFault> {
        loop {
            if let Some(part) = self.reader.next_part().map_err(of_http)? {
                return Ok(part);
            }
            match self.link.receive().await {
                Ok(bytes) => self.reader.push(&bytes),
                Err(LinkFault::Closed) => {
                    let whole = self.reader.on_eof();
                    if whole.is_err() || self.reader.is_idle() {
                        return Err(of_link(LinkFault::Closed));
                    }
                }
                Err(fault) => return Err(of_link(fault)),
            }
        }
    }

    /// Status and body of an answer; all lines but the first are passed over.
    async fn answer(&mut self) -> Result<(u16, Vec<u8>), CoordinationFault> {
        let Part::Head { status } = self.next_part().await? else {
            unreachable!("an answer begins with its head");
        };
        let mut body = None;
        loop {
            match self.next_part().await? {
                Part::Line(line) => drop(body.get_or_insert(line)),
                Part::End => return Ok((status, body.unwrap_or_default())),
                Part::Head { .. } => unreachable!("an answer ends before the next begins"),
            }
        }
    }
}

impl Client {
    /// A client that has not connected yet.
    ///
    /// # Panics
    /// If there is no endpoint, or there are more than [`ENDPOINTS_MAX`].
    #[must_use]
    pub fn new(options: ClientOptions) -> Self {
        assert!((1..=ENDPOINTS_MAX).contains(&options.endpoints.len()));
        Self {
            shared: Rc::new(Shared {
                options,
                current: Cell::new(0),
                idle: RefCell::default(),
            }),
        }
    }

    /// Asks, for at most `timeout`. Endpoints that cannot be connected to are passed over; what was
    /// sent to one is not sent to another. Dropping the future closes its connection.
    ///
    /// # Errors
    /// [`CoordinationFault`]. After one that [`is_retryable`](CoordinationFault::is_retryable) it may
    /// have been done all the same.
    pub async fn ask(&self, ask: &Ask, timeout: Duration) -> Result<Answer, CoordinationFault> {
        ask.check()?;
        let asked = time::timeout(timeout, self.ask_once(ask, timeout)).await;
        let answer = asked.unwrap_or(Err(CoordinationFault::TimedOut));
        if answer.as_ref().is_err_and(CoordinationFault::is_retryable) {
            self.pass_on();
        }
        answer
    }

    /// The newest map of the cluster with this prefix; `None` where it has had none yet. For those who are no
    /// members: members follow it by a [`Membership`](crate::Membership). Asks for at most `timeout`.
    ///
    /// # Errors
    /// [`CoordinationFault`]: `Malformed` also if what lies there is no map.
    pub async fn map(
        &self,
        prefix: &str,
        timeout: Duration,
    ) -> Result<Option<ClusterMap>, CoordinationFault> {
        let range = KeyRange::one(map_key(prefix));
        let answer = self.ask(&Ask::Op(Op::Range(range)), timeout).await?;
        let Outcome::Op(OpOutcome::Range(found)) = answer.outcome else {
            unreachable!("an answer is of the kind that was asked");
        };
        let map = found.first().map(|pair| ClusterMap::decode(&pair.value));
        map.transpose()
            .map_err(|fault| CoordinationFault::Malformed {
                reason: fault.to_string(),
            })
    }

    async fn ask_once(&self, ask: &Ask, timeout: Duration) -> Result<Answer, CoordinationFault> {
        let idle = self.shared.idle.borrow_mut().pop();
        if let Some(connection) = idle {
            let answer = self.ask_on(connection, ask).await;
            let is_stale = matches!(answer, Err(CoordinationFault::Unreachable { .. }));
            // The coordinator may have closed it long ago, and what only reads can be asked twice.
            if !(is_stale && ask.is_repeatable()) {
                return answer;
            }
            self.shared.idle.borrow_mut().clear();
        }
        let connection = self.connect(timeout).await?;
        self.ask_on(connection, ask).await
    }

    async fn ask_on(
        &self,
        mut connection: Connection,
        ask: &Ask,
    ) -> Result<Answer, CoordinationFault> {
        let (path, json) = gateway::encode(ask);
        connection.send(path, &json).await?;
        let (status, body) = connection.answer().await?;
        if connection.reader.is_idle() && self.shared.idle.borrow().len() < IDLE_MAX {
            self.shared.idle.borrow_mut().push(connection);
        }
        gateway::decode(ask, status, &body)
    }

    /// Begins a watch, within `timeout`.
    ///
    /// # Errors
    /// [`CoordinationFault`]; [`CoordinationFault::Compacted`] if what is wanted is not kept, which
    /// the watch may also tell later.
    pub async fn watch(
        &self,
        from: &WatchFrom,
        timeout: Duration,
    ) -> Result<Watch, CoordinationFault> {
        let begun = time::timeout(timeout, self.watch_once(from, timeout)).await;
        let watch = begun.unwrap_or(Err(CoordinationFault::TimedOut));
        if watch.as_ref().is_err_and(CoordinationFault::is_retryable) {
            self.pass_on();
        }
        watch
    }

    async fn watch_once(
        &self,
        from: &WatchFrom,
        timeout: Duration,
    ) -> Result<Watch, CoordinationFault> {
        let mut connection = self.connect(timeout).await?;
        connection
            .link
            .set_unanswered_max(self.shared.options.silence_max);
        let (path, json) = gateway::encode_watch(from);
        connection.send(path, &json).await?;
        let Part::Head { status } = connection.next_part().await? else {
            unreachable!("an answer begins with its head");
        };
        let mut watch = Watch {
            connection,
            status,
            early: None,
        };
        match watch.next_line().await? {
            WatchLine::Created => {}
            WatchLine::Changes(changes) => watch.early = Some(changes),
        }
        Ok(watch)
    }

    /// A connection to the endpoint in use, or to the next that can be reached.
    async fn connect(&self, timeout: Duration) -> Result<Connection, CoordinationFault> {
        let Shared {
            options, current, ..
        } = &*self.shared;
        let count = options.endpoints.len();
        let each = CONNECT_MAX.min(timeout / u32::try_from(count).expect("few"));
        let mut last = None;
        for _ in 0..count {
            let address = options.endpoints[current.get() % count];
            match Link::connect(address, options.security.as_ref(), each).await {
                Ok(link) => {
                    let reader = ResponseReader::default();
                    return Ok(Connection {
                        link,
                        reader,
                        address,
                    });
                }
                Err(fault) => {
                    tracing::debug!(%address, %fault, "coordinator");
                    last = Some(of_link(fault));
                    current.set(current.get().wrapping_add(1));
                }
            }
        }
        Err(last.expect("there is an endpoint"))
    }

    /// What failed at one endpoint is asked of the next, on a new connection.
    fn pass_on(&self) {
        self.shared.idle.borrow_mut().clear();
        let current = &self.shared.current;
        current.set(current.get().wrapping_add(1));
    }
}

/// A watch. Dropping it closes its connection.
pub struct Watch {
    connection: Connection,
    status: u16,
    /// Changes that came before it was said to be created.
    early: Option<Vec<Change>>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watch({})", self.connection.address)
    }
}

impl Watch {
    /// The next changes, in order, at least one. Dropping the future loses some: begin a new watch
    /// then.
    ///
    /// # Errors
    /// [`CoordinationFault`]; the watch is over. What is not known may have happened meanwhile: read
    /// the keys, and watch from there.
    pub async fn next_changes(&mut self) -> Result<Vec<Change>, CoordinationFault> {
        if let Some(changes) = self.early.take().filter(|changes| !changes.is_empty()) {
            return Ok(changes);
        }
        loop {
            match self.next_line().await? {
                WatchLine::Changes(changes) if !changes.is_empty() => return Ok(changes),
                WatchLine::Changes(_) | WatchLine::Created => {}
            }
        }
    }

    async fn next_line(&mut self) -> Result<WatchLine, CoordinationFault> {
        match self.connection.next_part().await? {
            Part::Line(line) => gateway::decode_watch_line(self.status, &line),
            Part::End | Part::Head { .. } => Err(of_link(LinkFault::Closed)),
        }
    }
}
