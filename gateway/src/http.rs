//! `/livez`, `/readyz` and `/metrics`: what the machines around the gateway ask.
//!
//! Liveness asks nobody: a database that is down is no reason to restart this process. Readiness comes from the cached report, so
//! these routes, which need no token, cannot be used to load the database.
//!
//! For the server: merge [`router`] into its own. Nothing else is needed.

use crate::metrics::render;
use crate::readiness::Readiness;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use std::sync::Arc;

/// What the routes show.
#[derive(Clone, Debug)]
pub struct Operations {
    /// Judges readiness.
    pub readiness: Arc<Readiness>,
    /// The process's metrics.
    pub metrics: PrometheusHandle,
}

/// The routes.
pub fn router(operations: Operations) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(operations)
}

async fn livez() -> Response {
    uncached(Json(serde_json::json!({ "live": true })))
}

async fn readyz(State(operations): State<Operations>) -> Response {
    let report = operations.readiness.report().await;
    let status = if report.ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    uncached((status, Json(report.as_ref())))
}

async fn metrics(State(operations): State<Operations>) -> Response {
    // Refreshes the gauges of readiness.
    operations.readiness.report().await;
    let text = render(&operations.metrics);
    uncached(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text))
}

/// No proxy may answer in our place.
fn uncached(response: impl IntoResponse) -> Response {
    ([(header::CACHE_CONTROL, "no-store")], response).into_response()
}
