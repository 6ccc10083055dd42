//! Matrices as JSON.
//!
//! Two forms are read. Mooncake's classic one names adapters in lists, the nearest first; it is also
//! the one that is written. TENT's lists adapters once and names them by number:
//!
//! ```text
//!   {"cpu:0":[["mlx5_2"],["mlx5_3"]], ...}
//!
//!   {"nics":[{"name":"mlx5_2",...},...],
//!    "mems":[{"name":"cpu:0","device_list":{"rank0":[0],"rank1":[1],"rank2":[]},...},...]}
//! ```

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::{FILE_BYTES_MAX, Location, Matrix, MatrixFault, PATTERNS_MAX, Pattern, ReadFault};

/// Rows of names, in the order of the file.
pub(super) type Rows = Vec<(Location, Vec<Vec<String>>)>;

/// What a file says.
#[derive(Debug)]
pub(super) struct File {
    pub(super) allow: Option<Vec<Pattern>>,
    pub(super) deny: Option<Vec<Pattern>>,
    pub(super) rows: Rows,
    /// Adapters that are listed, whether a row names them or not.
    listed: Vec<String>,
}

/// The same, before its words are looked at.
#[derive(Debug, Default)]
struct Raw {
    allow: Option<Vec<String>>,
    deny: Option<Vec<String>>,
    nics: Option<Vec<Nic>>,
    mems: Option<Vec<Mem>>,
    rows: Vec<(String, Vec<Vec<String>>)>,
}

#[derive(Debug, Deserialize)]
struct Nic {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Mem {
    name: String,
    device_list: Ranks,
}

#[derive(Debug, Deserialize)]
struct Ranks {
    #[serde(default)]
    rank0: Vec<u64>,
    #[serde(default)]
    rank1: Vec<u64>,
    #[serde(default)]
    rank2: Vec<u64>,
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Keys)
    }
}

struct Keys;

impl<'de> Visitor<'de> for Keys {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of places of memory")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut raw = Raw::default();
        while let Some(key) = map.next_key::<String>()? {
            let is_new = match &*key {
                "allow" => raw.allow.replace(map.next_value()?).is_none(),
                "deny" => raw.deny.replace(map.next_value()?).is_none(),
                "nics" => raw.nics.replace(map.next_value()?).is_none(),
                "mems" => raw.mems.replace(map.next_value()?).is_none(),
                _ => {
                    raw.rows.push((key, map.next_value()?));
                    continue;
                }
            };
            if !is_new {
                return Err(A::Error::custom(format_args!("`{key}` is there twice")));
            }
        }
        Ok(raw)
    }
}

/// Reads a file of either form.
pub(super) fn read(bytes: &[u8]) -> Result<File, ReadFault> {
    if bytes.len() > FILE_BYTES_MAX {
        return Err(ReadFault::TooLong);
    }
    let raw: Raw = serde_json::from_slice(bytes).map_err(|error| form(&error))?;
    let nics = raw.nics.unwrap_or_default();
    let listed: Vec<String> = nics.into_iter().map(|nic| nic.name).collect();
    let mut rows = Rows::new();
    for (key, tiers) in raw.rows {
        rows.push((location(&key)?, tiers));
    }
    for mem in raw.mems.unwrap_or_default() {
        let location = location(&mem.name)?;
        let ranks = [
            mem.device_list.rank0,
            mem.device_list.rank1,
            mem.device_list.rank2,
        ];
        let tiers = ranks.iter().map(|rank| named(&location, rank, &listed));
        let tiers = tiers.collect::<Result<Vec<_>, _>>()?;
        rows.push((location, tiers));
    }
    let mut seen = BTreeSet::new();
    if let Some((location, _)) = rows.iter().find(|(location, _)| !seen.insert(location)) {
        return Err(MatrixFault::SameLocation(location.clone()).into());
    }
    Ok(File {
        allow: raw.allow.map(patterns).transpose()?,
        deny: raw.deny.map(patterns).transpose()?,
        rows,
        listed,
    })
}

fn form(error: &serde_json::Error) -> ReadFault {
    let (line, column) = (error.line(), error.column());
    let text = error.to_string();
    let place = format!(" at line {line} column {column}");
    let reason = text.strip_suffix(&place).unwrap_or(&text).to_owned();
    ReadFault::Form {
        line,
        column,
        reason,
    }
}

