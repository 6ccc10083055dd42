//! Service level objectives.

use crate::cost::PrefillCost;

/// How soon the first token has to come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TtftSlo {
    /// After the same time for each request.
    Fixed {
        /// That time, in seconds.
        limit_s: f64,
    },
    /// After a base time and a multiple of what the prompt takes alone, uncached, on an idle
    /// instance.
    Proportional {
        /// The base time, in seconds.
        base_s: f64,
        /// The multiple.
        factor: f64,
    },
}

/// What a request has to get in order to count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// Time to first token.
    pub ttft: TtftSlo,
    /// Bound of the mean of the longest tenth of a request's intervals between tokens, in seconds.
    pub tbt_s: f64,
}

impl Slo {
    /// Thirty seconds, and 100 ms between tokens: the objective of FAST'25.
    pub const FIXED: Self = Self {
        ttft: TtftSlo::Fixed { limit_s: 30.0 },
        tbt_s: 0.1,
    };
    /// Two seconds and three times the unloaded prefill, and 100 ms between tokens.
    pub const PROPORTIONAL: Self = Self {
        ttft: TtftSlo::Proportional {
            base_s: 2.0,
            factor: 3.0,
        },
        tbt_s: 0.1,
    };

    /// How long the first token of a prompt of this length may take, in seconds.
    #[must_use]
    pub fn ttft_limit_s(&self, cost: &PrefillCost, input_tokens: u32) -> f64 {
        match self.ttft {
            TtftSlo::Fixed { limit_s } => limit_s,
            TtftSlo::Proportional { base_s, factor } => {
                base_s + factor * cost.time_s(input_tokens, 0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::CostModel;

    #[test]
    fn longer_prompts_get_more_time_only_under_the_proportional_form() {
        let cost = CostModel::a800_llama3_70b().prefill;
        let limits = |slo: Slo| [1_000, 100_000].map(|tokens| slo.ttft_limit_s(&cost, tokens));
        assert_eq!(limits(Slo::FIXED), [30.0, 30.0]);
        let [short, long] = limits(Slo::PROPORTIONAL);
        assert!((2.0..3.0).contains(&short), "{short}");
        assert!((50.0..70.0).contains(&long), "{long}");
    }
}
