//! Connections of those who look: one request each, one answer, all of it bounded in time.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use futures_channel::oneshot;
use lunette::kvstore::{CoreReport, NodeWatch};
use lunette::runtime::net::{TcpListener, TcpStream};
use lunette::runtime::{OpError, Scope, time};
use thiserror::Error;

use super::http::{self, HEAD_BYTES_MAX, Kind, Page};
use super::{Subject, exposition, health};

/// Most connections at a time; further ones are closed at once.
const CONNECTIONS_MAX: usize = 16;
/// How long the head of a request may take.
const HEAD_MAX: Duration = Duration::from_secs(5);
/// How long the node's cores may take to say what they have counted.
const REPORT_MAX: Duration = Duration::from_secs(2);
/// How long an answer may take to be taken.
const SEND_MAX: Duration = Duration::from_secs(5);
/// Pause after the system refused a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

struct Observed {
    subject: Subject,
    watch: NodeWatch,
}

/// Answers until whoever holds the other end of `stopped` is gone.
pub(super) async fn serve(
    listener: TcpListener,
    subject: Subject,
    watch: NodeWatch,
    mut stopped: oneshot::Receiver<()>,
) {
    let observed = Rc::new(Observed { subject, watch });
    let connections = Scope::new();
    while let Some(accepted) = next(&listener, &mut stopped).await {
        match accepted {
            Err(error) => {
                tracing::warn!(%error, "accept");
                time::sleep(ACCEPT_PAUSE).await;
            }
            Ok(stream) if connections.len() >= CONNECTIONS_MAX => drop(stream),
            Ok(stream) => {
                let observed = Rc::clone(&observed);
                let serving = async move {
                    if let Err(why) = serve_connection(&stream, &observed).await {
                        tracing::debug!(%why, "who looked has no answer");
                    }
                    stream.shutdown();
                };
                if let Err(error) = connections.spawn(serving) {
                    tracing::warn!(%error, "a connection is closed at once");
                }
            }
        }
    }
}

/// The next connection; none once the server is stopped.
async fn next(
    listener: &TcpListener,
    stopped: &mut oneshot::Receiver<()>,
) -> Option<Result<TcpStream, OpError>> {
    let mut accept = pin!(listener.accept());
    poll_fn(|cx| {
        if Pin::new(&mut *stopped).poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        accept.as_mut().poll(cx).map(Some)
    })
    .await
}

/// Why a connection had no answer.
#[derive(Debug, Error)]
enum Unserved {
    #[error("it was too slow")]
    TooSlow,
    #[error(transparent)]
    Io(OpError),
    #[error("it closed before it had asked")]
    Closed,
}

async fn serve_connection(stream: &TcpStream, observed: &Observed) -> Result<(), Unserved> {
    let request = time::timeout(HEAD_MAX, read_head(stream)).await;
    let answer = match request.map_err(|_elapsed| Unserved::TooSlow)?? {
        Err(fault) => http::refusal(fault),
        Ok(request) => {
            let (kind, text) = observed.page(request.page).await;
            http::answer(kind, &text, request.is_head_only)
        }
    };
    let len = answer.len();
    let sent = time::timeout(SEND_MAX, stream.send_all(answer, 0, len)).await;
    let (sent, _answer) = sent.map_err(|_elapsed| Unserved::TooSlow)?;
    sent.map_err(Unserved::Io)
}

async fn read_head(stream: &TcpStream) -> Result<Result<http::Request, http::Fault>, Unserved> {
    let mut head = vec![0; HEAD_BYTES_MAX];
    let mut len = 0;
    loop {
        let (received, back) = stream.recv(head, len, HEAD_BYTES_MAX - len).await;
        head = back;
        match received.map_err(Unserved::Io)? {
            0 => return Err(Unserved::Closed),
            count => len += count,
        }
        if let Some(request) = http::parse(&head[..len]).transpose() {
            return Ok(request);
        }
    }
}

impl Observed {
    async fn page(&self, page: Page) -> (Kind, String) {
        let reports = self.reports().await;
        match page {
            Page::Health => {
                let health = health::health(self.subject, &reports);
                let kind = Kind {
                    status: if health.is_serving { 200 } else { 503 },
                    media_type: "application/json",
                };
                (kind, format!("{}\n", health.object))
            }
            Page::Metrics => match reports {
                Ok(reports) => {
                    let kind = Kind {
                        status: 200,
                        media_type: "text/plain; version=0.0.4; charset=utf-8",
                    };
                    (kind, exposition::text(self.subject, &reports))
                }
                Err(why) => {
                    let kind = Kind {
                        status: 503,
                        media_type: "text/plain; charset=utf-8",
                    };
                    (kind, format!("{why}\n"))
                }
            },
        }
    }

    async fn reports(&self) -> Result<Vec<CoreReport>, String> {
        match time::timeout(REPORT_MAX, self.watch.report()).await {
            Ok(Ok(reports)) => Ok(reports),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_elapsed) => Err("a core does not answer".to_owned()),
        }
    }
}
