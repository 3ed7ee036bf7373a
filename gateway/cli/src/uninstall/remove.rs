//! The removal. The application's writes never queue behind it for longer than one attempt may wait.

use super::plan::{self, Plan, Slot};
use crate::output::database_error;
use anyhow::{Context, anyhow, bail};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};
use std::time::Duration;
use tokio::time::Instant;

/// L8: longest that one attempt waits for one lock, and `STATEMENT` for the locks of all tables together.
const LOCK_TIMEOUT: &str = "2s";
/// See [`LOCK_TIMEOUT`].
const LOCKS_TIMEOUT: &str = "5s";
/// With the pauses between them, about a minute.
const ATTEMPTS: u32 = 10;
/// Longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_millis(3200);
/// How long a process that was ended may take to let go of its slot.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// The server has no signal for "released": its own view is polled.
const RELEASE_POLL: Duration = Duration::from_millis(20);

/// Removes what the plan shows, and whatever else of ours has come since. Gives the slots that were dropped.
///
/// # Errors
/// When something stands in the way, which is named; what is transactional is then as before.
pub async fn remove(connection: &mut PgConnection) -> anyhow::Result<Vec<String>> {
    let mut attempt = 1;
    loop {
        match in_one_transaction(connection).await {
            Ok(()) => break,
            Err(Failed::Obstacle(obstacle)) => bail!("{obstacle}"),
            Err(Failed::Database(error)) if was_not_free(&error) => {
                let holders = holders(connection).await;
                if attempt >= ATTEMPTS {
                    bail!(
                        "nothing was removed: a lock was not free in {attempts} attempts{held}; try again at a quieter time",
                        attempts = ATTEMPTS,
                        held = held(&holders)
                    );
                }
                tracing::warn!(attempt, "tables are in use{}: try again", held(&holders));
                let pause = Duration::from_millis(100 << (attempt - 1).min(5)).min(PAUSE_MAX);
                tokio::time::sleep(pause).await;
                attempt += 1;
            }
            Err(Failed::Database(error)) => {
                bail!("nothing was removed: {}", database_error(&error));
            }
        }
    }
    let slots = plan::look(connection).await?.slots;
    let mut dropped = Vec::new();
    for slot in slots {
        drop_slot(connection, &slot).await.with_context(|| {
            format!("everything else was removed; run this again to drop the replication slot {}", slot.name)
        })?;
        dropped.push(slot.name);
    }
    let left = plan::look(connection).await?;
    if !left.is_empty() {
        bail!(
            "something of Tidegate's has come back: is a worker or a gateway starting? Stop it, and run this again"
        );
    }
    Ok(dropped)
}

enum Failed {
    Obstacle(String),
    Database(sqlx::Error),
}

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Failed {
        Failed::Database(error)
    }
}

async fn in_one_transaction(connection: &mut PgConnection) -> Result<(), Failed> {
    let mut transaction = connection.begin().await?;
    let settings = format!(
        "set local lock_timeout = '{LOCK_TIMEOUT}'; set local statement_timeout = '{LOCKS_TIMEOUT}'; set local client_min_messages = warning; set local search_path = pg_catalog, pg_temp"
    );
    sqlx::raw_sql(AssertSqlSafe(settings)).execute(&mut *transaction).await?;
    let plan = look(&mut transaction).await?;
    if plan.has_schema() {
        // In the order in which a load and a registration take their locks. A worker that starts now waits to claim its row, and
        // finds none.
        let own = "select pg_advisory_xact_lock(hashtextextended('tidegate load', 0)); select tidegate.lock_registration();
            lock table tidegate.worker in access exclusive mode";
        sqlx::raw_sql(own).execute(&mut *transaction).await?;
        let plan = look(&mut transaction).await?;
        if let Some(obstacle) = plan.obstacle() {
            return Err(Failed::Obstacle(obstacle));
        }
        // All of the application's tables at once, or none: nobody waits for the first while we wait for the last.
        if !plan.triggers.is_empty() {
            let tables: Vec<&str> = plan.triggers.iter().map(|table| table.name.as_str()).collect();
            // Names out of the catalogue, quoted by the server.
            let lock = format!("lock table only {} in access exclusive mode", tables.join(", only "));
            sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut *transaction).await?;
        }
        sqlx::raw_sql("set local statement_timeout = 0").execute(&mut *transaction).await?;
        sqlx::query("select * from tidegate.uninstall()").execute(&mut *transaction).await?;
    } else {
        if let Some(obstacle) = plan.obstacle() {
            return Err(Failed::Obstacle(obstacle));
        }
        // What a `drop schema tidegate cascade` left.
        sqlx::raw_sql(
            "drop publication if exists tidegate; drop schema if exists tidegate_projection cascade",
        )
        .execute(&mut *transaction)
        .await?;
    }
    transaction.commit().await?;
    Ok(())
}

