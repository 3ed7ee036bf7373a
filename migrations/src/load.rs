//! Installs the schema. Owns the order of its awaits: lock, guard, decide, clear the stamp, replay, stamp.

use crate::{Decision, Mine, Reason, Schema, Stamp, decide, lock};
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{ConnectOptions, Connection};
use std::time::Duration;

/// The oldest major version with everything that the SQL uses.
const SERVER_VERSION_MIN: i32 = 150_000;

/// What a connect found and did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Whether the files ran.
    pub replayed: bool,
    /// Why; `None` when they did not.
    pub reason: Option<Reason>,
}

/// How long a load waits for what.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// L8: longest that a file waits for a lock, and so the longest that the application's writes queue behind it.
    pub lock_timeout: Duration,
    /// How often a file is tried before the load gives up.
    pub attempts: u32,
    /// Longest wait for another loader (L6).
    pub load_lock_timeout: Duration,
    /// L5's twin test turns the gate off; nothing else does. Operators use [`force_replay`].
    pub gate: bool,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            lock_timeout: Duration::from_secs(2),
            // With the pauses between them, about two minutes.
            attempts: 30,
            // A loader that upgrades a busy database may take the time of all its attempts.
            load_lock_timeout: Duration::from_secs(180),
            gate: true,
        }
    }
}

/// Why a database could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The server could not be reached, or a statement of the loader's own failed.
    #[error("{action}: {source}")]
    Database {
        /// What was being done.
        action: &'static str,
        /// The driver's error.
        source: sqlx::Error,
    },
    /// The server is too old.
    #[error("use PostgreSQL {found}: it is too old, Tidegate needs 15 or newer")]
    ServerTooOld {
        /// Its version, as the server says it.
        found: String,
    },
    /// Texts would have other bytes in the WAL than on the wire.
    #[error("use a database with encoding {found}: Tidegate needs one with encoding UTF8")]
    Encoding {
        /// Its encoding.
        found: String,
    },
    /// L6: a newer program has loaded this database, or has begun to. Run that version, or restore a backup.
    #[error(
        "load schema generation {ours}: a newer program has loaded generation {stamped} into this database, run that one"
    )]
    Downgrade {
        /// Stamped generation, or the one whose load has begun.
        stamped: i32,
        /// Ours.
        ours: i32,
    },
    /// Another loader is at work for longer than the limit. Try again.
    #[error("load the schema: another process is loading it")]
    Busy,
    /// L8: every attempt ran into the lock timeout. Try again at a quieter time; the application was never blocked for longer
    /// than the timeout.
    #[error("load {file}: a lock was not free in {attempts} attempts")]
    LockTimeout {
        /// The file that waited.
        file: &'static str,
        /// How often.
        attempts: u32,
    },
    /// A file failed. The stamp stays cleared, so the next connect replays.
    #[error("load {file}: {source}")]
    File {
        /// The file.
        file: &'static str,
        /// The driver's error.
        source: sqlx::Error,
    },
}

fn failed(action: &'static str) -> impl FnOnce(sqlx::Error) -> LoadError {
    move |source| LoadError::Database { action, source }
}

/// Loads the full schema into the pool's database if it differs from what the stamp vouches for (L1). Takes a connection of its
/// own, so that a pool of any size will do.
///
/// # Errors
/// See [`LoadError`]. After any of them the next call starts over.
pub async fn connect_and_load(pool: &PgPool) -> Result<Loaded, LoadError> {
    load_schema(pool, &Schema::full(), LoadOptions::default()).await
}

/// As [`connect_and_load`], with a schema and limits of the caller's.
///
/// # Errors
/// See [`LoadError`].
pub async fn load_schema(pool: &PgPool, schema: &Schema, options: LoadOptions) -> Result<Loaded, LoadError> {
    let mut connection =
        pool.connect_options().connect().await.map_err(failed("connect to load the schema"))?;
    // The advisory lock belongs to this session: it goes with the connection, however the load ends.
    let loaded = load_locked(&mut connection, schema, options).await;
    let _ = connection.close().await;
    loaded
}

