//! Worker and gateway as parts of one process: started, waited for, stopped.

use crate::{commands, target};
use anyhow::{Context, anyhow};
use axum::Router;
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;
use tidegate_capture::Hooks;
use tidegate_gateway::auth::{AuthConfig, TokenKeys};
use tidegate_gateway::push::PushConfig;
use tidegate_gateway::{Config, Gateway};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A wait for the stream that is longer than this is worth a word.
const SAID_AFTER: Duration = Duration::from_secs(2);

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
    /// What else pushes are told.
    pub push: PushLimits,
    /// More pages beside the gateway's own routes.
    pub pages: Option<Router>,
    /// Whether to be ready only when the stream is followed.
    pub wait: bool,
}

/// Limits of pushes that an operator may set; absent ones are the gateway's own.
#[derive(Clone, Copy, Debug, Default)]
pub struct PushLimits {
    /// Longest wait for a row that another transaction has locked.
    pub lock_timeout: Option<Duration>,
    /// Pushes of one subject that run at the same time.
    pub subject_running_max: Option<u32>,
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
        let mut followed = pin!(gateway.followed());
        tokio::select! {
            () = &mut followed => {}
            () = tokio::time::sleep(SAID_AFTER) => {
                tracing::info!("waiting for the stream; if nothing has begun it, start `tidegate capture`");
                followed.await;
            }
        }
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
    config.push = serving.write_role.as_ref().map(|role| push(options, role, serving.push));
    Ok(config)
}

fn push(options: PgConnectOptions, role: &str, limits: PushLimits) -> PushConfig {
    let mut push = PushConfig::new(options, role);
    push.lock_timeout = limits.lock_timeout.unwrap_or(push.lock_timeout);
    push.subject_running_max = limits.subject_running_max.unwrap_or(push.subject_running_max);
    push
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    // A sender that is gone means the same: nobody is left to serve.
    stop.wait_for(|stop| *stop).await.ok();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;

    #[test]
    fn limits_of_pushes_are_the_gateways_own_unless_they_are_given() {
        let options = PgConnectOptions::new();
        let own = PushConfig::new(options.clone(), "app");
        let without = push(options.clone(), "app", PushLimits::default());
        assert_eq!(
            (without.lock_timeout, without.subject_running_max),
            (own.lock_timeout, own.subject_running_max)
        );
        let given =
            PushLimits { lock_timeout: Some(Duration::from_millis(250)), subject_running_max: Some(1) };
        let with = push(options, "app", given);
        assert_eq!((with.lock_timeout, with.subject_running_max), (Duration::from_millis(250), 1));
    }

    #[test]
    fn a_limit_of_pushes_cannot_be_none() {
        let parse = |argument: &str| Args::try_parse_from(["tidegate", "gateway", argument]);
        for argument in ["--push-lock-timeout-ms=0", "--pushes-per-subject=0"] {
            assert!(parse(argument).is_err(), "{argument}");
        }
        let parsed = parse("--push-lock-timeout-ms=250").expect("an argument");
        let Command::Gateway(gateway) = parsed.command else { panic!("another command") };
        assert_eq!(gateway.push_lock_timeout_ms.map(std::num::NonZeroU32::get), Some(250));
        // What says it without an argument says what holds.
        let own = PushConfig::new(PgConnectOptions::new(), "app");
        let help = <Args as clap::CommandFactory>::command()
            .find_subcommand_mut("gateway")
            .expect("it")
            .render_long_help();
        let help = help.to_string();
        assert!(help.contains(&format!("{} without it", own.lock_timeout.as_millis())), "{help}");
        assert!(help.contains(&format!("{} without it", own.subject_running_max)), "{help}");
    }
}
