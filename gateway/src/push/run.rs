//! The awaits of a push: admission, the statement, and what to do when it fails. The only file here that talks to PostgreSQL.
//!
//! A failure decides nothing: the push is run again, by us or by the client, and V3 gives the first outcome if it had committed
//! after all (WR-01). PostgreSQL's error texts may hold values, so only SQLSTATEs leave this file (Q1).

use super::prepare::{Prepared, answered_version, prepare};
use super::reply::{ConflictNow, PushError, PushReply};
use super::target::Targets;
use super::{ClientMarks, ClientPusher, PushConfig, PushStartError, sqlstate};
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions, PgRow};
use sqlx::{ConnectOptions, FromRow, Row};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tidegate_model::{RegistryGeneration, RowVersion};
use tidegate_protocol::{ErrorCode, MutationNumber, MutationResult, MutationStatus, Push};
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

/// Runs of one push before we give the failure to the client: the first, and repeats after a deadlock, a lost connection or a
/// change of the registry.
const ATTEMPTS_MAX: u32 = 4;
/// Acknowledged outcomes that pile up before they are deleted: one deletion per so many pushes.
const PRUNE_STEP: u64 = 64;
/// Time between two looks for write fences that nobody needs any more.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(60);
/// Write fences removed by one statement.
const FENCES_PRUNED_MAX: i32 = 5000;
/// What a client should wait where waiting is all it can do, in milliseconds.
const RETRY_MS: u32 = 500;

pub(super) struct Runner {
    config: PushConfig,
    pool: PgPool,
    running: Semaphore,
    waiting: AtomicUsize,
    targets: RwLock<Arc<Targets>>,
    transient: String,
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").field("config", &self.config).finish_non_exhaustive()
    }
}

/// A failure of one run, reduced to what may be told.
enum Failure {
    /// PostgreSQL refused: SQLSTATE, and whether it says where inside our own function.
    Database { sqlstate: String, inside: bool },
    /// The answer was lost, or there was no connection: it may have run or not.
    Connection,
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Failure {
        match error {
            sqlx::Error::Database(error) => {
                let error = error.downcast_ref::<sqlx::postgres::PgDatabaseError>();
                let inside = error.r#where().is_some_and(|context| context.contains("tidegate.push"));
                Failure::Database { sqlstate: error.code().to_owned(), inside }
            }
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::Encode(_) => {
                Failure::Database { sqlstate: "XX000".to_owned(), inside: true }
            }
            _ => Failure::Connection,
        }
    }
}

/// What `tidegate.push` returns.
#[derive(FromRow)]
struct Ran {
    state: String,
    stop: Option<String>,
    statuses: Vec<Option<String>>,
    codes: Vec<Option<String>>,
    messages: Vec<Option<String>>,
    versions: Vec<Option<Uuid>>,
    current: Option<Vec<Option<Uuid>>>,
}

/// The same for every mutation of a push.
struct Context<'a> {
    client: &'a ClientPusher,
    role: &'a str,
    claims: &'a str,
    acked: i64,
    prune: bool,
    atomic: bool,
}

impl Runner {
    pub(super) async fn start(config: PushConfig) -> Result<Arc<Runner>, PushStartError> {
        check_limits(&config)?;
        let timeout = config.timeout.as_millis().to_string();
        let connect = config
            .connect
            .clone()
            .application_name("tidegate push")
            // R2: a commit is flushed before its outcome is told. The rest is what values mean in text.
            .options([
                ("synchronous_commit", "on"),
                ("default_transaction_isolation", "read committed"),
                ("statement_timeout", timeout.as_str()),
                ("DateStyle", "ISO"),
                ("IntervalStyle", "iso_8601"),
                ("TimeZone", "UTC"),
                ("bytea_output", "hex"),
            ])
            // Statements carry no values, but errors and slow ones are ours to report, once.
            .disable_statement_logging();
        let pool = PgPoolOptions::new()
            .max_connections(config.connections_max)
            .acquire_timeout(config.queue_wait)
            // A dead connection shows in the push itself, which is then run again: no round trip to find out.
            .test_before_acquire(false)
            .connect_lazy_with(connect);
        let mut connection =
            pool.acquire().await.map_err(|error| PushStartError::Database(describe(error)))?;
        for role in std::iter::once(&config.role).chain(&config.anonymous_role) {
            check_role(&mut connection, role).await?;
        }
        let targets = load_targets(&mut connection).await.map_err(PushStartError::Database)?;
        drop(connection);
        let runner = Arc::new(Runner {
            running: Semaphore::new(config.connections_max as usize),
            waiting: AtomicUsize::new(0),
            targets: RwLock::new(Arc::new(targets)),
            transient: sqlstate::transient_pattern(),
            config,
            pool,
        });
        tokio::spawn(maintain(Arc::downgrade(&runner)));
        Ok(runner)
    }

