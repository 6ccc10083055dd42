//! Tensors of safetensors files: telling of them, and asking for a rank's part of them.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use lunette_p2p::proto::safetensors::{self, PREFIX_BYTES, SafetensorsFault};
use lunette_p2p::{Block, Dtype, Layout, Slice, Tensor};
use serde_json::{Value, json};

use super::failure::{Outcome, P2pFailure};
use super::place::Membership;

/// The tensors of files that are the buffers of an object: none of one that is no safetensors file, as long as its name does
/// not say that it is.
pub(super) fn of_files(paths: &[PathBuf]) -> Outcome<Vec<Tensor>> {
    let mut tensors = Vec::new();
    for (path, index) in paths.iter().zip(0..) {
        let is_named_so = path.extension().is_some_and(|end| end == "safetensors");
        match of_file(path, index)? {
            Ok(found) => tensors.extend(found),
            Err(_) if !is_named_so => {}
            Err(fault) => {
                let path = path.clone();
                return Err(P2pFailure::NotSafetensors { path, fault });
            }
        }
    }
    Ok(tensors)
}

/// The tensors of a file that is buffer `buffer` of an object. No more of it is read than what tells of them.
fn of_file(path: &Path, buffer: u32) -> Outcome<Result<Vec<Tensor>, SafetensorsFault>> {
    let failed = |error| P2pFailure::File {
        path: path.to_owned(),
        error,
    };
    let mut file = File::open(path).map_err(failed)?;
    let file_bytes = file.metadata().map_err(failed)?.len();
    if file_bytes < PREFIX_BYTES as u64 {
        return Ok(Err(SafetensorsFault::Short));
    }
    let mut prefix = [0; PREFIX_BYTES];
    file.read_exact(&mut prefix).map_err(failed)?;
    let end = match safetensors::header_end(prefix, file_bytes) {
        Ok(end) => usize::try_from(end).expect("headers are bounded"),
        Err(fault) => return Ok(Err(fault)),
    };
    let mut header = vec![0; end - PREFIX_BYTES];
    file.read_exact(&mut header).map_err(failed)?;
    Ok(safetensors::tensors(&header, file_bytes, buffer))
}

/// Which tensors are wanted, and which part of each.
#[derive(Args, Debug)]
pub(super) struct PartArguments {
    /// Receive the tensors' shards of rank R of N alone, into one safetensors file: N parts as torch's chunk cuts them.
    #[arg(long, value_name = "R/N")]
    shard: Option<Rank>,
    /// Along which dimension tensors are cut whose names match, `*` standing for anything: the first that matches
    /// counts, and tensors that none matches are whole. Default: all along dimension 0.
    #[arg(long, value_name = "PATTERN=DIMENSION", requires = "shard")]
    split: Vec<Split>,
    /// Receive only tensors whose names match, into one safetensors file.
    #[arg(long, value_name = "PATTERN")]
    tensor: Vec<String>,
    /// Keep no more than what is wanted: others have nothing from here. Otherwise the chunks that it is in are kept in
    /// memory and served, which takes as much memory again as these have.
    #[arg(long)]
    lean: bool,
}

/// What is received, and who receives it: of every command that does.
#[derive(Args, Debug)]
pub(super) struct Receiving {
    #[command(flatten)]
    pub(super) parts: PartArguments,
    #[command(flatten)]
    pub(super) member: Membership,
}

/// One rank of so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rank {
    rank: u64,
    ranks: u64,
}

impl FromStr for Rank {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/');
        let numbers =
            numbers.and_then(|(rank, ranks)| Some((rank.parse().ok()?, ranks.parse().ok()?)));
        match numbers {
            Some((rank, ranks)) if rank < ranks => Ok(Self { rank, ranks }),
            Some(_) | None => Err("a rank is written 0/8 to 7/8".to_owned()),
        }
    }
}

/// Tensors that are cut along a dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Split {
    pattern: String,
    dimension: usize,
}

impl FromStr for Split {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.rsplit_once('=');
        let parts = parts.and_then(|(pattern, dimension)| Some((pattern, dimension.parse().ok()?)));
        let (pattern, dimension) =
            parts.ok_or("tensors are split like '*.o_proj.weight=1'".to_owned())?;
        Ok(Self {
            pattern: pattern.to_owned(),
            dimension,
        })
    }
}

/// Whether a name is as a pattern says, in which `*` stands for anything.
fn is_match(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.len() >= last.len() && rest.ends_with(last)
}

/// A safetensors file that is to come.
pub(super) struct Wanted {
    /// What comes before the tensors.
    pub(super) head: Vec<u8>,
    /// How long it is with them.
    pub(super) len_bytes: u64,
    /// Its tensors, which lie in it as the buffer 0.
    pub(super) slices: Vec<Slice>,
}

