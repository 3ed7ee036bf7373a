//! Worker and gateway as parts of one process: started, waited for, stopped.

use crate::{commands, target};
use anyhow::{Context, anyhow};
use axum::Router;
use sqlx::PgPool;
use std::net::SocketAddr;
use tidegate_capture::Hooks;
use tidegate_gateway::auth::{AuthConfig, TokenKeys};
use tidegate_gateway::push::PushConfig;
use tidegate_gateway::{Config, Gateway};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What a gateway is told on the command line.
pub struct Serving {
    /// The database; carries a password.
    pub database_url: String,
    /// Where to listen; bound, so that nothing else is started for nothing.
    pub listener: TcpListener,
    /// HS256 secret; none: only anonymous sessions.
    pub jwt_secret: Option<String>,
    /// Whether sessions without a token are refused.
    pub token_required: bool,
    /// Role that pushes run as; none: no pushes.
    pub write_role: Option<String>,
    /// More pages beside the gateway's own routes.
    pub pages: Option<Router>,
    /// Whether to be ready only when the stream is followed.
    pub wait: bool,
}

/// A part that runs until it is told to stop, or fails.
pub struct Part {
    task: JoinHandle<anyhow::Result<()>>,
}

impl Part {
    /// Completes when the part ends by itself, which is always a failure, or was told to stop.
    pub async fn ended(&mut self) -> anyhow::Result<()> {
        (&mut self.task).await.context("a part of this process panicked")?
    }

    /// Waits until the part has stopped; what it has to say has been said.
    pub async fn finish(self) {
        if !self.task.is_finished() {
            self.task.await.ok();
        }
    }
}

/// Whether any table is registered. Without one the worker waits: a first start later can still copy tables that hold rows.
///
/// # Errors
/// When the database cannot be asked.
pub async fn anything_registered(pool: &PgPool) -> anyhow::Result<bool> {
    sqlx::query_scalar("select exists (select from tidegate.relation where state <> 'removed')")
        .fetch_one(pool)
        .await
        .context("look for registered tables")
}

/// Starts the worker and waits until it streams, if there is anything to stream.
///
/// # Errors
/// When it ends before.
pub async fn capture(pool: &PgPool, url: &str, stop: watch::Receiver<bool>) -> anyhow::Result<Part> {
    let registered = anything_registered(pool).await?;
    let started = commands::capture::now(pool).await?;
    let config = tidegate_capture::Config::new(url);
    let mut part = Part {
        task: tokio::spawn(async move {
            tidegate_capture::run(config, stopped(stop), Hooks::default()).await.map_err(anyhow::Error::from)
        }),
    };
    if !registered {
        return Ok(part);
    }
    tokio::select! {
        ended = part.ended() => Err(ended.err().unwrap_or_else(|| anyhow!("it was told to stop"))).context("start capture"),
        streaming = commands::capture::wait_until_streaming(pool, &started) => streaming.map(|()| part),
    }
}

/// Takes the port.
///
/// # Errors
/// When it cannot be had; says what to pass instead.
pub async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            let any = SocketAddr::new(address.ip(), 0);
            anyhow!(
                "port {} of {} is in use: pass --listen {any} for a free one",
                address.port(),
                address.ip()
            )
        }
        _ => anyhow!("listen on {address}: {error}"),
    })
}

/// A listening gateway.
pub struct Listening {
    /// Its base URL.
    pub url: String,
    /// The part.
    pub part: Part,
}

/// Starts a gateway, and waits until it follows the stream.
///
/// # Errors
/// When it cannot listen, or is configured wrongly.
pub async fn gateway(serving: Serving, stop: watch::Receiver<bool>) -> anyhow::Result<Listening> {
    let address = serving.listener.local_addr().context("listen")?;
    let gateway = Gateway::start(config(&serving, address)?).await.context("start the gateway")?;
    let router = match serving.pages {
        Some(pages) => gateway.router().merge(pages),
        None => gateway.router(),
    };
    if serving.wait {
        gateway.followed().await;
    }
    let task =
        tokio::spawn(
            async move { gateway.serve(serving.listener, router, stopped(stop)).await.context("serve") },
        );
    Ok(Listening { url: format!("http://{address}"), part: Part { task } })
}

/// How tokens are judged.
pub fn auth(jwt_secret: Option<String>, token_required: bool) -> AuthConfig {
    AuthConfig {
        keys: jwt_secret.map(|secret| TokenKeys::Secret(secret.into_bytes())),
        anonymous: !token_required,
        ..AuthConfig::default()
    }
}

fn config(serving: &Serving, address: SocketAddr) -> anyhow::Result<Config> {
    let options = target::connect_options(&serving.database_url)?;
    let database = target::database_name(&options);
    let auth = auth(serving.jwt_secret.clone(), serving.token_required);
    let mut config = Config::new(&serving.database_url, database, auth);
    config.listen = address;
    config.push = serving.write_role.as_ref().map(|role| PushConfig::new(options, role));
    Ok(config)
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    // A sender that is gone means the same: nobody is left to serve.
    stop.wait_for(|stop| *stop).await.ok();
}