    pub(super) async fn close(&self) {
        self.pool.close().await;
    }

    pub(super) async fn hello(
        &self,
        client: &ClientPusher,
        awaited: MutationNumber,
        acked: MutationNumber,
    ) -> Result<ClientMarks, PushError> {
        let _permit = self.admit().await?;
        let mut attempt = 1;
        let row = loop {
            let run = sqlx::query(
                "select state, last_number, settled from tidegate.push_hello($1, $2, $3, $4, $5)",
            )
            .bind(&client.identity.subject.0)
            .bind(client.client.0)
            .bind(client.new)
            .bind(acked.0.cast_signed())
            .bind(awaited.0.cast_signed())
            .fetch_one(&self.pool)
            .await;
            match run.map_err(Failure::from) {
                Ok(row) => break row,
                Err(failure) => self.again(failure, &mut attempt)?,
            }
        };
        let marks = || -> Result<ClientMarks, sqlx::Error> {
            let number =
                |column| Ok::<_, sqlx::Error>(MutationNumber(row.try_get::<i64, _>(column)?.cast_unsigned()));
            Ok(ClientMarks { last: number("last_number")?, settled: number("settled")? })
        };
        match row.try_get("state") {
            Ok("known") => marks().map_err(|_| internal()),
            Ok(_) => Err(client_expired()),
            Err(_) => Err(internal()),
        }
    }

    pub(super) async fn push(&self, client: &mut ClientPusher, push: &Push<'_>) -> PushReply {
        let started = Instant::now();
        let reply = self.judge_and_run(client, push).await;
        metrics::histogram!("tidegate_push_seconds").record(started.elapsed());
        for result in &reply.results {
            metrics::counter!("tidegate_push_mutations_total", "status" => result.status.as_str())
                .increment(1);
        }
        if let Some(error) = &reply.error {
            metrics::counter!("tidegate_push_errors_total", "code" => error.code.as_str()).increment(1);
        }
        reply
    }

    async fn judge_and_run(&self, client: &mut ClientPusher, push: &Push<'_>) -> PushReply {
        let count = push.mutations.len();
        if count > self.config.batch_mutations_max as usize {
            return PushError::new(ErrorCode::BatchTooLarge, "more mutations than the batch limit").into();
        }
        let Some(first) = push.mutations.first() else {
            return PushError::new(ErrorCode::MalformedFrame, "a push has at least one mutation").into();
        };
        let consecutive = push
            .mutations
            .iter()
            .zip(first.number.0..)
            .take_while(|(mutation, expected)| mutation.number.0 == *expected)
            .count();
        if first.number.0 == 0 || (push.atomic && consecutive < count) {
            return PushError::new(ErrorCode::Gap, "numbers are consecutive and start at 1").into();
        }
        let permit = match self.admit().await {
            Ok(permit) => permit,
            Err(error) => return error.into(),
        };
        fail::fail_point!("push::before_run");
        let prune = push.acked.0 >= client.pruned + PRUNE_STEP;
        let anonymous = client.identity.subject.is_anonymous();
        let role =
            if anonymous { self.config.anonymous_role.as_deref() } else { Some(self.config.role.as_str()) };
        let claims = match (anonymous, role) {
            (true, Some(role)) => serde_json::json!({ "role": role }).to_string(),
            _ => client.identity.claims.to_string(),
        };
        let mut reply = PushReply::default();
        let context = Context {
            client,
            role: role.unwrap_or(&self.config.role),
            claims: &claims,
            acked: push.acked.0.cast_signed(),
            prune,
            atomic: push.atomic,
        };
        let error = self.run_all(&context, push, consecutive, role.is_none(), &mut reply).await;
        drop(permit);
        if prune && error.is_none() {
            client.pruned = push.acked.0;
        }
        fail::fail_point!("push::after_commit");
        reply.error = error;
        if reply.error.is_none() && consecutive < count {
            reply.error = Some(PushError::new(ErrorCode::Gap, "numbers are consecutive"));
        }
        reply
    }

