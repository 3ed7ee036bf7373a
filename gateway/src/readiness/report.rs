//! What readiness says, and how it is shown.

use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// All checks of H at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// When it was made, by this process's clock.
    pub at: SystemTime,
    /// In the order of H.
    pub checks: Vec<Check>,
    /// Figures for the metrics, where known.
    pub measures: Measures,
    /// What comes before every check, where they all fail for one cause: nothing installed, no right, nothing started.
    pub first: Option<String>,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Its name in H.
    pub name: &'static str,
    /// Whether all that it needs is known and good.
    pub ok: bool,
    /// Why not.
    pub reason: Option<String>,
    /// Since when it has not been good, as far as is known.
    pub since: Option<SystemTime>,
    /// What to do about it.
    pub advice: Option<&'static str>,
}

/// Figures behind the checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measures {
    /// WAL written and not yet processed, in bytes (H10).
    pub wal_lag_bytes: Option<u64>,
    /// WAL that the slot retains, in bytes.
    pub wal_retained_bytes: Option<u64>,
    /// Age of the oldest source transaction that is received and not durable (H11).
    pub commit_lag: Option<Duration>,
    /// Age of the worker's heartbeat (H3).
    pub heartbeat_age: Option<Duration>,
}

impl Report {
    /// Whether every check is good.
    pub fn ready(&self) -> bool {
        self.checks.iter().all(|check| check.ok)
    }

    /// The check of this name.
    pub fn check(&self, name: &str) -> Option<&Check> {
        self.checks.iter().find(|check| check.name == name)
    }

    /// Sets the gauges.
    pub(super) fn export(&self) {
        for check in &self.checks {
            metrics::gauge!("tidegate_check_ok", "check" => check.name).set(if check.ok { 1.0 } else { 0.0 });
        }
        metrics::gauge!("tidegate_ready").set(if self.ready() { 1.0 } else { 0.0 });
        // An unknown figure is absent, not zero.
        let Measures { wal_lag_bytes, wal_retained_bytes, commit_lag, heartbeat_age } = self.measures;
        let nan = f64::NAN;
        metrics::gauge!("tidegate_wal_lag_bytes").set(wal_lag_bytes.map_or(nan, |bytes| bytes as f64));
        metrics::gauge!("tidegate_wal_retained_bytes")
            .set(wal_retained_bytes.map_or(nan, |bytes| bytes as f64));
        metrics::gauge!("tidegate_commit_lag_seconds").set(commit_lag.map_or(nan, |lag| lag.as_secs_f64()));
        metrics::gauge!("tidegate_heartbeat_age_seconds")
            .set(heartbeat_age.map_or(nan, |age| age.as_secs_f64()));
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut report = serializer.serialize_struct("Report", 5)?;
        report.serialize_field("ready", &self.ready())?;
        report.serialize_field("at", &rfc3339(self.at))?;
        report.serialize_field("first", &self.first)?;
        report.serialize_field("checks", &self.checks)?;
        report.serialize_field("measures", &self.measures)?;
        report.end()
    }
}

impl Serialize for Check {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut check = serializer.serialize_struct("Check", 5)?;
        check.serialize_field("name", self.name)?;
        check.serialize_field("ok", &self.ok)?;
        if !self.ok {
            check.serialize_field("reason", &self.reason)?;
            check.serialize_field("since", &self.since.map(rfc3339))?;
            check.serialize_field("advice", &self.advice)?;
        }
        check.end()
    }
}

impl Serialize for Measures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut measures = serializer.serialize_struct("Measures", 4)?;
        measures.serialize_field("wal_lag_bytes", &self.wal_lag_bytes)?;
        measures.serialize_field("wal_retained_bytes", &self.wal_retained_bytes)?;
        measures.serialize_field("commit_lag_seconds", &self.commit_lag.map(|lag| lag.as_secs_f64()))?;
        measures
            .serialize_field("heartbeat_age_seconds", &self.heartbeat_age.map(|age| age.as_secs_f64()))?;
        measures.end()
    }
}

/// UTC to the second, such as `2026-11-30T18:55:34Z`.
pub(super) fn rfc3339(instant: SystemTime) -> String {
    let seconds = instant.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, second) = ((seconds / 86_400) as i64, seconds % 86_400);
    // Civil date from days, counted from a March so that the leap day is the last of its year.
    let z = days + 719_468;
    let (era, day_of_era) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_796_064_934, "2026-11-30T18:55:34Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
