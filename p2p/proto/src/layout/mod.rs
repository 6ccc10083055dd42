//! The tensors of an object: what they are called, what they are of, and where they lie.
//!
//! A layout lists [`Tensor`]s. Each is the whole of what its name stands for, or one block of it: then others of the same
//! name have the rest, in this object. Elements lie row by row, the last dimension without gaps, as in a safetensors file.
//!
//! | module | subject |
//! |---|---|
//! | `dtype` | [`Dtype`]: what elements are |
//! | `block` | [`Block`]: a part of a tensor |
//! | `record` | layouts as they are written at the coordinator |
//! | `plan` | [`Plan`]: which bytes of an object go where, for a receiver that wants parts of tensors |
//! | `piece` | one part of one tensor, in runs of bytes |

mod block;
mod dtype;
mod piece;
mod plan;
mod record;

use thiserror::Error;

pub use self::block::Block;
pub use self::dtype::Dtype;
pub use self::plan::{Copied, Plan, PlanFault, Slice};
pub use self::record::{GROUP_BYTES_MAX, GROUPS_MAX, decode_group, encode_groups};
use crate::object::Shape;

/// Most tensors of a layout; a tensor in parts counts once a part.
pub const TENSORS_MAX: usize = 1 << 18;
/// Most parts of one tensor.
pub const PARTS_MAX: usize = 4096;
/// Longest name of a tensor, in bytes.
pub const TENSOR_NAME_BYTES_MAX: usize = 256;
/// Most dimensions of a tensor.
pub const RANK_MAX: usize = 8;

/// A tensor of an object, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// What it is called.
    pub name: String,
    /// What its elements are.
    pub dtype: Dtype,
    /// How many elements all of it has, dimension by dimension; none for a scalar.
    pub shape: Vec<u64>,
    /// Which part of it lies here.
    pub block: Block,
    /// In which of the object's buffers.
    pub buffer: u32,
    /// Where in it, in bytes.
    pub offset_bytes: u64,
}

impl Tensor {
    /// A tensor of which all lies in one place.
    #[must_use]
    pub fn whole(
        name: String,
        dtype: Dtype,
        shape: Vec<u64>,
        buffer: u32,
        offset_bytes: u64,
    ) -> Self {
        let block = Block::whole(&shape);
        Self {
            name,
            dtype,
            shape,
            block,
            buffer,
            offset_bytes,
        }
    }

    /// How many bytes lie here; `None` if that is no number of bytes.
    #[must_use]
    pub fn len_bytes(&self) -> Option<u64> {
        self.dtype.bytes_of(self.block.elements()?)
    }

    fn check(&self, shape: &Shape) -> Result<(), TensorFault> {
        if !is_name(&self.name) {
            return Err(TensorFault::Name);
        }
        if self.shape.len() > RANK_MAX {
            return Err(TensorFault::Rank);
        }
        if !self.block.is_within(&self.shape) {
            return Err(TensorFault::Block);
        }
        let all = Block::whole(&self.shape).elements();
        let whole_bytes = all.and_then(|all| self.dtype.bytes_of(all));
        let len_bytes = whole_bytes.and_then(|_| self.len_bytes());
        let end = len_bytes.and_then(|len| self.offset_bytes.checked_add(len));
        let end = end.ok_or(TensorFault::Length)?;
        let buffer = shape.buffers().get(self.buffer as usize);
        let buffer = *buffer.ok_or(TensorFault::Place)?;
        if end > buffer {
            return Err(TensorFault::Place);
        }
        Ok(())
    }
}

fn is_name(name: &str) -> bool {
    let is_length = (1..=TENSOR_NAME_BYTES_MAX).contains(&name.len());
    is_length && !name.chars().any(char::is_control)
}

/// What is wrong with one tensor of a layout.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TensorFault {
    /// Its name is empty, longer than [`TENSOR_NAME_BYTES_MAX`], or has control characters.
    #[error("a tensor is named by 1 to {TENSOR_NAME_BYTES_MAX} bytes without control characters")]
    Name,
    /// It has more than [`RANK_MAX`] dimensions.
    #[error("a tensor has at most {RANK_MAX} dimensions")]
    Rank,
    /// The block is not one of the tensor's, or has another number of dimensions.
    #[error("the block is outside the tensor")]
    Block,
    /// Its elements are no number of bytes, or more than there can be.
    #[error("its elements are no whole number of bytes that there can be")]
    Length,
    /// It does not lie in a buffer of the object.
    #[error("it does not lie within a buffer of the object")]
    Place,
    /// Another part of the same name is of other elements, or of another shape.
    #[error("another part of it is of other elements, or of another shape")]
    Conflict,
}

/// What makes no layout of an object.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LayoutFault {
    /// There are more than [`TENSORS_MAX`].
    #[error("{count} tensors: a layout has at most {TENSORS_MAX}")]
    TooManyTensors {
        /// How many.
        count: usize,
    },
    /// There are more than [`PARTS_MAX`] of one.
    #[error("tensor {tensor:?} is in more than {PARTS_MAX} parts")]
    TooManyParts {
        /// Which.
        tensor: String,
    },
    /// One of them is wrong.
    #[error("tensor {tensor:?}: {fault}")]
    Tensor {
        /// Which.
        tensor: String,
        /// How.
        #[source]
        fault: TensorFault,
    },
}

/// The tensors of an object, by name and place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    tensors: Vec<Tensor>,
}

