//! What the product tells of itself by trace events, on this thread.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use tracing::field::{Field, Visit};
use tracing::span;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

thread_local! {
    static HEARD: RefCell<Vec<Told>> = const { RefCell::new(Vec::new()) };
}

/// The targets that are listened to.
const TARGETS: [&str; 4] = [
    lunette_kvstore::RELEASES,
    lunette_kvstore::ANSWERS,
    lunette_kvstore::COPIES,
    lunette_kvstore::PARTS,
];

/// One event: its target and its fields.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) target: &'static str,
    fields: Vec<(&'static str, u64)>,
    /// The field `what`, if it is a text.
    pub(crate) what: String,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.what, self.fields)
    }
}

impl Told {
    #[cfg(test)]
    pub(crate) fn of(target: &'static str, fields: &[(&'static str, u64)], what: &str) -> Self {
        Self {
            target,
            fields: fields.to_vec(),
            what: what.to_owned(),
        }
    }

    /// A number, 0 if it was not told.
    pub(crate) fn number(&self, name: &str) -> u64 {
        let field = self.fields.iter().find(|(own, _)| *own == name);
        field.map_or(0, |(_, value)| *value)
    }

    /// Whether this was told to be true.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.number(name) != 0
    }
}

/// Listens on this thread while it lives.
pub(crate) struct Hearing {
    _listens: tracing::subscriber::DefaultGuard,
    _here: Rc<()>,
}

impl Hearing {
    pub(crate) fn begin() -> Self {
        HEARD.take();
        Self {
            _listens: tracing::subscriber::set_default(Listener),
            _here: Rc::new(()),
        }
    }

    /// What has been told since the last call.
    #[expect(clippy::unused_self, reason = "who listens may ask")]
    pub(crate) fn take(&self) -> Vec<Told> {
        heard()
    }
}

/// What has been told on this thread since the last call.
pub(crate) fn heard() -> Vec<Told> {
    HEARD.take()
}

/// It has no state of its own: it has to be `Sync`, and what is heard belongs to the thread.
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
        TARGETS.contains(&metadata.target())
    }

    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}

    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        if self.enabled(event.metadata()) {
            let mut told = Told {
                target: event.metadata().target(),
                fields: Vec::new(),
                what: String::new(),
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
        self.fields.push((field.name(), value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.fields.push((field.name(), value.into()));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "what" {
            value.clone_into(&mut self.what);
        }
    }

    fn record_debug(&mut self, _field: &Field, _value: &dyn fmt::Debug) {}
}
