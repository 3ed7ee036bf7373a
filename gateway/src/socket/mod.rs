//! Sockets: one task each, which owns everything that one client costs. It takes frames from the client and messages from the
//! hub, lets the session decide, carries out what it commands, and writes what it says, joined into few writes.

mod begin;
mod connection;
mod goodbye;
mod rate;
mod transport;
mod work;

use axum::Router;
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use std::sync::Arc;
use tidegate_protocol::{SOCKET_PATH, SUBPROTOCOL};

use crate::gateway::Shared;

/// The library fills its whole read buffer with zeros at each poll: small is cheap.
const READ_BUFFER_BYTES: usize = 4096;
/// So much beyond the limit is still read, to be refused by the frame's own judge with an orderly close.
const BEYOND_LIMIT_BYTES: usize = 64 << 10;
/// Frames smaller than this are joined into one write.
const WRITE_BUFFER_BYTES: usize = 16 << 10;

/// The socket's route.
pub(crate) fn router(shared: Arc<Shared>) -> Router {
    Router::new().route(SOCKET_PATH, any(upgrade)).with_state(shared)
}

async fn upgrade(State(shared): State<Arc<Shared>>, upgrade: WebSocketUpgrade) -> Response {
    let message_bytes_max = (shared.limits.frame_bytes_max as usize).saturating_add(BEYOND_LIMIT_BYTES);
    let upgrade = upgrade
        .protocols([SUBPROTOCOL])
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(WRITE_BUFFER_BYTES)
        // What is queued is bounded by the session; a single page may hold one large row.
        .max_write_buffer_size(usize::MAX)
        .max_message_size(message_bytes_max)
        .max_frame_size(message_bytes_max);
    if upgrade.selected_protocol().is_none() {
        return (StatusCode::BAD_REQUEST, format!("the subprotocol {SUBPROTOCOL} is required\n"))
            .into_response();
    }
    if *shared.draining.borrow() || shared.sockets.total() >= shared.limits.sockets_max {
        let retry = [(axum::http::header::RETRY_AFTER, "1")];
        return (StatusCode::SERVICE_UNAVAILABLE, retry, "no more sockets here\n").into_response();
    }
    upgrade.on_upgrade(move |socket| connection::run(shared, socket))
}
