//! `lunette top`: nodes as they work, second by second.
//!
//! | file | subject |
//! |---|---|
//! | `sample` | what nodes have counted, and what that is a second |
//! | `view` | the table, and the object |
//! | `screen` | the terminal, as it was afterwards |

mod sample;
mod screen;
mod view;

use std::future::{Future, poll_fn};
use std::io::{self, IsTerminal};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use clap::Args;
use futures_channel::oneshot;
use lunette::runtime::time;

use self::sample::{Sample, Watched};
use self::screen::Screen;
use super::arguments::ClusterArguments;
use super::failure::Failure;
use super::store::{Store, with_store};
use super::{output, serve as serving};

/// Shortest interval.
const INTERVAL_MIN_MS: u64 = 50;
/// How long a node may take to say what it has counted, however short the interval.
const PATIENCE_MIN: Duration = Duration::from_secs(1);

/// Show what nodes do, second by second: objects, memory, hit ratio, requests and bytes per second.
///
/// On a terminal it is one table that changes, until Ctrl-C. Elsewhere each table follows the one before,
/// and with --json each is one object on a line of its own.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lunette top --nodes 127.0.0.1:7400
  lunette top --nodes 127.0.0.1:7400 --interval 5
  lunette top --nodes 127.0.0.1:7400 --once --json    # two looks, a second apart")]
pub(crate) struct TopArguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    interval: Duration,
    /// Look twice, show what happened in between, and end.
    #[arg(long)]
    once: bool,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    let interval = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
    let bounds = Duration::from_millis(INTERVAL_MIN_MS)..=Duration::from_secs(24 * 3600);
    if bounds.contains(&interval) {
        Ok(interval)
    } else {
        Err("an interval is 0.05 seconds to a day".to_owned())
    }
}

pub(super) fn top(arguments: &TopArguments, as_json: bool) -> Result<(), Failure> {
    let (end, ended) = oneshot::channel();
    serving::end_on_signals(move |_why| {
        if end.send(()).is_err() {
            tracing::debug!("it has ended otherwise");
        }
    })
    .map_err(|error| Failure::file("signals", error))?;
    let looking = Looking {
        interval: arguments.interval,
        is_once: arguments.once,
        as_json,
    };
    // A node that is gone is not to hold up what the others do.
    let patience = arguments.interval.max(PATIENCE_MIN);
    with_store(&arguments.cluster.within(patience), move |store| {
        looking.run(store, ended)
    })
}

/// How it is looked.
#[derive(Clone, Copy, Debug)]
struct Looking {
    interval: Duration,
    is_once: bool,
    as_json: bool,
}

impl Looking {
    async fn run(self, store: Store, mut ended: oneshot::Receiver<()>) -> Result<(), Failure> {
        let is_live = !self.as_json && !self.is_once && io::stdout().is_terminal();
        let mut screen = is_live.then(Screen::enter).transpose()?;
        let mut former: Option<Sample> = None;
        loop {
            let Some(sample) = unless(&mut ended, Sample::take(&store)).await else {
                return Ok(());
            };
            let watched = Watched::between(former.as_ref(), &sample);
            match &mut screen {
                Some(screen) => screen.show(&view::table(&watched))?,
                // A first look tells of no second.
                None if former.is_none() => {}
                None if self.as_json => output::line(&view::object(&watched).to_string())?,
                None => output::line(&view::table(&watched))?,
            }
            if self.is_once && former.is_some() {
                let failed = watched.rows.into_iter().find_map(|row| row.stat.err());
                return failed.map_or(Ok(()), |error| Err(error.into()));
            }
            former = Some(sample);
            if unless(&mut ended, time::sleep(self.interval))
                .await
                .is_none()
            {
                return Ok(());
            }
        }
    }
}

/// The output of `future`, unless it is to end before.
async fn unless<F: Future>(ended: &mut oneshot::Receiver<()>, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        if Pin::new(&mut *ended).poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_seconds_within_bounds() {
        assert_eq!(parse_interval("1"), Ok(Duration::from_secs(1)));
        assert_eq!(parse_interval("0.25"), Ok(Duration::from_millis(250)));
        for wrong in ["", "a", "-1", "0", "0.01", "nan", "inf", "1e9"] {
            assert!(parse_interval(wrong).is_err(), "{wrong}");
        }
    }
}
