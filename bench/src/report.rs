//! What people and programs read.

use std::fmt::Write;

use crate::harness::{Outcome, Subject};

/// All rows as one JSON object.
#[must_use]
pub fn json(outcomes: &[Outcome]) -> String {
    serde_json::json!({ "rows": outcomes }).to_string()
}

/// What our side of a row came to, as a JSON object.
#[must_use]
pub fn ours(subject: &Subject, value: f64) -> String {
    serde_json::json!({ "name": subject.name, "unit": subject.unit, "value": value }).to_string()
}

/// All rows as a table.
#[must_use]
pub fn table(outcomes: &[Outcome]) -> String {
    let header = [
        "row",
        "unit",
        "ours",
        "rival",
        "rival name",
        "ratio",
        "goal",
        "verdict",
        "won",
        "steal",
        "load",
        "p99 ours",
        "p99 rival",
    ];
    let mut lines = vec![header.map(str::to_owned)];
    lines.extend(outcomes.iter().map(cells));
    let widths = (0..header.len()).map(|column| {
        lines
            .iter()
            .map(|line| line[column].len())
            .max()
            .unwrap_or(0)
    });
    let widths: Vec<usize> = widths.collect();
    let mut out = String::new();
    for line in &lines {
        for (cell, width) in line.iter().zip(&widths) {
            write!(out, "{cell:<width$}  ").expect("writing to a string");
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
    for outcome in outcomes {
        if let Some(reason) = &outcome.reason {
            writeln!(out, "{}: pending: {reason}", outcome.name).expect("writing to a string");
        }
    }
    out
}

fn cells(outcome: &Outcome) -> [String; 13] {
    let number = |value: Option<f64>| {
        let value = value.filter(|value| value.is_finite());
        value.map_or_else(|| "-".to_owned(), |v| format!("{v:.2}"))
    };
    [
        outcome.name.clone(),
        outcome.unit.to_owned(),
        number(outcome.ours),
        number(outcome.rival),
        outcome.rival_name.to_owned(),
        outcome
            .ratio
            .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")),
        outcome.goal.clone(),
        format!("{:?}", outcome.verdict).to_lowercase(),
        format!("{}/{}", outcome.pairs_won, outcome.pairs),
        format!("{:.1}%", outcome.steal * 100.0),
        format!("{:.2}", outcome.load),
        number(outcome.ours_p99),
        number(outcome.rival_p99),
    ]
}
