//! The command line.

use clap::{Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use tidegate_capture::RETENTION_MIN;

/// Realtime sync for PostgreSQL: ordinary rows reach every browser that may see them, exactly once, in commit order.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, propagate_version = true)]
pub struct Args {
    /// The database, as postgres://user@host:port/database. Without it: that of a running `tidegate dev`.
    #[arg(long, global = true, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: Option<String>,
    /// Folder of `tidegate dev`'s private database.
    #[arg(long, global = true, env = "TIDEGATE_DATA", default_value = DEFAULT_DATA)]
    pub data: PathBuf,
    /// Print results as JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to log, as in `info` or `tidegate_capture=debug,warn`.
    #[arg(long, global = true, env = "TIDEGATE_LOG", default_value = LOG)]
    pub log: String,
    /// Form of log lines.
    #[arg(long, global = true, env = "TIDEGATE_LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The data folder that commands look in by themselves.
pub const DEFAULT_DATA: &str = ".tidegate";
/// What is logged by default. What our drivers say, our own code says again, and with less noise.
const LOG: &str = "info,sqlx=error,pgwire_replication=off";

/// Form of log lines.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For programs, one object per line.
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start everything for development: a private database, capture and gateway in one process, and the demo.
    Dev(Dev),
    /// Run a gateway.
    Gateway(Gateway),
    /// Run the capture worker.
    Capture(Capture),
    /// Say whether a PostgreSQL can be used, before and after installation, and what repairs what is wrong. Changes nothing.
    Check(Check),
    /// Install or upgrade Tidegate's schema in the database.
    Migrate(Migrate),
    /// Register the tables, scopes and grants that a file declares.
    Apply(Apply),
    /// Run SQL against the database.
    Sql(Sql),
    /// Show readiness, check by check.
    Status,
    /// List, explain and retry transactions that block the stream.
    Poison(Poison),
    /// Start the stream anew, when nothing else leads out. Every client rebuilds.
    Reset(Reset),
    /// Mint a token for a user (HS256).
    Token(Token),
    /// Generate code from the registered tables.
    Gen(Gen),
    /// Remove everything of Tidegate's from the database. The application's tables and rows stay.
    Uninstall(Uninstall),
}

/// Arguments of `dev`.
#[derive(Debug, clap::Args)]
pub struct Dev {
    /// Where to listen; port 0 picks a free one.
    #[arg(long, env = "TIDEGATE_LISTEN", default_value = "127.0.0.1:8787")]
    pub listen: SocketAddr,
    /// Folder with PostgreSQL's programs; otherwise PATH, the usual places, or a downloaded version 18.
    #[arg(long, env = "TIDEGATE_PG_BIN")]
    pub pg_bin: Option<PathBuf>,
    /// Leave the demo's tables and page out.
    #[arg(long)]
    pub no_demo: bool,
    /// Shared secret of HS256 tokens, at least 32 bytes. Without it one is made and kept in the data folder.
    #[arg(long, env = "TIDEGATE_JWT_SECRET", hide_env_values = true)]
    pub jwt_secret: Option<String>,
    /// Database role that pushes run as. Without it: that of the demo, if there is one; else every push is refused.
    #[arg(long, env = "TIDEGATE_WRITE_ROLE")]
    pub write_role: Option<String>,
}

/// Arguments of `gateway`.
#[derive(Debug, clap::Args)]
pub struct Gateway {
    /// Where to listen; port 0 picks a free one.
    #[arg(long, env = "TIDEGATE_LISTEN", default_value = "127.0.0.1:8787")]
    pub listen: SocketAddr,
    /// Shared secret of HS256 tokens, at least 32 bytes. Without it only anonymous sockets are served.
    #[arg(long, env = "TIDEGATE_JWT_SECRET", hide_env_values = true)]
    pub jwt_secret: Option<String>,
    /// Refuse sessions without a token; otherwise they get what grants give to everybody.
    #[arg(long, env = "TIDEGATE_TOKEN_REQUIRED")]
    pub token_required: bool,
    /// Database role that pushes run as. Without it every push is refused.
    #[arg(long, env = "TIDEGATE_WRITE_ROLE")]
    pub write_role: Option<String>,
    /// Longest wait of a push for a row that another transaction has locked, in milliseconds; then the client tries again. 2000 without it.
    #[arg(long, value_name = "MS", env = "TIDEGATE_PUSH_LOCK_TIMEOUT_MS")]
    pub push_lock_timeout_ms: Option<NonZeroU32>,
    /// Pushes of one user that run at the same time; further ones wait for them. All anonymous sessions together are one user. 4 without it.
    #[arg(long, value_name = "N", env = "TIDEGATE_PUSHES_PER_SUBJECT")]
    pub pushes_per_subject: Option<NonZeroU32>,
}

/// Arguments of `capture`. Without them the worker's own limits hold.
#[derive(Debug, Default, clap::Args)]
pub struct Capture {
    /// Row changes of one transaction; one with more blocks the stream.
    #[arg(long, value_name = "N", env = "TIDEGATE_TRANSACTION_EVENTS_MAX")]
    pub transaction_events_max: Option<NonZeroU64>,
    /// Bytes of one transaction as the server sends it; one with more blocks the stream.
    #[arg(long, value_name = "BYTES", env = "TIDEGATE_TRANSACTION_BYTES_MAX")]
    pub transaction_bytes_max: Option<NonZeroU64>,
    /// Bytes of one row as the server sends it; one with more blocks the stream.
    #[arg(long, value_name = "BYTES", env = "TIDEGATE_MESSAGE_BYTES_MAX")]
    pub message_bytes_max: Option<NonZeroUsize>,
    /// How long effects are kept, so that a client that was away goes on from its cursor instead of rebuilding; 900 at least. 86400 (a day)
    /// without it.
    #[arg(long, value_name = "SECONDS", env = "TIDEGATE_RETENTION_SECONDS", value_parser = clap::value_parser!(u64).range(RETENTION_MIN.as_secs()..))]
    pub retention_seconds: Option<u64>,
    /// Bytes of effects that are kept; beyond it the oldest go, even if they are younger, but never before 15 minutes. 16 GiB without it.
    #[arg(long, value_name = "BYTES", env = "TIDEGATE_RETENTION_BYTES")]
    pub retention_bytes: Option<NonZeroU64>,
}

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
pub struct Check {
    /// The database, as postgres://user@host:port/database. Without it: --database-url, DATABASE_URL, or that of a running `tidegate dev`.
    pub url: Option<String>,
    /// Also examine the rights to register this table, as schema.table. May be given more than once.
    #[arg(long = "table", value_name = "TABLE")]
    pub tables: Vec<String>,
    /// Also examine the rights to register the tables that this file declares.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Print what managed services need instead, by their own names, or what one of them needs. Connects to nothing.
    #[arg(long, value_name = "SERVICE", value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    pub managed: Option<ManagedService>,
}

/// Services with names of their own for what a database needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ManagedService {
    /// All of them.
    All,
    /// Amazon RDS.
    Rds,
    /// Amazon Aurora.
    Aurora,
    /// Google Cloud SQL.
    Cloudsql,
    /// Azure Database for PostgreSQL.
    Azure,
    /// Supabase.
    Supabase,
    /// Neon.
    Neon,
}

