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
