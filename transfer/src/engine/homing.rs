//! Which core of a peer's engine a rail leads to.
//!
//! Who connects to an engine of several cores reaches one of them, by whatever address it was given, and
//! learns where the others listen. It then goes to the core at which it is at home, so that many askers, and
//! the cores of one, are spread over all of them. A core that does not answer is left out: the next one has
//! the same segments.

use std::net::SocketAddr;

use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::message::Operation;
use lunette_transfer_proto::engine::siblings::{Greeting, home, read_ports};

use super::Inner;
use super::destination::{Destination, Passage, stream};
use super::error::OpenError;
use crate::client::{Attachments, Connection};

/// Siblings that are tried for one connection, on top of the core at which it is at home and of the addresses
/// that were given.
const SIBLINGS_TRIED: usize = 3;

/// The cores behind the addresses of a rail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cores {
    /// Of the session that said so.
    epoch: u64,
    /// By core; 0 for those that do not listen.
    ports: Vec<u16>,
}

impl Cores {
    /// Where to go, in the order in which it is tried: home, as it was given, and the next cores.
    fn ways(&self, given: &[SocketAddr], first: usize) -> Vec<SocketAddr> {
        let count = self.ports.len();
        let ports = (0..=SIBLINGS_TRIED.min(count - 1)).map(|at| self.ports[(first + at) % count]);
        let listening: Vec<u16> = ports.filter(|&port| port > 0).collect();
        let at = |port: u16| given.iter().map(move |to| SocketAddr::new(to.ip(), port));
        let (home, others) = listening.split_at(listening.len().min(1));
        let home = home.iter().flat_map(|&port| at(port));
        let others = others.iter().flat_map(|&port| at(port));
        let mut ways = Vec::new();
        for way in home.chain(given.iter().copied()).chain(others) {
            if !ways.contains(&way) {
                ways.push(way);
            }
        }
        ways
    }
}

impl Destination {
    /// The addresses to connect to, of those that stand for the peer.
    pub(super) fn ways(
        &self,
        engine: &Inner,
        given: &[SocketAddr],
        passage: Passage,
    ) -> Vec<SocketAddr> {
        let cores = self.cores.borrow();
        let Some(cores) = cores.as_ref() else {
            return given.to_vec();
        };
        let home = at_home(engine, passage, cores.ports.len());
        cores.ways(given, home + passage.attempt as usize)
    }

    /// Goes on from the first connection to an engine to the core at which it is at home. If that is not
    /// reached, the first one serves.
    pub(super) async fn go_home(
        &self,
        engine: &Inner,
        reached: (SocketAddr, Connection),
        passage: Passage,
        deadline: Time,
    ) -> (SocketAddr, Connection) {
        let (address, connection) = reached;
        let agreement = connection.agreement();
        let epoch = agreement.session_epoch;
        let Ok(greeting) = Greeting::decode(&agreement.greeting) else {
            *self.cores.borrow_mut() = None;
            return (address, connection);
        };
        if self.knows_cores_of(epoch) {
            return (address, connection);
        }
        let count = usize::from(greeting.cores);
        let ports = ask_for_ports(&connection, deadline).await;
        let Some(ports) = ports.filter(|ports| ports.len() == count) else {
            tracing::debug!(%address, "an engine of several cores does not say where they are");
            return (address, connection);
        };
        let home = at_home(engine, passage, count);
        let port = ports[home];
        *self.cores.borrow_mut() = Some(Cores { epoch, ports });
        if home == usize::from(greeting.core) || port == 0 {
            return (address, connection);
        }
        let there = SocketAddr::new(address.ip(), port);
        match self.connect_to(engine, there, passage, deadline).await {
            Ok(at_home) if at_home.agreement().session_epoch == epoch => {
                connection.close();
                (there, at_home)
            }
            Ok(_) => (address, connection),
            Err(error) => {
                tracing::debug!(%there, %error, "a core of a peer");
                (address, connection)
            }
        }
    }

    fn knows_cores_of(&self, epoch: u64) -> bool {
        let cores = self.cores.borrow();
        cores.as_ref().is_some_and(|cores| cores.epoch == epoch)
    }

    async fn connect_to(
        &self,
        engine: &Inner,
        address: SocketAddr,
        passage: Passage,
        deadline: Time,
    ) -> Result<Connection, OpenError> {
        let stream = stream(address, self.source(), deadline).await?;
        let hello = engine.hello(passage.number.to_le_bytes().to_vec());
        let connected = Connection::over(stream, hello, deadline, engine.guard.as_ref()).await;
        connected.map_err(|error| OpenError::Connect { address, error })
    }
}

/// The core at which a rail of this core is at home.
fn at_home(engine: &Inner, passage: Passage, cores: usize) -> usize {
    let number = |count: usize| u16::try_from(count).expect("cores and rails are bounded");
    let (core, rail) = (number(engine.alive.core()), number(passage.rail));
    usize::from(home(engine.epoch, core, rail, number(cores)))
}

async fn ask_for_ports(connection: &Connection, deadline: Time) -> Option<Vec<u16>> {
    let left = deadline.since(time::now());
    let op = Operation::Siblings.to_wire();
    let asked = connection.call(op, |_| {}, Attachments::default(), left);
    let reply = asked.await.ok().filter(|reply| reply.status == 0)?;
    read_ports(&reply.body).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_comes_first_then_what_was_given_then_the_next_cores() {
        let address = |text: &str| -> SocketAddr { text.parse().expect("an address") };
        let cores = Cores {
            epoch: 1,
            ports: vec![10, 11, 0, 13, 14],
        };
        let given = [address("1.0.0.1:10")];
        let texts = |first| -> Vec<String> {
            let ways = cores.ways(&given, first);
            ways.iter().map(|way| way.port().to_string()).collect()
        };
        assert_eq!(texts(0), ["10", "11", "13"], "one of them does not listen");
        assert_eq!(texts(3), ["13", "10", "14", "11"]);
        assert_eq!(texts(2), ["13", "10", "14"], "nor at home");
        assert_eq!(texts(9), ["14", "10", "11"], "round and round");
        // Behind another port than its own, each host's cores in turn.
        let given = [address("1.0.0.1:99"), address("[::1]:99")];
        let ways = cores.ways(&given, 4);
        let expected = [
            "1.0.0.1:14",
            "[::1]:14",
            "1.0.0.1:99",
            "[::1]:99",
            "1.0.0.1:10",
            "[::1]:10",
            "1.0.0.1:11",
            "[::1]:11",
        ];
        assert_eq!(ways, expected.map(address));
    }
}
