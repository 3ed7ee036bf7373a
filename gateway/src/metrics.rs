//! Prometheus metrics of this process: one recorder, rendered on request by our own route.
//!
//! Metrics live in memory and start at zero; nothing is decided by them. Labels are closed lists of ours: no subject, scope, key or
//! value ever becomes one (Q1).
//!
//! For the rest of the process: call [`install`] once in `main`, then use the `metrics` macros. Nothing else is needed.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::sync::{Mutex, PoisonError};

/// Upper bounds of the histograms of durations, in seconds: from a push on loopback to one that timed out.
const SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];

/// Another recorder is already installed in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("another metrics recorder is installed in this process")]
pub struct RecorderTaken;

static INSTALLED: Mutex<Option<PrometheusHandle>> = Mutex::new(None);

/// Installs the process's recorder; gives the same handle whenever it is called again.
///
/// # Errors
/// [`RecorderTaken`] if somebody else's recorder is in place.
pub fn install() -> Result<PrometheusHandle, RecorderTaken> {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = installed.as_ref() {
        return Ok(handle.clone());
    }
    let builder =
        PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS);
    let handle = builder.map_err(|_| RecorderTaken)?.install_recorder().map_err(|_| RecorderTaken)?;
    describe();
    Ok(installed.insert(handle).clone())
}

/// The text of `/metrics`. Also does the recorder's housekeeping, which nobody else does.
pub fn render(handle: &PrometheusHandle) -> String {
    handle.run_upkeep();
    handle.render()
}

fn describe() {
    describe_gauge!("tidegate_ready", "1 when every check of readiness is good");
    describe_gauge!("tidegate_check_ok", "1 when this check of readiness is good");
    describe_gauge!("tidegate_wal_lag_bytes", Unit::Bytes, "WAL written and not yet processed");
    describe_gauge!("tidegate_wal_retained_bytes", Unit::Bytes, "WAL that the replication slot retains");
    describe_gauge!(
        "tidegate_commit_lag_seconds",
        Unit::Seconds,
        "Age of the oldest source transaction received and not durable"
    );
    describe_gauge!("tidegate_heartbeat_age_seconds", Unit::Seconds, "Age of the worker's heartbeat");
    describe_histogram!("tidegate_push_seconds", Unit::Seconds, "Time from a push to its answer");
    describe_counter!("tidegate_push_mutations_total", "Outcomes told to clients, by status");
    describe_counter!("tidegate_push_errors_total", "Pushes not decided, by error code");
    describe_counter!(
        "tidegate_catch_up_reads_total",
        "Stretches of the log read for sessions that catch up"
    );
    describe_counter!(
        "tidegate_catch_up_shared_total",
        "Stretches of the log that another session had read already"
    );
}
