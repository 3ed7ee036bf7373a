//! From what was read to the checks of H. Pure: time comes in as a value.

use super::ReadinessConfig;
use super::advice::poison_advice;
use super::observe::{Facts, Observed, Unknown, UnknownKind};
use super::report::{Check, Measures, Report};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_migrations::check::{Part, Problem};
use tidegate_model::{Lsn, Snapshot};

/// The limits of H3, H10, H11 and Q4. Each must be given and finite: an absent, infinite or zero one is *not ready* (H1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadinessLimits {
    /// Oldest heartbeat of a running worker.
    pub heartbeat_age_max: Option<Duration>,
    /// Longest time that the worker may retry a transient failure (Q4).
    pub retrying_max: Option<Duration>,
    /// Most WAL that is written and not yet processed, in bytes. Above the 16 MiB that an idle stream may leave unacknowledged.
    pub wal_lag_bytes_max: Option<u64>,
    /// Oldest source transaction that is received and not durable.
    pub commit_lag_max: Option<Duration>,
}

impl Default for ReadinessLimits {
    fn default() -> ReadinessLimits {
        ReadinessLimits {
            heartbeat_age_max: Some(Duration::from_secs(15)),
            retrying_max: Some(Duration::from_secs(30)),
            wal_lag_bytes_max: Some(256 << 20),
            commit_lag_max: Some(Duration::from_secs(60)),
        }
    }
}

/// A year: no limit beyond it protects anybody.
const LIMIT_MAX: Duration = Duration::from_secs(365 * 86_400);

/// Why a check fails.
struct Bad {
    reason: String,
    since: Option<f64>,
    /// What to do, where it is something else than the check's usual advice.
    advice: Option<&'static str>,
}

impl Bad {
    fn advise(self, advice: &'static str) -> Bad {
        Bad { advice: Some(advice), ..self }
    }
}

impl From<String> for Bad {
    fn from(reason: String) -> Bad {
        Bad { reason, since: None, advice: None }
    }
}

impl From<&str> for Bad {
    fn from(reason: &str) -> Bad {
        reason.to_owned().into()
    }
}

impl From<&Unknown> for Bad {
    fn from(unknown: &Unknown) -> Bad {
        Bad::from(unknown.reason.as_str()).advise(match unknown.kind {
            UnknownKind::Unreachable => "Start PostgreSQL, or correct the address in DATABASE_URL.",
            UnknownKind::Login => "Correct user, password or database in DATABASE_URL.",
            UnknownKind::Schema => "Run `tidegate migrate`.",
            UnknownKind::Right => GRANT,
            UnknownKind::Other => "Look at the server's log.",
        })
    }
}

type Verdict = Result<(), Bad>;

const GRANT: &str = "Grant the role usage on schema tidegate and select on its tables, or use the role that ran `tidegate migrate`.";
const RESET: &str = "It cannot be repaired: start the stream anew with `tidegate reset --reason …`.";
const START: &str = "Register tables with `tidegate apply`, then start `tidegate capture`.";
const ELSEWHERE: &str = "Connect to the database that the stream belongs to, or start the stream anew here with `tidegate reset --reason …`.";
const LIMITS: &str = "Configure a finite limit that is not zero.";

/// All checks.
pub(super) fn judge(observed: &Observed, config: &ReadinessConfig, now: SystemTime) -> Report {
    let facts = observed.facts.as_ref();
    let with = |check: fn(&Facts, &ReadinessConfig) -> Verdict| -> Verdict { check(facts?, config) };
    let checks = vec![
        check(
            "database",
            with(database),
            "Point the gateway and the worker at the configured primary database.",
        ),
        check("worker", with(worker), "Look at the worker's log; start it, or wait until it has connected."),
        check(
            "registry",
            with(registry).and_then(|()| problems(&observed.relations)),
            Part::Relations.advice(),
        ),
        check("triggers", problems(&observed.triggers), Part::Triggers.advice()),
        check("publication", problems(&observed.publication), Part::Publication.advice()),
        check("slot", with(slot), RESET),
        check(
            "poison",
            with(poison),
            "`tidegate poison list` and `tidegate poison show` explain it; repair the cause and run `tidegate poison retry`, or `tidegate reset --reason …`.",
        ),
        check(
            "ordering",
            with(ordering),
            "The database was probably restored or failed over: start the stream anew with `tidegate reset --reason …`.",
        ),
        check(
            "wal_lag",
            with(wal_lag),
            "See whether the worker keeps up, and whether a long transaction holds it back.",
        ),
        check(
            "commit_lag",
            with(commit_lag),
            "A transaction takes long to materialize: look at the worker's log and load.",
        ),
    ];
    let measures = facts.map(measures).unwrap_or_default();
    Report { at: now, checks, measures, first: first(facts, config) }
}

