//! A safetensors file that buckets come into: under another name until all of it is there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lunette::runtime::OpError;
use lunette::runtime::arena::Exposed;
use lunette::runtime::fs::{File, FileError, OpenOptions};
use lunette_p2p::{LentBucket, Slice, Tensor};

use super::failure::{Outcome, P2pFailure};
use super::tensors::Wanted;

/// Most bytes that are written at a time.
const PIECE_BYTES: usize = 1 << 20;

/// It is taken away when it is dropped before it is [finished](Landing::finish).
#[derive(Debug)]
pub(super) struct Landing {
    path: PathBuf,
    partial: PathBuf,
    file: File,
    /// In the order of their tensors' names.
    slices: Vec<Slice>,
    is_finished: bool,
}

impl Landing {
    /// Begins `NAME.safetensors` of the folder.
    pub(super) async fn begin(folder: &Path, name: &str, wanted: Wanted) -> Outcome<Self> {
        let Wanted {
            head, mut slices, ..
        } = wanted;
        slices.sort_by(|one, two| one.tensor.cmp(&two.tensor));
        let path = folder.join(format!("{name}.safetensors"));
        let partial = folder.join(format!(".{name}.safetensors.part"));
        // Somebody may have been killed.
        match fs::remove_file(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed(&partial, error));
            }
            Ok(()) | Err(_) => {}
        }
        let opened = File::open(&partial, OpenOptions::READ_WRITE).await;
        let file = opened.map_err(|error| of_file(&partial, error))?;
        let landing = Self {
            path,
            partial,
            file,
            slices,
            is_finished: false,
        };
        let len = head.len();
        let (written, _) = landing.file.write_all_at(head, 0, len, 0).await;
        written.map_err(|error| landing.not_written(error))?;
        Ok(landing)
    }

    /// Writes what is wanted of a bucket out of its slot. How many bytes that were.
    pub(super) async fn put(&self, lent: &LentBucket, slots: &[Exposed]) -> Outcome<u64> {
        let mut bytes = 0;
        for tensor in &lent.tensors {
            let slot = &slots[tensor.buffer as usize];
            for (from, to, len) in self.runs(tensor) {
                self.write(&slot.slice(from, len), to).await?;
                bytes += len as u64;
            }
        }
        Ok(bytes)
    }

    /// Where bytes of a tensor lie in the slot, where they go in the file, and how many they are.
    fn runs(&self, tensor: &Tensor) -> Vec<(usize, u64, usize)> {
        let by_name = |slice: &Slice| slice.tensor.as_str().cmp(tensor.name.as_str());
        let Ok(at) = self.slices.binary_search_by(by_name) else {
            return Vec::new();
        };
        let mut runs = Vec::new();
        self.slices[at].runs_of(tensor, |from, to, len| {
            let within = |bytes: u64| usize::try_from(bytes).expect("it is in memory");
            runs.push((within(from), to, within(len)));
        });
        runs
    }

    async fn write(&self, bytes: &Exposed, offset: u64) -> Outcome<()> {
        let mut at = 0;
        while at < bytes.len() {
            let len = PIECE_BYTES.min(bytes.len() - at);
            let end = offset + at as u64;
            let (written, _) = self.file.write_all_at(bytes.clone(), at, len, end).await;
            written.map_err(|error| self.not_written(error))?;
            at += len;
        }
        Ok(())
    }

    /// Gives it its name, when it is on the disk.
    pub(super) async fn finish(mut self) -> Outcome<PathBuf> {
        let synced = self.file.sync_data().await;
        synced.map_err(|error| of_file(&self.partial, error))?;
        fs::rename(&self.partial, &self.path).map_err(|error| failed(&self.path, error))?;
        self.is_finished = true;
        Ok(self.path.clone())
    }

    fn not_written(&self, error: OpError) -> P2pFailure {
        let error = match error {
            OpError::Os(errno) => io::Error::from(errno),
            other => io::Error::other(other),
        };
        failed(&self.partial, error)
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if !self.is_finished
            && let Err(error) = fs::remove_file(&self.partial)
        {
            tracing::warn!(path = %self.partial.display(), %error, "a part of a file is left");
        }
    }
}

fn failed(path: &Path, error: io::Error) -> P2pFailure {
    let path = path.to_owned();
    P2pFailure::File { path, error }
}

fn of_file(path: &Path, error: FileError) -> P2pFailure {
    let error = match error {
        FileError::Io(error) => error,
        FileError::Control(error) => io::Error::other(error),
    };
    failed(path, error)
}

#[cfg(test)]
mod tests {
    use lunette::runtime::{CoreOptions, StartError, block_on};
    use lunette_p2p::{Block, Dtype};

    use super::*;
    use crate::program::p2p::files;

    /// A matrix of 4 x 6 bytes, of which the middle columns are wanted, behind a head.
    fn wanted() -> Wanted {
        let slice = Slice {
            tensor: "t".to_owned(),
            dtype: Dtype::U8,
            shape: vec![4, 6],
            block: columns(2, 3),
            buffer: 0,
            offset_bytes: 4,
        };
        Wanted {
            head: b"head".to_vec(),
            len_bytes: 16,
            slices: vec![slice],
        }
    }

    fn columns(start: u64, count: u64) -> Block {
        Block {
            start: vec![0, start],
            shape: vec![4, count],
        }
    }

    /// Columns of the matrix, as a slot has them behind two other bytes.
    fn lent(start: u64, count: u64) -> (LentBucket, Exposed) {
        let slot = files::buffer(2 + 4 * count).expect("memory");
        let each =
            (0..4).flat_map(|row| (start..start + count).map(move |column| 6 * row + column));
        let each: Vec<_> = each.map(|it| u8::try_from(it).expect("small")).collect();
        slot.copy_in(2, &each);
        let tensor = Tensor {
            name: "t".to_owned(),
            dtype: Dtype::U8,
            shape: vec![4, 6],
            block: columns(start, count),
            buffer: 0,
            offset_bytes: 2,
        };
        let bucket = LentBucket {
            bucket: 0,
            tensors: vec![tensor],
        };
        (bucket, slot)
    }

    #[test]
    fn a_file_has_its_name_when_all_of_it_is_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_owned();
        let files = move || fs::read_dir(&path).expect("a folder").count();
        let path = folder.path().to_owned();
        let ran: Result<(), StartError> = block_on(None, CoreOptions::default(), || async move {
            let landing = Landing::begin(&path, "w", wanted()).await.expect("begun");
            assert_eq!(files(), 1);
            drop(landing);
            assert_eq!(files(), 0, "what is given up leaves nothing");
            // Who was killed has left something longer.
            fs::write(path.join(".w.safetensors.part"), [9; 99]).expect("written");
            let landing = Landing::begin(&path, "w", wanted()).await.expect("begun");
            let mut bytes = 0;
            for (start, count) in [(0, 3), (3, 2), (5, 1)] {
                let (bucket, slot) = lent(start, count);
                bytes += landing.put(&bucket, &[slot]).await.expect("written");
            }
            assert_eq!(bytes, 12);
            let done = landing.finish().await.expect("finished");
            assert_eq!((files(), done.clone()), (1, path.join("w.safetensors")));
            let expected = [2, 3, 4, 8, 9, 10, 14, 15, 16, 20, 21, 22];
            let expected = [&b"head"[..], &expected].concat();
            assert_eq!(fs::read(done).expect("written"), expected);
        });
        ran.expect("a core");
    }
}