impl Layout {
    /// A layout of an object of this shape. Tensors may share bytes; bytes may be of none.
    ///
    /// # Errors
    /// [`LayoutFault`].
    pub fn new(mut tensors: Vec<Tensor>, shape: &Shape) -> Result<Self, LayoutFault> {
        if tensors.len() > TENSORS_MAX {
            let count = tensors.len();
            return Err(LayoutFault::TooManyTensors { count });
        }
        let wrong = |tensor: &Tensor, fault| {
            let tensor = tensor.name.clone();
            Err(LayoutFault::Tensor { tensor, fault })
        };
        for tensor in &tensors {
            if let Err(fault) = tensor.check(shape) {
                return wrong(tensor, fault);
            }
        }
        tensors.sort_by(|one, two| {
            let key = |it: &Tensor| (it.buffer, it.offset_bytes);
            let by_name = one.name.cmp(&two.name);
            by_name.then_with(|| key(one).cmp(&key(two)))
        });
        for parts in tensors.chunk_by(|one, two| one.name == two.name) {
            let first = &parts[0];
            if parts.len() > PARTS_MAX {
                let tensor = first.name.clone();
                return Err(LayoutFault::TooManyParts { tensor });
            }
            let is_as_first = |it: &Tensor| it.dtype == first.dtype && it.shape == first.shape;
            if !parts.iter().all(is_as_first) {
                return wrong(first, TensorFault::Conflict);
            }
        }
        Ok(Self { tensors })
    }

    /// All of them, in the order of their names.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Whether it says nothing of any tensor.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The parts of a tensor: at least one, if there is such a tensor.
    #[must_use]
    pub fn parts(&self, name: &str) -> &[Tensor] {
        let start = self.tensors.partition_point(|it| it.name.as_str() < name);
        let rest = &self.tensors[start..];
        &rest[..rest.partition_point(|it| it.name == name)]
    }

    /// The first part of each tensor, in the order of their names.
    pub fn each(&self) -> impl Iterator<Item = &Tensor> {
        let by_name = self.tensors.chunk_by(|one, two| one.name == two.name);
        by_name.map(|parts| &parts[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        Shape::new(4096, vec![100, 10_000]).unwrap()
    }

    fn tensor(name: &str, buffer: u32, offset_bytes: u64) -> Tensor {
        Tensor::whole(name.into(), Dtype::F32, vec![5, 5], buffer, offset_bytes)
    }

    #[test]
    fn tensors_are_found_by_their_names() {
        let mut half = tensor("b", 1, 0);
        half.block = Block {
            start: vec![1, 0],
            shape: vec![2, 5],
        };
        let mut tensors = vec![tensor("c", 0, 0), half, tensor("b", 1, 500)];
        tensors.push(tensor("a", 1, 9900));
        let layout = Layout::new(tensors, &shape()).unwrap();
        let lens = ["", "a", "aa", "b", "c", "d"].map(|name| layout.parts(name).len());
        assert_eq!(lens, [0, 1, 0, 2, 1, 0]);
        let names: Vec<_> = layout.each().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(layout.parts("b")[0].len_bytes(), Some(40));
    }

    #[test]
    fn what_makes_no_layout_is_told() {
        let fault = |change: fn(&mut Tensor)| {
            let mut wrong = tensor("t", 0, 0);
            change(&mut wrong);
            match Layout::new(vec![wrong], &shape()) {
                Err(LayoutFault::Tensor { fault, .. }) => Some(fault),
                Err(_) | Ok(_) => None,
            }
        };
        assert_eq!(fault(|_| {}), None);
        assert_eq!(fault(|it| it.name.clear()), Some(TensorFault::Name));
        assert_eq!(fault(|it| it.name = "a\n".into()), Some(TensorFault::Name));
        let long = |it: &mut Tensor| it.name = "n".repeat(TENSOR_NAME_BYTES_MAX + 1);
        assert_eq!(fault(long), Some(TensorFault::Name));
        let deep = |it: &mut Tensor| it.shape = vec![1; RANK_MAX + 1];
        assert_eq!(fault(deep), Some(TensorFault::Rank));
        for change in [
            |it: &mut Tensor| it.block.start = vec![0],
            |it: &mut Tensor| it.block.shape = vec![5, 6],
            |it: &mut Tensor| it.block.start = vec![1, 0],
            |it: &mut Tensor| it.block.start = vec![u64::MAX, 0],
        ] {
            assert_eq!(fault(change), Some(TensorFault::Block));
        }
        let huge = |it: &mut Tensor| {
            it.shape = vec![u64::MAX, 2];
            it.block = Block::whole(&it.shape);
        };
        assert_eq!(fault(huge), Some(TensorFault::Length));
        assert_eq!(
            fault(|it| it.offset_bytes = u64::MAX),
            Some(TensorFault::Length)
        );
        assert_eq!(fault(|it| it.offset_bytes = 1), Some(TensorFault::Place));
        assert_eq!(fault(|it| it.buffer = 2), Some(TensorFault::Place));
        let odd = |it: &mut Tensor| it.dtype = Dtype::F4;
        assert_eq!(fault(odd), Some(TensorFault::Length), "12.5 bytes");
    }

    #[test]
    fn parts_are_of_one_tensor_and_bounded() {
        let mut other = tensor("t", 1, 0);
        other.dtype = Dtype::I32;
        let conflict = Layout::new(vec![tensor("t", 0, 0), other], &shape());
        let fault = TensorFault::Conflict;
        let tensor_name = "t".to_owned();
        assert_eq!(
            conflict,
            Err(LayoutFault::Tensor {
                tensor: tensor_name.clone(),
                fault
            })
        );
        let most = vec![tensor("t", 1, 0); PARTS_MAX];
        assert!(Layout::new(most.clone(), &shape()).is_ok());
        let tensor = tensor_name;
        let more = [most, vec![self::tensor("t", 0, 0)]].concat();
        assert_eq!(
            Layout::new(more, &shape()),
            Err(LayoutFault::TooManyParts { tensor })
        );
    }
}
