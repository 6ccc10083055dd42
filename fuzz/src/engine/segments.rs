//! The table of segments beside a plain list of everything that was ever registered.
//!
//! Each operation of the script is a code and its arguments. A number is one byte; from 0xE0 on a
//! second one says which of the largest numbers it is, or which power of two is exceeded.

use lunette_runtime_core::codec::{Reader, Truncated};
use lunette_transfer_proto::engine::segment::{
    Access, AccessRefusal, RegisterRefusal, Registration, SEGMENT_NAME_BYTES_MAX, SegmentId,
    Segments, Way,
};

use super::message::Reached;

/// Most operations of a script, so that one run stays short.
const OPS_MAX: usize = 256;

/// A segment as the list has it.
struct Listed {
    id: SegmentId,
    name: Option<Vec<u8>>,
    start: Option<u64>,
    len_bytes: u64,
    access: Access,
    is_registered: bool,
}

impl Listed {
    /// Whether addresses from `start` to before `end` have any in common with it.
    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.start
            .is_some_and(|own| own < end && start < own + self.len_bytes)
    }
}

/// Runs a script on a table, and asserts that it does as a list would.
pub(super) fn drive(data: &[u8], reached: &mut Reached) {
    let mut script = Reader::new(data);
    let mut run = Run {
        table: Segments::default(),
        led: Segments::default(),
        list: Vec::new(),
        reached,
    };
    for _ in 0..OPS_MAX {
        if run.step(&mut script).is_err() {
            break;
        }
        let count = run.registered().count();
        assert_eq!((run.table.len(), run.table.is_empty()), (count, count == 0));
        assert_eq!(run.led.len(), count);
    }
}

struct Run<'a> {
    /// Each segment leads to its place in the list.
    table: Segments<usize>,
    /// Takes its ids from the first.
    led: Segments<usize>,
    list: Vec<Listed>,
    reached: &'a mut Reached,
}

fn number(script: &mut Reader<'_>) -> Result<u64, Truncated> {
    let first = script.u8()?;
    Ok(match first {
        0..0xE0 => u64::from(first),
        0xE0..0xF0 => u64::MAX - u64::from(script.u8()?),
        _ => (1 << (first & 15) << 32) + u64::from(script.u8()?),
    })
}

fn name(script: &mut Reader<'_>) -> Result<Vec<u8>, Truncated> {
    let found = script.u8()?;
    // The longest that there may be, and one more.
    Ok(match found {
        0xFE => vec![found; SEGMENT_NAME_BYTES_MAX],
        0xFF => vec![found; SEGMENT_NAME_BYTES_MAX + 1],
        _ => vec![found; usize::from(found % 4)],
    })
}

