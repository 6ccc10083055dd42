//! Headers of safetensors files: which tensors are where. Format: <https://github.com/huggingface/safetensors>.
//!
//! ```text
//!  | length of the header (8, little-endian) | header (JSON) | bytes of the tensors, without gaps |
//! ```
//!
//! A file is somebody else's: whatever it says is checked, and nothing of it can panic.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use thiserror::Error;

use crate::layout::{Block, Dtype, RANK_MAX, TENSORS_MAX, Tensor};

/// Longest header, in bytes: as the library of the format allows.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Bytes before the header.
pub const PREFIX_BYTES: usize = 8;

/// What is no safetensors file.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SafetensorsFault {
    /// It is shorter than its header says.
    #[error("it ends before its header does")]
    Short,
    /// Its header is longer than [`HEADER_BYTES_MAX`].
    #[error("its header is of {len_bytes} bytes, more than {HEADER_BYTES_MAX}")]
    LongHeader {
        /// How long it says that it is.
        len_bytes: u64,
    },
    /// Its header is not the JSON that it is to be.
    #[error("its header is none: {why}")]
    Header {
        /// Why.
        why: String,
    },
    /// A tensor's elements are of a type that is not known.
    #[error("tensor {tensor:?}: no type of elements is called {dtype:?}")]
    Dtype {
        /// Which.
        tensor: String,
        /// What it is said to be.
        dtype: String,
    },
    /// A tensor has not as many bytes as its elements need, or more dimensions than there may be.
    #[error("tensor {tensor:?}: its bytes are not what its shape needs")]
    Length {
        /// Which.
        tensor: String,
    },
    /// Tensors overlap, leave gaps, or do not end with the file.
    #[error("tensor {tensor:?} does not begin where the one before it ends")]
    Gap {
        /// The first that is wrong.
        tensor: String,
    },
    /// The file does not end with its last tensor.
    #[error("{len_bytes} bytes of tensors are in the header, and {given_bytes} in the file")]
    End {
        /// By the header.
        len_bytes: u64,
        /// There are.
        given_bytes: u64,
    },
    /// There are more than [`TENSORS_MAX`].
    #[error("{count} tensors: at most {TENSORS_MAX} are known at a time")]
    TooManyTensors {
        /// How many.
        count: usize,
    },
}

/// Where the header of a file ends, in bytes from its beginning, from its first [`PREFIX_BYTES`] bytes and its length.
///
/// # Errors
/// [`SafetensorsFault::Short`], [`SafetensorsFault::LongHeader`].
pub fn header_end(prefix: [u8; PREFIX_BYTES], file_bytes: u64) -> Result<u64, SafetensorsFault> {
    let len_bytes = u64::from_le_bytes(prefix);
    if len_bytes > HEADER_BYTES_MAX {
        return Err(SafetensorsFault::LongHeader { len_bytes });
    }
    let end = PREFIX_BYTES as u64 + len_bytes;
    if end > file_bytes {
        return Err(SafetensorsFault::Short);
    }
    Ok(end)
}

/// The tensors of a file of `file_bytes` that is a buffer of an object, in the order of their bytes. `header` is what is
/// between the prefix and [`header_end`].
///
/// # Errors
/// [`SafetensorsFault`].
pub fn tensors(
    header: &[u8],
    file_bytes: u64,
    buffer: u32,
) -> Result<Vec<Tensor>, SafetensorsFault> {
    let begin = PREFIX_BYTES as u64 + header.len() as u64;
    let given_bytes = file_bytes
        .checked_sub(begin)
        .ok_or(SafetensorsFault::Short)?;
    let Header(entries) = serde_json::from_slice(header).map_err(|error| {
        let why = error.to_string();
        SafetensorsFault::Header { why }
    })?;
    let count = entries.len();
    if count > TENSORS_MAX {
        return Err(SafetensorsFault::TooManyTensors { count });
    }
    let mut tensors = Vec::with_capacity(count);
    for (name, entry) in entries {
        tensors.push((entry.data_offsets, tensor(name, entry, begin, buffer)?));
    }
    // Those without a byte come before the one that begins there.
    tensors.sort_by(|one, two| one.0.cmp(&two.0).then_with(|| one.1.name.cmp(&two.1.name)));
    let mut at = 0;
    for ([start, end], tensor) in &tensors {
        if *start != at {
            let tensor = tensor.name.clone();
            return Err(SafetensorsFault::Gap { tensor });
        }
        at = *end;
    }
    if at != given_bytes {
        let len_bytes = at;
        return Err(SafetensorsFault::End {
            len_bytes,
            given_bytes,
        });
    }
    Ok(tensors.into_iter().map(|(_, tensor)| tensor).collect())
}

fn tensor(name: String, entry: Entry, begin: u64, buffer: u32) -> Result<Tensor, SafetensorsFault> {
    let Ok(dtype) = entry.dtype.parse::<Dtype>() else {
        return Err(SafetensorsFault::Dtype {
            tensor: name,
            dtype: entry.dtype,
        });
    };
    let [start, end] = entry.data_offsets;
    let elements = Block::whole(&entry.shape).elements();
    let needed = elements.and_then(|elements| dtype.bytes_of(elements));
    let is_fit = needed.is_some_and(|needed| end.checked_sub(start) == Some(needed));
    let offset_bytes = begin.checked_add(start);
    match offset_bytes {
        Some(offset_bytes) if is_fit && entry.shape.len() <= RANK_MAX => Ok(Tensor::whole(
            name,
            dtype,
            entry.shape,
            buffer,
            offset_bytes,
        )),
        Some(_) | None => Err(SafetensorsFault::Length { tensor: name }),
    }
}