async fn load_locked(
    connection: &mut PgConnection,
    schema: &Schema,
    options: LoadOptions,
) -> Result<Loaded, LoadError> {
    prepare(connection, options).await?;
    let mine =
        Mine { generation: schema.generation, loader: schema.loader, content_hash: schema.content_hash() };
    let stamp = read_stamp(connection).await?;
    if let Some(newest) = stamp.as_ref().map(Stamp::newest).filter(|newest| *newest > mine.generation) {
        return Err(LoadError::Downgrade { stamped: newest, ours: mine.generation });
    }
    let reason = match decide(stamp.as_ref(), mine) {
        Decision::Skip if options.gate => return Ok(Loaded { replayed: false, reason: None }),
        Decision::Skip => Reason::Cleared,
        Decision::Replay(reason) => reason,
    };
    tracing::info!(%reason, generation = mine.generation, "replay the schema");
    say_where_from(connection, stamp.as_ref()).await?;
    let mut announced = stamp.is_some();
    if announced {
        announce_replay(connection, mine).await?;
    }
    for file in &schema.files {
        replay(connection, file.name, file.text, options).await?;
        // The first file makes the stamp's table.
        if !announced {
            announce_replay(connection, mine).await?;
            announced = true;
        }
    }
    sqlx::query(
        "insert into tidegate.schema_stamp (generation, loader, content_hash) values ($1, $2, $3)
         on conflict (singleton) do update set generation = excluded.generation, loader = excluded.loader,
             content_hash = excluded.content_hash, replaying = null, stamped_at = clock_timestamp()",
    )
    .bind(mine.generation)
    .bind(mine.loader)
    .bind(&mine.content_hash[..])
    .execute(connection)
    .await
    .map_err(failed("stamp the schema"))?;
    Ok(Loaded { replayed: true, reason: Some(reason) })
}

/// Pins the session, checks the server, waits for other loaders.
async fn prepare(connection: &mut PgConnection, options: LoadOptions) -> Result<(), LoadError> {
    sqlx::raw_sql(
        "set search_path = pg_catalog, pg_temp; set client_min_messages = warning; set statement_timeout = 0;
         set idle_in_transaction_session_timeout = 0; set default_transaction_isolation = 'read committed';
         set synchronous_commit = on; set check_function_bodies = on; set row_security = on;
         set standard_conforming_strings = on; set quote_all_identifiers = off",
    )
    .execute(&mut *connection)
    .await
    .map_err(failed("prepare to load the schema"))?;
    let (number, version, encoding): (String, String, String) = sqlx::query_as(
        "select current_setting('server_version_num'), current_setting('server_version'), pg_catalog.getdatabaseencoding()::text",
    )
    .fetch_one(&mut *connection)
    .await
    .map_err(failed("ask for the server's version"))?;
    if number.parse::<i32>().is_ok_and(|number| number < SERVER_VERSION_MIN) {
        return Err(LoadError::ServerTooOld { found: version });
    }
    if encoding != "UTF8" {
        return Err(LoadError::Encoding { found: encoding });
    }
    set_lock_timeout(connection, options.load_lock_timeout).await?;
    match sqlx::query("select pg_advisory_lock(hashtextextended('tidegate load', 0))")
        .execute(&mut *connection)
        .await
    {
        Err(error) if lock::timed_out(&error) => return Err(LoadError::Busy),
        other => other.map_err(failed("take the load lock"))?,
    };
    set_lock_timeout(connection, options.lock_timeout).await
}

async fn set_lock_timeout(connection: &mut PgConnection, limit: Duration) -> Result<(), LoadError> {
    // 0 would mean to wait for ever.
    let milliseconds = limit.as_millis().max(1).to_string();
    sqlx::query("select set_config('lock_timeout', $1, false)")
        .bind(milliseconds)
        .execute(connection)
        .await
        .map(drop)
        .map_err(failed("set the lock timeout"))
}

/// One file in one transaction, again while a lock is not free (L8).
async fn replay(
    connection: &mut PgConnection,
    name: &'static str,
    text: &'static str,
    options: LoadOptions,
) -> Result<(), LoadError> {
    let mut attempt = 1;
    loop {
        let result = async {
            let mut transaction = connection.begin().await?;
            sqlx::raw_sql(text).execute(&mut *transaction).await?;
            transaction.commit().await
        }
        .await;
        match result {
            Ok(()) => return Ok(()),
            Err(error) if lock::was_not_free(&error) => {
                if attempt >= options.attempts {
                    return Err(LoadError::LockTimeout { file: name, attempts: attempt });
                }
                tracing::warn!(file = name, attempt, "a lock was not free: try again");
                lock::let_others_pass(attempt).await;
                attempt += 1;
            }
            Err(source) => return Err(LoadError::File { file: name, source }),
        }
    }
}

