//! How long things take: a performance model whose constants are data.

/// Time of a prefill on one instance, as a polynomial of prompt length `n` and cached prefix `p`:
/// `fixed + token (n - p) + square (n^2 - p^2) + load p`, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefillCost {
    /// Whatever the length.
    pub fixed_s: f64,
    /// For each token computed.
    pub token_s: f64,
    /// For each pair of tokens that attend to each other.
    pub square_s: f64,
    /// For each cached token, which is loaded from host memory.
    pub load_s: f64,
}

impl PrefillCost {
    /// Seconds that a prompt of `tokens` takes if `cached_tokens` of it are cached. At least one
    /// token is always computed.
    #[must_use]
    pub fn time_s(&self, tokens: u32, cached_tokens: u32) -> f64 {
        let cached = f64::from(cached_tokens.min(tokens.saturating_sub(1)));
        let all = f64::from(tokens);
        let squares = self.square_s * (all * all - cached * cached);
        self.fixed_s + self.token_s * (all - cached) + squares + self.load_s * cached
    }
}

/// Time of one step of continuous batching: `fixed + request B + token K`, in seconds, for `B`
/// requests that hold `K` tokens of keys and values together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeCost {
    /// Whatever the batch.
    pub fixed_s: f64,
    /// For each request.
    pub request_s: f64,
    /// For each token held.
    pub token_s: f64,
}

impl DecodeCost {
    /// Seconds of a step.
    #[must_use]
    pub fn step_s(&self, requests: f64, kv_tokens: f64) -> f64 {
        self.fixed_s + self.request_s * requests + self.token_s * kv_tokens
    }
}

/// Everything that the rules and the simulator know about the speed of a cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// Prefills.
    pub prefill: PrefillCost,
    /// Decode steps.
    pub decode: DecodeCost,
    /// Keys and values of one token.
    pub kv_bytes_per_token: f64,
    /// What a node sends at most, and receives at most.
    pub network_bytes_per_s: f64,
    /// What a drive delivers to its instance.
    pub ssd_bytes_per_s: f64,
    /// Added to the step that admits a request, for each token of its prompt: the part of loading
    /// its keys and values that is not hidden.
    pub admit_stall_s_per_token: f64,
}

impl CostModel {
    /// A Llama-3-70B on nodes of eight A800 with four 200 Gbit/s adapters.
    ///
    /// The prefill terms are a least-squares fit of the ten points of FAST'25 Fig 14, at most 3.9 %
    /// off. The decode terms come from the same figure and from Fig 2 of arXiv 2407.00079v3, the
    /// network from FAST'25 Fig 12. The stall is a quarter of the time that 128 GB/s take, chosen
    /// to meet Fig 15. The drive is an assumption: 12 GB/s.
    #[must_use]
    pub const fn a800_llama3_70b() -> Self {
        Self {
            prefill: PrefillCost {
                fixed_s: 0.0680,
                token_s: 1.0969e-4,
                square_s: 7.4346e-10,
                load_s: 2.557e-6,
            },
            decode: DecodeCost {
                fixed_s: 0.02633,
                request_s: 1.44e-4,
                token_s: 3.45e-8,
            },
            kv_bytes_per_token: 327_680.0,
            network_bytes_per_s: 87e9,
            ssd_bytes_per_s: 12e9,
            admit_stall_s_per_token: 0.25 * 327_680.0 / 128e9,
        }
    }

    /// Seconds that the network takes for this many tokens when nothing else is sent.
    #[must_use]
    pub fn transfer_s(&self, tokens: u32) -> f64 {
        f64::from(tokens) * self.kv_bytes_per_token / self.network_bytes_per_s
    }

    /// Seconds that a drive takes to deliver this many tokens.
    #[must_use]
    pub fn ssd_s(&self, tokens: u32) -> f64 {
        f64::from(tokens) * self.kv_bytes_per_token / self.ssd_bytes_per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u32 = 1024;

    /// FAST'25 Fig 14: prefill of one request on an idle node, read off the vector graphics.
    #[test]
    fn the_model_meets_the_papers_prefill_times_within_4_percent() {
        let points = [
            (8 * K, 1.00, 0.135),
            (16 * K, 2.06, 0.226),
            (32 * K, 4.48, 0.406),
            (64 * K, 10.59, 0.881),
            (128 * K, 27.5, 2.33),
        ];
        let prefill = CostModel::a800_llama3_70b().prefill;
        for (tokens, cold_s, warm_s) in points {
            let warm = prefill.time_s(tokens, tokens * 95 / 100);
            for (ours, paper) in [(prefill.time_s(tokens, 0), cold_s), (warm, warm_s)] {
                let error: f64 = ours / paper - 1.0;
                assert!(
                    error.abs() < 0.04,
                    "{tokens} tokens: {ours} against {paper}"
                );
            }
        }
    }

    /// The same figure: 128 tokens decoded with nothing else in the batch.
    #[test]
    fn the_model_meets_the_papers_decode_times_within_2_percent() {
        let decode = CostModel::a800_llama3_70b().decode;
        let points = [
            (8.0, 3.40),
            (16.0, 3.44),
            (32.0, 3.52),
            (64.0, 3.66),
            (128.0, 3.95),
        ];
        for (kilotokens, paper) in points {
            let ours: f64 = (0..128)
                .map(|step| decode.step_s(1.0, kilotokens * 1024.0 + f64::from(step)))
                .sum();
            let error: f64 = ours / paper - 1.0;
            assert!(error.abs() < 0.02, "{kilotokens}k: {ours} against {paper}");
        }
    }

    #[test]
    fn a_prompt_that_is_cached_whole_still_computes_a_token() {
        let prefill = CostModel::a800_llama3_70b().prefill;
        let whole = prefill.time_s(1000, 1000);
        assert!(whole > prefill.fixed_s + prefill.load_s * 999.0);
        assert!(whole < prefill.time_s(1000, 998));
    }
}
