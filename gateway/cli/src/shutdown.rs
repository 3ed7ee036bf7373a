//! When to stop.

use tokio::signal::unix::{SignalKind, signal as listen};

/// Completes at SIGINT or SIGTERM.
pub async fn signal() {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (listen(SignalKind::interrupt()), listen(SignalKind::terminate()))
    else {
        // Without handlers the default action ends the process, which is as good as a crash: everything durable stays.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
