//! Where the requests of a replay come from.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use lunette::trace::Request;
use lunette::trace::format::TraceReader;
use lunette::trace::generator::Generator;

use super::super::arguments::ReplayArguments;
use super::super::failure::Failure;

/// The requests of a trace file or of the generator, as many as were asked for.
#[derive(Debug)]
pub(super) struct Source {
    name: String,
    left: u64,
    requests: Requests,
}

#[derive(Debug)]
enum Requests {
    File(TraceReader<BufReader<File>>),
    Generated(Generator),
}

impl Source {
    pub(super) fn open(arguments: &ReplayArguments) -> Result<Self, Failure> {
        let (name, requests) = if let Some(path) = &arguments.trace {
            open_trace(path)?
        } else {
            let name = format!("generated, seed {}", arguments.seed);
            (name, Requests::Generated(Generator::new(arguments.seed)))
        };
        Ok(Self {
            name,
            left: arguments.requests_max(),
            requests,
        })
    }

    /// What to call it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

/// The requests of a trace file, `requests_max` at most.
pub(in super::super) fn read_trace(
    path: &Path,
    requests_max: u64,
) -> Result<Vec<Request>, Failure> {
    let (name, requests) = open_trace(path)?;
    let left = requests_max;
    Source {
        name,
        left,
        requests,
    }
    .collect()
}

fn open_trace(path: &Path) -> Result<(String, Requests), Failure> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| Failure::file(&name, error))?;
    let reader = TraceReader::new(BufReader::new(file));
    Ok((name, Requests::File(reader)))
}

impl Iterator for Source {
    type Item = Result<Request, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        match &mut self.requests {
            Requests::Generated(generator) => generator.next().map(Ok),
            Requests::File(reader) => reader.next().map(|request| {
                request.map_err(|error| Failure::Trace {
                    name: self.name.clone(),
                    error,
                })
            }),
        }
    }
}
