//! What nodes tell of memory that they free and send from: trace events of the store.

use std::cell::RefCell;
use std::rc::Rc;

use tracing::field::{Field, Visit};
use tracing::span;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

thread_local! {
    static HEARD: RefCell<Vec<Told>> = const { RefCell::new(Vec::new()) };
}

/// What has happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Its memory was freed.
    Freed,
    /// It was removed; that it is freed is told by itself.
    Removed,
    /// An answer with it is being sent.
    AnswerBegun,
    /// One answer less is being sent.
    AnswerSent,
}

/// What a node has told of one of its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) what: What,
    /// The high half of its key's fingerprint.
    pub(crate) fingerprint_high: u64,
    pub(crate) version: u64,
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

    /// What has been told since the last call.
    #[expect(clippy::unused_self, reason = "who listens may ask")]
    pub(crate) fn take(&self) -> Vec<Told> {
        HEARD.take()
    }
}

/// Hears the events of two targets. It has no state of its own: it has to be `Sync`, and what is
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
        [lunette_kvstore::RELEASES, lunette_kvstore::ANSWERS].contains(&metadata.target())
    }

    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}

    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        if self.enabled(event.metadata()) {
            let is_answer = event.metadata().target() == lunette_kvstore::ANSWERS;
            let mut told = Told {
                what: if is_answer {
                    What::AnswerBegun
                } else {
                    What::Freed
                },
                fingerprint_high: 0,
                version: 0,
            };
            event.record(&mut told);
            HEARD.with_borrow_mut(|heard| heard.push(told));
        }
    }

    fn enter(&self, _span: &span::Id) {}

    fn exit(&self, _span: &span::Id) {}
}

impl Visit for Told {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "fingerprint_high" => self.fingerprint_high = value,
            "version" => self.version = value,
            _ => {}
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        match field.name() {
            "is_removed" if value => self.what = What::Removed,
            "is_sent" if value => self.what = What::AnswerSent,
            _ => {}
        }
    }

    fn record_debug(&mut self, _field: &Field, _value: &dyn std::fmt::Debug) {}
}
