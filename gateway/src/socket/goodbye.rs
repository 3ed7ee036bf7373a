//! The end of a socket, said in order: why, when to come back, and the closing handshake.

use axum::extract::ws::WebSocket;
use bytes::Bytes;
use std::time::Duration;
use tidegate_protocol::{Bye, CloseCode, ServerFrame};
use tokio::sync::watch;

use super::begin::Refused;
use super::transport::{Incoming, Transport};
use crate::gateway::Shared;

/// How long a goodbye may take.
pub(super) const GOODBYE: Duration = Duration::from_secs(2);

/// Returns once the gateway drains.
pub(super) async fn drained(draining: &mut watch::Receiver<bool>) {
    // A sender that is gone is a gateway that is gone.
    drop(draining.wait_for(|draining| *draining).await);
}

/// Says why no session begins, and closes.
pub(super) async fn refuse(shared: &Shared, socket: &mut WebSocket, refused: Refused) {
    let frame: ServerFrame<'_> = (*refused.error).into();
    let _ = tokio::time::timeout(GOODBYE, feed(socket, frame.encode().into())).await;
    goodbye(shared, socket, refused.close).await;
}

async fn feed(socket: &mut WebSocket, frame: Bytes) {
    if std::future::poll_fn(|context| socket.poll_room(context)).await.is_ok() {
        let _ = socket.feed(frame);
    }
}

/// `bye`, close, and a moment for the other side to see them.
pub(super) async fn goodbye(shared: &Shared, socket: &mut WebSocket, code: CloseCode) {
    // Spread over all clients, so that they do not come back as one.
    let spread = shared.limits.drain_spread.as_millis().max(1);
    let reconnect_ms =
        (code == CloseCode::GoingAway).then(|| (uuid::Uuid::new_v4().as_u128() % spread) as u32);
    let bye: ServerFrame<'_> = Bye { reason: code.as_str().into(), reconnect_ms }.into();
    let said = async {
        feed(socket, bye.encode().into()).await;
        if std::future::poll_fn(|context| socket.poll_room(context)).await.is_ok() {
            let _ = socket.feed_close(code);
        }
        let _ = std::future::poll_fn(|context| socket.poll_written(context)).await;
        // What is still under way from the client would make the kernel reset the connection, and lose the goodbye.
        loop {
            match std::future::poll_fn(|context| socket.poll_incoming(context)).await {
                Incoming::Closed => break,
                // It cannot be read any more: all that is left is to give the other side time.
                Incoming::Ended => std::future::pending().await,
                _ => {}
            }
        }
    };
    let _ = tokio::time::timeout(GOODBYE, said).await;
}
