//! How figures are summed up and printed.

use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::time::Duration;

/// Latencies in microseconds, up to a minute.
pub fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000, 3).unwrap_or_else(|_| unreachable!("the bounds are valid"))
}

/// A distribution as it is printed; all times in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spread {
    /// How many were measured.
    pub count: u64,
    /// Half were at most this.
    pub p50_ms: f64,
    /// 99 of 100 were at most this.
    pub p99_ms: f64,
    /// The largest.
    pub max_ms: f64,
}

impl From<&Histogram<u64>> for Spread {
    fn from(histogram: &Histogram<u64>) -> Spread {
        let ms = |micros: u64| micros as f64 / 1000.0;
        Spread {
            count: histogram.len(),
            p50_ms: ms(histogram.value_at_quantile(0.5)),
            p99_ms: ms(histogram.value_at_quantile(0.99)),
            max_ms: ms(histogram.max()),
        }
    }
}

/// A progress line on standard error; hidden where standard error is not a terminal.
pub fn progress(length: u64, what: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style).with_message(what.to_owned())
}

/// Prints one line on standard error, for those who watch.
pub fn say(text: &str) {
    eprintln!("{text}");
}

/// Microseconds of a duration, at least 1 so that a histogram takes it.
pub fn micros(duration: Duration) -> u64 {
    (duration.as_micros() as u64).clamp(1, 60_000_000)
}

/// One figure as it came out in each round.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// Half of the rounds were at most this.
    pub median: f64,
    /// The lowest.
    pub min: f64,
    /// The highest.
    pub max: f64,
    /// By round.
    pub rounds: Vec<f64>,
}

impl From<Vec<f64>> for Series {
    fn from(rounds: Vec<f64>) -> Series {
        let mut sorted = rounds.clone();
        sorted.sort_by(f64::total_cmp);
        let median = match sorted.len() {
            0 => f64::NAN,
            odd if odd % 2 == 1 => sorted[odd / 2],
            even => f64::midpoint(sorted[even / 2 - 1], sorted[even / 2]),
        };
        let at = |index: Option<&f64>| index.copied().unwrap_or(f64::NAN);
        Series { median, min: at(sorted.first()), max: at(sorted.last()), rounds }
    }
}

impl Series {
    /// Round by round, this over that: what a busy machine does to one round it does to both sides of it.
    pub fn over(&self, other: &Series) -> Series {
        self.rounds.iter().zip(&other.rounds).map(|(this, that)| this / that).collect::<Vec<f64>>().into()
    }
}

impl std::fmt::Display for Series {
    /// Median and spread.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = if self.median.abs() < 100.0 { 2 } else { 0 };
        write!(f, "{:.digits$} ({:.digits$}–{:.digits$})", self.median, self.min, self.max)
    }
}

/// A target: what was measured against what it must reach.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    /// What is compared, and how.
    pub what: String,
    /// The figure, as the median of the rounds.
    pub measured: f64,
    /// The bound.
    pub bound: f64,
    /// Whether it is reached.
    pub holds: bool,
}

impl Target {
    /// Reached by as much as the bound or more.
    pub fn at_least(what: &str, measured: f64, bound: f64) -> Target {
        Target { what: what.to_owned(), measured, bound, holds: measured >= bound }
    }

    /// Reached by as much as the bound or less.
    pub fn at_most(what: &str, measured: f64, bound: f64) -> Target {
        Target { what: what.to_owned(), measured, bound, holds: measured <= bound }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verdict = if self.holds { "holds" } else { "MISSED" };
        write!(f, "{}: {:.3}, target {}: {verdict}", self.what, self.measured, self.bound)
    }
}
