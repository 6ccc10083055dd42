//! Objects in files, from any thread: files are named by their paths, and opened on the store's core.

use std::path::PathBuf;

use lunette_p2p_proto::ObjectName;
use lunette_p2p_proto::layout::{Slice, Tensor};

use super::handle::{Answered, HandleError, HeldHandle, Pending, StoreHandle};
use crate::error::{FileFault, HoldFault};
use crate::store::{
    BufferFile, Held, ObjectFiles, ReceiveOptions, RegisterOptions, SliceOptions, Store,
};

impl StoreHandle {
    /// Joins those who hold an object, and receives it into files, one for each of its buffers: they are made, and as long
    /// as the buffers then ([`ObjectFiles`]). See [`Store::receive_files`](crate::Store::receive_files). A file that was made
    /// goes again if the object is not held in the end, or nobody waits for the answer.
    #[must_use]
    pub fn receive_files(
        &self,
        name: ObjectName,
        paths: Vec<PathBuf>,
        options: ReceiveOptions,
    ) -> Pending<HeldHandle> {
        self.begin(move |hosted, telling| {
            let store = hosted.store();
            let holding = async move { receive(&store, &name, &paths, options).await };
            hosted.hold(holding, telling);
        })
    }

    /// Joins those who hold an object, and receives parts of its tensors into files of these lengths, in bytes. See
    /// [`Store::receive_slices_files`](crate::Store::receive_slices_files), and of files
    /// [`receive_files`](Self::receive_files).
    #[must_use]
    pub fn receive_slices_files(
        &self,
        name: ObjectName,
        files: Vec<(PathBuf, u64)>,
        slices: Vec<Slice>,
        options: SliceOptions,
    ) -> Pending<HeldHandle> {
        self.begin(move |hosted, telling| {
            let store = hosted.store();
            let holding = async move {
                let (paths, lens): (Vec<_>, Vec<_>) = files.into_iter().unzip();
                let opened = ObjectFiles::open(&paths, &lens).await?;
                let files = opened.files();
                let receiving = store.receive_slices_files(&name, files, &slices, options);
                let held = receiving.await?;
                opened.keep();
                Answered::Ok(held)
            };
            hosted.hold(holding, telling);
        })
    }

    /// Registers an object of files, each a buffer of it, and tells which tensors it has where. See
    /// [`Store::register_files`](crate::Store::register_files).
    #[must_use]
    pub fn register_files(
        &self,
        name: ObjectName,
        paths: Vec<PathBuf>,
        tensors: Vec<Tensor>,
        options: RegisterOptions,
    ) -> Pending<HeldHandle> {
        self.begin(move |hosted, telling| {
            let store = hosted.store();
            let holding = async move {
                let mut files = Vec::new();
                for path in &paths {
                    let opened = BufferFile::existing(path).await;
                    files.push(opened.map_err(|error| FileFault::new(path, &error))?);
                }
                let registering = store.register_files(&name, files, tensors, options);
                Answered::Ok(registering.await?)
            };
            hosted.hold(holding, telling);
        })
    }
}

async fn receive(
    store: &Store,
    name: &ObjectName,
    paths: &[PathBuf],
    mut options: ReceiveOptions,
) -> Answered<Held> {
    let found = store.find(name).await?;
    let is_wanted = |version| options.version.is_none_or(|wanted| wanted == version);
    let Some(found) = found.filter(|found| is_wanted(found.version)) else {
        let name = name.clone();
        return Err(HoldFault::NotFound { name }.into());
    };
    let lens = found.shape.buffers();
    let (given, wanted) = (paths.len(), lens.len());
    if given != wanted {
        return Err(HoldFault::WrongCount { given, wanted }.into());
    }
    let opened = ObjectFiles::open(paths, lens).await?;
    options.version = Some(found.version);
    let receiving = store.receive_files(name, opened.files(), options);
    let held = receiving.await.map_err(HandleError::from)?;
    opened.keep();
    Ok(held)
}
