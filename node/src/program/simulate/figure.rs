//! Figures of the papers, with their numbers beside ours.

use indicatif::ProgressBar;
use lunette_conductor::Workload;
use lunette_conductor::figure::{Figure, Row, Table};
use serde_json::{Value, json};

use crate::program::failure::Failure;
use crate::program::output;

/// Which figures: one, or all.
#[derive(Clone, Debug)]
pub(super) struct Figures(Vec<Figure>);

/// Finds figures by name.
pub(super) fn figures(text: &str) -> Result<Figures, String> {
    if text == "all" {
        return Ok(Figures(Figure::ALL.to_vec()));
    }
    let found = Figure::ALL.into_iter().find(|figure| figure.name() == text);
    let names = || Figure::ALL.map(Figure::name).join(", ");
    found
        .map(|figure| Figures(vec![figure]))
        .ok_or_else(|| format!("one of {}, or all", names()))
}

/// Simulates the figures and prints them, each as soon as it is there.
pub(super) fn print(
    figures: &Figures,
    conversation: &Workload,
    as_json: bool,
) -> Result<(), Failure> {
    let progress = ProgressBar::new_spinner();
    let mut objects = Vec::new();
    for figure in &figures.0 {
        progress.set_message(format!("figure {}", figure.name()));
        let table = figure.table(conversation);
        if as_json {
            objects.push(object(*figure, &table));
        } else {
            progress.suspend(|| output::line(&text(&table)))?;
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    if as_json {
        output::line(&Value::Array(objects).to_string())?;
    }
    Ok(())
}

fn verdict(row: &Row) -> &'static str {
    match row.is_met() {
        Some(true) => "met",
        Some(false) => "missed",
        None => "",
    }
}

fn object(figure: Figure, table: &Table) -> Value {
    let rows: Vec<Value> = table
        .rows
        .iter()
        .map(|row| {
            json!({
                "what": row.what,
                "paper": row.paper.map(|(value, _)| value),
                "ours": row.ours,
                "met": row.is_met(),
            })
        })
        .collect();
    json!({
        "figure": figure.name(),
        "title": table.title,
        "setting": table.setting,
        "unit": table.unit,
        "rows": rows,
        "remarks": table.remarks,
    })
}

fn text(table: &Table) -> String {
    let widest = table.rows.iter().map(|row| row.what.chars().count()).max();
    let width = widest.unwrap_or(0);
    let mut lines = vec![
        format!("{} [{}]", table.title, table.unit),
        format!("  {}", table.setting),
        format!("  {:<width$}  {:>10}  {:>10}", "", "paper", "here"),
    ];
    for row in &table.rows {
        let paper = row.paper.map_or(String::new(), |(value, _)| shown(value));
        let (what, ours) = (&row.what, shown(row.ours));
        let line = format!(
            "  {what:<width$}  {paper:>10}  {ours:>10}  {}",
            verdict(row)
        );
        lines.push(line.trim_end().to_owned());
    }
    let (met, of) = table.met();
    lines.push(format!("  {met} of {of} values of the paper met"));
    lines.extend(table.remarks.iter().map(|remark| format!("  {remark}")));
    lines.push(String::new());
    lines.join("\n")
}

/// Three digits or more.
fn shown(value: f64) -> String {
    match value.abs() {
        0.0..10.0 => format!("{value:.3}"),
        10.0..100.0 => format!("{value:.2}"),
        100.0..1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_conductor::figure::Tolerance;

    #[test]
    fn one_figure_or_all_are_found() {
        assert_eq!(figures("14").map(|found| found.0), Ok(vec![Figure::Fast14]));
        assert_eq!(
            figures("all").map(|found| found.0.len()),
            Ok(Figure::ALL.len())
        );
        let error = figures("4").expect_err("there is no such figure");
        assert!(error.contains("v3-table-3"), "{error}");
    }

    #[test]
    fn a_miss_is_said() {
        let row = |paper, ours| Row {
            what: "x".to_owned(),
            paper: Some((paper, Tolerance::Share(0.1))),
            ours,
        };
        let table = Table {
            title: "T",
            setting: "s",
            unit: "u",
            rows: vec![row(1.0, 1.05), row(1.0, 12.0)],
            remarks: vec!["why"],
        };
        let text = text(&table);
        assert!(text.contains("1.050  met\n"), "{text}");
        assert!(text.contains("12.00  missed\n"), "{text}");
        assert!(
            text.contains("1 of 2 values of the paper met\n  why"),
            "{text}"
        );
    }
}
