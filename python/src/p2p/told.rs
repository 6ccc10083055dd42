//! Tensors, and parts of them, as tuples of Python's.

use lunette_p2p::proto::safetensors::{self, PREFIX_BYTES, SafetensorsFault};
use lunette_p2p::{Block, Found, Layout, Slice, Tensor};
use pyo3::prelude::*;

use crate::failure::Invalid;

/// Name, type of elements, shape of all of it, first element and number of elements of the part, buffer, offset in bytes.
pub(super) type ToldTensor = (String, String, Vec<u64>, Vec<u64>, Vec<u64>, u32, u64);

/// Name, version, lengths of the buffers, length of a chunk, holders of all of it, holders.
pub(super) type ToldFound = (String, u64, Vec<u64>, u32, usize, usize);

fn tensor((name, dtype, shape, start, size, buffer, offset): ToldTensor) -> PyResult<Tensor> {
    let known = dtype.parse();
    let dtype = known.map_err(|fault| Invalid::new_err(format!("{name:?}: {dtype:?}: {fault}")))?;
    Ok(Tensor {
        name,
        dtype,
        shape,
        block: Block { start, shape: size },
        buffer,
        offset_bytes: offset,
    })
}

pub(super) fn tensors(told: Vec<ToldTensor>) -> PyResult<Vec<Tensor>> {
    told.into_iter().map(tensor).collect()
}

/// Parts of tensors, and where they are to lie.
pub(super) fn slices(told: Vec<ToldTensor>) -> PyResult<Vec<Slice>> {
    told.into_iter().map(slice).collect()
}

fn slice(told: ToldTensor) -> PyResult<Slice> {
    let Tensor {
        name,
        dtype,
        shape,
        block,
        buffer,
        offset_bytes,
    } = tensor(told)?;
    Ok(Slice {
        tensor: name,
        dtype,
        shape,
        block,
        buffer,
        offset_bytes,
    })
}

pub(super) fn told_tensor(tensor: &Tensor) -> ToldTensor {
    let Tensor {
        name,
        dtype,
        shape,
        block,
        buffer,
        offset_bytes,
    } = tensor.clone();
    let dtype = dtype.to_string();
    (
        name,
        dtype,
        shape,
        block.start,
        block.shape,
        buffer,
        offset_bytes,
    )
}

pub(super) fn told_layout(layout: &Layout) -> Vec<ToldTensor> {
    layout.tensors().iter().map(told_tensor).collect()
}

pub(super) fn told_found(found: Found) -> ToldFound {
    let buffers = found.shape.buffers().to_vec();
    let (name, version) = (found.name.to_string(), found.version.0);
    let chunk_bytes = found.shape.chunk_bytes();
    (
        name,
        version,
        buffers,
        chunk_bytes,
        found.whole,
        found.holders,
    )
}

/// How many bytes of a safetensors file of that length are before its tensors: from the first 8 of them on.
#[pyfunction]
pub(super) fn safetensors_head_bytes(prefix: [u8; PREFIX_BYTES], file_bytes: u64) -> PyResult<u64> {
    safetensors::header_end(prefix, file_bytes).map_err(|fault| invalid(&fault))
}

/// The tensors of a safetensors file of that length that is buffer `buffer` of an object. `head` is all before them.
#[pyfunction]
pub(super) fn safetensors_tensors(
    head: &[u8],
    file_bytes: u64,
    buffer: u32,
) -> PyResult<Vec<ToldTensor>> {
    let header = head.get(PREFIX_BYTES..);
    let header = header.ok_or_else(|| invalid(&SafetensorsFault::Short))?;
    let tensors = safetensors::tensors(header, file_bytes, buffer);
    let tensors = tensors.map_err(|fault| invalid(&fault))?;
    Ok(tensors.iter().map(told_tensor).collect())
}

fn invalid(fault: &SafetensorsFault) -> PyErr {
    Invalid::new_err(format!("no safetensors file: {fault}"))
}
