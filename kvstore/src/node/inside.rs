//! What a program runs on the cores of its own node.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use lunette_auth::Secrets;
use lunette_cluster::proto::fence::NamespaceKind;
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime::core_local;
use lunette_verbs::Context;

use crate::cluster_client::{ClusterClient, ClusterClientOptions};
use crate::error::ClusterError;
use crate::glance::Shown;
use crate::member::{CatalogueView, LeasedView, MemberCore, Part, PresenceView, ShownPart, Told};

/// The members of which the current core is one.
#[derive(Default)]
struct Members(RefCell<Vec<NodeCore>>);

/// The core of a member serves for as long as this lives.
pub(super) struct Inside {
    members: Rc<Members>,
    seat: Seat,
}

impl Inside {
    pub(super) fn begin(core: NodeCore) -> Self {
        let members = core_local::<Members>();
        let seat = core.seat();
        members.0.borrow_mut().push(core);
        Self { members, seat }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut members = self.members.0.borrow_mut();
        members.retain(|core| core.seat() != self.seat);
    }
}

/// A core of a member of a cluster, for tasks of that core.
#[derive(Clone)]
pub struct NodeCore {
    core: Rc<MemberCore>,
    /// Where its node's first core listens.
    first: SocketAddr,
    secrets: Option<Secrets>,
}

impl fmt::Debug for NodeCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeCore")
            .field("seat", &self.seat())
            .finish_non_exhaustive()
    }
}

impl NodeCore {
    pub(super) const fn new(
        core: Rc<MemberCore>,
        first: SocketAddr,
        secrets: Option<Secrets>,
    ) -> Self {
        Self {
            core,
            first,
            secrets,
        }
    }

    /// The members of clusters that serve on the current core: one, where the program has one node.
    ///
    /// # Panics
    /// Outside a runtime.
    #[must_use]
    pub fn here() -> Vec<Self> {
        core_local::<Members>().0.borrow().clone()
    }

    /// Which core it is.
    #[must_use]
    pub fn seat(&self) -> Seat {
        self.core.seat()
    }

    /// What threads look at in place of asking this core. There is nothing to look at where a lease that has ended keeps
    /// the core from answering, and without memory for it.
    pub(super) fn shown(&self, namespace: NamespaceKind) -> Option<Shown> {
        if namespace != NamespaceKind::Cache {
            return None;
        }
        let refused = |error: &io::Error| {
            tracing::warn!(%error, "threads ask for each key: there is no memory that they could look at");
        };
        self.show().inspect_err(refused).ok().flatten()
    }

    fn show(&self) -> io::Result<Option<Shown>> {
        let Some(lease) = self.core.show(Part::Lease)? else {
            return Ok(None);
        };
        let mut kept = vec![lease.kept];
        let leased = LeasedView::map(lease.file)?;
        let mut mapped = |part: ShownPart| {
            kept.push(part.kept);
            (part.file, part.words)
        };
        let presence = self.core.show(Part::Presence)?.map(&mut mapped);
        let catalogue = self.core.show(Part::Catalogue)?.map(&mut mapped);
        let presence = presence.map(|(file, words)| PresenceView::map(file, words));
        let presence = presence.transpose().map_err(io::Error::other)?;
        let catalogue = match catalogue {
            Some((file, words)) => {
                let told = Told::new()?;
                kept.extend(self.core.listen_to(told.clone()));
                Some(CatalogueView::map(file, words, told).map_err(io::Error::other)?)
            }
            None => None,
        };
        Ok(Some(Shown::of_own(leased, presence, catalogue, kept)))
    }

    /// Adapters that the program has opened on this core serve its readers, besides those that the node's options
    /// name: those of a simulated fabric, say. One that cannot be used is told in the log. Readers that have
    /// connected theirs before go on with those that they found.
    pub fn use_adapters(&self, adapters: Vec<Context>) {
        self.core.pushing().add(adapters);
    }

    /// A client of the cluster on this core, with the cluster's secret. What this core is the home of or
    /// has is asked of it by calls, without a message and at once; what it has is copied out, and not
    /// verified: it has not left this memory since it was.
    ///
    /// The seeds of the options may be empty; the node itself is one. The map that it waits for is there once
    /// the node has [joined](super::SeatedNode::joined).
    ///
    /// # Errors
    /// [`ClusterError`]: the node is no member yet.
    pub async fn client(
        &self,
        options: ClusterClientOptions,
    ) -> Result<ClusterClient, ClusterError> {
        let mut seeds = vec![self.first];
        seeds.extend(options.seeds);
        let secrets = options.secrets.or_else(|| self.secrets.clone());
        let options = ClusterClientOptions {
            seeds,
            secrets,
            ..options
        };
        let core = Some(Rc::clone(&self.core));
        ClusterClient::connect_from(options, core, Vec::new()).await
    }
}
