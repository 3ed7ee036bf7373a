//! Waiting for a commit that the WAL already shows. A commit record is flushed, and thereby decoded, before its server process
//! leaves the list of running transactions; with synchronous standbys that may take long. What the transaction wrote into our
//! own tables (write fences, registry generations) is therefore not yet visible to other sessions when its changes arrive here.
//! Missing it would look like poison.

use crate::CaptureError;
use crate::error::Doing;
use sqlx::PgConnection;
use std::time::Duration;

/// Longest wait. Past it the session ends as for a transient failure, and the transaction comes again.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Between two looks; the window is usually microseconds wide.
const LOOK_AGAIN: Duration = Duration::from_micros(500);

/// Waits until a new snapshot of this connection sees what these transactions wrote. The connection must read committed data
/// anew with each statement.
pub(crate) async fn wait(connection: &mut PgConnection, xids: &[u32]) -> Result<(), CaptureError> {
    let deadline = tokio::time::Instant::now() + WAIT_MAX;
    loop {
        let text: String = sqlx::query_scalar("select pg_current_snapshot()::text")
            .fetch_one(&mut *connection)
            .await
            .doing("read the current snapshot")?;
        let snapshot = Snapshot::parse(&text)
            .ok_or(CaptureError::Waiting("the server's snapshot is not readable".into()))?;
        if xids.iter().all(|xid| snapshot.sees(*xid)) {
            return Ok(());
        }
        if tokio::time::Instant::now() > deadline {
            return Err(CaptureError::Waiting(
                "a decoded transaction is not visible yet: its commit waits for a standby".into(),
            ));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// `xmin:xmax:running,…` with 64-bit transaction ids.
#[derive(Debug, PartialEq, Eq)]
struct Snapshot {
    xmin: u64,
    xmax: u64,
    running: Vec<u64>,
}

impl Snapshot {
    fn parse(text: &str) -> Option<Snapshot> {
        let mut parts = text.splitn(3, ':');
        let xmin = parts.next()?.parse().ok()?;
        let xmax = parts.next()?.parse().ok()?;
        let running = parts.next()?.split(',').filter(|xid| !xid.is_empty()).map(|xid| xid.parse().ok());
        Some(Snapshot { xmin, xmax, running: running.collect::<Option<_>>()? })
    }

    /// Whether a committed transaction is visible. Decoding gives its id without epoch: it is the one nearest to the present.
    fn sees(&self, xid: u32) -> bool {
        let distance = i64::from(xid.wrapping_sub(self.xmax as u32) as i32);
        let full = self.xmax.wrapping_add_signed(distance);
        full < self.xmin || (full < self.xmax && !self.running.contains(&full))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f8_a_transaction_is_seen_once_it_has_left_the_running_ones() {
        let snapshot = Snapshot::parse("100:110:100,105").expect("a snapshot");
        for (xid, seen) in
            [(99, true), (100, false), (101, true), (105, false), (109, true), (110, false), (111, false)]
        {
            assert_eq!(snapshot.sees(xid), seen, "{xid}");
        }
        assert!(Snapshot::parse("100:100:").expect("nobody runs").sees(99));
        assert_eq!(Snapshot::parse("100"), None);
        assert_eq!(Snapshot::parse("1:2:x"), None);
    }

    #[test]
    fn ids_without_epoch_are_those_nearest_to_the_present() {
        let epoch = 1u64 << 32;
        let snapshot = Snapshot { xmin: epoch + 2, xmax: epoch + 5, running: vec![epoch + 2] };
        assert!(snapshot.sees(u32::MAX), "the end of the epoch before");
        assert!(snapshot.sees(1));
        assert!(!snapshot.sees(2));
        assert!(snapshot.sees(3));
        assert!(!snapshot.sees(5));
    }
}
