//! Means and their confidence.

use crate::report::number;

/// Mean over runs, and half the width of its 95 % interval (Student) where there are several.
///
/// # Panics
/// If there is no value.
#[must_use]
pub fn mean_and_interval(values: &[f64]) -> (f64, Option<f64>) {
    assert!(!values.is_empty(), "nothing has no mean");
    let count = number(values.len());
    let mean = values.iter().sum::<f64>() / count;
    if values.len() < 2 {
        return (mean, None);
    }
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let error = (squares / (count - 1.0) / count).sqrt();
    (mean, Some(student_t(values.len() - 1) * error))
}

/// The 97.5 % quantile of Student's distribution.
fn student_t(degrees: usize) -> f64 {
    const TABLE: [f64; 10] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    ];
    TABLE.get(degrees - 1).copied().unwrap_or(2.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_follow_students_table() {
        assert_eq!(mean_and_interval(&[3.0]), (3.0, None));
        let (mean, interval) = mean_and_interval(&[1.0, 3.0]);
        assert_eq!(mean, 2.0);
        let interval = interval.expect("there are two");
        assert!((interval - 12.706).abs() < 1e-9, "{interval}");
        assert_eq!(mean_and_interval(&[5.0; 20]), (5.0, Some(0.0)));
    }
}