/// The one thing to do before any single check says anything of use.
fn first(facts: Result<&Facts, &Unknown>, config: &ReadinessConfig) -> Option<String> {
    let facts = match facts {
        Ok(facts) => facts,
        Err(Unknown { kind: UnknownKind::Schema, reason }) => {
            return Some(format!("{reason}: run `tidegate migrate`"));
        }
        Err(Unknown { kind: UnknownKind::Right, reason }) => return Some(format!("{reason}. {GRANT}")),
        Err(_) => return None,
    };
    let beating = measures(facts)
        .heartbeat_age
        .is_some_and(|age| config.limits.heartbeat_age_max.is_some_and(|max| age <= max));
    let worker = beating && facts.beat_state.as_deref() != Some("stopped");
    let next = match (facts.registered, worker) {
        // It is at its first baseline, or says what it waits for.
        (true, true) => return None,
        _ if facts.started => return None,
        (true, false) => "nothing has started yet: run `tidegate capture`",
        (false, true) => "nothing is registered yet, the worker waits: run `tidegate apply`",
        (false, false) => "nothing has started yet: run `tidegate apply`, then `tidegate capture`",
    };
    Some(match wal_level(facts) {
        Ok(()) => next.to_owned(),
        Err(_) => format!(
            "{next}; before, set wal_level = logical (it is {}) and restart PostgreSQL: capture cannot start before",
            facts.wal_level
        ),
    })
}

fn wal_level(facts: &Facts) -> Verdict {
    if facts.wal_level == "logical" {
        return Ok(());
    }
    Err(Bad::from(format!("wal_level is {}, not logical", facts.wal_level))
        .advise("Set wal_level = logical and restart PostgreSQL: capture cannot work before."))
}

fn check(name: &'static str, verdict: Verdict, advice: &'static str) -> Check {
    match verdict {
        Ok(()) => Check { name, ok: true, reason: None, since: None, advice: None },
        Err(bad) => Check {
            name,
            ok: false,
            reason: Some(bad.reason),
            since: bad.since.and_then(|s| Some(UNIX_EPOCH + Duration::try_from_secs_f64(s).ok()?)),
            advice: Some(bad.advice.unwrap_or(advice)),
        },
    }
}

/// H2.
fn database(facts: &Facts, config: &ReadinessConfig) -> Verdict {
    match &config.database {
        None => return Err("no database name is configured".into()),
        Some(name) if *name != facts.database => {
            return Err("connected to another database than the configured one".into());
        }
        Some(_) => {}
    }
    if facts.standby {
        return Err(Bad::from("the server is a read-only standby").advise("Connect to the primary."));
    }
    if facts.started && facts.same_cluster != Some(true) {
        return Err(Bad::from("the stream belongs to another database cluster").advise(ELSEWHERE));
    }
    if facts.started && facts.same_database != Some(true) {
        return Err(Bad::from("the stream belongs to another database of this cluster").advise(ELSEWHERE));
    }
    Ok(())
}

fn started(facts: &Facts) -> Verdict {
    if facts.started { Ok(()) } else { Err(Bad::from("no stream was ever started").advise(START)) }
}

