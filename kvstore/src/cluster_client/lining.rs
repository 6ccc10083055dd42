//! Connections to homes that this client makes for threads: see [`StoreHandle::look_up`](crate::StoreHandle::look_up).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_kvstore_proto::message::FormatVersion;
use lunette_kvstore_proto::message::directory::AskerId;
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime::entropy;
use lunette_transfer::Line;

use super::ClusterClient;

/// Lines that the threads of one [`StoreHandle`](crate::StoreHandle) have, and of its clones, where nobody says. Homes to which
/// there are none, cores ask.
pub(crate) const LINES_MAX: usize = 64;
/// Longer than a line to a home would be of use that cannot have one.
const NEVER: Duration = Duration::from_secs(24 * 3600);
/// How long a home is likely to be asked until it is known on which host it is.
const MEETING_TAKES: Duration = Duration::from_millis(200);
/// How long a home is left alone that could not be reached.
const UNREACHED_PAUSE: Duration = Duration::from_secs(5);

/// A connection to a home, and what is spoken on it.
pub(crate) struct HomeLine {
    pub(crate) line: Line,
    /// The newest version that both sides speak.
    pub(crate) version: FormatVersion,
    /// What is asked for.
    pub(crate) namespace: NamespaceKind,
    /// Who writes on it.
    pub(crate) asker: AskerId,
    /// The number of its next write.
    pub(crate) next_request: u64,
    /// How long writes may take.
    pub(crate) timeout: Duration,
    /// Whether the home knows requests for many writes, as far as it has said.
    pub(crate) scatters: Arc<AtomicBool>,
}

impl ClusterClient {
    /// A connection by which threads ask a home themselves, where they do well to: not where they see what it has, or soon
    /// will, nor where adapters carry questions. It is tried for as long as any connection.
    ///
    /// # Errors
    /// How long not to try again.
    pub(crate) async fn line(&self, home: Seat) -> Result<Box<HomeLine>, Duration> {
        let asking = &self.asking;
        if asking.adapters.len() > 0 {
            return Err(NEVER);
        }
        if asking.sights.may_see(home) {
            return Err(MEETING_TAKES);
        }
        match asking.seats.line(home).await {
            Ok(Some((line, version))) => Ok(Box::new(HomeLine {
                line,
                version,
                namespace: asking.namespace(),
                asker: AskerId(entropy()),
                next_request: 0,
                timeout: self.timeout,
                scatters: Arc::new(AtomicBool::new(true)),
            })),
            Ok(None) => Err(NEVER),
            Err(fault) => {
                tracing::debug!(?home, %fault, "threads cannot ask a node themselves");
                Err(UNREACHED_PAUSE)
            }
        }
    }

    /// Keeps this client's own connection to a home from being idle; makes one if there is none.
    pub(crate) async fn stay_connected(&self, home: Seat) {
        if let Err(fault) = self.asking.seats.connection(home).await {
            tracing::debug!(?home, %fault, "a node cannot be reached");
        }
    }

    /// How long a connection is kept on which nothing is asked.
    pub(crate) fn idle_timeout(&self) -> Duration {
        self.asking.seats.linking().idle_timeout
    }
}
