//! The figure that the performance model was fitted to.

use lunette_conductor_policy::cost::CostModel;

use super::{Row, Table, Tolerance};

const K: u32 = 1024;

pub(super) fn fast_14() -> Table {
    let cost = CostModel::a800_llama3_70b();
    let points = [
        (8, 1.00, 0.135, 3.40),
        (16, 2.06, 0.226, 3.44),
        (32, 4.48, 0.406, 3.52),
        (64, 10.59, 0.881, 3.66),
        (128, 27.5, 2.33, 3.95),
    ];
    let rows = points
        .into_iter()
        .flat_map(|(kilotokens, cold_s, warm_s, decode_s)| {
            let tokens = kilotokens * K;
            let prefill = |cached| cost.prefill.time_s(tokens, cached);
            let steps = (0..128).map(|step| cost.decode.step_s(1.0, f64::from(tokens + step)));
            let row = |what: &str, paper, tolerance, ours| {
                let what = format!("{kilotokens}k tokens, {what}");
                Row::new(what, paper, Tolerance::Share(tolerance), ours)
            };
            [
                row("prefill, nothing cached", cold_s, 0.04, prefill(0)),
                row(
                    "prefill, 95 % cached",
                    warm_s,
                    0.04,
                    prefill(tokens * 95 / 100),
                ),
                row("decode of 128 tokens", decode_s, 0.02, steps.sum()),
            ]
        });
    Table {
        title: "FAST Fig 14: one request on an idle node",
        setting: "the performance model alone",
        unit: "s",
        rows: rows.collect(),
        remarks: vec!["The constants were fitted to these points."],
    }
}
