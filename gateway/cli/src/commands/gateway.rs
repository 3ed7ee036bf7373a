//! `tidegate gateway`: runs a gateway until it is told to stop.

use crate::args::{Args, Gateway};
use crate::{output, serving, shutdown, target};
use anyhow::Context;
use std::process::ExitCode;
use tokio::sync::watch;

/// Loads the schema, serves, and drains at a signal.
pub async fn run(args: &Args, gateway: &Gateway) -> anyhow::Result<ExitCode> {
    let url = target::database_url(args)?;
    let pool = target::pool_of(&url, 1).await?;
    tidegate_migrations::connect_and_load(&pool).await?;
    pool.close().await;
    if gateway.jwt_secret.is_none() {
        tracing::warn!("no token secret: only anonymous sessions are served");
    }
    if gateway.write_role.is_none() {
        tracing::warn!("no write role: every push is refused");
    }
    let (stop, stopping) = watch::channel(false);
    let mut listening = serving::gateway(
        serving::Serving {
            database_url: url,
            listen: gateway.listen,
            jwt_secret: gateway.jwt_secret.clone(),
            token_required: gateway.token_required,
            write_role: gateway.write_role.clone(),
            pages: None,
            wait: true,
        },
        stopping,
    )
    .await?;
    output::print(args, &serde_json::json!({ "ready": true, "url": listening.url }), || {
        format!("listening at {}", listening.url)
    });
    tokio::select! {
        () = shutdown::signal() => {}
        ended = listening.part.ended() => return ended.context("gateway").map(|()| ExitCode::SUCCESS),
    }
    stop.send_replace(true);
    listening.part.finish().await;
    Ok(ExitCode::SUCCESS)
}