/// The first bytes of a file with these tensors, whose bytes follow in this order without gaps: prefix and header, as
/// long as a multiple of 8.
#[must_use]
pub fn head<'a>(tensors: impl Iterator<Item = (&'a str, Dtype, &'a [u64])>) -> Vec<u8> {
    let (mut header, mut at) = (serde_json::Map::new(), 0_u64);
    for (name, dtype, shape) in tensors {
        let elements = Block::whole(shape).elements();
        let len = elements.and_then(|elements| dtype.bytes_of(elements));
        let end = at + len.expect("a tensor's, which is bounded");
        let entry = serde_json::json!({
            "dtype": dtype.to_string(), "shape": shape, "data_offsets": [at, end],
        });
        header.insert(name.to_owned(), entry);
        at = end;
    }
    let mut json = serde_json::Value::Object(header).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut head = (json.len() as u64).to_le_bytes().to_vec();
    head.extend(json);
    head
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The entries of a header, each name once; `__metadata__`, which is of texts, is left out.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let (mut entries, mut names) = (Vec::new(), BTreeSet::new());
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format!("{name:?} is there twice")));
                    }
                    if name == "__metadata__" {
                        map.next_value::<BTreeMap<String, String>>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(header: &str, data_bytes: u64) -> Result<Vec<Tensor>, SafetensorsFault> {
        let file_bytes = PREFIX_BYTES as u64 + header.len() as u64 + data_bytes;
        tensors(header.as_bytes(), file_bytes, 3)
    }

    #[test]
    fn tensors_are_where_the_header_says() {
        let header = r#"{"__metadata__":{"format":"pt"},
            "b":{"dtype":"F32","shape":[2,3],"data_offsets":[2,26]},
            "a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},
            "none":{"dtype":"I8","shape":[0,7],"data_offsets":[2,2]}}  "#;
        let begin = 8 + header.len() as u64;
        let found = read(header, 26).unwrap();
        let whole = |name: &str, dtype, shape: &[u64], at| {
            Tensor::whole(name.into(), dtype, shape.to_vec(), 3, begin + at)
        };
        let expected = [
            whole("a", Dtype::Bf16, &[], 0),
            whole("none", Dtype::I8, &[0, 7], 2),
            whole("b", Dtype::F32, &[2, 3], 2),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn heads_are_read_back() {
        let given: [(&str, Dtype, &[u64]); 2] =
            [("z", Dtype::F16, &[3]), ("a\"", Dtype::U8, &[2, 2])];
        let head = head(given.into_iter());
        let file_bytes = head.len() as u64 + 10;
        let end = header_end(*head.first_chunk().unwrap(), file_bytes).unwrap();
        assert_eq!((end, end % 8), (head.len() as u64, 0));
        let found = tensors(&head[PREFIX_BYTES..], file_bytes, 0).unwrap();
        let found = found.iter().map(|it| (&*it.name, it.dtype, &*it.shape));
        assert_eq!(found.collect::<Vec<_>>(), given);
    }

    #[test]
    fn what_is_no_file_of_tensors_is_told() {
        let prefix = |len: u64| len.to_le_bytes();
        assert_eq!(header_end(prefix(92), 100), Ok(100));
        assert_eq!(header_end(prefix(93), 100), Err(SafetensorsFault::Short));
        let len_bytes = u64::MAX;
        let long = Err(SafetensorsFault::LongHeader { len_bytes });
        assert_eq!(header_end(prefix(len_bytes), u64::MAX), long);
        assert_eq!(tensors(b"{}", 9, 0), Err(SafetensorsFault::Short));
        for header in [
            "",
            "[]",
            "{",
            "{} x",
            r#"{"a":1}"#,
            r#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}"#,
            r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}}"#,
            r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":1}}"#,
            r#"{"__metadata__":{"a":1}}"#,
            r#"{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},
                "a":{"dtype":"U8","shape":[],"data_offsets":[1,2]}}"#,
        ] {
            let read = read(header, 1);
            assert!(
                matches!(read, Err(SafetensorsFault::Header { .. })),
                "{header}"
            );
        }
    }

    #[test]
    fn tensors_follow_each_other_to_the_end() {
        let one = |dtype: &str, shape: &str, offsets: &str| {
            let entry = format!(
                r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#
            );
            read(&entry, 4)
        };
        let tensor = "t".to_owned();
        assert_eq!(one("U8", "[4]", "[0,4]").map(|all| all.len()), Ok(1));
        let gap = SafetensorsFault::Gap {
            tensor: tensor.clone(),
        };
        assert_eq!(one("U8", "[3]", "[1,4]"), Err(gap));
        let end = SafetensorsFault::End {
            len_bytes: 3,
            given_bytes: 4,
        };
        assert_eq!(one("U8", "[3]", "[0,3]"), Err(end));
        let dtype = "U9".to_owned();
        let unknown = SafetensorsFault::Dtype {
            tensor: tensor.clone(),
            dtype,
        };
        assert_eq!(one("U9", "[4]", "[0,4]"), Err(unknown));
        let length = SafetensorsFault::Length { tensor };
        for (dtype, shape, offsets) in [
            ("U8", "[5]", "[0,4]"),
            ("U8", "[4]", "[4,0]"),
            ("F4", "[7]", "[0,4]"),
            ("U64", "[18446744073709551615,2]", "[0,4]"),
            ("U8", "[1,1,1,1,1,1,1,1,4]", "[0,4]"),
            ("U8", "[4]", "[18446744073709551612,18446744073709551615]"),
        ] {
            assert_eq!(one(dtype, shape, offsets), Err(length.clone()), "{shape}");
        }
    }
}
