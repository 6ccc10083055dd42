//! What nodes tell of memory that they free: trace events of the store.

use std::cell::RefCell;
use std::rc::Rc;

use tracing::field::{Field, Visit};
use tracing::span;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

thread_local! {
    static HEARD: RefCell<Vec<Release>> = const { RefCell::new(Vec::new()) };
}

/// An object that a node has freed, or removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Release {
    /// The high half of its key's fingerprint.
    pub(crate) fingerprint_high: u64,
    pub(crate) version: u64,
    /// It has been removed; that it is freed is told by another one.
    pub(crate) is_removed: bool,
}

/// Listens on this thread while it lives.
pub(crate) struct Releases {
    _listens: tracing::subscriber::DefaultGuard,
    _here: Rc<()>,
}

impl Releases {
    pub(crate) fn listen() -> Self {
        HEARD.take();
        Self {
            _listens: tracing::subscriber::set_default(Listener),
            _here: Rc::new(()),
        }
    }

    /// What has been freed since the last call.
    #[expect(clippy::unused_self, reason = "who listens may ask")]
    pub(crate) fn take(&self) -> Vec<Release> {
        HEARD.take()
    }
}

/// Hears the events of one target. It has no state of its own: it has to be `Sync`, and what is
/// heard belongs to the thread.
struct Listener;

impl Subscriber for Listener {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == lunette_kvstore::RELEASES
    }

    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}

    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        if self.enabled(event.metadata()) {
            let mut release = Release::default();
            event.record(&mut release);
            HEARD.with_borrow_mut(|heard| heard.push(release));
        }
    }

    fn enter(&self, _span: &span::Id) {}

    fn exit(&self, _span: &span::Id) {}
}

impl Visit for Release {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "fingerprint_high" => self.fingerprint_high = value,
            "version" => self.version = value,
            _ => {}
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        if field.name() == "is_removed" {
            self.is_removed = value;
        }
    }

    fn record_debug(&mut self, _field: &Field, _value: &dyn std::fmt::Debug) {}
}