/// The stamp, if the database has one.
///
/// # Errors
/// [`LoadError::Database`].
pub async fn read_stamp(connection: &mut PgConnection) -> Result<Option<Stamp>, LoadError> {
    let present: bool = sqlx::query_scalar("select to_regclass('tidegate.schema_stamp') is not null")
        .fetch_one(&mut *connection)
        .await
        .map_err(failed("look for the schema stamp"))?;
    if !present {
        return Ok(None);
    }
    type Row = (i32, String, Option<Vec<u8>>, Option<i32>);
    // Through jsonb, because a database of an earlier state lacks the newest column.
    let row: Option<Row> = sqlx::query_as(
        "select s.generation, s.loader, s.content_hash, (to_jsonb(s) ->> 'replaying')::integer from tidegate.schema_stamp s",
    )
    .fetch_optional(connection)
    .await
    .map_err(failed("read the schema stamp"))?;
    Ok(row.map(|(generation, loader, content_hash, replaying)| Stamp {
        generation,
        loader,
        content_hash,
        replaying,
    }))
}

/// What a database holds of our schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// Nothing.
    Missing,
    /// That of another version, or a load that was cut short: the next connect replays it, or refuses a newer one.
    Other,
    /// What this program carries.
    Current,
}

/// Looks, and changes nothing.
///
/// # Errors
/// [`LoadError::Database`].
pub async fn installed(connection: &mut PgConnection) -> Result<Installed, LoadError> {
    let Some(stamp) = read_stamp(connection).await? else { return Ok(Installed::Missing) };
    let schema = Schema::full();
    let mine =
        Mine { generation: schema.generation, loader: schema.loader, content_hash: schema.content_hash() };
    Ok(match decide(Some(&stamp), mine) {
        Decision::Skip if stamp.generation == mine.generation => Installed::Current,
        _ => Installed::Other,
    })
}

/// L9: tells the files which generation the database was last completely brought to; 0: none. See `0001_foundation.sql`.
async fn say_where_from(connection: &mut PgConnection, stamp: Option<&Stamp>) -> Result<(), LoadError> {
    sqlx::query("select set_config('tidegate.stamped_generation', $1, false)")
        .bind(stamp.map_or(0, |stamp| stamp.generation).to_string())
        .execute(connection)
        .await
        .map(drop)
        .map_err(failed("prepare to load the schema"))
}

/// L1: durable before the first file runs, so that a replay cut short is never vouched for. L6: with the generation that is being
/// loaded, so that no older program puts its files over a part of ours.
async fn announce_replay(connection: &mut PgConnection, mine: Mine<'_>) -> Result<(), LoadError> {
    let announced = async {
        let has_column: bool = sqlx::query_scalar(
            "select exists (select from pg_attribute where attrelid = 'tidegate.schema_stamp'::regclass
                 and attname = 'replaying' and not attisdropped)",
        )
        .fetch_one(&mut *connection)
        .await?;
        if !has_column {
            sqlx::raw_sql("alter table tidegate.schema_stamp add column if not exists replaying integer")
                .execute(&mut *connection)
                .await?;
        }
        sqlx::query(
            "insert into tidegate.schema_stamp as s (generation, loader, replaying) values (0, $1, $2)
             on conflict (singleton) do update set content_hash = null,
                 replaying = greatest(s.replaying, excluded.replaying)",
        )
        .bind(mine.loader)
        .bind(mine.generation)
        .execute(connection)
        .await
    };
    announced.await.map(drop).map_err(failed("clear the schema stamp"))
}

/// L7: the next connect replays. An operator's lever, and the start of tests on a shared database.
///
/// # Errors
/// [`LoadError::Database`].
pub async fn force_replay(pool: &PgPool) -> Result<(), LoadError> {
    let mut connection = pool.acquire().await.map_err(failed("connect to force a replay"))?;
    if read_stamp(&mut connection).await?.is_some() {
        sqlx::query("update tidegate.schema_stamp set content_hash = null")
            .execute(&mut *connection)
            .await
            .map_err(failed("clear the schema stamp"))?;
    }
    Ok(())
}
