//! Asking a metadata server of others, redis or HTTP; and a model of one behind a listener.

use std::cell::RefCell;

use std::net::SocketAddr;

use std::rc::Rc;

use std::time::Duration;

use lunette_cluster_proto::metadata::{
    Answer, AnswerReader, Answered, Ask, AskReader, Dialect, MetadataFault, Records, append_answer,
};
use lunette_runtime::net::{TcpListener, TcpStream};
use lunette_runtime::{Scope, time};

/// Longest receive, in bytes.
const RECEIVE_BYTES_MAX: usize = 16 * 1024;
/// Most connections to a model; further ones are closed at once.
const CONNECTIONS_MAX: usize = 256;
/// Pause after the system refused a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// A client of a metadata server, of one core.
#[derive(Debug)]
pub struct MetadataClient {
    address: SocketAddr,
    dialect: Dialect,
    timeout: Duration,
    /// A connection that was left in good order.
    idle: RefCell<Option<Connection>>,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    reader: AnswerReader,
}

fn unreachable(reason: impl ToString) -> MetadataFault {
    let reason = reason.to_string();
    MetadataFault::Unreachable { reason }
}

impl MetadataClient {
    /// A client that has not connected yet. Each call takes `timeout` at most.
    #[must_use]
    pub const fn new(address: SocketAddr, dialect: Dialect, timeout: Duration) -> Self {
        Self {
            address,
            dialect,
            timeout,
            idle: RefCell::new(None),
        }
    }

    /// The value of a key, if there is one. Dropping the future closes its connection.
    ///
    /// # Errors
    /// [`MetadataFault`]; it may be asked again.
    pub async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, MetadataFault> {
        let key = key.to_owned();
        match self.ask(&Ask::Get { key }).await? {
            Answer::Found(value) => Ok(Some(value)),
            Answer::Absent | Answer::Done => Ok(None),
        }
    }

    /// Sets a key. Dropping the future closes its connection, and the key is set or not.
    ///
    /// # Errors
    /// [`MetadataFault`]. After one that [`is_retryable`](MetadataFault::is_retryable) it is set or not.
    pub async fn put(&self, key: &str, value: &[u8]) -> Result<(), MetadataFault> {
        let (key, value) = (key.to_owned(), value.to_vec());
        self.ask(&Ask::Put { key, value }).await.map(drop)
    }

    /// Removes a key, if it is there. Not every server tells whether it was.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub async fn delete(&self, key: &str) -> Result<(), MetadataFault> {
        let key = key.to_owned();
        self.ask(&Ask::Delete { key }).await.map(drop)
    }

    async fn ask(&self, ask: &Ask) -> Answered {
        ask.check()?;
        let asked = time::timeout(self.timeout, self.ask_once(ask)).await;
        asked.unwrap_or(Err(MetadataFault::TimedOut))
    }

    async fn ask_once(&self, ask: &Ask) -> Answered {
        let idle = self.idle.borrow_mut().take();
        if let Some(connection) = idle {
            let answered = self.ask_on(connection, ask).await;
            let is_stale = matches!(answered, Err(MetadataFault::Unreachable { .. }));
            // The server may have closed it long ago. What only reads can be asked twice.
            if !(is_stale && matches!(ask, Ask::Get { .. })) {
                return answered;
            }
        }
        let stream = TcpStream::connect_timeout(self.address, self.timeout).await;
        let connection = Connection {
            stream: stream.map_err(unreachable)?,
            reader: AnswerReader::new(self.dialect),
        };
        self.ask_on(connection, ask).await
    }

    async fn ask_on(&self, mut connection: Connection, ask: &Ask) -> Answered {
        let mut out = Vec::new();
        ask.append(self.dialect, &self.address.to_string(), &mut out);
        let len = out.len();
        let (sent, _out) = connection.stream.send_all(out, 0, len).await;
        sent.map_err(unreachable)?;
        loop {
            if let Some(answered) = connection.reader.next_answer(ask)? {
                self.idle.replace(Some(connection));
                return answered;
            }
            let bytes = receive(&connection.stream).await?;
            connection.reader.push(&bytes);
        }
    }
}

/// At least one byte.
async fn receive(stream: &TcpStream) -> Result<Vec<u8>, MetadataFault> {
    let buffer = vec![0; RECEIVE_BYTES_MAX];
    let (received, mut buffer) = stream.recv(buffer, 0, RECEIVE_BYTES_MAX).await;
    match received.map_err(unreachable)? {
        0 => Err(unreachable("the server closed")),
        count => {
            buffer.truncate(count);
            Ok(buffer)
        }
    }
}

/// Serves a model's records to `listener`, for ever: what stands in for redis, or for a metadata server
/// behind HTTP, in trials and in worlds. Dropping the future closes every connection.
pub async fn serve_metadata(listener: TcpListener, records: Rc<RefCell<Records>>) {
    let connections = Scope::new();
    loop {
        let accepted = listener.accept().await;
        match accepted {
            Err(error) => {
                tracing::warn!(%error, "accept");
                time::sleep(ACCEPT_PAUSE).await;
            }
            Ok(stream) if connections.len() >= CONNECTIONS_MAX => drop(stream),
            Ok(stream) => {
                let records = Rc::clone(&records);
                let spawned = connections.spawn(async move {
                    let ended = serve_connection(stream, &records).await;
                    tracing::trace!(?ended, "a metadata connection");
                });
                if let Err(error) = spawned {
                    tracing::warn!(%error, "a connection is closed at once");
                }
            }
        }
    }
}

async fn serve_connection(
    stream: TcpStream,
    records: &RefCell<Records>,
) -> Result<(), MetadataFault> {
    let dialect = records.borrow().dialect();
    let mut reader = AskReader::new(dialect);
    loop {
        let mut out = Vec::new();
        let next = loop {
            match reader.next_ask() {
                Ok(None) => break Ok(()),
                Ok(Some(Ok(ask))) => {
                    let answered = records.borrow_mut().handle(ask.clone());
                    append_answer(dialect, Some(&ask), &answered, &mut out);
                }
                Ok(Some(Err(refused))) => {
                    append_answer(dialect, None, &Err(refused), &mut out);
                }
                Err(fault) => {
                    append_answer(dialect, None, &Err(fault.clone()), &mut out);
                    break Err(fault);
                }
            }
        };
        let len = out.len();
        stream.send_all(out, 0, len).await.0.map_err(unreachable)?;
        next?;
        reader.push(&receive(&stream).await?);
    }
}