fn location(text: &str) -> Result<Location, ReadFault> {
    let parsed = text.parse();
    parsed.map_err(|super::NotALocation(text)| ReadFault::BadLocation(text))
}

fn named(location: &Location, rank: &[u64], listed: &[String]) -> Result<Vec<String>, ReadFault> {
    let name = |&number: &u64| {
        let index = usize::try_from(number).ok();
        let name = index.and_then(|index| listed.get(index)).cloned();
        name.ok_or_else(|| ReadFault::NoSuchNumber {
            location: location.clone(),
            number,
        })
    };
    rank.iter().map(name).collect()
}

fn patterns(texts: Vec<String>) -> Result<Vec<Pattern>, ReadFault> {
    if texts.len() > PATTERNS_MAX {
        return Err(ReadFault::TooManyFilters(texts.len()));
    }
    texts.iter().map(|text| Pattern::parse(text)).collect()
}

impl Matrix {
    /// Reads a matrix as a peer publishes it, in Mooncake's classic form or in TENT's: its adapters
    /// are those that it names.
    ///
    /// # Errors
    /// [`ReadFault`], with the position where the form is at fault.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ReadFault> {
        let file = read(bytes)?;
        if file.allow.is_some() {
            return Err(ReadFault::Filters("allow"));
        }
        if file.deny.is_some() {
            return Err(ReadFault::Filters("deny"));
        }
        let in_rows = file
            .rows
            .iter()
            .flat_map(|(_, tiers)| tiers.iter().flatten());
        let names: BTreeSet<&String> = in_rows.chain(&file.listed).collect();
        let mut matrix = Self::new(names.into_iter().cloned())?;
        for (location, tiers) in file.rows {
            matrix.insert(location, &tiers)?;
        }
        Ok(matrix)
    }

    /// Writes it in Mooncake's classic form: of each row the first tier, and all others as one, the
    /// nearer first. Rows are in the order of their keys as texts. Adapters that are in no row are
    /// not written.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut rows: Vec<(String, String)> = Vec::new();
        for location in self.locations() {
            let tiers = self.row(location).expect("it has a row");
            let (first, others) = tiers.split_at(tiers.len().min(1));
            let (first, others) = (list(first), list(others));
            rows.push((location.to_string(), format!("[{first},{others}]")));
        }
        rows.sort_unstable();
        let rows: Vec<String> = rows
            .iter()
            .map(|(location, lists)| format!("\"{location}\":{lists}"))
            .collect();
        format!("{{{}}}", rows.join(","))
    }
}

