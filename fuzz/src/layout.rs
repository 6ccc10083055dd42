//! The tensors of an object, as files and the catalogue tell of them, and plans for parts of them.
//!
//! A script's first byte says what the rest is: the header of a safetensors file, a record of the catalogue, or tensors
//! that are drawn and what is wanted of them.

use std::collections::BTreeSet;

use lunette_generate::{Bytes, Source};
use lunette_p2p_proto::Shape;
use lunette_p2p_proto::layout::{
    Block, Dtype, Layout, Plan, Slice, Tensor, decode_group, encode_groups,
};
use lunette_p2p_proto::safetensors::{self, PREFIX_BYTES};
use lunette_runtime_core::checksum::crc32c;

/// Most bytes that a plan is followed for.
const FOLLOWED_MAX: u64 = 1 << 16;
/// Most drawn tensors.
const DRAWN_MAX: u8 = 6;

/// What a script reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Headers of files, and what is none.
    pub headers: u32,
    /// What is no header.
    pub no_headers: u32,
    /// Records of the catalogue.
    pub records: u32,
    /// What is no record.
    pub no_records: u32,
    /// Tensors that make a layout.
    pub layouts: u32,
    /// Tensors that make none.
    pub no_layouts: u32,
    /// Parts that can be had.
    pub plans: u32,
    /// Parts that cannot.
    pub no_plans: u32,
}

/// Reads what the script has, and plans for it.
///
/// # Panics
/// If an invariant does not hold: that is what it is for.
pub fn layout(data: &[u8]) -> Reached {
    let mut source = Bytes::new(data);
    let mut reached = Reached::default();
    match source.below(3) {
        0 => header(&mut source, &mut reached),
        1 => group(&mut source, &mut reached),
        _ => drawn(&mut source, &mut reached),
    }
    reached
}

fn header(source: &mut Bytes<'_>, reached: &mut Reached) {
    let data_bytes = u64::from(source.u8());
    let header = source.take(usize::MAX);
    let file_bytes = PREFIX_BYTES as u64 + header.len() as u64 + data_bytes;
    let prefix = (header.len() as u64).to_le_bytes();
    let end = safetensors::header_end(prefix, file_bytes).expect("it is that long");
    assert_eq!(end, file_bytes - data_bytes);
    let Ok(tensors) = safetensors::tensors(header, file_bytes, 0) else {
        reached.no_headers += 1;
        return;
    };
    reached.headers += 1;
    let shape = Shape::new(4096, vec![file_bytes]).expect("a short file");
    let bytes: u64 = tensors
        .iter()
        .map(|it| it.len_bytes().expect("checked"))
        .sum();
    assert_eq!(bytes, data_bytes, "each byte is of one tensor");
    // Names and numbers of dimensions have closer bounds in an object.
    if let Ok(layout) = Layout::new(tensors, &shape) {
        reached.layouts += 1;
        plan_each(&layout, &shape, reached);
    }
}

fn group(source: &mut Bytes<'_>, reached: &mut Reached) {
    let shape = Shape::new(4096, vec![u64::from(source.u8()) * 64, 9000]).expect("short buffers");
    let mut bytes = [&b"LNPL"[..], &1_u16.to_le_bytes()].concat();
    bytes.extend(source.take(usize::MAX));
    let crc = crc32c(&bytes);
    bytes.extend(crc.to_le_bytes());
    let Ok(tensors) = decode_group(&bytes) else {
        reached.no_records += 1;
        return;
    };
    reached.records += 1;
    match Layout::new(tensors, &shape) {
        Ok(layout) => {
            let groups = encode_groups(&layout).expect("a record's");
            let again = groups
                .iter()
                .flat_map(|it| decode_group(it).expect("it was written"));
            assert_eq!(again.collect::<Vec<_>>(), layout.tensors());
            reached.layouts += 1;
            plan_each(&layout, &shape, reached);
        }
        Err(_) => reached.no_layouts += 1,
    }
}

fn drawn(source: &mut Bytes<'_>, reached: &mut Reached) {
    let shape = Shape::new(4096, vec![20_000, 5000]).expect("short buffers");
    let rank = usize::from(source.below(4));
    let whole: Vec<u64> = (0..rank).map(|_| u64::from(source.below(24))).collect();
    let dtype = [Dtype::U8, Dtype::Bf16, Dtype::F64, Dtype::F4][usize::from(source.below(4))];
    let block = |source: &mut Bytes<'_>| Block {
        start: whole.iter().map(|_| u64::from(source.below(24))).collect(),
        shape: whole.iter().map(|_| u64::from(source.below(25))).collect(),
    };
    let count = source.below(DRAWN_MAX);
    let parts = (0..count).map(|_| Tensor {
        name: "t".to_owned(),
        dtype,
        shape: whole.clone(),
        block: block(source),
        buffer: u32::from(source.below(2)),
        offset_bytes: u64::from(source.u8()) * 61,
    });
    let mut tensors: Vec<_> = parts.collect();
    let all = Tensor::whole("all".to_owned(), dtype, whole.clone(), 0, 0);
    tensors.push(all);
    let Ok(layout) = Layout::new(tensors, &shape) else {
        reached.no_layouts += 1;
        return;
    };
    reached.layouts += 1;
    plan_each(&layout, &shape, reached);
    for tensor in ["t", "all", "none"] {
        let slice = Slice {
            tensor: tensor.to_owned(),
            dtype,
            shape: whole.clone(),
            block: block(source),
            buffer: 0,
            offset_bytes: u64::from(source.u8()),
        };
        plan(&layout, &shape, &slice, reached);
    }
}

/// All of each tensor is there, if one part has it.
fn plan_each(layout: &Layout, shape: &Shape, reached: &mut Reached) {
    for tensor in layout.tensors() {
        let slice = Slice {
            tensor: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            block: tensor.block.clone(),
            buffer: 0,
            offset_bytes: 0,
        };
        let is_there = plan(layout, shape, &slice, reached);
        assert_eq!(is_there, tensor.len_bytes() > Some(0));
    }
}

/// Whether there is a plan; if there is, it takes each byte that is wanted once, from within chunks.
fn plan(layout: &Layout, shape: &Shape, slice: &Slice, reached: &mut Reached) -> bool {
    let Ok(plan) = Plan::new(shape, layout, std::slice::from_ref(slice), &[FOLLOWED_MAX]) else {
        reached.no_plans += 1;
        return false;
    };
    reached.plans += 1;
    let mut written = BTreeSet::new();
    for chunk in 0..shape.chunks() {
        let place = shape.place(chunk).expect("a chunk");
        let mut is_taken = false;
        plan.copies(chunk, |copied| {
            is_taken = true;
            assert!(copied.chunk_offset + copied.len_bytes <= place.len_bytes);
            let end = copied.offset_bytes + u64::from(copied.len_bytes);
            assert!(copied.buffer == 0 && end <= FOLLOWED_MAX);
            for byte in copied.offset_bytes..end {
                assert!(written.insert(byte), "it is written once");
            }
        });
        assert_eq!(is_taken, plan.chunks().contains(chunk));
    }
    assert_eq!(written.len() as u64, plan.len_bytes());
    assert_eq!(written.first(), Some(&slice.offset_bytes));
    true
}
