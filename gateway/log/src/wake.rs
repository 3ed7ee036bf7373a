//! Wakes: hints that a log may hold something new (S5). Never a reason to believe that it does, nor that it does not.

use tokio::sync::watch;

use crate::Place;

#[derive(Clone, Debug)]
struct State<P> {
    /// Wakes that named no position: each asks for a scan.
    unknown: u64,
    /// The newest position that a wake named.
    newest: Option<P>,
}

/// Where an adapter reports wakes.
#[derive(Clone, Debug)]
pub struct WakeSender<P>(watch::Sender<State<P>>);

/// Where a subscription awaits them. Wakes that come between two waits are joined into one.
#[derive(Clone, Debug)]
pub struct Wakes<P> {
    receiver: watch::Receiver<State<P>>,
    unknown_seen: u64,
}

/// A sender and its receiver.
pub fn wakes<P: Place>() -> (WakeSender<P>, Wakes<P>) {
    let (sender, receiver) = watch::channel(State { unknown: 0, newest: None });
    (WakeSender(sender), Wakes { receiver, unknown_seen: 0 })
}

impl<P: Place> WakeSender<P> {
    /// Something at or before `position` is visible.
    pub fn wake_at(&self, position: P) {
        self.0.send_modify(|state| {
            if state.newest.as_ref().is_none_or(|newest| *newest < position) {
                state.newest = Some(position);
            }
        });
    }

    /// Something may have changed.
    pub fn wake(&self) {
        self.0.send_modify(|state| state.unknown += 1);
    }

    /// Another receiver.
    pub fn subscribe(&self) -> Wakes<P> {
        let receiver = self.0.subscribe();
        let unknown_seen = receiver.borrow().unknown;
        Wakes { receiver, unknown_seen }
    }
}

impl<P: Place> Wakes<P> {
    /// Forgets the wakes so far. Called *before* a scan, so that one which comes during the scan is not lost.
    pub fn arm(&mut self) {
        self.unknown_seen = self.receiver.borrow_and_update().unknown;
    }

    /// Returns once a wake since [`arm`](Self::arm) suggests something beyond `at`. Never returns once every sender is gone.
    /// Cancel-safe.
    pub async fn beyond(&mut self, at: &P) {
        loop {
            {
                let state = self.receiver.borrow_and_update();
                if state.unknown > self.unknown_seen
                    || state.newest.as_ref().is_some_and(|newest| newest > at)
                {
                    return;
                }
            }
            if self.receiver.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}
