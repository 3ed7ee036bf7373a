//! Before the first push: limits, roles, rights, the pool, the registry. And what goes on in the background: pruning.

use super::admission::Admission;
use super::failure::describe;
use super::run::Runner;
use super::target::Targets;
use super::{PushConfig, PushStartError, sqlstate};
use sqlx::postgres::{PgConnection, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, Row};
use std::collections::HashMap;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tidegate_model::{RegistryGeneration, Snapshot};

/// Time between two looks for write fences that nobody needs any more.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(60);
/// How long an idle connection is trusted without asking.
const IDLE_TRUSTED: Duration = Duration::from_secs(1);
/// Write fences removed by one statement.
const FENCES_PRUNED_MAX: i32 = 5000;

impl Runner {
    pub(super) async fn start(config: PushConfig) -> Result<Arc<Runner>, PushStartError> {
        check_limits(&config)?;
        let timeout = config.timeout.as_millis().to_string();
        let lock_timeout = config.lock_timeout.as_millis().to_string();
        let connect = config
            .connect
            .clone()
            .application_name("tidegate push")
            // R2: a commit is flushed before its outcome is told. The rest is what values mean in text.
            .options([
                ("synchronous_commit", "on"),
                ("default_transaction_isolation", "read committed"),
                ("statement_timeout", timeout.as_str()),
                ("lock_timeout", lock_timeout.as_str()),
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
            // A connection in use has just proved itself; a dead one shows in the push, which is run again. One that was idle
            // is asked first: after a restart of the server all of them are dead.
            .test_before_acquire(false)
            .before_acquire(|connection, meta| {
                Box::pin(async move {
                    if meta.idle_for > IDLE_TRUSTED {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
            .connect_lazy_with(connect);
        let mut connection =
            pool.acquire().await.map_err(|error| PushStartError::Database(describe(error)))?;
        for role in std::iter::once(&config.role).chain(&config.anonymous_role) {
            check_role(&mut connection, role).await?;
        }
        let targets = load_targets(&mut connection).await.map_err(PushStartError::Database)?;
        drop(connection);
        let runner = Arc::new(Runner {
            admission: Admission::new(
                config.connections_max,
                config.subject_running_max,
                config.queue_max,
                config.queue_wait,
            ),
            targets: RwLock::new(Arc::new(targets)),
            transient: sqlstate::transient_pattern(),
            config,
            pool,
        });
        tokio::spawn(maintain(Arc::downgrade(&runner)));
        Ok(runner)
    }
}

pub(super) async fn load_targets(connection: &mut PgConnection) -> Result<Targets, String> {
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

/// The registry as it was in one generation; `None`: there was none.
pub(super) async fn load_snapshot(
    connection: &mut PgConnection,
    generation: RegistryGeneration,
) -> Result<Option<Snapshot>, String> {
    let snapshot = sqlx::query_scalar::<_, Option<String>>("select tidegate.push_registry_of($1)")
        .bind(generation.0)
        .fetch_one(connection)
        .await
        .map_err(describe)?;
    snapshot.map(|json| Snapshot::from_json(&json)).transpose().map_err(|error| error.to_string())
}

fn check_limits(config: &PushConfig) -> Result<(), PushStartError> {
    if config.connections_max == 0 || config.subject_running_max == 0 || config.batch_mutations_max == 0 {
        return Err(PushStartError::Limits(
            "connections, pushes of a subject and batch size must not be zero",
        ));
    }
    // PostgreSQL counts in milliseconds, and takes 0 for no limit.
    if config.timeout.as_millis() == 0 || config.lock_timeout.as_millis() == 0 {
        return Err(PushStartError::Limits("timeouts must not be zero"));
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
    // Local to its own statement: only whether it may.
    let acts = sqlx::query("select set_config('role', $1, true)").bind(role).execute(&mut *connection).await;
    match acts {
        Ok(_) => {}
        Err(sqlx::Error::Database(_)) => return Err(PushStartError::Role(role.to_owned())),
        Err(error) => return Err(database(error)),
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
