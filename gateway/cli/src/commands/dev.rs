//! `tidegate dev`: everything in one process, from nothing: a private PostgreSQL, the schema, the demo, capture and gateway.

use crate::args::{Args, Dev};
use crate::{demo, output, secret, serving, shutdown, target};
use anyhow::Context;
use sqlx::Executor;
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
    let (cluster, url) = match &args.database_url {
        Some(url) => (None, url.clone()),
        None => {
            let cluster = start_cluster(&data, dev.pg_bin.clone()).await?;
            let url = cluster.connection_url(DATABASE);
            create_database(&cluster).await?;
            (Some(cluster), url)
        }
    };
    // The demo's tables go only into a database of our own, never into one that somebody pointed us at.
    let with_demo = cluster.is_some() && !dev.no_demo;
    let secret = match std::env::var("TIDEGATE_JWT_SECRET") {
        Ok(secret) => secret,
        Err(_) => secret::of_dev(&data)?,
    };
    let pool = target::pool_of(&url, 4).await?;
    tidegate_migrations::connect_and_load(&pool).await?;
    if with_demo {
        demo::install(&pool).await?;
    }

    let registered = serving::anything_registered(&pool).await?;
    let config = serving::Serving {
        database_url: url.clone(),
        listen: dev.listen,
        jwt_secret: Some(secret.clone()),
        token_required: false,
        write_role: std::env::var("TIDEGATE_WRITE_ROLE")
            .ok()
            .or_else(|| with_demo.then(|| demo::WRITE_ROLE.to_owned())),
        pages: with_demo.then(|| demo::routes(secret.clone())),
        wait: registered,
    };
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut worker = serving::capture(&pool, &url, stopped.clone()).await?;
    let mut gateway = serving::gateway(config, stopped).await?;
    target::DevState { database_url: url, url: gateway.url.clone(), pid: std::process::id() }.write(&data)?;
    announce(args, &gateway.url, &secret, with_demo, registered)?;

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
    let pool = target::pool_of(&cluster.connection_url("postgres"), 1).await?;
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

/// Tells where everything is. The URL of the database carries a password and is not printed: `tidegate sql` finds it.
fn announce(args: &Args, url: &str, secret: &str, with_demo: bool, registered: bool) -> anyhow::Result<()> {
    let user = demo::USERS[0];
    let token = tidegate_gateway::auth::mint_token(
        secret.as_bytes(),
        user,
        TOKEN_LIFETIME,
        &serde_json::Map::new(),
        std::time::SystemTime::now(),
    )?;
    let program = std::env::args().next().unwrap_or_else(|| "tidegate".to_owned());
    output::print(
        args,
        &serde_json::json!({ "ready": true, "url": url, "token": token, "user": user }),
        || {
            let mut text = format!("\n  Tidegate is running at {url}\n");
            if with_demo {
                for user in demo::USERS {
                    text += &format!("\n  the board as {user:<4} {url}/?user={user}");
                }
                text += &format!(
                    "\n\n  change it from outside:\n    {program} sql \"{}\"\n",
                    demo::OUTSIDE_CHANGE
                );
            }
            if !registered {
                text += &format!(
                    "\n  no table is registered yet; the stream begins with the first:\n    {program} apply tidegate.toml\n"
                );
            }
            text + &format!("\n  a token for {user}, valid for a day:\n    {token}\n\n  stop with Ctrl-C")
        },
    );
    Ok(())
}
