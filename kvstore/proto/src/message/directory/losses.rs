//! Who has left the cluster with what perhaps nobody else knows, and what came back of it.

use lunette_cluster_proto::map::Epoch;
use lunette_runtime_core::codec::{Reader, Truncated, Writer};
use lunette_runtime_core::ids::NodeId;

use super::wire::{Decoder, Encoder, Wire, unknown};
use crate::message::MessageFault;

/// Most lives that have ended of one [group](Losses). Beyond, what they knew counts as forgotten.
pub const GONE_MAX: usize = 32;
/// Most groups of [those that are past](Losses::past). Beyond, what the earliest knew counts as forgotten.
pub const PAST_MAX: usize = 8;

/// A life of a node that is not in the map any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gone {
    /// The node and the number of that life; `None` of one that nobody knows who is there now.
    pub life: Option<(NodeId, u64)>,
    /// The last map that it was in.
    pub last: Epoch,
}

/// Groups of lives that have ended, of which two or more may have been all who knew of a removal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Those since all homes were complete under one map, as far as it is known: at most [`GONE_MAX`].
    pub open: Vec<Gone>,
    /// Those before, which have not come back: at most [`PAST_MAX`] groups.
    pub past: Vec<Vec<Gone>>,
}

/// How much of what was removed a former life of a home knew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recalled {
    /// Which one.
    pub incarnation: u64,
    /// The last map that it heard of.
    pub epoch: Epoch,
    /// How many members were homes then.
    pub homes: u32,
    /// How many cores its node had then. Each knew its own part.
    pub cores: u16,
    /// Up to which epoch tombstones may have been forgotten.
    pub horizon: Epoch,
    /// Whether it knew all under that map that there was to know.
    pub is_whole: bool,
    /// Whether this is what it knew when it left; else it was kept before, and nothing was removed since under that map.
    pub is_final: bool,
    /// Whose knowledge it lacked.
    pub losses: Losses,
}

impl Losses {
    /// Appends them: see [`Losses::read`].
    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        write_group(&self.open, out);
        let past = u8::try_from(self.past.len());
        let past = past.ok().filter(|_| self.past.len() <= PAST_MAX);
        out.u8(past.expect("groups are bounded"));
        for group in &self.past {
            write_group(group, out);
        }
    }

    /// What was written; `None` if it is out of its bounds.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, Truncated> {
        let Some(open) = read_group(reader)? else {
            return Ok(None);
        };
        let count = usize::from(reader.u8()?);
        if count > PAST_MAX {
            return Ok(None);
        }
        let past: Result<Option<Vec<_>>, _> = (0..count)
            .map(|_| read_group(reader).transpose())
            .map(|group| group.map_or(Ok(None), |group| group.map(Some)))
            .collect();
        Ok(past?.map(|past| Self { open, past }))
    }
}

fn write_group(group: &[Gone], out: &mut Writer<'_>) {
    let count = u8::try_from(group.len());
    let count = count.ok().filter(|_| group.len() <= GONE_MAX);
    out.u8(count.expect("a group is bounded"));
    for gone in group {
        out.u8(gone.life.is_some().into());
        if let Some((node, incarnation)) = gone.life {
            out.u64(node.0).u64(incarnation);
        }
        out.u64(gone.last.0);
    }
}

fn read_group(reader: &mut Reader<'_>) -> Result<Option<Vec<Gone>>, Truncated> {
    let count = usize::from(reader.u8()?);
    if count > GONE_MAX {
        return Ok(None);
    }
    let mut group = Vec::with_capacity(count);
    for _ in 0..count {
        let life = match reader.u8()? {
            0 => None,
            1 => Some((NodeId(reader.u64()?), reader.u64()?)),
            _ => return Ok(None),
        };
        let last = Epoch(reader.u64()?);
        group.push(Gone { life, last });
    }
    Ok(Some(group))
}

impl Recalled {
    /// Appends it: see [`Recalled::read`].
    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        out.u64(self.incarnation).u64(self.epoch.0);
        out.u32(self.homes).u16(self.cores).u64(self.horizon.0);
        out.u8(u8::from(self.is_whole) | u8::from(self.is_final) << 1);
        self.losses.write(out);
    }

    /// What was written; `None` if it is out of its bounds.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, Truncated> {
        let (incarnation, epoch) = (reader.u64()?, Epoch(reader.u64()?));
        let (homes, cores) = (reader.u32()?, reader.u16()?);
        let (horizon, flags) = (Epoch(reader.u64()?), reader.u8()?);
        let losses = Losses::read(reader)?;
        let losses = losses.filter(|_| flags < 4);
        Ok(losses.map(|losses| Self {
            incarnation,
            epoch,
            homes,
            cores,
            horizon,
            is_whole: flags & 1 != 0,
            is_final: flags & 2 != 0,
            losses,
        }))
    }
}

impl Wire for Losses {
    fn put(&self, out: &mut Encoder<'_>) {
        self.write(&mut Writer::new(out));
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        match Self::read(reader)? {
            Some(losses) => Ok(losses),
            None => unknown("group of those that have left", u8::MAX),
        }
    }
}

impl Wire for Recalled {
    fn put(&self, out: &mut Encoder<'_>) {
        self.write(&mut Writer::new(out));
    }

    fn take(reader: &mut Decoder<'_>) -> Result<Self, MessageFault> {
        match Self::read(reader)? {
            Some(recalled) => Ok(recalled),
            None => unknown("memory of a former life", u8::MAX),
        }
    }
}
