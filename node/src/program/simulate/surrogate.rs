//! Workloads with the published statistics of traces that cannot be had.

use clap::ValueEnum;
use lunette_conductor::Workload;
use lunette_conductor::figure::surrogate;

/// Which trace a workload stands in for.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Surrogate {
    /// The synthetic trace: openings that nobody repeats, and many questions to each document.
    Synthetic,
    /// The synthetic trace: chats and documents with few questions each, another draw for each seed.
    Documents,
    /// The trace of tools and agents, with the conversations of the workload that is given.
    ToolAndAgent,
}

impl Surrogate {
    /// It, made of `given` where it holds conversations.
    pub(super) fn workload(self, seed: u64, given: impl FnOnce() -> Workload) -> Workload {
        match self {
            Self::Synthetic => surrogate::synthetic(),
            Self::Documents => surrogate::documents(seed),
            Self::ToolAndAgent => surrogate::tool_and_agent(&given()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tools_and_agents_have_given_conversations() {
        let none = || unreachable!("it is not asked for");
        assert_eq!(Surrogate::Synthetic.workload(1, none).len(), 3_993);
        assert_eq!(Surrogate::Documents.workload(1, none).len(), 3_993);
        let alone = Surrogate::ToolAndAgent.workload(1, Workload::default);
        let doubled = Surrogate::ToolAndAgent.workload(1, surrogate::synthetic);
        assert_eq!(doubled.len(), alone.len() + 3_993);
    }
}
