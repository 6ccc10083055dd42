//! Where the requests of a replay come from.

use std::fs::File;
use std::io::BufReader;

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
            let name = path.display().to_string();
            let file = File::open(path).map_err(|error| Failure::file(&name, error))?;
            let reader = TraceReader::new(BufReader::new(file));
            (name, Requests::File(reader))
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
