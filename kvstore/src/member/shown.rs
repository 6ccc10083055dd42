//! What a core shows to those who do not ask it: threads of its process, and other processes of its host, which are handed
//! the same files over a local channel (`one_sided`).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use lunette_runtime::time;

use super::core::MemberCore;
use super::leased::{LEASED_WORDS, Leased};
use super::told::Told;

/// A part of what a core shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Until when the others may be relied on.
    Lease,
    /// The keys of its home.
    Presence,
    /// Its short copies.
    Catalogue,
}

/// A part, for who maps it. It is shown for as long as it is `kept`.
#[derive(Debug)]
pub(crate) struct ShownPart {
    pub(crate) file: OwnedFd,
    /// How many words that has.
    pub(crate) words: usize,
    pub(crate) kept: Arc<()>,
}

impl MemberCore {
    /// What may be looked at in place of asking this core; `None` once it serves nobody any more, and where its memory is
    /// nobody's to read.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn show(&self, part: Part) -> io::Result<Option<ShownPart>> {
        if self.has_left() {
            return Ok(None);
        }
        match part {
            Part::Lease => self.show_lease().map(Some),
            Part::Presence => self.show_presence().map(Some),
            Part::Catalogue => self.bytes().borrow_mut().show_catalogue(),
        }
    }

    /// Who looks on tells of reads there, for as long as what is returned is kept; `None` if nothing is shown to anybody.
    pub(crate) fn listen_to(&self, told: Told) -> Option<Arc<()>> {
        self.bytes().borrow_mut().listen_to(told)
    }

    /// As [`listen_to`](Self::listen_to), where another process has handed this file out.
    ///
    /// # Errors
    /// The system's, and that it is no such file.
    pub(super) fn listen_to_file(&self, file: OwnedFd) -> io::Result<Option<Arc<()>>> {
        let told = Told::map(file).map_err(io::Error::other)?;
        Ok(self.listen_to(told))
    }

    fn show_lease(&self) -> io::Result<ShownPart> {
        let leased = match self.leased.get() {
            Some(leased) => leased,
            None => {
                let leased = Leased::new()?;
                self.leased.get_or_init(|| leased)
            }
        };
        self.tell_lease();
        Ok(ShownPart {
            file: leased.file()?,
            words: LEASED_WORDS,
            kept: Arc::default(),
        })
    }

    /// Until when those who look on may rely on what they see.
    pub(super) fn tell_lease(&self) {
        if let Some(leased) = self.leased.get() {
            let from_ns = leased.now_ns();
            let until = self.fence().until().filter(|_| !self.has_left());
            let left = until.map_or(Duration::ZERO, |until| until.since(time::now()));
            leased.lasts(from_ns, left);
        }
    }
}
