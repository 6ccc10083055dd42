//! What torch does with the same pages: a program of Python's, which this one has in it.

use std::io::Write;
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::store::{NAME, PAGE_BYTES, PAGES};
use crate::table::{Row, Table};

const PROGRAM: &str = include_str!("../../../python/bench/gpu.py");
const WHAT: &str = "torch's copy of the same pages, and its index_select gather";

/// A line of what it prints.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Line {
    Pending { pending: String },
    Figure(Figure),
}

#[derive(Debug, Deserialize)]
struct Figure {
    what: What,
    fragment_bytes: usize,
    gb_per_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum What {
    /// The store's pages, from pinned memory to the device, one by one.
    Pages,
    /// 4096 fragments to the host, one by one.
    Copies,
    /// 4096 fragments gathered on the device, then copied to the host at once.
    IndexSelect,
}

/// Adds what torch does, and puts it beside ours.
pub(crate) fn measure(device: &str, table: &mut Table) {
    match lines(device) {
        Ok(lines) => {
            for line in lines {
                match line {
                    Line::Pending { pending } => table.missing(WHAT, pending),
                    Line::Figure(figure) => add(&figure, table),
                }
            }
        }
        Err(reason) => table.missing(WHAT, reason),
    }
}

fn lines(device: &str) -> Result<Vec<Line>, String> {
    let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    let (pages, page_bytes) = (PAGES.to_string(), PAGE_BYTES.to_string());
    let mut child = Command::new(&python)
        .args(["-", device, &pages, &page_bytes])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("no {}: {error}", python.display()))?;
    let mut program = child.stdin.take().expect("piped");
    let written = program.write_all(PROGRAM.as_bytes());
    drop(program);
    let output = child
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    written.map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("{} ended with {}", python.display(), output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().map(|line| {
        let line = serde_json::from_str(line);
        line.map_err(|error| format!("{} says what is no figure: {error}", python.display()))
    });
    lines.collect()
}

fn add(figure: &Figure, table: &mut Table) {
    let kib = figure.fragment_bytes >> 10;
    let torch = figure.gb_per_s;
    let (begin, end, by) = match figure.what {
        What::Pages => (
            format!("{NAME} of {PAGES} pages"),
            "",
            "torch, page by page",
        ),
        What::Copies => (gather(kib), "as planned", "torch, one by one"),
        What::IndexSelect => (gather(kib), "as planned", "torch, index_select"),
    };
    let ours: Vec<(String, f64)> = table
        .rows
        .iter()
        .filter(|row| {
            row.beside
                .is_none_or(|(_, name)| !name.starts_with("torch"))
        })
        .filter(|row| row.name.starts_with(&begin) && row.name.ends_with(end))
        .map(|row| (row.name.clone(), row.ours))
        .collect();
    for (name, ours) in ours {
        table.rows.push(Row {
            name,
            ours,
            unit: "GB/s",
            beside: Some((torch, by)),
            bar: None,
        });
    }
}

fn gather(kib: usize) -> String {
    format!("gather 4096 x {kib} KiB to the host")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, ours: f64) -> Row {
        Row {
            name: name.to_owned(),
            ours,
            unit: "GB/s",
            beside: None,
            bar: None,
        }
    }

    #[test]
    fn figures_stand_beside_ours_once_each() {
        let planned = "gather 4096 x 16 KiB to the host, as planned";
        let mut table = Table {
            rows: vec![
                row("store get of 256 pages of 64 KiB to the device, sent", 4.0),
                row("store get of a page of 64 KiB to the device, sent", 50.0),
                row("gather 4096 x 16 KiB to the host, batched", 3.0),
                row(planned, 8.0),
            ],
            ..Table::default()
        };
        for line in [
            r#"{"what": "pages", "fragment_bytes": 65536, "gb_per_s": 2.0}"#,
            r#"{"what": "copies", "fragment_bytes": 16384, "gb_per_s": 1.0}"#,
            r#"{"what": "index_select", "fragment_bytes": 16384, "gb_per_s": 16.0}"#,
            r#"{"what": "index_select", "fragment_bytes": 32768, "gb_per_s": 16.0}"#,
        ] {
            let Ok(Line::Figure(figure)) = serde_json::from_str(line) else {
                unreachable!("a figure: {line}");
            };
            add(&figure, &mut table);
        }
        let added: Vec<_> = table.rows[4..]
            .iter()
            .map(|row| (row.name.as_str(), row.ours, row.beside))
            .collect();
        assert_eq!(
            added,
            [
                (
                    "store get of 256 pages of 64 KiB to the device, sent",
                    4.0,
                    Some((2.0, "torch, page by page"))
                ),
                (planned, 8.0, Some((1.0, "torch, one by one"))),
                (planned, 8.0, Some((16.0, "torch, index_select"))),
            ]
        );
    }

    #[test]
    fn without_a_device_that_torch_knows_it_is_pending() {
        let mut table = Table::default();
        measure("fake", &mut table);
        let [(what, reason)] = &table.missing[..] else {
            unreachable!("{table}");
        };
        assert_eq!(what, WHAT);
        assert!(
            reason.contains("fake") || reason.contains("no "),
            "{reason}"
        );
    }
}