/// H3.
fn worker(facts: &Facts, config: &ReadinessConfig) -> Verdict {
    let age_max = finite(config.limits.heartbeat_age_max, "heartbeat age")?;
    let retrying_max = finite(config.limits.retrying_max, "time of retrying")?;
    let (Some(beat_at), Some(state)) = (facts.beat_at, facts.beat_state.as_deref()) else {
        return Err(Bad::from("no worker has a heartbeat").advise("Start `tidegate capture`."));
    };
    let bad = |reason: String, since| Err(Bad { since, ..Bad::from(reason) });
    let age = facts.now - beat_at;
    if age.is_nan() || age > age_max.as_secs_f64() {
        let reason = format!("the last heartbeat is {age:.0} s old, more than {} s", age_max.as_secs());
        let bad = Bad { since: Some(beat_at), ..Bad::from(reason) };
        return Err(bad.advise("Start `tidegate capture`; if it runs, look at its log."));
    }
    if facts.beat_epoch != facts.worker_epoch {
        return bad("the heartbeat is that of a worker that has lost the stream".to_owned(), Some(beat_at));
    }
    let because = facts.beat_reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let in_state = facts.beat_since.map_or(f64::INFINITY, |since| facts.now - since);
    match state {
        "streaming" => {}
        // Blocked by a record, it runs: `poison` says so. Blocked without one, nothing else would say it.
        "blocked" if facts.poison_class.is_some() => {}
        "retrying" if in_state <= retrying_max.as_secs_f64() => {}
        "retrying" => {
            return bad(
                format!("retrying for more than {} s{because}", retrying_max.as_secs()),
                facts.beat_since,
            );
        }
        "stopped" => {
            let reason = format!("the worker is stopped{because}");
            let bad = Bad { since: facts.beat_since, ..Bad::from(reason) };
            return Err(bad.advise("Start `tidegate capture`."));
        }
        other => return bad(format!("the worker is {other}{because}"), facts.beat_since),
    }
    started(facts)?;
    // Copies may trail what is durable; one that leads it is of another history.
    let leads =
        |copy: &Option<String>, durable: &Option<String>| Ok::<_, Bad>(position(copy)? > position(durable)?);
    if leads(&facts.beat_processed, &facts.processed)?
        || leads(&facts.beat_materialized_commit, &facts.materialized_commit)?
        || facts.beat_registry > facts.registry
    {
        return Err("the worker's positions lead what is durable".into());
    }
    Ok(())
}

/// H4.
fn registry(facts: &Facts, _: &ReadinessConfig) -> Verdict {
    started(facts)?;
    let snapshot = facts.snapshot.as_deref().ok_or("the active registry generation does not exist")?;
    if Snapshot::from_json(snapshot).is_err() {
        return Err("the active registry generation cannot be used by this program".into());
    }
    if !facts.registry_activated {
        return Err("the active registry generation has no activation record".into());
    }
    Ok(())
}

/// H5, H6, and the drift of H4.
fn problems(found: &Result<Vec<Problem>, Unknown>) -> Verdict {
    match Problem::sentence(found.as_ref()?) {
        None => Ok(()),
        Some(problems) => Err(problems.into()),
    }
}

/// H7.
fn slot(facts: &Facts, _: &ReadinessConfig) -> Verdict {
    wal_level(facts)?;
    started(facts)?;
    if !facts.slot_exists {
        return Err("the replication slot does not exist".into());
    }
    if facts.slot_type.as_deref() != Some("logical") || facts.slot_plugin.as_deref() != Some("pgoutput") {
        return Err("the replication slot is not one of pgoutput".into());
    }
    if facts.slot_here != Some(true) {
        return Err("the replication slot belongs to another database".into());
    }
    if facts.slot_temporary != Some(false) {
        return Err("the replication slot is temporary".into());
    }
    match facts.slot_wal_status.as_deref() {
        Some("reserved" | "extended") => {}
        Some("unreserved") => {
            return Err(Bad::from("the slot's WAL goes at the next checkpoint")
                .advise("Let the worker catch up at once, and raise max_slot_wal_keep_size."));
        }
        _ => return Err("the replication slot is invalidated: its WAL is gone".into()),
    }
    if facts.slot_confirmed.is_none() {
        return Err("the replication slot has no confirmed position".into());
    }
    Ok(())
}

/// H8.
fn poison(facts: &Facts, _: &ReadinessConfig) -> Verdict {
    let Some(class) = &facts.poison_class else { return Ok(()) };
    let at = facts.poison_at.as_deref().unwrap_or("an unknown position");
    let of = facts.poison_relation.as_deref().map(|name| format!(" in {name}")).unwrap_or_default();
    let retrying = if facts.poison_status.as_deref() == Some("retrying") { ", being retried" } else { "" };
    Err(Bad {
        reason: format!("the transaction at {at} blocks the stream: {class}{of}{retrying}"),
        since: facts.poison_since,
        advice: poison_advice(class),
    })
}

