//! Lists of CPUs, as the system writes them: `0-3,8`.

use std::fmt::Write;
use std::ops::RangeInclusive;

/// Writes ascending numbers as ranges.
pub(in crate::program) fn ranges(numbers: &[usize]) -> String {
    let mut found: Vec<RangeInclusive<usize>> = Vec::new();
    for &number in numbers {
        match found.last_mut() {
            Some(last) if last.end() + 1 == number => *last = *last.start()..=number,
            _ => found.push(number..=number),
        }
    }
    let mut text = String::new();
    for range in found {
        let comma = if text.is_empty() { "" } else { "," };
        let (start, end) = (range.start(), range.end());
        let written = if start == end {
            write!(text, "{comma}{start}")
        } else {
            write!(text, "{comma}{start}-{end}")
        };
        written.expect("writing to a string");
    }
    text
}

/// How many numbers a list like `0-3,8` names; `None` if it is no such list.
pub(in crate::program) fn count(text: &str) -> Option<usize> {
    let mut sum: usize = 0;
    for part in text.trim().split(',') {
        let (start, end) = part.split_once('-').unwrap_or((part, part));
        let (start, end): (usize, usize) = (start.parse().ok()?, end.parse().ok()?);
        sum = sum.checked_add(end.checked_sub(start)?.checked_add(1)?)?;
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_joined() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[3]), "3");
        assert_eq!(ranges(&[0, 1, 2, 8, 10, 11]), "0-2,8,10-11");
    }

    #[test]
    fn lists_are_counted() {
        assert_eq!(count("0-3,8\n"), Some(5));
        assert_eq!(count("7"), Some(1));
        for no_list in ["", "3-1", "a", "1,", "0-18446744073709551615"] {
            assert_eq!(count(no_list), None, "{no_list}");
        }
    }
}
