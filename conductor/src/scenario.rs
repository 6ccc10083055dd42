//! The cluster, its rules, the objectives.

use lunette_conductor_policy::conductor::Options;
use lunette_conductor_policy::cost::CostModel;
use lunette_conductor_policy::slo::Slo;

/// Most instances of each kind.
pub const INSTANCES_MAX: usize = 1024;

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scenario {
    /// Prefill instances: 1 to [`INSTANCES_MAX`].
    pub prefill: usize,
    /// Decode instances: 1 to [`INSTANCES_MAX`].
    pub decode: usize,
    /// Blocks of host memory at each prefill instance.
    pub dram_blocks: usize,
    /// Blocks on the drive of each prefill instance, below host memory.
    pub ssd_blocks: usize,
    /// Tokens that the accelerator memory of a decode instance has room for.
    pub vram_tokens: u64,
    /// Whether keys and values are sent while the prefill still runs.
    pub is_layer_wise: bool,
    /// Whether the interval between first and second token counts: it holds the transfer.
    pub counts_first_interval: bool,
    /// Whether blocks lie spread over the memory of all nodes, as in a pool: a fetch comes from any
    /// of them, and what was fetched is not kept where it was used.
    pub is_pool: bool,
    /// How fast everything is.
    pub cost: CostModel,
    /// What has to be met.
    pub slo: Slo,
    /// The rules.
    pub options: Options,
}

impl Scenario {
    /// A cluster of nodes of eight A800: 3 million tokens of host memory each (1 TB), 1.33 million
    /// tokens of accelerator memory beside the weights.
    #[must_use]
    pub const fn new(prefill: usize, decode: usize, slo: Slo, options: Options) -> Self {
        Self {
            prefill,
            decode,
            dram_blocks: 5_859,
            ssd_blocks: 0,
            vram_tokens: 1_330_000,
            is_layer_wise: true,
            counts_first_interval: false,
            is_pool: false,
            cost: CostModel::a800_llama3_70b(),
            slo,
            options,
        }
    }
}
