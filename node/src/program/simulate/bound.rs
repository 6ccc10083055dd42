//! What no rules can pass.

use lunette_conductor::Workload;
use lunette_conductor::bound::bound;
use lunette_conductor::policy::cost::CostModel;
use lunette_conductor::policy::slo::Slo;
use serde_json::json;

use crate::program::failure::Failure;
use crate::program::output;

/// What is to be served of each length class.
const CLASS_SHARE: f64 = 0.85;

/// Prints the bounds of a workload at its recorded speed, if `share` of its requests are to be served.
pub(super) fn print(
    workload: &Workload,
    slo: &Slo,
    prefill: usize,
    share: f64,
    as_json: bool,
) -> Result<(), Failure> {
    let cost = CostModel::a800_llama3_70b().prefill;
    let found = bound(workload, &cost, slo, prefill, (share, CLASS_SHARE));
    if as_json {
        let object = json!({
            "share": share,
            "class_share": CLASS_SHARE,
            "speedup": found.speed_up,
            "ttft_mean_s": found.ttft_mean_s,
            "work_mean_s": found.work_mean_s,
        });
        return output::line(&object.to_string());
    }
    output::line(&format!(
        "no rules serve {share} of the requests, and {CLASS_SHARE} of each class, at a speed-up \
         above {:.3};\nnone that serve all have a mean time to first token under {:.3} s",
        found.speed_up, found.ttft_mean_s
    ))
}
