//! How a served disk can be reached by each of its ports.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use clap::ValueEnum;
use lunette_nvmeof::Server;
use lunette_nvmeof::proto::log_page::AnaState;

use super::failure::{NvmeFailure, Outcome};

/// The group of the only disk.
pub(super) const GROUP: u32 = 1;

/// A state, as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum StateChoice {
    /// The best way.
    Optimized,
    /// A way.
    NonOptimized,
    /// No way for now.
    Inaccessible,
    /// No way any more.
    PersistentLoss,
    /// Between two of the others.
    Change,
}

impl StateChoice {
    const fn state(self) -> AnaState {
        match self {
            Self::Optimized => AnaState::Optimized,
            Self::NonOptimized => AnaState::NonOptimized,
            Self::Inaccessible => AnaState::Inaccessible,
            Self::PersistentLoss => AnaState::PersistentLoss,
            Self::Change => AnaState::Change,
        }
    }
}

/// Sets the states of the ports in their order; what has none stays as it is.
pub(super) fn set(server: &Server, states: &[StateChoice]) {
    for (port_id, state) in (1..).zip(states) {
        server.set_ana_state(port_id, GROUP, state.state());
    }
}

/// Sets the states that a file says, whole or not at all: lines of an address that is listened on
/// and a state. Blank lines and those that begin with `#` say nothing.
pub(super) fn set_by_file(server: &Server, path: &Path, addresses: &[SocketAddr]) -> Outcome<()> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path).map_err(|error| NvmeFailure::file(&name, error))?;
    for (port_id, state) in states_of(&name, &text, addresses)? {
        server.set_ana_state(port_id, GROUP, state);
    }
    Ok(())
}

fn states_of(name: &str, text: &str, addresses: &[SocketAddr]) -> Outcome<Vec<(u16, AnaState)>> {
    let lines = (1..).zip(text.lines());
    let said = lines.filter(|(_, line)| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('#')
    });
    let states = said.map(|(number, line)| {
        let parsed = state_of(line, addresses);
        parsed.ok_or_else(|| NvmeFailure::States {
            name: name.to_owned(),
            line: number,
        })
    });
    states.collect()
}

fn state_of(line: &str, addresses: &[SocketAddr]) -> Option<(u16, AnaState)> {
    let mut words = line.split_whitespace();
    let address: SocketAddr = words.next()?.parse().ok()?;
    let state = StateChoice::from_str(words.next()?, false).ok()?;
    if words.next().is_some() {
        return None;
    }
    let ports = (1..).zip(addresses);
    let found = ports.into_iter().find(|(_, known)| **known == address);
    found.map(|(port_id, _)| (port_id, state.state()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_states_by_address() {
        let addresses = ["127.0.0.1:1", "[::1]:2"].map(|at| at.parse().expect("an address"));
        let of = |text: &str| {
            let states = states_of("f", text, &addresses);
            states.map_err(|failure| failure.to_string())
        };
        let text = "# ports\n\n[::1]:2 non-optimized\n  127.0.0.1:1   change \n";
        let expected = vec![(2, AnaState::NonOptimized), (1, AnaState::Change)];
        assert_eq!(of(text), Ok(expected));
        for wrong in [
            "127.0.0.1:1",
            "127.0.0.1:2 change",
            "127.0.0.1:1 changed",
            "127.0.0.1:1 change 1",
            "disk change",
        ] {
            let refused = of(&format!("\n{wrong}\n")).expect_err(wrong);
            assert!(refused.starts_with("f, line 2"), "{refused}");
        }
    }
}
