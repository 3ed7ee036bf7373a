//! L8: what a statement does that asks for a lock which is not free. It gives up after `lock_timeout`, so that the application's
//! writes queue behind it for no longer, lets them pass, and asks again.

use std::time::Duration;

/// SQLSTATE lock_not_available.
const LOCK_TIMEOUT: &str = "55P03";
/// SQLSTATE deadlock_detected: another session took our locks in another order; the next try may succeed.
const DEADLOCK: &str = "40P01";

/// Whether the statement waited for a lock until its timeout.
pub(crate) fn timed_out(error: &sqlx::Error) -> bool {
    has_code(error, &[LOCK_TIMEOUT])
}

/// Whether the statement failed for a lock alone, so that the same may succeed later.
pub(crate) fn was_not_free(error: &sqlx::Error) -> bool {
    has_code(error, &[LOCK_TIMEOUT, DEADLOCK])
}

/// What queued behind us goes first, then we ask again: 0.1 s after the first attempt, doubling to 3.2 s.
pub(crate) async fn let_others_pass(attempt: u32) {
    tokio::time::sleep(Duration::from_millis(100 << attempt.saturating_sub(1).min(5))).await;
}

fn has_code(error: &sqlx::Error, codes: &[&str]) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| codes.contains(&code.as_ref()))
}
