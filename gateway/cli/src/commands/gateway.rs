//! `tidegate gateway`: runs a gateway until it is told to stop.

use crate::args::{Args, Gateway};
use crate::{connect, output, serving, shutdown, target};
use anyhow::Context;
use sqlx::Connection;
use std::num::NonZeroU32;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;
use tidegate_gateway::auth::Auth;
use tokio::sync::watch;

/// Time between two tries to reach a database that is not there yet.
const RETRY: Duration = Duration::from_secs(1);

/// Waits for the database, loads the schema, serves, and drains at a signal.
pub async fn run(args: &Args, gateway: &Gateway) -> anyhow::Result<ExitCode> {
    let url = target::database_url(args)?;
    // What is wrong with the configuration does not wait for a database.
    Auth::new(serving::auth(gateway.jwt_secret.clone(), gateway.token_required))?;
    if gateway.jwt_secret.is_none() {
        tracing::warn!("no token secret: only anonymous sessions are served");
    }
    if gateway.write_role.is_none() {
        tracing::warn!("no write role: every push is refused");
    }
    // One watch over everything: once it has begun, no signal ends the process by itself any more.
    let mut told = pin!(shutdown::signal());
    let (stop, stopping) = watch::channel(false);
    let mut listening = tokio::select! {
        () = &mut told => return Ok(ExitCode::SUCCESS),
        started = start(url, gateway, stopping) => started?,
    };
    output::print(args, &serde_json::json!({ "ready": true, "url": listening.url }), || {
        format!("listening at {}", listening.url)
    });
    tokio::select! {
        () = told => {}
        ended = listening.part.ended() => return ended.context("gateway").map(|()| ExitCode::SUCCESS),
    }
    stop.send_replace(true);
    listening.part.finish().await;
    Ok(ExitCode::SUCCESS)
}

/// Waits for the database, loads the schema, and waits for the stream.
async fn start(
    url: String,
    gateway: &Gateway,
    stopping: watch::Receiver<bool>,
) -> anyhow::Result<serving::Listening> {
    reached(&url).await?;
    let pool = connect::pool(&url, 1).await?;
    tidegate_migrations::connect_and_load(&pool).await?;
    if let Some(role) = &gateway.write_role {
        connect::warn_of_write_role(&pool, role).await?;
    }
    pool.close().await;
    let serving = serving::Serving {
        database_url: url,
        listener: serving::listen(gateway.listen).await?,
        jwt_secret: gateway.jwt_secret.clone(),
        token_required: gateway.token_required,
        write_role: gateway.write_role.clone(),
        push: serving::PushLimits {
            lock_timeout: gateway.push_lock_timeout_ms.map(|ms| Duration::from_millis(ms.get().into())),
            subject_running_max: gateway.pushes_per_subject.map(NonZeroU32::get),
        },
        pages: None,
        wait: true,
    };
    serving::gateway(serving, stopping).await
}

/// Waits until the database takes connections. What does not pass by itself, such as a refused login, is an error.
async fn reached(url: &str) -> anyhow::Result<()> {
    let options = target::connect_options(url)?;
    let mut said = String::new();
    loop {
        let error = match connect::once(&options).await {
            Ok(connection) => {
                connection.close().await.ok();
                return Ok(());
            }
            Err(error) if !error.passes => return Err(error.into()),
            Err(error) => error,
        };
        // Once, and again when the reason changes.
        if said != error.reason {
            tracing::warn!("{error} (trying again every {} s)", RETRY.as_secs());
            said = error.reason;
        }
        tokio::time::sleep(RETRY).await;
    }
}
