//! What is logged, and how: events with named fields, to standard error.

use std::io::{self, IsTerminal};

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// What is logged if nobody says otherwise.
const DEFAULT: &str = "warn";

/// How a process that stays logs.
#[derive(Args, Debug)]
pub(crate) struct LogArguments {
    /// What to log to standard error: error, warn, info, debug or trace, or by part of the program,
    /// like warn,lunette_kvstore=debug. Default: warn.
    #[arg(long, value_name = "LEVEL", env = "LUNETTE_LOG", value_parser = parse_filter)]
    log: Option<String>,
    /// Lines for people, or one JSON object a line.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

fn parse_filter(text: &str) -> Result<String, String> {
    match EnvFilter::try_new(text) {
        Ok(_filter) => Ok(text.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Begins to log. Commands that end by themselves log as the environment says.
pub(crate) fn begin(arguments: Option<&LogArguments>) {
    let filter = match arguments.and_then(|arguments| arguments.log.as_deref()) {
        Some(filter) => EnvFilter::new(filter),
        None => {
            let filter = EnvFilter::try_from_env("LUNETTE_LOG");
            filter.unwrap_or_else(|_unset| EnvFilter::new(DEFAULT))
        }
    };
    let logging = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    match arguments.map(|arguments| arguments.log_format) {
        Some(LogFormat::Json) => logging
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .init(),
        Some(LogFormat::Text) | None => logging.with_ansi(io::stderr().is_terminal()).init(),
    }
}
