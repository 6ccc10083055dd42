//! The matrix, and choosing by it.

use std::collections::BTreeMap;

use super::{ADAPTERS_MAX, LOCATIONS_MAX, Location, MatrixFault, TIERS_MAX, is_name};

/// The adapters of a machine by their distance to each place where memory lies.
///
/// A row names the adapters that its place may use, in tiers; the first is nearest. A place without
/// a row, or with an empty one, uses that of `*`, and without that all adapters alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matrix {
    /// In the order of their names.
    adapters: Vec<String>,
    /// Indices of adapters, tier by tier; no adapter twice in a row.
    rows: BTreeMap<Location, Vec<Vec<usize>>>,
}

impl Matrix {
    /// A matrix without rows, of these adapters.
    ///
    /// # Errors
    /// [`MatrixFault`]: a bad name, one that is there twice, or too many.
    pub fn new(names: impl IntoIterator<Item = String>) -> Result<Self, MatrixFault> {
        let mut adapters: Vec<String> = names.into_iter().collect();
        if adapters.len() > ADAPTERS_MAX {
            return Err(MatrixFault::TooManyAdapters(adapters.len()));
        }
        if let Some(bad) = adapters.iter().find(|name| !is_name(name)) {
            return Err(MatrixFault::BadName(bad.chars().take(64).collect()));
        }
        adapters.sort_unstable();
        if let Some(pair) = adapters.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(MatrixFault::SameName(pair[0].clone()));
        }
        let rows = BTreeMap::new();
        Ok(Self { adapters, rows })
    }

    /// Adds a row.
    ///
    /// # Errors
    /// [`MatrixFault`]: the place has one, an adapter is unknown or twice in it, or a limit is met.
    /// The matrix is as it was.
    pub fn insert<S: AsRef<str>>(
        &mut self,
        location: Location,
        tiers: &[Vec<S>],
    ) -> Result<(), MatrixFault> {
        if self.rows.contains_key(&location) {
            return Err(MatrixFault::SameLocation(location));
        }
        let count = tiers.len();
        if count > TIERS_MAX {
            return Err(MatrixFault::TooManyTiers { location, count });
        }
        if self.rows.len() >= LOCATIONS_MAX {
            return Err(MatrixFault::TooManyLocations);
        }
        let mut is_taken = vec![false; self.adapters.len()];
        let mut row = Vec::with_capacity(count);
        for tier in tiers {
            let mut indices = Vec::with_capacity(tier.len().min(self.adapters.len()));
            for name in tier {
                let adapter = name.as_ref().to_owned();
                let Some(index) = self.index(&adapter) else {
                    return Err(MatrixFault::UnknownAdapter { location, adapter });
                };
                if std::mem::replace(&mut is_taken[index], true) {
                    return Err(MatrixFault::Twice { location, adapter });
                }
                indices.push(index);
            }
            row.push(indices);
        }
        self.rows.insert(location, row);
        Ok(())
    }

    /// Its adapters, in the order of their names.
    #[must_use]
    pub fn adapters(&self) -> &[String] {
        &self.adapters
    }

    /// The places that have a row, in order.
    pub fn locations(&self) -> impl Iterator<Item = &Location> {
        self.rows.keys()
    }

    /// The row of a place, if it has one of its own.
    #[must_use]
    pub fn row(&self, location: &Location) -> Option<Vec<Vec<&str>>> {
        let row = self.rows.get(location)?;
        let named = |tier: &Vec<usize>| tier.iter().map(|&index| self.name(index)).collect();
        Some(row.iter().map(named).collect())
    }

    /// The adapters for memory at a place in the order in which they are tried, each once: tier by
    /// tier, those of a tier in turn, so that who comes with the next `turn` begins with another one.
    /// Adapters that are not up are left out.
    #[must_use]
    pub fn walk(&self, location: &Location, turn: u64, is_up: impl Fn(&str) -> bool) -> Vec<&str> {
        let mut walk = Vec::new();
        for tier in self.tiers(location) {
            self.append(&mut walk, &tier, turn, &is_up);
        }
        walk
    }

    /// The adapter for memory at a place: for the first attempt (0) the next of the nearest that are
    /// up, for attempt k the k-th after it on the [walk](Self::walk), round and round. `None` only if
    /// no adapter of the row is up.
    #[must_use]
    pub fn choose(
        &self,
        location: &Location,
        turn: u64,
        attempt: u32,
        is_up: impl Fn(&str) -> bool,
    ) -> Option<&str> {
        nth(&self.walk(location, turn, is_up), attempt)
    }

    /// The peer's adapter to use with our own `adapter`: by the peer's matrix for the place where its
    /// memory lies, from the tier that ours is of in our row for ours, so that near talks to near, and
    /// there the one of the same place in the order, so that pairs stay the same and use all. Attempt
    /// k goes to the k-th after it: the rest of that tier, then the others, the nearest first.
    ///
    /// `None` if our row does not name `adapter`, or if no adapter of the peer's row is up.
    #[must_use]
    pub fn pair<'p>(
        &self,
        location: &Location,
        adapter: &str,
        peer: &'p Self,
        peer_location: &Location,
        attempt: u32,
        is_up: impl Fn(&str) -> bool,
    ) -> Option<&'p str> {
        let index = self.index(adapter)?;
        let place = |tier: &Vec<usize>| tier.iter().position(|&other| other == index);
        let tiers = self.tiers(location);
        let mut places = tiers.iter().enumerate();
        let (tier, turn) =
            places.find_map(|(number, tier)| place(tier).map(|at| (number, at as u64)))?;
        let mut walk = Vec::new();
        let peers = peer.tiers(peer_location);
        let others = (0..peers.len()).filter(|&other| other != tier);
        let first = (tier < peers.len()).then_some(tier);
        for number in first.into_iter().chain(others) {
            peer.append(&mut walk, &peers[number], turn, &is_up);
        }
        nth(&walk, attempt)
    }

    /// Appends the adapters of a tier that are up, in turn.
    fn append<'a>(
        &'a self,
        walk: &mut Vec<&'a str>,
        tier: &[usize],
        turn: u64,
        is_up: impl Fn(&str) -> bool,
    ) {
        let start = walk.len();
        let names = tier.iter().map(|&index| self.name(index));
        walk.extend(names.filter(|name| is_up(name)));
        let up = &mut walk[start..];
        if !up.is_empty() {
            let first = turn % up.len() as u64;
            up.rotate_left(usize::try_from(first).expect("below a length"));
        }
    }

    /// The tiers that are used for a place.
    fn tiers(&self, location: &Location) -> Vec<Vec<usize>> {
        let own = self.rows.get(location).into_iter();
        let mut rows = own.chain(self.rows.get(&Location::Any));
        let row = rows.find(|row| row.iter().any(|tier| !tier.is_empty()));
        row.cloned()
            .unwrap_or_else(|| vec![(0..self.adapters.len()).collect()])
    }

    fn index(&self, adapter: &str) -> Option<usize> {
        let by_name = |other: &String| other.as_str().cmp(adapter);
        self.adapters.binary_search_by(by_name).ok()
    }

    fn name(&self, index: usize) -> &str {
        &self.adapters[index]
    }
}

