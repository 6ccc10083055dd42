//! Layouts as they are written at the coordinator: in groups of tensors, each a record of its own.

use lunette_cluster_proto::framing::Frame;
use lunette_runtime_core::codec::{Reader, Writer};

use super::{Block, Dtype, Layout, RANK_MAX, TENSOR_NAME_BYTES_MAX, Tensor};
use crate::catalogue::{RecordFault, end, frame};

/// Longest record of a group, in bytes.
pub const GROUP_BYTES_MAX: usize = 64 * 1024;
/// Most groups of a layout: 64 MiB.
pub const GROUPS_MAX: u32 = 1024;

const LAYOUT: Frame = frame(*b"LNPL");
/// What a record has besides its tensors.
const FRAME_BYTES: usize = 4 + 2 + 4 + 4;
/// Longest tensor: name, type, rank, dimensions three times, buffer and place.
const TENSOR_BYTES_MAX: usize = 2 + TENSOR_NAME_BYTES_MAX + 2 + RANK_MAX * 8 * 3 + 4 + 8;

const _: () = assert!(FRAME_BYTES + TENSOR_BYTES_MAX <= GROUP_BYTES_MAX);

/// The records of a layout, none for an empty one; `None` if there are more than [`GROUPS_MAX`].
#[must_use]
pub fn encode_groups(layout: &Layout) -> Option<Vec<Vec<u8>>> {
    let mut groups = Vec::new();
    let mut group = Vec::new();
    let mut count = 0;
    for tensor in layout.tensors() {
        let mut bytes = Vec::new();
        write(&mut bytes, tensor);
        if FRAME_BYTES + group.len() + bytes.len() > GROUP_BYTES_MAX {
            groups.push(framed(count, &core::mem::take(&mut group)));
            count = 0;
        }
        group.extend(bytes);
        count += 1;
    }
    if count > 0 {
        groups.push(framed(count, &group));
    }
    (groups.len() <= GROUPS_MAX as usize).then_some(groups)
}

fn framed(count: u32, tensors: &[u8]) -> Vec<u8> {
    LAYOUT.seal(|out| {
        Writer::new(out).u32(count).bytes(tensors);
    })
}

fn write(out: &mut Vec<u8>, tensor: &Tensor) {
    let mut out = Writer::new(out);
    let name_len = u16::try_from(tensor.name.len()).expect("names are bounded");
    out.u16(name_len).bytes(tensor.name.as_bytes());
    out.u8(tensor.dtype.to_wire());
    out.u8(u8::try_from(tensor.shape.len()).expect("ranks are bounded"));
    for lens in [&tensor.shape, &tensor.block.start, &tensor.block.shape] {
        for &len in lens {
            out.u64(len);
        }
    }
    out.u32(tensor.buffer).u64(tensor.offset_bytes);
}

/// The tensors of a group, as they were written: whether they make a layout is for that to see.
///
/// # Errors
/// [`RecordFault`].
pub fn decode_group(bytes: &[u8]) -> Result<Vec<Tensor>, RecordFault> {
    if bytes.len() > GROUP_BYTES_MAX {
        return Err(RecordFault::Nonsense { what: "group" });
    }
    let mut reader = LAYOUT.open(bytes)?;
    let count = reader.u32()?;
    let tensors = (0..count).map(|_| read(&mut reader));
    let tensors = tensors.collect::<Result<_, _>>()?;
    end(&reader)?;
    Ok(tensors)
}

fn read(reader: &mut Reader<'_>) -> Result<Tensor, RecordFault> {
    let nonsense = |what| RecordFault::Nonsense { what };
    let name_len = usize::from(reader.u16()?);
    let name = core::str::from_utf8(reader.bytes(name_len)?);
    let name = name.map_err(|_| nonsense("name"))?.to_owned();
    let dtype = Dtype::from_wire(reader.u8()?).ok_or(nonsense("type"))?;
    let rank = usize::from(reader.u8()?);
    if rank > RANK_MAX {
        return Err(nonsense("rank"));
    }
    let mut lens = || -> Result<Vec<u64>, RecordFault> {
        let lens = (0..rank).map(|_| reader.u64());
        Ok(lens.collect::<Result<_, _>>()?)
    };
    let (shape, start, block_shape) = (lens()?, lens()?, lens()?);
    Ok(Tensor {
        name,
        dtype,
        shape,
        block: Block {
            start,
            shape: block_shape,
        },
        buffer: reader.u32()?,
        offset_bytes: reader.u64()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Shape;

    fn layout(tensors: u64) -> Layout {
        let shape = Shape::new(1 << 20, vec![0, 8 * tensors]).unwrap();
        let each = (0..tensors).map(|at| Tensor {
            name: format!("layers.{at}.{}", "weight".repeat(20)),
            dtype: Dtype::Bf16,
            shape: vec![4, 2],
            block: Block {
                start: vec![2, 0],
                shape: vec![2, 2],
            },
            buffer: 1,
            offset_bytes: 8 * at,
        });
        Layout::new(each.collect(), &shape).unwrap()
    }

    #[test]
    fn layouts_come_back_from_their_groups() {
        assert_eq!(encode_groups(&Layout::default()), Some(vec![]));
        let layout = layout(1000);
        let groups = encode_groups(&layout).unwrap();
        assert!(groups.len() > 2, "{}", groups.len());
        assert!(groups.iter().all(|group| group.len() <= GROUP_BYTES_MAX));
        let tensors = groups.iter().map(|group| decode_group(group).unwrap());
        assert_eq!(tensors.flatten().collect::<Vec<_>>(), layout.tensors());
    }

    #[test]
    fn what_is_damaged_cut_or_senseless_is_told() {
        let [group] = &encode_groups(&layout(2)).unwrap()[..] else {
            panic!("one group");
        };
        for end in 0..group.len() {
            assert!(decode_group(&group[..end]).is_err());
            let mut damaged = group.clone();
            damaged[end] ^= 1;
            assert!(decode_group(&damaged).is_err());
        }
        let nonsense = |what| Err(RecordFault::Nonsense { what });
        let one = |fields: &[u8]| framed(1, fields);
        assert_eq!(decode_group(&one(&[1, 0, 0xff])), nonsense("name"));
        assert_eq!(decode_group(&one(&[1, 0, b'a', 0])), nonsense("type"));
        assert_eq!(decode_group(&one(&[1, 0, b'a', 1, 9])), nonsense("rank"));
        assert!(decode_group(&framed(u32::MAX, &[])).is_err());
        assert_eq!(decode_group(&framed(0, &[0])), nonsense("length"));
        let long = vec![0; GROUP_BYTES_MAX + 1];
        assert_eq!(decode_group(&long), nonsense("group"));
    }
}
