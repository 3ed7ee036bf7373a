//! Blocking work for any executor, on a thread of its own: waiting for another task's template must not stop the
//! very executor that builds it.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// Runs the work and resolves to its value; a panic of the work goes on in the caller.
pub(super) fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Blocking<T> {
    let state = Arc::new(Mutex::new(State { value: None, waker: None }));
    let theirs = Arc::clone(&state);
    std::thread::spawn(move || {
        let value = catch_unwind(AssertUnwindSafe(work));
        let mut state = theirs.lock().unwrap_or_else(PoisonError::into_inner);
        state.value = Some(value);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    });
    Blocking { state }
}

pub(super) struct Blocking<T> {
    state: Arc<Mutex<State<T>>>,
}

struct State<T> {
    value: Option<std::thread::Result<T>>,
    waker: Option<Waker>,
}

impl<T> Future for Blocking<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.value.take() {
            Some(Ok(value)) => Poll::Ready(value),
            Some(Err(panic)) => resume_unwind(panic),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
