//! Slopes of what is in use at rest, and the bounds of them.

use lodge_tests::footprint::{Figure, Footprint};

use crate::rounds::{Record, Rest};

/// How much a figure may grow in 1,000 creates and deletes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    /// In the figure's unit.
    pub(crate) per_1000_cycles: f64,
    /// Growth over the whole soak that is no leak yet: a slope of few samples is not exact.
    pub(crate) noise: f64,
}

/// Memory, in KiB: 10 MiB in 20,000 cycles. An allocator gives back when it likes.
const MEMORY: Bound = Bound {
    per_1000_cycles: 512.0,
    noise: 4096.0,
};
/// Everything that is counted: at rest the count is the same, or something was forgotten.
const COUNT: Bound = Bound {
    per_1000_cycles: 0.5,
    noise: 0.5,
};

/// A figure over the soak.
#[derive(Debug)]
pub(crate) struct Slope {
    pub(crate) name: &'static str,
    /// At rest, first and last.
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// The most under load.
    pub(crate) most: u64,
    pub(crate) per_hour: f64,
    pub(crate) per_1000_cycles: f64,
    pub(crate) bound: Bound,
    pub(crate) verdict: Verdict,
}

/// Whether a slope is within its bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Fine,
    /// Above it, by so little in all that more samples are needed to tell.
    WithinNoise,
    Above,
}

/// The slope of every figure.
pub(crate) fn all(record: &Record) -> Vec<Slope> {
    let figures = Footprint::FIGURES.iter();
    figures.filter_map(|figure| of(record, *figure)).collect()
}

/// `None` without two rests.
fn of(record: &Record, (name, figure): Figure) -> Option<Slope> {
    // What belongs to the daemon's process begins anew with each of them.
    let of_one_process = name.starts_with("lodged") || name.starts_with("launcher");
    let from = if of_one_process {
        record.steady_from
    } else {
        0
    };
    let rests = record.rests.get(from..).unwrap_or_default();
    let (first, last) = (rests.first()?, rests.last()?);
    let value = |rest: &Rest| figure(&rest.used) as f64;
    let slope = |by: fn(&Rest) -> f64| slope(rests.iter().map(|rest| (by(rest), value(rest))));
    let per_hour = slope(|rest| rest.at.as_secs_f64() / 3600.0);
    let per_1000_cycles = slope(|rest| rest.cycles as f64 / 1000.0);
    let bound = if name.contains("rss") { MEMORY } else { COUNT };
    let hours = (last.at - first.at).as_secs_f64() / 3600.0;
    // Where no sandbox came and went, time alone tells.
    let over = per_1000_cycles > bound.per_1000_cycles || first.cycles == last.cycles;
    Some(Slope {
        name,
        first: figure(&first.used),
        last: figure(&last.used),
        most: record.busy.iter().map(figure).max().unwrap_or_default(),
        per_hour,
        per_1000_cycles,
        bound,
        verdict: match (over, per_hour * hours > bound.noise) {
            (true, true) => Verdict::Above,
            (true, false) if per_hour > 0.0 => Verdict::WithinNoise,
            _ => Verdict::Fine,
        },
    })
}

/// The slope of the straight line that fits best; zero where all points lie at one place.
fn slope(points: impl Iterator<Item = (f64, f64)> + Clone) -> f64 {
    let count = points.clone().count() as f64;
    let mean_x = points.clone().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = points.clone().map(|(_, y)| y).sum::<f64>() / count;
    let both: f64 = points
        .clone()
        .map(|(x, y)| (x - mean_x) * (y - mean_y))
        .sum();
    let square: f64 = points.map(|(x, _)| (x - mean_x).powi(2)).sum();
    if square > 0.0 { both / square } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::slope;

    #[test]
    fn a_line_has_its_slope() {
        let line = (0..5).map(|x| (f64::from(x), 3.0 * f64::from(x) + 7.0));
        assert!((slope(line) - 3.0).abs() < 1e-9);
    }

    #[test]
    fn one_place_has_none() {
        assert!(slope([(1.0, 2.0), (1.0, 3.0)].into_iter()).abs() < 1e-9);
    }
}
