//! The demo: a shared board whose page is embedded in the binary, so that building it needs no Node.
//!
//! Source and built output are in `demo/`; CI rebuilds the output and compares.

use anyhow::Context;
use axum::Router;
use axum::extract::{Path, Query};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rust_embed::RustEmbed;
use sqlx::{Executor, PgPool};
use std::time::{Duration, SystemTime};

/// Role that the demo's pushes run as; its rights are in `demo/schema.sql`.
pub const WRITE_ROLE: &str = "tidegate_demo_writer";
/// Who may sign in to the demo by asking.
pub const USERS: [&str; 2] = ["ada", "ben"];
/// What the terminal suggests to paste.
pub const OUTSIDE_CHANGE: &str = "update demo.card set title = title || ' ✓' where id = 1";

/// Short: the page asks again whenever it connects.
const TOKEN_LIFETIME: Duration = Duration::from_secs(600);

#[derive(RustEmbed)]
#[folder = "demo/dist/"]
struct Assets;

/// Creates the demo's tables and rows, unless they are there.
///
/// # Errors
/// When the statements fail.
pub async fn install(pool: &PgPool) -> anyhow::Result<()> {
    let exists: bool = sqlx::query_scalar("select to_regclass('demo.card') is not null")
        .fetch_one(pool)
        .await
        .context("look for the demo's tables")?;
    if !exists {
        // Several statements in one simple query are one transaction: all of the demo, or nothing.
        pool.execute(include_str!("../demo/schema.sql")).await.context("create the demo's tables")?;
        tracing::info!("the demo's tables were created");
    }
    Ok(())
}

/// The page, its files, and tokens for its two users.
///
/// Only `tidegate dev` serves these: whoever can reach it may act as either user.
pub fn routes(secret: String, program: String) -> Router {
    Router::new()
        .route("/", get(|| async { asset("index.html") }))
        .route("/{*path}", get(|Path(path): Path<String>| async move { asset(&path) }))
        // What to type before a command, for the line that the page suggests.
        .route("/demo/program", get(move || async move { ([(header::CACHE_CONTROL, "no-store")], program) }))
        .route("/demo/token", get(move |query| async move { token(&secret, query) }))
}

#[derive(serde::Deserialize)]
struct TokenQuery {
    user: String,
}

fn token(secret: &str, Query(query): Query<TokenQuery>) -> Response {
    if !USERS.contains(&query.user.as_str()) {
        return (StatusCode::NOT_FOUND, "the demo has no such user").into_response();
    }
    let claims = serde_json::Map::new();
    match tidegate_gateway::auth::mint_token(
        secret.as_bytes(),
        &query.user,
        TOKEN_LIFETIME,
        &claims,
        SystemTime::now(),
    ) {
        Ok(token) => ([(header::CACHE_CONTROL, "no-store")], token).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn asset(path: &str) -> Response {
    let Some(file) = Assets::get(path) else { return StatusCode::NOT_FOUND.into_response() };
    let kind = match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    };
    // The files are small and come from this machine: always asking again spares a stale page after an upgrade.
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
        (HeaderName::from_static("x-content-type-options"), "nosniff"),
    ];
    (headers, file.data).into_response()
}
