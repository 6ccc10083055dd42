//! One finding.

use std::borrow::Cow;

/// How it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ok,
    /// Nodes run, but slower or with less than they could.
    Warn,
    /// Nodes do not run.
    Missing,
}

impl State {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Missing => "missing",
        }
    }
}

/// What was looked at, how it is, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    pub(super) name: Cow<'static, str>,
    pub(super) state: State,
    pub(super) found: String,
    pub(super) remedy: Option<String>,
}

impl Check {
    pub(super) fn ok(name: impl Into<Cow<'static, str>>, found: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            state: State::Ok,
            found: found.into(),
            remedy: None,
        }
    }

    pub(super) fn warn(
        name: impl Into<Cow<'static, str>>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            state: State::Warn,
            remedy: Some(remedy.into()),
            ..Self::ok(name, found)
        }
    }

    pub(super) fn missing(
        name: impl Into<Cow<'static, str>>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            state: State::Missing,
            ..Self::warn(name, found, remedy)
        }
    }
}