    /// Runs the push as few transactions as it can: one if it is atomic, or if nothing speaks against it; else one per mutation.
    async fn run_all(
        &self,
        context: &Context<'_>,
        push: &Push<'_>,
        count: usize,
        forbidden: bool,
        reply: &mut PushReply,
    ) -> Option<PushError> {
        let mut done = 0;
        let mut one_by_one = false;
        let mut attempt = 1;
        let mut failed = None;
        let mut prepared: Option<(RegistryGeneration, Vec<Prepared>)> = None;
        while done < count {
            let targets = match self.targets_for(push.sv).await {
                Ok(targets) => targets,
                Err(error) => return Some(error),
            };
            let mutations = match &mut prepared {
                Some((generation, mutations)) if *generation == targets.generation => mutations,
                stale => {
                    let mut mutations = prepare(push, &targets);
                    if forbidden {
                        for mutation in &mut mutations {
                            mutation.statement =
                                Err(tidegate_protocol::RejectionCode::PermissionDenied.into());
                        }
                    }
                    &mut stale.insert((targets.generation, mutations)).1
                }
            };
            // Deferred constraints and triggers fire at the end of a transaction, and must not fall on a neighbour.
            let together = push.atomic || !(one_by_one || targets.defers);
            let end = if together { count } else { done + 1 };
            let unit = &mutations[done..end];
            match self.run(context, targets.generation, unit, failed.as_deref()).await {
                Ok(ran) if ran.state == "registry_changed" => {
                    attempt += 1;
                    if attempt > ATTEMPTS_MAX {
                        return Some(unavailable());
                    }
                    if let Err(error) = self.reload().await {
                        return Some(error);
                    }
                }
                Ok(ran) if ran.state == "client_expired" => return Some(client_expired()),
                Ok(ran) if ran.state != "ok" => {
                    return Some(PushError::new(
                        ErrorCode::ClientForked,
                        "a number came back with other content",
                    ));
                }
                Ok(ran) => {
                    let decided = collect(unit, &ran, reply);
                    done += decided;
                    failed = None;
                    match ran.stop.as_deref() {
                        Some("capture_behind") => {
                            let message = "too many accepted mutations are not yet visible";
                            return Some(PushError::retry_after(ErrorCode::CaptureBehind, message, RETRY_MS));
                        }
                        Some(_) => {
                            return Some(PushError::new(ErrorCode::Gap, "an earlier number is missing"));
                        }
                        None if decided < unit.len() => return Some(internal()),
                        None => {}
                    }
                }
                // What may fail only together, or hold others up, is run alone: nobody pays for a neighbour.
                Err(Failure::Database { sqlstate, .. }) if unit.len() > 1 && !push.atomic && !one_by_one => {
                    tracing::debug!(%sqlstate, mutations = unit.len(), "push failed as one transaction; runs one by one");
                    one_by_one = true;
                }
                // The commit itself refused: stored like any refusal, by a transaction of its own.
                Err(Failure::Database { sqlstate, inside: false })
                    if sqlstate::may_refuse_commit(&sqlstate) && failed.is_none() =>
                {
                    failed = Some(sqlstate);
                }
                Err(failure) => {
                    if let Err(error) = self.again(failure, &mut attempt) {
                        return Some(error);
                    }
                }
            }
        }
        None
    }

