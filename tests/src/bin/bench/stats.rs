//! Percentiles, by the nearest-rank method: always a value that was measured.

/// The `percent`-th percentile; `None` without samples.
pub(crate) fn percentile(samples: &[f64], percent: usize) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let samples: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(percentile(&samples, 50), Some(100.0));
        assert_eq!(percentile(&samples, 99), Some(198.0));
        assert_eq!(percentile(&[7.0], 99), Some(7.0));
        assert_eq!(percentile(&[], 50), None);
    }
}