fn nth<'a>(walk: &[&'a str], attempt: u32) -> Option<&'a str> {
    let steps = (attempt as usize).checked_rem(walk.len())?;
    Some(walk[steps])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(of: &[&str]) -> Vec<String> {
        of.iter().map(|&name| name.to_owned()).collect()
    }

    fn matrix() -> Matrix {
        let mut matrix = Matrix::new(names(&["d", "c", "b", "a"])).expect("a matrix");
        let tiers = [vec!["b", "a"], vec!["c"]];
        matrix.insert(Location::Cpu(0), &tiers).expect("a row");
        matrix
    }

    #[test]
    fn those_of_a_tier_take_turns_and_the_next_tier_waits() {
        let matrix = matrix();
        let (at, up) = (Location::Cpu(0), |_: &str| true);
        assert_eq!(matrix.walk(&at, 0, up), ["b", "a", "c"]);
        assert_eq!(matrix.walk(&at, 1, up), ["a", "b", "c"]);
        assert_eq!(matrix.walk(&at, u64::MAX, up), ["a", "b", "c"]);
        let tried: Vec<_> = (0..5).map(|k| matrix.choose(&at, 0, k, up)).collect();
        let expected = ["b", "a", "c", "b", "a"].map(Some);
        assert_eq!(tried, expected);
        assert_eq!(matrix.choose(&at, 0, 0, |name| name != "b"), Some("a"));
        assert_eq!(matrix.choose(&at, 0, 0, |name| name > "b"), Some("c"));
        assert_eq!(matrix.choose(&at, 0, 0, |name| name == "d"), None);
    }

    #[test]
    fn a_place_without_adapters_of_its_own_uses_the_row_for_any() {
        let mut matrix = matrix();
        let up = |_: &str| true;
        let all = ["a", "b", "c", "d"];
        assert_eq!(matrix.walk(&Location::Cpu(1), 0, up), all);
        matrix
            .insert::<&str>(Location::Cpu(1), &[vec![], vec![]])
            .expect("an empty row");
        assert_eq!(matrix.walk(&Location::Cpu(1), 0, up), all);
        matrix
            .insert(Location::Any, &[vec!["d"]])
            .expect("a row for any");
        assert_eq!(matrix.walk(&Location::Cpu(1), 0, up), ["d"]);
        assert_eq!(matrix.walk(&Location::cuda(9), 0, up), ["d"]);
        assert!(Matrix::default().walk(&Location::Any, 0, up).is_empty());
    }

    #[test]
    fn near_talks_to_near_and_pairs_stay() {
        let ours = matrix();
        let mut theirs = Matrix::new(names(&["w", "x", "y", "z"])).expect("a matrix");
        let tiers = [vec!["y", "x"], vec!["z", "w"]];
        theirs.insert(Location::cuda(3), &tiers).expect("a row");
        let pair = |adapter, attempt| {
            let (here, there) = (Location::Cpu(0), Location::cuda(3));
            ours.pair(&here, adapter, &theirs, &there, attempt, |_| true)
        };
        assert_eq!((pair("b", 0), pair("a", 0)), (Some("y"), Some("x")));
        assert_eq!(pair("c", 0), Some("z"), "far with far");
        let walk: Vec<_> = (0..5).filter_map(|k| pair("a", k)).collect();
        assert_eq!(walk, ["x", "y", "w", "z", "x"]);
        assert_eq!(pair("d", 0), None, "our row does not name it");
        assert_eq!(pair("nobody", 0), None);
        let (here, there) = (Location::Cpu(0), Location::cuda(3));
        let one_up = ours.pair(&here, "a", &theirs, &there, 7, |name| name == "w");
        assert_eq!(one_up, Some("w"));
    }

    #[test]
    fn bounds_and_faults_of_rows() {
        let mut matrix = matrix();
        let at = Location::Cpu(7);
        let unknown = matrix.insert(at.clone(), &[vec!["a"], vec!["e"]]);
        assert_eq!(
            unknown.expect_err("no such adapter").to_string(),
            "cpu:7: this machine has no adapter e"
        );
        let twice = matrix.insert(at.clone(), &[vec!["a"], vec!["b", "a"]]);
        assert_eq!(
            twice.expect_err("twice").to_string(),
            "cpu:7: a stands there twice"
        );
        let again = matrix.insert(Location::Cpu(0), &[vec!["a"]]);
        assert_eq!(again, Err(MatrixFault::SameLocation(Location::Cpu(0))));
        let none = vec![Vec::<&str>::new(); TIERS_MAX + 1];
        let refused = matrix.insert(at.clone(), &none);
        assert!(matches!(
            refused,
            Err(MatrixFault::TooManyTiers { count: 4, .. })
        ));
        assert_eq!(matrix.insert(at, &none[..TIERS_MAX]), Ok(()));
        for node in 100.. {
            let full = matrix.locations().count() == LOCATIONS_MAX;
            let inserted = matrix.insert(Location::Cpu(node), &[vec!["a"]]);
            if full {
                assert_eq!(inserted, Err(MatrixFault::TooManyLocations));
                break;
            }
            assert_eq!(inserted, Ok(()));
        }
        let many = |count| Matrix::new((0..count).map(|n| format!("mlx5_{n}")));
        assert!(many(ADAPTERS_MAX).is_ok());
        let refused = many(ADAPTERS_MAX + 1).expect_err("one too many");
        assert_eq!(refused, MatrixFault::TooManyAdapters(ADAPTERS_MAX + 1));
        for bad in ["", "a b", "a\n", "\u{e4}", &"a".repeat(65)] {
            let refused = Matrix::new([bad.to_owned()]).expect_err(bad);
            assert!(matches!(refused, MatrixFault::BadName(_)), "{bad}");
        }
    }
}