/// Arguments of `uninstall`.
#[derive(Debug, clap::Args)]
pub struct Uninstall {
    /// Show what would be removed, remove nothing.
    #[arg(long, conflicts_with = "yes")]
    pub plan: bool,
    /// Do not ask.
    #[arg(long, short)]
    pub yes: bool,
}

/// Arguments of `migrate`.
#[derive(Debug, clap::Args)]
pub struct Migrate {
    /// Replay every file even if the database already has this version's schema.
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `apply`.
#[derive(Debug, clap::Args)]
pub struct Apply {
    /// The declaration, such as tidegate.toml.
    pub file: PathBuf,
    /// Show what would change, change nothing.
    #[arg(long)]
    pub plan: bool,
}

/// Arguments of `sql`.
#[derive(Debug, clap::Args)]
pub struct Sql {
    /// One or more statements; `-` reads standard input.
    pub statements: String,
}

/// Arguments of `poison`.
#[derive(Debug, clap::Args)]
pub struct Poison {
    /// What to do.
    #[command(subcommand)]
    pub action: PoisonAction,
}

/// Actions on blocking transactions.
#[derive(Debug, Subcommand)]
pub enum PoisonAction {
    /// List them, newest first.
    List,
    /// Explain one: what blocks, where, what to do.
    Show {
        /// Its id, as `list` prints it.
        id: i64,
    },
    /// Try the blocking transaction again, after its cause was repaired.
    Retry {
        /// Its id, as `list` prints it.
        id: i64,
    },
}

/// Arguments of `reset`.
#[derive(Debug, clap::Args)]
pub struct Reset {
    /// Why; kept in the audit.
    #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub reason: String,
    /// Do not ask.
    #[arg(long, short)]
    pub yes: bool,
}

/// Arguments of `token`.
#[derive(Debug, clap::Args)]
pub struct Token {
    /// The user: becomes the token's `sub`.
    pub user: String,
    /// Shared secret, at least 32 bytes. Without it: that of `tidegate dev`.
    #[arg(long, env = "TIDEGATE_JWT_SECRET", hide_env_values = true)]
    pub jwt_secret: Option<String>,
    /// How long it is valid, in seconds.
    #[arg(long, default_value_t = 3600)]
    pub valid_seconds: u64,
}

/// Arguments of `gen`.
#[derive(Debug, clap::Args)]
pub struct Gen {
    /// What to generate.
    #[command(subcommand)]
    pub target: GenTarget,
}

/// What can be generated.
#[derive(Debug, Subcommand)]
pub enum GenTarget {
    /// TypeScript types and codecs for the SDK.
    Types {
        /// Where to write; standard output without it.
        #[arg(long, short)]
        out: Option<PathBuf>,
    },
}