    /// One transaction, one round trip.
    async fn run(
        &self,
        context: &Context<'_>,
        generation: RegistryGeneration,
        unit: &[Prepared],
        failed: Option<&str>,
    ) -> Result<Ran, Failure> {
        let mut relations = Vec::new();
        let mut relation_of = |mutation: &Prepared| {
            let target = &mutation.statement.as_ref().ok()?.target;
            let known = relations.iter().position(|known| Arc::ptr_eq(known, target));
            let index = known.unwrap_or_else(|| {
                relations.push(target.clone());
                relations.len() - 1
            });
            i32::try_from(index + 1).ok()
        };
        let relation: Vec<Option<i32>> = unit.iter().map(&mut relation_of).collect();
        let statement = |mutation: &Prepared| mutation.statement.clone().ok();
        let statements: Vec<_> = unit.iter().map(statement).collect();
        let of = |field: fn(&super::prepare::Statement) -> &str| -> Vec<Option<&str>> {
            statements.iter().map(|statement| statement.as_ref().map(field)).collect()
        };
        let refusals: Vec<_> = unit.iter().map(|mutation| mutation.statement.as_ref().err()).collect();
        let mut connection = self.pool.acquire().await?;
        let ran = sqlx::query(include_str!("push.sql"))
            .bind(&context.client.identity.subject.0)
            .bind(context.client.client.0)
            .bind(context.client.new)
            .bind(context.acked)
            .bind(context.prune)
            .bind(generation.0)
            .bind(self.config.unmaterialized_max.cast_signed())
            .bind(context.role)
            .bind(context.claims)
            .bind(&self.transient)
            .bind(context.atomic)
            .bind(unit.first().map_or(0, |mutation| mutation.number))
            .bind(relations.iter().map(|target| target.relation_id).collect::<Vec<_>>())
            .bind(relations.iter().map(|target| Oid(target.oid)).collect::<Vec<_>>())
            .bind(relations.iter().map(|target| target.name.as_str()).collect::<Vec<_>>())
            .bind(relations.iter().map(|target| target.secured).collect::<Vec<_>>())
            .bind(relations.iter().map(|target| target.probe.as_str()).collect::<Vec<_>>())
            .bind(unit.iter().map(|mutation| mutation.fingerprint.as_slice()).collect::<Vec<_>>())
            .bind(relation)
            .bind(unit.iter().map(|mutation| mutation.op.as_str()).collect::<Vec<_>>())
            .bind(of(|statement| &statement.key))
            .bind(statements.iter().map(|s| s.as_ref().and_then(|s| s.base)).collect::<Vec<_>>())
            .bind(statements.iter().map(|s| s.as_ref().and_then(|s| s.after)).collect::<Vec<_>>())
            .bind(of(|statement| &statement.sql))
            .bind(statements.iter().map(|s| s.as_ref().and_then(|s| s.insert.as_deref())).collect::<Vec<_>>())
            .bind(of(|statement| &statement.values))
            .bind(refusals.iter().map(|r| r.map(|r| r.code.as_str())).collect::<Vec<_>>())
            .bind(refusals.iter().map(|r| r.and_then(|r| r.message.as_deref())).collect::<Vec<_>>())
            .bind(vec![failed; unit.len()])
            .fetch_one(&mut *connection)
            .await
            .and_then(|row| Ran::from_row(&row))
            .map_err(Failure::from);
        // A trigger that set the session's role for good has made the connection useless: it may not call our function any more.
        if matches!(&ran, Err(Failure::Database { sqlstate, inside: false }) if sqlstate == "42501") {
            drop(connection.detach());
            return Err(Failure::Connection);
        }
        ran
    }

    pub(super) async fn void(&self, client: &ClientPusher, numbers: &[MutationNumber]) -> PushReply {
        if numbers.len() > self.config.batch_mutations_max as usize {
            return PushError::new(ErrorCode::BatchTooLarge, "more numbers than the batch limit").into();
        }
        if numbers.iter().any(|number| number.0 == 0) || !numbers.is_sorted() {
            return PushError::new(ErrorCode::Gap, "numbers ascend and start at 1").into();
        }
        if numbers.is_empty() {
            return PushReply::default();
        }
        let _permit = match self.admit().await {
            Ok(permit) => permit,
            Err(error) => return error.into(),
        };
        let mut attempt = 1;
        loop {
            let run = sqlx::query(
                "select failure, coalesce(statuses, '{}') as statuses, codes, messages, versions \
                 from tidegate.push_void($1, $2, $3, $4)",
            )
            .bind(&client.identity.subject.0)
            .bind(client.client.0)
            .bind(client.new)
            .bind(numbers.iter().map(|number| number.0.cast_signed()).collect::<Vec<_>>())
            .fetch_one(&self.pool)
            .await;
            match run.and_then(|row| voided(numbers, &row)).map_err(Failure::from) {
                Ok(reply) => return reply,
                Err(failure) => {
                    if let Err(error) = self.again(failure, &mut attempt) {
                        return error.into();
                    }
                }
            }
        }
    }

