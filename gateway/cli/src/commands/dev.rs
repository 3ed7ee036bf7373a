//! `tidegate dev`: everything in one process, from nothing: a private PostgreSQL, the schema, the demo, capture and gateway.

use crate::args::{Args, DEFAULT_DATA, Dev};
use crate::{connect, demo, output, secret, serving, shutdown, target};
use anyhow::{Context, bail};
use sqlx::Executor;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tidegate_embedded::{Binaries, Cluster, Options};

/// The private cluster's database.
const DATABASE: &str = "tidegate";
/// How long the printed token is valid.
const TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Starts it all, says where it is, and stops it all at a signal.
pub async fn run(args: &Args, dev: &Dev) -> anyhow::Result<ExitCode> {
    let data = data_folder(&args.data)?;
    // Held to the end: one per folder.
    let _lock = lock(&data)?;
    // Left over from one that was killed: until we are ready there is nothing to find.
    std::fs::remove_file(target::DevState::path(&data)).ok();
    let listener = serving::listen(dev.listen).await?;
    let secret = match &dev.jwt_secret {
        Some(secret) => secret.clone(),
        None => secret::of_dev(&data)?,
    };
    // A secret that will not do is told before anything is started.
    let token = token(&secret)?;
    let (cluster, url) = match target::given_url(args) {
        Some(url) => (None, url.to_owned()),
        None => {
            let cluster = start_cluster(&data, dev.pg_bin.clone()).await?;
            let url = cluster.connection_url(DATABASE);
            create_database(&cluster).await?;
            (Some(cluster), url)
        }
    };
    // The demo's tables go only into a database of our own, never into one that somebody pointed us at.
    let with_demo = cluster.is_some() && !dev.no_demo;
    let pool = connect::pool(&url, 4).await?;
    tidegate_migrations::connect_and_load(&pool).await?;
    connect::warn_of_replication(&pool).await?;
    if let Some(role) = &dev.write_role {
        connect::warn_of_write_role(&pool, role).await?;
    }
    if with_demo {
        demo::install(&pool).await?;
    }

    let program = program(&args.data, &data);
    let registered = serving::anything_registered(&pool).await?;
    let config = serving::Serving {
        database_url: url.clone(),
        listener,
        jwt_secret: Some(secret.clone()),
        token_required: false,
        write_role: dev.write_role.clone().or_else(|| with_demo.then(|| demo::WRITE_ROLE.to_owned())),
        push: serving::PushLimits::default(),
        pages: with_demo.then(|| demo::routes(secret.clone(), program.clone())),
        wait: registered,
    };
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut worker = serving::capture(&pool, &url, stopped.clone()).await?;
    let mut gateway = serving::gateway(config, stopped).await?;
    target::DevState { database_url: url, url: gateway.url.clone(), pid: std::process::id() }.write(&data)?;
    let summary =
        Summary { url: &gateway.url, program: &program, own: cluster.is_some(), with_demo, registered };
    announce(args, &summary, &token);

    let ended = tokio::select! {
        () = shutdown::signal() => Ok(()),
        ended = worker.ended() => ended.context("capture"),
        ended = gateway.part.ended() => ended.context("gateway"),
    };
    stop.send_replace(true);
    worker.finish().await;
    gateway.part.finish().await;
    pool.close().await;
    std::fs::remove_file(target::DevState::path(&data)).ok();
    // Dropping the cluster stops its server.
    tokio::task::spawn_blocking(move || drop(cluster)).await.context("stop PostgreSQL")?;
    ended.map(|()| ExitCode::SUCCESS)
}

fn data_folder(data: &Path) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(data).with_context(|| format!("create {}", data.display()))?;
    data.canonicalize().with_context(|| format!("resolve {}", data.display()))
}

/// A second one in the same folder would fight for the database.
fn lock(data: &Path) -> anyhow::Result<File> {
    let path = data.join("dev.lock");
    let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => match target::DevState::read(data) {
            Some(state) => bail!("`tidegate dev` is already running, at {}", state.url),
            None => bail!("`tidegate dev` is already starting in {}", data.display()),
        },
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("lock {}", path.display())),
    }
}

/// What to type before a command so that it finds this database: the program as it was typed, and the folder unless it is the
/// one that commands look in by themselves.
fn program(given: &Path, data: &Path) -> String {
    let program = std::env::args().next().unwrap_or_else(|| "tidegate".to_owned());
    let program = quoted(&program);
    if given == Path::new(DEFAULT_DATA) {
        return program;
    }
    format!("{program} --data {}", quoted(&data.to_string_lossy()))
}