impl Run<'_> {
    fn registered(&self) -> impl Iterator<Item = (usize, &Listed)> {
        let all = self.list.iter().enumerate();
        all.filter(|(_, listed)| listed.is_registered)
    }

    fn step(&mut self, script: &mut Reader<'_>) -> Result<(), Truncated> {
        match script.u8()? % 6 {
            0 => self.register(script),
            1 => self.unregister(script),
            2 => self.reach(script),
            3 => self.reach_unknown(script),
            4 => self.by_name(script),
            _ => self.by_address(script),
        }
    }

    fn register(&mut self, script: &mut Reader<'_>) -> Result<(), Truncated> {
        let flags = script.u8()?;
        let access = [Access::Read, Access::Write, Access::ReadWrite][usize::from(flags % 3)];
        let name = (flags & 0x10 != 0).then(|| name(script)).transpose()?;
        let start = (flags & 0x20 != 0).then(|| number(script)).transpose()?;
        let len_bytes = number(script)?;
        let what = Registration {
            name: name.as_deref(),
            start,
            len_bytes,
            access,
        };
        let place = self.list.len();
        match self.table.register(&what, place) {
            Ok(id) => {
                assert!(self.may_register(&what));
                let is_new = self.list.iter().all(|listed| listed.id != id);
                assert!(is_new, "an id is never used again");
                assert_eq!(SegmentId::from_wire(id.to_wire()), id);
                self.led.adopt(id, &what, place);
                self.list.push(Listed {
                    id,
                    name,
                    start,
                    len_bytes,
                    access,
                    is_registered: true,
                });
                self.reached.registered += 1;
            }
            Err((refusal, memory)) => {
                assert_eq!(memory, place, "the memory comes back");
                self.is_true(&refusal, &what);
                self.reached.refused += 1;
            }
        }
        Ok(())
    }

    fn may_register(&self, what: &Registration<'_>) -> bool {
        let end = what.start.unwrap_or(0).checked_add(what.len_bytes);
        let fits = |name: &[u8]| (1..=SEGMENT_NAME_BYTES_MAX).contains(&name.len());
        let is_taken = |name: &[u8]| {
            self.registered()
                .any(|(_, listed)| listed.name.as_deref() == Some(name))
        };
        let is_free = |start: u64, end: u64| {
            self.registered()
                .all(|(_, listed)| !listed.overlaps(start, end))
        };
        what.len_bytes > 0
            && what.name.is_none_or(|name| fits(name) && !is_taken(name))
            && end.is_some_and(|end| what.start.is_none_or(|start| is_free(start, end)))
    }

    /// Asserts that a refusal says the truth.
    fn is_true(&self, refusal: &RegisterRefusal, what: &Registration<'_>) {
        let held = |id: SegmentId| {
            let mut found = self.registered().filter(|(_, listed)| listed.id == id);
            found.next().expect("the holder is registered").1
        };
        match *refusal {
            RegisterRefusal::Full => unreachable!("a script is shorter than the table"),
            RegisterRefusal::OfOneCore => unreachable!("a table knows nothing of cores"),
            RegisterRefusal::NameTaken { holder } => {
                assert_eq!(held(holder).name.as_deref(), what.name);
            }
            RegisterRefusal::BadName { len_bytes } => {
                assert_eq!(Some(len_bytes), what.name.map(<[u8]>::len));
                assert!(!(1..=SEGMENT_NAME_BYTES_MAX).contains(&len_bytes));
            }
            RegisterRefusal::BadRange { start, len_bytes } => {
                assert!(len_bytes == 0 || start.checked_add(len_bytes).is_none());
            }
            RegisterRefusal::Overlaps { holder } => {
                let start = what.start.expect("what has no address overlaps nothing");
                assert!(held(holder).overlaps(start, start + what.len_bytes));
            }
        }
    }

    /// One of all that were ever registered.
    fn any(&self, script: &mut Reader<'_>) -> Result<Option<usize>, Truncated> {
        let chosen = usize::from(script.u8()?);
        Ok(chosen.checked_rem(self.list.len()))
    }

    fn unregister(&mut self, script: &mut Reader<'_>) -> Result<(), Truncated> {
        if let Some(place) = self.any(script)? {
            let listed = &mut self.list[place];
            let gone = self.table.unregister(listed.id);
            let led = self.led.unregister(listed.id).map(|gone| gone.memory);
            let was_registered = std::mem::replace(&mut listed.is_registered, false);
            assert_eq!(led, was_registered.then_some(place));
            assert_eq!(
                gone.map(|gone| gone.memory),
                was_registered.then_some(place)
            );
            assert!(self.table.get(self.list[place].id).is_none());
            self.reached.unregistered += u32::from(was_registered);
        }
        Ok(())
    }

    fn reach(&mut self, script: &mut Reader<'_>) -> Result<(), Truncated> {
        let place = self.any(script)?;
        let id = place.map_or(SegmentId::from_wire(0), |place| self.list[place].id);
        self.check_reach(id, script)
    }

    fn reach_unknown(&mut self, script: &mut Reader<'_>) -> Result<(), Truncated> {
        // Generations and indices are small, so that some of these are ids.
        let (generation, index) = (number(script)?, number(script)?);
        self.check_reach(SegmentId::from_wire(generation << 32 | index), script)
    }

    fn check_reach(&mut self, id: SegmentId, script: &mut Reader<'_>) -> Result<(), Truncated> {
        let way = [Way::Read, Way::Write][usize::from(script.u8()? % 2)];
        let (offset, len) = (number(script)?, number(script)?);
        let reached = self.table.reach(id, way, offset, len);
        let reached = reached.map(|segment| segment.memory);
        let expected = match self.registered().find(|(_, listed)| listed.id == id) {
            None => Err(AccessRefusal::Stale),
            Some((_, listed)) if !listed.access.allows(way) => Err(AccessRefusal::Forbidden),
            Some((place, listed)) => {
                let end = u128::from(offset) + u128::from(len);
                let fits = end <= u128::from(listed.len_bytes);
                fits.then_some(place).ok_or(AccessRefusal::OutOfRange)
            }
        };
        assert_eq!(reached, expected);
        match reached {
            Ok(_) => self.reached.allowed += 1,
            Err(AccessRefusal::Stale) => self.reached.stale += 1,
            Err(AccessRefusal::Forbidden) => self.reached.forbidden += 1,
            Err(AccessRefusal::OutOfRange) => self.reached.out_of_range += 1,
        }
        Ok(())
    }

    fn by_name(&mut self, script: &mut Reader<'_>) -> Result<(), Truncated> {
        let name = name(script)?;
        let found = self.table.by_name(&name);
        let led = self.led.by_name(&name).map(|(id, _)| id);
        assert_eq!(led, found.map(|(id, _)| id));
        let found = found.map(|(id, segment)| (id, segment.memory));
        let expected = self
            .registered()
            .find(|(_, listed)| listed.name.as_ref() == Some(&name));
        assert_eq!(found, expected.map(|(place, listed)| (listed.id, place)));
        self.reached.found_by_name += u32::from(found.is_some());
        Ok(())
    }

    fn by_address(&mut self, script: &mut Reader<'_>) -> Result<(), Truncated> {
        let (start, len) = (number(script)?, number(script)?);
        let found = self.table.by_address(start, len);
        assert_eq!(self.led.by_address(start, len), found);
        let holds = |listed: &Listed| {
            let own = u128::from(listed.start?);
            let (first, end) = (u128::from(start), u128::from(start) + u128::from(len));
            let is_inside = own <= first && end <= own + u128::from(listed.len_bytes);
            is_inside.then(|| (listed.id, start - listed.start.expect("it has one")))
        };
        if let Some(found) = found {
            let is_true = self
                .registered()
                .any(|(_, listed)| holds(listed) == Some(found));
            assert!(is_true, "{found:?}");
            self.reached.found_by_address += 1;
        } else {
            // No bytes lie in the segment that begins there, if any, and need not be found.
            let missed = self
                .registered()
                .find_map(|(_, listed)| holds(listed))
                .filter(|_| len > 0);
            assert_eq!(missed, None);
        }
        Ok(())
    }
}
