//! The command line.

use clap::{Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;

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
    Capture,
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