async fn look(connection: &mut PgConnection) -> Result<Plan, Failed> {
    plan::look(connection).await.map_err(|error| match error.downcast::<sqlx::Error>() {
        Ok(error) => Failed::Database(error),
        Err(error) => Failed::Obstacle(error.to_string()),
    })
}

/// A lock that did not come in time, or a deadlock: the same may succeed later. A statement timeout is set for locks alone.
fn was_not_free(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| matches!(code.as_ref(), "55P03" | "40P01" | "57014"))
}

/// Processes that hold locks on the tables that have triggers of ours, or on our own.
async fn holders(connection: &mut PgConnection) -> Vec<i32> {
    let holders = sqlx::query_scalar(
        "select distinct l.pid from pg_locks l join pg_database d on d.oid = l.database and d.datname = current_database()
         where l.granted and l.pid <> pg_backend_pid() and l.locktype = 'relation'
           and (l.relation in (select g.tgrelid from pg_trigger g join pg_proc p on p.oid = g.tgfoid join pg_namespace n on n.oid = p.pronamespace
                               where n.nspname = 'tidegate')
                or l.relation in (select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace
                                  where n.nspname in ('tidegate', 'tidegate_projection')))
         order by 1",
    );
    // Told as a help: without it, the attempt failed all the same.
    holders.fetch_all(connection).await.unwrap_or_default()
}

fn held(holders: &[i32]) -> String {
    let pids: Vec<String> = holders.iter().map(i32::to_string).collect();
    match pids.len() {
        0 => String::new(),
        1 => format!(" (server process {} holds one)", pids[0]),
        _ => format!(" (server processes {} hold some)", pids.join(", ")),
    }
}

/// Ends whoever reads it, and drops it. It may be gone already.
async fn drop_slot(connection: &mut PgConnection, slot: &Slot) -> anyhow::Result<()> {
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    loop {
        let reader: Option<Option<i32>> = sqlx::query_scalar(
            "select active_pid from pg_replication_slots where slot_name = $1::text::name",
        )
        .bind(&slot.name)
        .fetch_optional(&mut *connection)
        .await
        .map_err(|error| anyhow!("look at the slot: {}", database_error(&error)))?;
        let Some(reader) = reader else { return Ok(()) };
        let done = match reader {
            Some(pid) => {
                sqlx::query("select pg_terminate_backend($1)").bind(pid).execute(&mut *connection).await
            }
            None => {
                let drop = "select pg_drop_replication_slot($1::text::name)";
                let dropped = sqlx::query(drop).bind(&slot.name).execute(&mut *connection).await;
                match dropped {
                    Ok(_) => return Ok(()),
                    // Somebody began to read it in between.
                    Err(error) if is_in_use(&error) => Ok(Default::default()),
                    Err(error) => Err(error),
                }
            }
        };
        done.map_err(|error| anyhow!("{}", database_error(&error)))?;
        if Instant::now() >= deadline {
            bail!("process {} does not let go of it", reader.unwrap_or_default());
        }
        tokio::time::sleep(RELEASE_POLL).await;
    }
}

/// SQLSTATE object_in_use.
fn is_in_use(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|error| error.code()).is_some_and(|code| code == "55006")
}