    /// A place among those that run, or a named refusal: neither the number of waiters nor their wait is without bound.
    async fn admit(&self) -> Result<SemaphorePermit<'_>, PushError> {
        if let Ok(permit) = self.running.try_acquire() {
            return Ok(permit);
        }
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.config.queue_max {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(PushError::retry_after(
                ErrorCode::Unavailable,
                "too many pushes are waiting",
                RETRY_MS,
            ));
        }
        let permit = tokio::time::timeout(self.config.queue_wait, self.running.acquire()).await;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        match permit {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err(unavailable()),
            Err(_) => Err(PushError::retry_after(ErrorCode::Unavailable, "pushes take too long", RETRY_MS)),
        }
    }

    /// Whether to run once more after this failure; else what to tell. Logged here, once.
    fn again(&self, failure: Failure, attempt: &mut u32) -> Result<(), PushError> {
        let repeat = match &failure {
            Failure::Connection => true,
            Failure::Database { sqlstate, .. } => sqlstate::worth_repeating(sqlstate),
        };
        *attempt += 1;
        if repeat && *attempt <= ATTEMPTS_MAX {
            return Ok(());
        }
        match failure {
            Failure::Connection => {
                tracing::warn!("push: no connection to the database");
                Err(unavailable())
            }
            Failure::Database { sqlstate, inside } => {
                if !sqlstate::is_transient(&sqlstate) {
                    tracing::error!(%sqlstate, inside, "push failed in tidegate's own statement");
                    return Err(internal());
                }
                if sqlstate.starts_with("TG") {
                    let why = match sqlstate.as_str() {
                        "TG101" => "a registered table was replaced",
                        "TG102" => "a write was not fenced: triggers are missing",
                        _ => "the role of pushes lacks rights: run tidegate.grant_push",
                    };
                    tracing::error!(why, "push refused: the database is not as registered");
                } else {
                    tracing::warn!(%sqlstate, "push failed and may be sent again");
                }
                Err(unavailable())
            }
        }
    }

    /// The registry that pushes written under `version` need.
    async fn targets_for(&self, version: RegistryGeneration) -> Result<Arc<Targets>, PushError> {
        let targets = self.targets();
        if version <= targets.generation {
            return Ok(targets);
        }
        self.reload().await?;
        let targets = self.targets();
        if version > targets.generation {
            let message = "the schema version of the push is not known here yet";
            return Err(PushError::retry_after(ErrorCode::SchemaUnknown, message, RETRY_MS));
        }
        Ok(targets)
    }

    fn targets(&self) -> Arc<Targets> {
        self.targets.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn reload(&self) -> Result<(), PushError> {
        let mut connection = self.pool.acquire().await.map_err(|_| unavailable())?;
        let targets = load_targets(&mut connection).await.map_err(|error| {
            tracing::error!(error, "load the registry for pushes");
            unavailable()
        })?;
        let mut current = self.targets.write().unwrap_or_else(PoisonError::into_inner);
        if targets.generation >= current.generation {
            *current = Arc::new(targets);
        }
        Ok(())
    }
}

/// Turns what a unit came to into results; gives how many were decided: a prefix.
fn collect(unit: &[Prepared], ran: &Ran, reply: &mut PushReply) -> usize {
    let mut decided = 0;
    for (i, mutation) in unit.iter().enumerate() {
        let Some(status) = ran.statuses.get(i).and_then(Option::as_deref).and_then(MutationStatus::parse)
        else {
            break;
        };
        let number = MutationNumber(mutation.number.cast_unsigned());
        let version = ran.versions.get(i).copied().flatten();
        reply.results.push(MutationResult {
            number,
            status,
            version: answered_version(mutation.op, version),
            code: ran.codes.get(i).cloned().flatten().map(Into::into),
            message: ran.messages.get(i).cloned().flatten().map(Into::into),
            row: None,
        });
        let current = ran.current.as_ref().and_then(|current| current.get(i).copied().flatten());
        if let (MutationStatus::Conflict, Some(key), Some(current)) = (status, mutation.row_key(), current) {
            reply.conflicts.push(ConflictNow {
                number,
                table: mutation.table,
                key,
                current: RowVersion(current),
            });
        }
        decided += 1;
    }
    decided
}

fn voided(numbers: &[MutationNumber], row: &PgRow) -> Result<PushReply, sqlx::Error> {
    let failure: Option<String> = row.try_get("failure")?;
    let statuses: Vec<Option<String>> = row.try_get("statuses")?;
    let text = |column: &str| {
        Ok::<_, sqlx::Error>(row.try_get::<Option<Vec<Option<String>>>, _>(column)?.unwrap_or_default())
    };
    let (codes, messages) = (text("codes")?, text("messages")?);
    let versions: Vec<Option<Uuid>> = row.try_get::<Option<_>, _>("versions")?.unwrap_or_default();
    let mut reply = PushReply::default();
    for (i, number) in numbers.iter().enumerate() {
        let Some(status) = statuses.get(i).and_then(Option::as_deref).and_then(MutationStatus::parse) else {
            break;
        };
        reply.results.push(MutationResult {
            number: *number,
            status,
            version: versions.get(i).copied().flatten().map(RowVersion),
            code: codes.get(i).cloned().flatten().map(Into::into),
            message: messages.get(i).cloned().flatten().map(Into::into),
            row: None,
        });
    }
    reply.error = match failure.as_deref() {
        None => None,
        Some("client_expired") => Some(client_expired()),
        Some(_) => Some(PushError::new(ErrorCode::Gap, "an earlier number is missing")),
    };
    Ok(reply)
}

