//! What the operator says about a machine's adapters.

use std::fmt;

use super::json::{self, Rows};
use super::{Location, Matrix, MatrixFault, NAME_BYTES_MAX, ReadFault, is_name};

/// An adapter's name, or its beginning with a `*` after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    is_beginning: bool,
}

impl Pattern {
    /// Reads a pattern: `mlx5_0` is that adapter, `mlx5_*` all that begin so, `*` all.
    ///
    /// # Errors
    /// [`ReadFault::BadFilter`].
    pub fn parse(text: &str) -> Result<Self, ReadFault> {
        let beginning = text.strip_suffix('*');
        let name = beginning.unwrap_or(text);
        let is_all = beginning == Some("");
        if !is_all && (!is_name(name) || name.contains('*')) {
            let shown = text.chars().take(NAME_BYTES_MAX).collect();
            return Err(ReadFault::BadFilter(shown));
        }
        Ok(Self {
            text: name.to_owned(),
            is_beginning: beginning.is_some(),
        })
    }

    /// Whether an adapter is meant.
    #[must_use]
    pub fn matches(&self, adapter: &str) -> bool {
        if self.is_beginning {
            adapter.starts_with(&self.text)
        } else {
            adapter == self.text
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        f.write_str(if self.is_beginning { "*" } else { "" })
    }
}

/// What an override file says. It is Mooncake's matrix, with rows for some places or none, and
/// optionally two filters:
///
/// ```text
///   {"allow": ["mlx5_*"], "deny": ["mlx5_2"], "cpu:0": [["mlx5_0"], ["mlx5_1"]]}
/// ```
///
/// What counts more comes first: an adapter that is denied is not used; where some are allowed, no
/// other one is used; a row of the file replaces the one that was found for that place; all other
/// rows stay as they were found, without the adapters that are filtered out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Override {
    allow: Option<Vec<Pattern>>,
    deny: Vec<Pattern>,
    rows: Rows,
}