/// For a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-./+:@%,=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

async fn start_cluster(data: &Path, pg_bin: Option<PathBuf>) -> anyhow::Result<Cluster> {
    let data = data.to_owned();
    tokio::task::spawn_blocking(move || {
        let dir = data.join("postgres");
        match open_cluster(&dir, pg_bin.as_deref()) {
            // As root PostgreSQL runs as another user, who may not reach a folder below root's home.
            Err(tidegate_embedded::Error::NotTraversable { blocked_by, .. }) => {
                let elsewhere = folder_for_all(&data);
                tracing::info!(blocked_by = %blocked_by.display(), folder = %elsewhere.display(), "the database goes where PostgreSQL's user can reach it");
                open_cluster(&elsewhere, pg_bin.as_deref())
            }
            other => other,
        }
        .context("start the private PostgreSQL")
    })
    .await
    .context("start the private PostgreSQL")?
}

/// A folder outside root's home, always the same for one data folder.
fn folder_for_all(data: &Path) -> PathBuf {
    let name = data.to_string_lossy().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    Path::new("/var/tmp").join(format!("tidegate-dev{name}"))
}

fn open_cluster(dir: &Path, pg_bin: Option<&Path>) -> Result<Cluster, tidegate_embedded::Error> {
    let binaries = Binaries::find_for_cluster(dir, pg_bin)?;
    tracing::info!(version = %binaries.version(), folder = %dir.display(), "starting PostgreSQL");
    let mut cluster = Cluster::open_or_init(Options::new(binaries, dir))?;
    cluster.start()?;
    Ok(cluster)
}

async fn create_database(cluster: &Cluster) -> anyhow::Result<()> {
    let pool = connect::pool(&cluster.connection_url("postgres"), 1).await?;
    let exists = "select exists (select from pg_database where datname = $1)";
    if !sqlx::query_scalar::<_, bool>(exists)
        .bind(DATABASE)
        .fetch_one(&pool)
        .await
        .context("look for the database")?
    {
        pool.execute(sqlx::AssertSqlSafe(format!("create database {DATABASE}")))
            .await
            .context("create the database")?;
    }
    pool.close().await;
    Ok(())
}

/// A token for the demo's first user.
fn token(secret: &str) -> anyhow::Result<String> {
    Ok(tidegate_gateway::auth::mint_token(
        secret.as_bytes(),
        demo::USERS[0],
        TOKEN_LIFETIME,
        &serde_json::Map::new(),
        std::time::SystemTime::now(),
    )?)
}

/// What there is to tell.
struct Summary<'a> {
    url: &'a str,
    program: &'a str,
    /// Whether the database is the private one.
    own: bool,
    with_demo: bool,
    registered: bool,
}

/// Tells where everything is. The URL of the database carries a password and is not printed: `tidegate sql` finds it.
fn announce(args: &Args, summary: &Summary<'_>, token: &str) {
    let Summary { url, program, .. } = summary;
    let user = demo::USERS[0];
    let json = serde_json::json!({ "ready": true, "url": url, "token": token, "user": user });
    output::print(args, &json, || {
        let mut text = format!("\n  Tidegate is running at {url}\n");
        if !summary.own {
            text += "\n  on the database of DATABASE_URL (or --database-url), so without a private one and without the demo\n";
        }
        if summary.with_demo {
            for user in demo::USERS {
                text += &format!("\n  the board as {user:<4} {url}/?user={user}");
            }
            text +=
                &format!("\n\n  change it from outside:\n    {program} sql \"{}\"\n", demo::OUTSIDE_CHANGE);
        }
        if !summary.registered {
            text += &format!(
                "\n  no table is registered yet; the stream begins with the first:\n    {program} apply tidegate.toml\n"
            );
        }
        text + &format!("\n  a token for {user}, valid for a day:\n    {token}\n\n  stop with Ctrl-C")
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outside_line_works_when_pasted() {
        let data = Path::new("/srv/my data/.tidegate");
        assert!(!program(Path::new(DEFAULT_DATA), data).contains("--data"));
        assert!(program(Path::new("elsewhere"), data).ends_with(" --data '/srv/my data/.tidegate'"));
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted("target/debug/tidegate"), "target/debug/tidegate");
    }
}
