//! Whether this deployment does its work: every check of H by name, with reason, since when, and what to do.
//!
//! ```text
//! facts.sql, problems ─ judge ─ Report ─ /readyz, /metrics, `tidegate status`      judge: pure
//! ```
//!
//! Everything is computed from the database; what is missing, stale, unbounded or could not be read is not ready (H1). Reasons are
//! composed of our own words, names of relations, counts and positions: no values, no connection strings (Q1).
//!
//! For the HTTP side and the CLI: [`Readiness::report`], cached; or [`look`] once. Nothing else is needed.

mod advice;
mod judge;
mod observe;
mod report;

pub use advice::poison_advice;
pub use judge::ReadinessLimits;
pub use report::{Check, Report};

use crate::readiness::observe::{Observed, Unknown, UnknownKind, observe};
use sqlx::PgPool;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Mutex;

/// How readiness is judged.
#[derive(Clone, Debug)]
pub struct ReadinessConfig {
    /// Name of the one database that is configured (H2); `None`: not configured, so not ready.
    pub database: Option<String>,
    /// Limits; an absent or infinite one makes its check fail (H1).
    pub limits: ReadinessLimits,
    /// How long one report serves everybody who asks.
    pub cache: Duration,
    /// Longest wait for the database.
    pub timeout: Duration,
}

impl ReadinessConfig {
    /// Default limits for this database.
    pub fn new(database: impl Into<String>) -> ReadinessConfig {
        ReadinessConfig {
            database: Some(database.into()),
            limits: ReadinessLimits::default(),
            cache: Duration::from_secs(1),
            timeout: Duration::from_secs(3),
        }
    }
}

/// Looks once, without a cache. `since` is then known only where the database knows it.
pub async fn look(pool: &PgPool, config: &ReadinessConfig) -> Report {
    judge::judge(&observe(pool, config.timeout).await, config, SystemTime::now())
}

/// The report for a database that gave no connection, with the reason that whoever tried has. It must carry no secret (Q1).
/// `refused`: a server answered, and would have to be asked otherwise.
pub fn unreachable(reason: impl Into<String>, refused: bool, config: &ReadinessConfig) -> Report {
    let kind = if refused { UnknownKind::Login } else { UnknownKind::Unreachable };
    let unknown = Unknown { reason: reason.into(), kind };
    judge::judge(&Observed::nothing(&unknown), config, SystemTime::now())
}

/// Looks at most once per [`ReadinessConfig::cache`], however many ask, and remembers since when each check has failed.
pub struct Readiness {
    pool: PgPool,
    config: ReadinessConfig,
    /// Held while one looks: all others wait for the same answer, which the timeout bounds.
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    report: Option<(Instant, Arc<Report>)>,
    failing_since: HashMap<&'static str, SystemTime>,
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readiness").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Readiness {
    /// Reads through this pool.
    pub fn new(pool: PgPool, config: ReadinessConfig) -> Readiness {
        Readiness { pool, config, last: Mutex::default() }
    }

    /// The newest report, at most [`ReadinessConfig::cache`] old.
    pub async fn report(&self) -> Arc<Report> {
        let mut last = self.last.lock().await;
        if let Some((at, report)) = &last.report
            && at.elapsed() < self.config.cache
        {
            return report.clone();
        }
        let mut report = look(&self.pool, &self.config).await;
        for check in &mut report.checks {
            if check.ok {
                if last.failing_since.remove(check.name).is_some() {
                    tracing::info!(check = check.name, "readiness: good again");
                }
                continue;
            }
            let seen = last.failing_since.get(check.name).copied();
            if seen.is_none() {
                tracing::warn!(check = check.name, reason = check.reason.as_deref(), "readiness: not ready");
            }
            let since = *last.failing_since.entry(check.name).or_insert(report.at);
            check.since.get_or_insert(since);
        }
        report.export();
        let report = Arc::new(report);
        last.report = Some((Instant::now(), report.clone()));
        report
    }
}