async fn load_targets(connection: &mut PgConnection) -> Result<Targets, String> {
    let row = sqlx::query("select snapshot, types::text as types, defers from tidegate.push_registry()")
        .fetch_one(connection)
        .await
        .map_err(describe)?;
    let column = |name| row.try_get::<String, _>(name).map_err(describe);
    let types: HashMap<String, String> =
        serde_json::from_str(&column("types")?).map_err(|error| error.to_string())?;
    let defers = row.try_get("defers").map_err(describe)?;
    Targets::new(&column("snapshot")?, &types, defers).map_err(|error| error.to_string())
}

fn check_limits(config: &PushConfig) -> Result<(), PushStartError> {
    if config.connections_max == 0 || config.batch_mutations_max == 0 || config.timeout.is_zero() {
        return Err(PushStartError::Limits("connections, batch size and timeout must not be zero"));
    }
    if config.unmaterialized_max < config.batch_mutations_max
        || config.unmaterialized_max > i32::MAX.cast_unsigned()
    {
        return Err(PushStartError::Limits(
            "as many unmaterialized mutations as a batch may hold must be allowed",
        ));
    }
    Ok(())
}

/// The login role must be able to act as `role`, and both need the rights of `tidegate.grant_push`. Where the login role may give
/// them, as in development, it does.
async fn check_role(connection: &mut PgConnection, role: &str) -> Result<(), PushStartError> {
    let database = |error| PushStartError::Database(describe(error));
    let member: Option<bool> = sqlx::query_scalar(
        "select pg_has_role(session_user, oid, 'member') from pg_roles where rolname = $1",
    )
    .bind(role)
    .fetch_optional(&mut *connection)
    .await
    .map_err(database)?
    .flatten();
    if member != Some(true) {
        return Err(PushStartError::Role(role.to_owned()));
    }
    let granted = include_str!("granted.sql");
    let has = sqlx::query_scalar::<_, bool>(granted)
        .bind(role)
        .fetch_one(&mut *connection)
        .await
        .map_err(database)?;
    if has {
        return Ok(());
    }
    let gave = sqlx::query("select tidegate.grant_push(session_user, array[$1::name])")
        .bind(role)
        .execute(&mut *connection)
        .await;
    if gave.is_err() {
        let statement: String = sqlx::query_scalar(
            "select format('select tidegate.grant_push(%L, array[%L::name])', session_user, $1::text)",
        )
        .bind(role)
        .fetch_one(connection)
        .await
        .map_err(database)?;
        return Err(PushStartError::Rights(statement));
    }
    tracing::info!(role, "gave the roles of pushes their rights");
    Ok(())
}

/// Removes write fences that nobody needs any more, for as long as the runner lives.
async fn maintain(runner: std::sync::Weak<Runner>) {
    loop {
        tokio::time::sleep(MAINTENANCE_INTERVAL).await;
        let Some(runner) = runner.upgrade() else { return };
        if runner.pool.is_closed() {
            return;
        }
        let keep = format!("{} seconds", runner.config.fence_keep.as_secs());
        let pruned = sqlx::query("select tidegate.prune_write_fences($1::text::interval, $2)")
            .bind(keep)
            .bind(FENCES_PRUNED_MAX)
            .execute(&runner.pool)
            .await;
        if let Err(error) = pruned {
            tracing::warn!(reason = describe(error), "prune write fences");
        }
    }
}

/// What may be told of a failed statement of our own (Q1).
fn describe(error: sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(error) => format!("SQLSTATE {}", error.code().as_deref().unwrap_or("unknown")),
        sqlx::Error::Io(error) => format!("connection: {}", error.kind()),
        sqlx::Error::PoolTimedOut => "no connection in time".to_owned(),
        _ => "connection failed".to_owned(),
    }
}

fn unavailable() -> PushError {
    PushError::retry_after(ErrorCode::Unavailable, "the database cannot take pushes now", RETRY_MS)
}

fn internal() -> PushError {
    PushError::new(ErrorCode::Internal, "the push could not be run")
}

fn client_expired() -> PushError {
    PushError::new(ErrorCode::ClientExpired, "this server does not know what the client knows")
}
