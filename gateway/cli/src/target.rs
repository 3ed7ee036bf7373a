//! Which database a command speaks to.

use crate::args::Args;
use crate::connect;
use anyhow::{Context, bail};
use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use std::path::{Path, PathBuf};

/// What a running `tidegate dev` leaves for the other commands, readable by its owner only.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct DevState {
    /// Carries the private database's password.
    pub database_url: String,
    /// Where the gateway listens.
    pub url: String,
    /// Process id of `tidegate dev`.
    pub pid: u32,
}

impl DevState {
    /// The file inside the data folder.
    pub fn path(data: &Path) -> PathBuf {
        data.join("dev.json")
    }

    /// What the last `tidegate dev` of this folder wrote; it may have been killed since.
    pub fn read(data: &Path) -> Option<DevState> {
        serde_json::from_slice(&std::fs::read(Self::path(data)).ok()?).ok()
    }

    /// Writes the file with mode 0600.
    pub fn write(&self, data: &Path) -> anyhow::Result<()> {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        let path = Self::path(data);
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("write {}", path.display()))?;
        file.write_all(&serde_json::to_vec_pretty(self)?).with_context(|| format!("write {}", path.display()))
    }
}

/// The URL that was given by `--database-url` or `DATABASE_URL`; an empty one is none.
pub fn given_url(args: &Args) -> Option<&str> {
    args.database_url.as_deref().map(str::trim).filter(|url| !url.is_empty())
}

/// The database's URL: the given one, else that of a running `tidegate dev` in the data folder.
///
/// The URL carries a password: it must never be printed.
pub fn database_url(args: &Args) -> anyhow::Result<String> {
    if let Some(url) = given_url(args) {
        return Ok(url.to_owned());
    }
    match DevState::read(&args.data) {
        Some(state) => Ok(state.database_url),
        None => bail!(
            "no database: set DATABASE_URL or --database-url, or run `tidegate dev` first (looked in {})",
            DevState::path(&args.data).display()
        ),
    }
}

/// Reads a URL without letting it into the error text.
///
/// # Errors
/// Says which part of it is wrong.
pub fn connect_options(url: &str) -> anyhow::Result<PgConnectOptions> {
    if let Some(problem) = problem_of(url) {
        bail!("the database URL is not valid: {problem}");
    }
    match url.parse::<PgConnectOptions>() {
        Ok(options) => Ok(options.application_name("tidegate").disable_statement_logging()),
        Err(_) => bail!("the database URL is not valid: {EXPECTED}; {ENCODE}"),
    }
}

const EXPECTED: &str = "expected postgres://user@host:port/database";
/// What is wrong with most URLs that do not parse, and with most passwords that are refused.
pub const ENCODE: &str = "characters such as @ : / ? # % in a password must be percent-encoded (@ is %40, / is %2F, # is %23, % is %25)";

/// What a person most likely got wrong, told without repeating any of it but the scheme.
fn problem_of(url: &str) -> Option<String> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Some(match url.split_once(':') {
            Some((scheme @ ("postgres" | "postgresql"), _)) => format!("`//` is missing after `{scheme}:`"),
            _ => EXPECTED.to_owned(),
        });
    };
    if !matches!(scheme, "postgres" | "postgresql") {
        let name =
            scheme.len() <= 20 && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
        let scheme = if name { format!("`{scheme}`") } else { "what stands before `://`".to_owned() };
        return Some(format!("its scheme must be postgres or postgresql, not {scheme}"));
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, behind) = rest.split_at(end);
    // A query may hold an @ of its own.
    let behind = if behind.starts_with('/') { behind.split('?').next().unwrap_or(behind) } else { behind };
    // The password was cut short at its first unescaped character: the @ that ends it came too late.
    if authority.contains(':') && !authority.contains('@') && behind.contains('@') {
        return Some(ENCODE.to_owned());
    }
    None
}

/// The database that these options lead to. Without a name in the URL it is, as everywhere in PostgreSQL, the user's.
pub fn database_name(options: &PgConnectOptions) -> String {
    options.get_database().unwrap_or(options.get_username()).to_owned()
}

/// A pool on the target.
pub async fn pool(args: &Args, connections: u32) -> anyhow::Result<sqlx::PgPool> {
    connect::pool(&database_url(args)?, connections).await
}

/// One connection to the target.
pub async fn connect(args: &Args) -> anyhow::Result<PgConnection> {
    Ok(connect::once(&connect_options(&database_url(args)?)?).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_url_is_told_by_its_fault_and_never_repeated() {
        for (url, part) in [
            ("mysql://me:sesame@h/db", "not `mysql`"),
            ("postgres:me:sesame@h/db", "`//` is missing after `postgres:`"),
            ("me:sesame@h/db", "expected postgres://"),
            ("host=h password=sesame", "expected postgres://"),
            ("postgres://me:ses/ame@h:5432/db", "percent-encoded"),
            ("postgres://me:12#sesame@h/db", "percent-encoded"),
            ("postgres://me:1?sesame@h/db", "percent-encoded"),
            ("postgres://me:sesame@h:port/db", "expected postgres://"),
        ] {
            let error = connect_options(url).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(part), "{url}: {error}");
            assert!(!error.contains("ame@h") && !error.contains("sesame"), "{error}");
        }
        for url in [
            "postgres://me:p%40ss@h:5432/db",
            "postgresql://h/db?user=me@there",
            "postgres://h:5432/db?user=me@there",
            "postgres:///db?host=/run/postgresql",
        ] {
            assert!(connect_options(url).is_ok(), "{url}");
        }
    }
}
