//! The options of a coupled cluster.

use clap::Args;
use lunette_conductor::policy::routing::Routing;
use lunette_conductor::policy::slo::Slo;
use lunette_conductor::{Batching, CoupledScenario};

/// Tokens of whole prompts that a step takes together.
const STEP_TOKENS_DEFAULT: u32 = 16_384;

#[derive(Args, Debug)]
pub(super) struct CoupledArguments {
    /// Simulate a coupled cluster, as of vLLM, instead of separate prefill and decode instances: as
    /// many instances as --prefill and --decode together, which do both in the same steps. Nothing
    /// is refused and nothing is fetched, so --policy is a rule that fetches nothing.
    #[arg(long, conflicts_with_all = [
        "figure", "grid", "admission", "queue", "dram_blocks", "ssd_blocks", "network_gb_s",
        "decode_share", "token_value", "delay_weight", "copy_only", "class_floor",
    ])]
    pub(super) coupled: bool,
    /// Of a coupled cluster: cut prompts into chunks, with this many tokens in a step, those of the
    /// batch included. Default: whole prompts, 16384 tokens of them in a step unless one is longer,
    /// while the batch waits.
    #[arg(long, value_name = "TOKENS", requires = "coupled",
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    chunk: Option<u32>,
    /// Of a coupled cluster: blocks of prompts that an instance keeps for later ones; 0 turns prefix
    /// caching off. Default: as many as its memory beside the weights has room for.
    #[arg(long, value_name = "N", requires = "coupled")]
    prefix_cache_blocks: Option<usize>,
}

impl CoupledArguments {
    /// The cluster of so many instances.
    pub(super) fn scenario(
        &self,
        instances: usize,
        slo: Slo,
        routing: Routing,
        seed: u64,
    ) -> CoupledScenario {
        let batching = match self.chunk {
            Some(tokens_max) => Batching::Chunked { tokens_max },
            None => Batching::PrefillFirst {
                tokens_max: STEP_TOKENS_DEFAULT,
            },
        };
        let mut scenario = CoupledScenario::new(instances, batching, slo);
        scenario.cache_blocks = self.prefix_cache_blocks.unwrap_or(scenario.cache_blocks);
        scenario.routing = routing;
        scenario.seed = seed;
        scenario
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(chunk: Option<u32>, prefix_cache_blocks: Option<usize>) -> CoupledScenario {
        let arguments = CoupledArguments {
            coupled: true,
            chunk,
            prefix_cache_blocks,
        };
        arguments.scenario(16, Slo::FIXED, Routing::Random, 7)
    }

    #[test]
    fn what_is_asked_for_is_simulated() {
        let whole = scenario(None, None);
        let tokens_max = STEP_TOKENS_DEFAULT;
        assert_eq!(whole.batching, Batching::PrefillFirst { tokens_max });
        assert!(whole.cache_blocks > 2_000, "{}", whole.cache_blocks);
        assert_eq!((whole.instances, whole.seed), (16, 7));
        assert_eq!(whole.routing, Routing::Random);
        let chunked = scenario(Some(512), Some(0));
        assert_eq!(chunked.batching, Batching::Chunked { tokens_max: 512 });
        assert_eq!(chunked.cache_blocks, 0);
    }
}
