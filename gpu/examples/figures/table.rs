//! The table.

use std::fmt;

/// A figure.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// Ours, and its unit.
    pub(crate) ours: f64,
    pub(crate) unit: &'static str,
    /// What it is compared with, and its name.
    pub(crate) beside: Option<(f64, &'static str)>,
    /// The least ratio that is good enough.
    pub(crate) bar: Option<f64>,
}

impl Row {
    /// By how much ours is better: of times, the shorter one is.
    fn ratio(&self) -> Option<f64> {
        let (beside, _) = self.beside?;
        Some(match self.unit {
            "us" => beside / self.ours,
            _ => self.ours / beside,
        })
    }
}

/// What was measured, and what was not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) device: String,
    pub(crate) rows: Vec<Row>,
    /// What was not measured, with the reason.
    pub(crate) missing: Vec<(String, String)>,
}

/// What this program measures where there is a device.
const FIGURES: [&str; 7] = [
    "H2D and D2H, 64 KiB to 1 GiB, beside plain copies",
    "lists of small blocks, beside plain copies",
    "both directions at once",
    "gather of 4096 fragments of 16, 32, 64 KiB to the host, beside one large copy",
    "layout transform inside the device, beside a copy inside the device",
    "event to future, beside a synchronised stream",
    "the ways by which pages are moved, as calibrated",
];

impl Table {
    /// Nothing was measured.
    pub(crate) fn pending(reason: &str) -> Self {
        let missing = FIGURES.map(|name| (name.to_owned(), reason.to_owned()));
        Self {
            device: "none".to_owned(),
            rows: Vec::new(),
            missing: missing.into(),
        }
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether everything that this program can measure was measured.
    pub(crate) fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.rows.extend(other.rows);
        self.missing.extend(other.missing);
    }

    pub(crate) fn missing(&mut self, name: &str, reason: impl fmt::Display) {
        self.missing.push((name.to_owned(), reason.to_string()));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "device: {}\n", self.device)?;
        writeln!(f, "| figure | ours | beside | ratio | bar |")?;
        writeln!(f, "|---|---|---|---|---|")?;
        for row in &self.rows {
            let (ours, unit) = (row.ours, row.unit);
            write!(f, "| {} | {ours:.2} {unit} |", row.name)?;
            match row.beside {
                Some((beside, name)) => write!(f, " {beside:.2} {unit} ({name}) |")?,
                None => write!(f, " |")?,
            }
            match row.ratio() {
                Some(ratio) => write!(f, " {ratio:.2} |")?,
                None => write!(f, " |")?,
            }
            match (row.bar, row.ratio()) {
                (Some(bar), Some(ratio)) if ratio < bar => writeln!(f, " {bar:.2}, missed |")?,
                (Some(bar), _) => writeln!(f, " {bar:.2} |")?,
                (None, _) => writeln!(f, " |")?,
            }
        }
        for (name, reason) in &self.missing {
            writeln!(f, "| {name} | pending: {reason} | | | |")?;
        }
        Ok(())
    }
}
