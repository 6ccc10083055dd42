//! What an engine of several cores says of them.
//!
//! ```text
//!   greeting  core u16, cores u16        in the acceptor's hello; an engine of one core says nothing
//!   ports     count u16, port u16 each   the answer to `siblings`: of the listener that was asked, by core
//! ```
//!
//! All fields are little-endian. An engine that knows nothing of this reads no greeting, asks nothing, and
//! stays with the core that it has reached.

use lunette_runtime_core::codec::{Reader, Writer};
use lunette_runtime_core::limits::CORES_MAX;

use super::message::{BodyFault, finish};

/// Which core of an engine answers, and of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// This core, less than `cores`.
    pub core: u16,
    /// How many there are: at least two.
    pub cores: u16,
}

impl Greeting {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Writer::new(out).u16(self.core).u16(self.cores);
    }

    /// Reads a whole greeting.
    ///
    /// # Errors
    /// [`BodyFault`].
    pub fn decode(greeting: &[u8]) -> Result<Self, BodyFault> {
        let mut reader = Reader::new(greeting);
        let (core, cores) = (reader.u16()?, reader.u16()?);
        finish(&reader)?;
        if core >= cores || !(2..=CORES_MAX).contains(&usize::from(cores)) {
            return Err(BodyFault::OutOfRange);
        }
        Ok(Self { core, cores })
    }
}

/// Appends the ports of a listener, by core; 0 for a core that does not listen.
///
/// # Panics
/// If there are more than there can be cores.
pub fn write_ports(out: &mut Vec<u8>, ports: &[u16]) {
    assert!(ports.len() <= CORES_MAX, "a port per core");
    let mut writer = Writer::new(out);
    writer.u16(u16::try_from(ports.len()).expect("cores are bounded"));
    for &port in ports {
        writer.u16(port);
    }
}

/// Reads what [`write_ports`] wrote, as a whole body: at most [`CORES_MAX`].
///
/// # Errors
/// [`BodyFault`].
pub fn read_ports(body: &[u8]) -> Result<Vec<u16>, BodyFault> {
    let mut reader = Reader::new(body);
    let count = usize::from(reader.u16()?);
    if count > CORES_MAX {
        return Err(BodyFault::OutOfRange);
    }
    let ports = reader.bytes(count * size_of::<u16>())?;
    finish(&reader)?;
    let (ports, _) = ports.as_chunks();
    Ok(ports.iter().map(|&port| u16::from_le_bytes(port)).collect())
}

/// The core that somebody stays with: which of his cores he asks from, and by which of his rails, spread
/// over the cores of the other side whatever their number. `seed` is the asker's, so that many askers of one
/// core each are spread too.
///
/// # Panics
/// If there is no core.
#[must_use]
pub fn home(seed: u64, asking_core: u16, rail: u16, cores: u16) -> u16 {
    let cores = u64::from(cores);
    assert!(cores > 0, "somebody answers");
    let at = seed % cores + u64::from(asking_core) + u64::from(rail);
    u16::try_from(at % cores).expect("less than there are cores")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_say_which_of_how_many() {
        let said = |core, cores| {
            let mut bytes = Vec::new();
            Greeting { core, cores }.encode(&mut bytes);
            Greeting::decode(&bytes)
        };
        let most = u16::try_from(CORES_MAX).expect("few");
        for (core, cores) in [(0, 2), (1, 2), (most - 1, most)] {
            assert_eq!(said(core, cores), Ok(Greeting { core, cores }));
        }
        for (core, cores) in [(0, 0), (0, 1), (2, 2), (0, most + 1)] {
            assert_eq!(said(core, cores), Err(BodyFault::OutOfRange));
        }
        assert!(matches!(
            Greeting::decode(&[0; 5]),
            Err(BodyFault::OutOfRange | BodyFault::Trailing(1))
        ));
        assert!(Greeting::decode(&[]).is_err(), "an engine of one core");
    }

    #[test]
    fn ports_are_read_as_they_were_written_up_to_the_bound() {
        for count in [0, 1, CORES_MAX] {
            let ports: Vec<u16> = (7600..).take(count).collect();
            let mut body = Vec::new();
            write_ports(&mut body, &ports);
            assert_eq!(read_ports(&body), Ok(ports));
            body.push(0);
            assert_eq!(read_ports(&body), Err(BodyFault::Trailing(1)));
        }
        let many = u16::try_from(CORES_MAX + 1).expect("few");
        let mut body = many.to_le_bytes().to_vec();
        body.extend(vec![0; 2 * usize::from(many)]);
        assert_eq!(read_ports(&body), Err(BodyFault::OutOfRange));
        assert!(matches!(
            read_ports(&[2, 0, 1, 0]),
            Err(BodyFault::Truncated(_))
        ));
    }

    #[test]
    fn cores_meet_evenly_whatever_their_numbers() {
        for seed in [0, 1, u64::MAX] {
            for asking in 1..=9_u16 {
                for cores in 1..=9_u16 {
                    let mut met = vec![0; usize::from(cores)];
                    for core in 0..asking {
                        met[usize::from(home(seed, core, 0, cores))] += 1;
                    }
                    let (most, least) = (met.iter().max(), met.iter().min());
                    let apart = most.expect("cores") - least.expect("cores");
                    assert!(apart <= 1, "{asking} with {cores}: {met:?}");
                }
            }
        }
    }
}