impl PartArguments {
    /// Whether less than the whole object is wanted.
    pub(super) const fn is_any(&self) -> bool {
        self.shard.is_some() || !self.tensor.is_empty() || self.lean
    }

    pub(super) const fn keep_chunks(&self) -> bool {
        !self.lean
    }

    fn is_wanted(&self, name: &str) -> bool {
        let is_match = |pattern: &String| is_match(pattern, name);
        self.tensor.is_empty() || self.tensor.iter().any(is_match)
    }

    fn block(&self, tensor: &Tensor) -> Block {
        let whole = Block::whole(&tensor.shape);
        let Some(Rank { rank, ranks }) = self.shard else {
            return whole;
        };
        let of_name = |split: &&Split| is_match(&split.pattern, &tensor.name);
        match self.split.iter().find(of_name) {
            Some(split) => Block::shard(&tensor.shape, split.dimension, rank, ranks),
            None if self.split.is_empty() => Block::shard(&tensor.shape, 0, rank, ranks),
            None => whole,
        }
    }

    /// The file that holds what is wanted of an object with these tensors.
    pub(super) fn wanted(&self, layout: &Layout) -> Outcome<Wanted> {
        let wanted = layout.each().filter(|tensor| self.is_wanted(&tensor.name));
        let wanted: Vec<_> = wanted.map(|tensor| (tensor, self.block(tensor))).collect();
        if wanted.is_empty() {
            return Err(P2pFailure::NoTensors);
        }
        for (tensor, block) in &wanted {
            let elements = block.elements();
            if elements.and_then(|it| tensor.dtype.bytes_of(it)).is_none() {
                let (name, dtype) = (tensor.name.clone(), tensor.dtype);
                return Err(P2pFailure::NotCut { name, dtype });
            }
        }
        let entries = wanted
            .iter()
            .map(|(tensor, block)| -> (&str, Dtype, &[u64]) {
                (&tensor.name, tensor.dtype, &block.shape)
            });
        let head = safetensors::head(entries);
        let mut at = head.len() as u64;
        let slices = wanted.into_iter().map(|(tensor, block)| {
            let offset_bytes = at;
            let elements = block.elements().unwrap_or(0);
            at += tensor.dtype.bytes_of(elements).unwrap_or(0);
            Slice {
                tensor: tensor.name.clone(),
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                block,
                buffer: 0,
                offset_bytes,
            }
        });
        let slices = slices.collect();
        Ok(Wanted {
            head,
            len_bytes: at,
            slices,
        })
    }
}

/// A table of the tensors of an object.
pub(super) fn table(layout: &Layout) -> String {
    let names = layout.tensors().iter().map(|tensor| tensor.name.len());
    let width = names.max().unwrap_or(0).max("tensor".len());
    let mut text = format!("{:width$}  {:7}  {:>6}  shape", "tensor", "type", "buffer");
    for tensor in layout.tensors() {
        let Tensor {
            name,
            dtype,
            shape,
            block,
            buffer,
            ..
        } = tensor;
        let dtype = dtype.to_string();
        text += &format!("\n{name:width$}  {dtype:7}  {buffer:>6}  {shape:?}");
        if *block != Block::whole(shape) {
            text += &format!(", of which {:?} from {:?} on", block.shape, block.start);
        }
    }
    text
}

/// The tensors of an object, for machines.
pub(super) fn objects(layout: &Layout) -> Value {
    let tensors = layout.tensors().iter().map(|tensor| {
        json!({ "name": tensor.name, "dtype": tensor.dtype.to_string(), "shape": tensor.shape,
                "start": tensor.block.start, "part": tensor.block.shape,
                "buffer": tensor.buffer, "offset_bytes": tensor.offset_bytes })
    });
    Value::Array(tensors.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, name, expected) in [
            ("", "", true),
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("*", "a.b", true),
            ("a*", "ab", true),
            ("*b", "ab", true),
            ("*b", "abc", false),
            ("a*a", "a", false),
            ("a*b*c", "a.b.b.c", true),
            ("a*b*c", "a.c.b", false),
            ("*.o_proj.*", "layers.0.o_proj.weight", true),
        ] {
            assert_eq!(is_match(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn ranks_and_splits_are_read() {
        assert_eq!("3/8".parse(), Ok(Rank { rank: 3, ranks: 8 }));
        for wrong in ["8/8", "1", "a/2", "-1/2", ""] {
            assert!(wrong.parse::<Rank>().is_err(), "{wrong}");
        }
        let (pattern, dimension) = ("a=b".to_owned(), 1);
        assert_eq!("a=b=1".parse(), Ok(Split { pattern, dimension }));
        assert!("a".parse::<Split>().is_err() && "a=b".parse::<Split>().is_err());
    }
}