/// H9.
fn ordering(facts: &Facts, _: &ReadinessConfig) -> Verdict {
    started(facts)?;
    let known = |text: &Option<String>, what: &str| {
        let unknown = || Bad::from(format!("{what} is unknown")).advise("See what the other checks say.");
        position(text)?.ok_or_else(unknown)
    };
    let lower = known(&facts.consistent, "the generation's start")?;
    let processed = known(&facts.processed, "the processed boundary")?;
    let acknowledged = position(&facts.acknowledged)?.unwrap_or(lower);
    let wal = known(&facts.wal, "the server's WAL position")?;
    // H7 reports a missing slot; here its position is merely unknown, which is not good either.
    let confirmed = known(&facts.slot_confirmed, "the slot's confirmed position")?;
    let bad = |reason: &str| Err(Bad::from(reason));
    if acknowledged < lower {
        return bad("the acknowledgement is before the generation's start");
    }
    if processed < acknowledged {
        return bad("the acknowledgement is past the processed boundary");
    }
    if position(&facts.materialized_end)?.is_some_and(|end| end > processed) {
        return bad("the materialized position is past the processed boundary");
    }
    if confirmed < acknowledged {
        return bad("the slot is behind the durable acknowledgement");
    }
    if confirmed > wal {
        return bad("the slot is past the end of the WAL");
    }
    Ok(())
}

/// H10.
fn wal_lag(facts: &Facts, config: &ReadinessConfig) -> Verdict {
    let limit = config.limits.wal_lag_bytes_max.filter(|limit| (1..=i64::MAX as u64).contains(limit));
    let limit = limit.ok_or_else(|| Bad::from("no finite limit of WAL lag is configured").advise(LIMITS))?;
    started(facts)?;
    let lag = measures(facts).wal_lag_bytes.ok_or("the WAL lag is unknown")?;
    if lag > limit {
        return Err(format!("{lag} bytes of WAL are not processed, more than {limit}").into());
    }
    Ok(())
}

/// H11.
fn commit_lag(facts: &Facts, config: &ReadinessConfig) -> Verdict {
    let limit = finite(config.limits.commit_lag_max, "commit lag")?;
    let unknown =
        || Bad::from("the commit lag is unknown: there is no heartbeat").advise("Start `tidegate capture`.");
    let lag = measures(facts).commit_lag.ok_or_else(unknown)?;
    if lag > limit {
        let reason = format!(
            "a transaction is {:.0} s old and not durable, more than {} s",
            lag.as_secs_f64(),
            limit.as_secs()
        );
        return Err(Bad { since: facts.oldest_pending, ..Bad::from(reason) });
    }
    Ok(())
}

fn measures(facts: &Facts) -> Measures {
    let between = |from: &Option<String>| {
        let (from, to) = (position(from).ok()??, position(&facts.wal).ok()??);
        Some(to.bytes_since(from))
    };
    // The database's clock on both sides; a reading from the future counts as now.
    let age = |instant: f64| Duration::try_from_secs_f64((facts.now - instant).max(0.0)).ok();
    Measures {
        wal_lag_bytes: between(&facts.processed),
        wal_retained_bytes: between(&facts.slot_restart),
        commit_lag: facts.beat_at.and_then(|_| facts.oldest_pending.map_or(Some(Duration::ZERO), age)),
        heartbeat_age: facts.beat_at.and_then(age),
    }
}

fn position(text: &Option<String>) -> Result<Option<Lsn>, Bad> {
    text.as_deref().map(str::parse).transpose().map_err(|_| "a position is not of the expected form".into())
}

fn finite(limit: Option<Duration>, what: &str) -> Result<Duration, Bad> {
    limit
        .filter(|limit| !limit.is_zero() && *limit <= LIMIT_MAX)
        .ok_or_else(|| Bad::from(format!("no finite limit of the {what} is configured")).advise(LIMITS))
}