/// The names of some tiers as one list.
fn list(tiers: &[Vec<&str>]) -> String {
    let quoted = |name: &&str| serde_json::Value::from(*name).to_string();
    let names: Vec<String> = tiers.iter().flatten().map(quoted).collect();
    format!("[{}]", names.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(matrix: &Matrix, location: &Location) -> Vec<Vec<String>> {
        let row = matrix.row(location).expect("a row");
        let owned = |tier: Vec<&str>| tier.into_iter().map(str::to_owned).collect();
        row.into_iter().map(owned).collect()
    }

    #[test]
    fn mooncakes_form_is_read_and_written_alike() {
        let text = concat!(
            r#"{"*":[["mlx5_2","mlx5_3"],[]],"cpu:0":[["mlx5_2"],["mlx5_3"]],"#,
            r#""cpu:10":[["mlx5_3"],["mlx5_2"]],"cpu:2":[[],["mlx5_3","mlx5_2"]],"#,
            r#""cuda:0":[["mlx5_2"],["mlx5_3"]]}"#
        );
        let matrix = Matrix::from_json(text.as_bytes()).expect("Mooncake's form");
        assert_eq!(matrix.adapters(), ["mlx5_2", "mlx5_3"]);
        assert_eq!(row(&matrix, &Location::cuda(0)), [["mlx5_2"], ["mlx5_3"]]);
        assert_eq!(matrix.to_json(), text);
        assert_eq!(Matrix::default().to_json(), "{}");
        assert_eq!(Matrix::from_json(b" {} "), Ok(Matrix::default()));
    }

    #[test]
    fn further_tiers_are_written_as_the_second() {
        let names = ["a", "b", "c"].map(str::to_owned);
        let mut matrix = Matrix::new(names).expect("a matrix");
        let tiers = [vec!["c"], vec!["b"], vec!["a"]];
        matrix.insert(Location::Cpu(0), &tiers).expect("a row");
        matrix.insert::<&str>(Location::Cpu(1), &[]).expect("a row");
        let text = matrix.to_json();
        assert_eq!(text, r#"{"cpu:0":[["c"],["b","a"]],"cpu:1":[[],[]]}"#);
        let quoted = Matrix::new([r#"a"b\c"#.to_owned()]).expect("a strange name");
        let mut written = quoted.clone();
        written
            .insert(Location::Any, &[vec![r#"a"b\c"#]])
            .expect("a row");
        let read = Matrix::from_json(written.to_json().as_bytes()).expect("read");
        assert_eq!(read.adapters(), quoted.adapters());
    }

    #[test]
    fn tents_form_is_read() {
        let text = r#"{
            "nics": [{"name": "mlx5_0", "pci_bus_id": "0000:13:00.0", "type": 0, "numa_node": 0},
                     {"name": "mlx5_1", "device_attrs": {"a": [1]}}, {"name": "eth0"}],
            "mems": [{"name": "cpu:0", "numa_node": -1,
                      "device_list": {"rank0": [1, 0], "rank1": [], "rank2": [2]}},
                     {"name": "cuda:0", "device_list": {"rank1": [0]}}]}"#;
        let matrix = Matrix::from_json(text.as_bytes()).expect("TENT's form");
        assert_eq!(matrix.adapters(), ["eth0", "mlx5_0", "mlx5_1"]);
        let cpu: [&[&str]; 3] = [&["mlx5_1", "mlx5_0"], &[], &["eth0"]];
        assert_eq!(row(&matrix, &Location::Cpu(0)), cpu);
        let gpu: [&[&str]; 3] = [&[], &["mlx5_0"], &[]];
        assert_eq!(row(&matrix, &Location::cuda(0)), gpu);
        let wild =
            r#"{"nics":[{"name":"a"}],"mems":[{"name":"cpu:0","device_list":{"rank0":[1]}}]}"#;
        let fault = Matrix::from_json(wild.as_bytes()).expect_err("there is one");
        assert_eq!(fault.to_string(), "cpu:0: there is no adapter 1");
    }

    #[test]
    fn what_is_at_fault_and_where_is_said() {
        let cases = [
            ("", "line 1, column 0: EOF while parsing a value"),
            (
                "[]",
                "line 1, column 0: invalid type: sequence, expected an object of places of memory",
            ),
            (
                "{\"cpu:0\":\n [[\"a\"], 7]}",
                "line 2, column 10: invalid type: integer `7`, expected a sequence",
            ),
            (
                r#"{"cpu:0":[["a"]]} x"#,
                "line 1, column 19: trailing characters",
            ),
            (
                r#"{"deny":[],"deny":[]}"#,
                "line 1, column 21: `deny` is there twice",
            ),
            (
                r#"{"node0":[["a"]]}"#,
                "`node0` is no place of memory: cpu:N, cuda:N or *",
            ),
            (
                r#"{"cpu:0":[["a"]],"cpu:0":[[]]}"#,
                "cpu:0: there are two rows for it",
            ),
            (r#"{"cpu:0":[["a","a"]]}"#, "cpu:0: a stands there twice"),
            (
                r#"{"cpu:0":[["a b"]]}"#,
                "`a b` is no adapter's name: 1 to 64 printable characters without spaces",
            ),
            (
                r#"{"allow":["a"]}"#,
                "`allow` belongs into an override file",
            ),
            (
                r#"{"cpu:0":[[],[],[],[]]}"#,
                "cpu:0: 4 lists of adapters, of 3 at most",
            ),
        ];
        for (text, expected) in cases {
            let fault = Matrix::from_json(text.as_bytes()).expect_err(text);
            assert_eq!(fault.to_string(), expected, "{text}");
        }
    }

    #[test]
    fn files_are_bounded() {
        let mut text = b"{}".to_vec();
        text.resize(FILE_BYTES_MAX, b' ');
        assert_eq!(Matrix::from_json(&text), Ok(Matrix::default()));
        text.push(b' ');
        assert_eq!(Matrix::from_json(&text), Err(ReadFault::TooLong));
    }
}