impl Override {
    /// Reads an override file. Mooncake's own files are such; so are TENT's.
    ///
    /// # Errors
    /// [`ReadFault`], with the position where the form is at fault.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ReadFault> {
        let file = json::read(bytes)?;
        Ok(Self {
            allow: file.allow,
            deny: file.deny.unwrap_or_default(),
            rows: file.rows,
        })
    }

    /// Only these adapters, for filters that do not come from a file.
    #[must_use]
    pub fn filters(allow: Option<Vec<Pattern>>, deny: Vec<Pattern>) -> Self {
        Self {
            allow,
            deny,
            rows: Rows::new(),
        }
    }

    /// Whether the filters let an adapter through.
    #[must_use]
    pub fn allows(&self, adapter: &str) -> bool {
        let is_in = |patterns: &[Pattern]| patterns.iter().any(|p| p.matches(adapter));
        !is_in(&self.deny) && self.allow.as_deref().is_none_or(is_in)
    }

    /// The matrix of a machine, as it was found, with what is said here.
    ///
    /// # Errors
    /// [`MatrixFault::UnknownAdapter`] for one that the machine does not have, denied or not;
    /// [`MatrixFault::NothingLeft`] for a row of the file whose adapters are all denied;
    /// [`MatrixFault::NoneAllowed`] if the machine has adapters, and none is left.
    pub fn apply(&self, found: &Matrix) -> Result<Matrix, MatrixFault> {
        let left = found.adapters().iter().filter(|name| self.allows(name));
        let mut matrix = Matrix::new(left.cloned())?;
        if matrix.adapters().is_empty() && !found.adapters().is_empty() {
            return Err(MatrixFault::NoneAllowed);
        }
        for (location, tiers) in &self.rows {
            let mut names = tiers.iter().flatten();
            if let Some(adapter) = names.find(|name| !found.adapters().contains(name)) {
                return Err(MatrixFault::UnknownAdapter {
                    location: location.clone(),
                    adapter: adapter.clone(),
                });
            }
            let is_empty = tiers.iter().all(Vec::is_empty);
            let tiers = self.allowed(tiers);
            if !is_empty && tiers.iter().all(Vec::is_empty) {
                return Err(MatrixFault::NothingLeft(location.clone()));
            }
            matrix.insert(location.clone(), &tiers)?;
        }
        let is_said = |location: &&Location| self.rows.iter().any(|(said, _)| said == *location);
        for location in found.locations().filter(|location| !is_said(location)) {
            let row = found.row(location).expect("it has one");
            matrix.insert(location.clone(), &self.allowed(&row))?;
        }
        Ok(matrix)
    }

    fn allowed<'a, S: AsRef<str>>(&self, tiers: &'a [Vec<S>]) -> Vec<Vec<&'a str>> {
        let tier = |tier: &'a Vec<S>| {
            let names = tier.iter().map(S::as_ref);
            names.filter(|name| self.allows(name)).collect()
        };
        tiers.iter().map(tier).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::PATTERNS_MAX;

    fn found() -> Matrix {
        let names = ["mlx5_0", "mlx5_1", "mlx5_2", "eth0"];
        let mut matrix = Matrix::new(names.map(str::to_owned)).expect("a matrix");
        let near = [vec!["mlx5_0", "mlx5_1"], vec!["mlx5_2", "eth0"]];
        let all = [names.to_vec()];
        matrix.insert(Location::Cpu(0), &near).expect("a row");
        matrix.insert(Location::Any, &all).expect("a row");
        matrix
    }

    fn applied(text: &str) -> Result<Matrix, MatrixFault> {
        let read = Override::from_json(text.as_bytes()).expect("an override file");
        read.apply(&found())
    }

    #[test]
    fn denied_counts_more_than_allowed_and_both_more_than_rows() {
        let text = r#"{"allow": ["mlx5_*"], "deny": ["mlx5_2"],
            "cpu:0": [["mlx5_1"], ["mlx5_2", "mlx5_0"]], "cpu:4": [["mlx5_0"]]}"#;
        let matrix = applied(text).expect("a matrix");
        assert_eq!(matrix.adapters(), ["mlx5_0", "mlx5_1"]);
        let said: [&[&str]; 2] = [&["mlx5_1"], &["mlx5_0"]];
        assert_eq!(matrix.row(&Location::Cpu(0)).expect("a row"), said);
        let new: [&[&str]; 1] = [&["mlx5_0"]];
        assert_eq!(matrix.row(&Location::Cpu(4)).expect("a row"), new);
        let rest: [&[&str]; 1] = [&["mlx5_0", "mlx5_1"]];
        assert_eq!(matrix.row(&Location::Any).expect("a row"), rest);
        assert_eq!(applied("{}"), Ok(found()));
    }

    #[test]
    fn an_override_that_leaves_nothing_or_names_nobody_is_refused() {
        assert_eq!(applied(r#"{"deny": ["*"]}"#), Err(MatrixFault::NoneAllowed));
        assert_eq!(applied(r#"{"allow": []}"#), Err(MatrixFault::NoneAllowed));
        let nothing = applied(r#"{"deny": ["mlx5_2"], "cuda:0": [["mlx5_2"], []]}"#);
        assert_eq!(nothing, Err(MatrixFault::NothingLeft(Location::cuda(0))));
        let unknown = applied(r#"{"deny": ["mlx5_9"], "cpu:0": [["mlx5_0"], ["mlx5_9"]]}"#);
        let fault = unknown.expect_err("no such adapter").to_string();
        assert_eq!(fault, "cpu:0: this machine has no adapter mlx5_9");
        // A machine without adapters has nothing to deny.
        let read = Override::from_json(br#"{"deny": ["*"]}"#).expect("a file");
        assert_eq!(read.apply(&Matrix::default()), Ok(Matrix::default()));
    }

    #[test]
    fn patterns_are_names_or_beginnings() {
        let pattern = |text| Pattern::parse(text).expect("a pattern");
        assert!(pattern("mlx5_1").matches("mlx5_1") && !pattern("mlx5_1").matches("mlx5_10"));
        assert!(pattern("mlx5_1*").matches("mlx5_10") && !pattern("mlx5_1*").matches("mlx5_2"));
        assert!(pattern("*").matches("anything"));
        for text in ["mlx5_0", "mlx5_*", "*"] {
            assert_eq!(pattern(text).to_string(), text);
        }
        for bad in ["", "a*b", "**", "a b", "*a"] {
            let fault = Pattern::parse(bad).expect_err(bad);
            assert_eq!(fault, ReadFault::BadFilter(bad.to_owned()));
        }
        let filters = |count: usize| format!("{{\"deny\": {:?}}}", vec!["a"; count]);
        assert!(Override::from_json(filters(PATTERNS_MAX).as_bytes()).is_ok());
        let fault = Override::from_json(filters(PATTERNS_MAX + 1).as_bytes());
        let fault = fault.expect_err("one too many");
        assert_eq!(fault, ReadFault::TooManyFilters(PATTERNS_MAX + 1));
    }

    #[test]
    fn filters_alone_need_no_file() {
        let deny = vec![Pattern::parse("eth*").expect("a pattern")];
        let only = Override::filters(None, deny);
        assert!(only.allows("mlx5_0") && !only.allows("eth0"));
        let matrix = only.apply(&found()).expect("a matrix");
        assert_eq!(matrix.adapters().len(), 3);
    }
}
